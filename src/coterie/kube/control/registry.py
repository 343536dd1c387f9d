"""Controllers as declared data: name, module, the kinds that wake it, whose events it writes, what it needs of the node.

    CONTROLLERS (kube/controllers/registry.py, and a product's own) ──build──> Runnables

A controller that names kinds is loaded when the first object of one of them is seen (`lazy_controller.py`); one that names
none runs from the start. What a controller needs besides client, informers and clock it gets by name from `provided`, so no
registry imports the composition root and no part searches for another.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.base.clock import Clock
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.lazy_controller import LazyController
from coterie.kube.control.manager import Runnable

Provided = Mapping[str, Callable[[], Any]]
"""What the node provides, by name; each is called when a controller that needs it is made."""


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    name: str
    module: str
    """Has `make(client, informers, *, clock, **options)`; with `events` also `events`."""
    wakes_for: tuple[Kind[Any], ...] = ()
    """The first object of one of these kinds starts it; none: it runs from the start."""
    namespace: str = ""
    """Where these objects lie; empty: anywhere."""
    events: str = ""
    """Component of its events, shown in the column From of a description."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Options of `make`: name of the option -> name of what the node provides."""
    only_with: str = ""
    """Left out unless the node provides this."""


def build(
    specs: Sequence[ControllerSpec], client: Client, informers: Informers, provided: Provided, clock: Clock
) -> list[Runnable]:
    """Those that run from the start come first, ready-made; the others sleep."""
    chosen = [spec for spec in specs if not spec.only_with or spec.only_with in provided]

    def made(spec: ControllerSpec) -> list[Runnable]:
        module = importlib.import_module(spec.module)
        options = {option: provided[name]() for option, name in spec.needs.items()}
        if not spec.events:
            return [module.make(client, informers, clock=clock, **options)]
        events = EventRecorder(client, spec.events, clock=clock)
        return [events, module.make(client, informers, events=events, clock=clock, **options)]

    def lazy(spec: ControllerSpec) -> LazyController:
        wakers = [informers.get(kind, spec.namespace) for kind in spec.wakes_for]
        return LazyController(spec.name, wakers, lambda: made(spec))

    started = [runnable for spec in chosen if not spec.wakes_for for runnable in made(spec)]
    return [*started, *(lazy(spec) for spec in chosen if spec.wakes_for)]
