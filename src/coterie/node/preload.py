"""What a node has loaded when it is ready: loaded once, for several nodes that are then forked from this process.

Each of them would load the same modules and read the same schemas. Forked, they share the memory of that (docs/benchmarks.md has
the figures) and all but one of them save the time. A module that is missing here is loaded by the node itself: no harm done.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable

from coterie.node.parts.registry import PARTS

_PLANE = (
    "coterie.kuscia.api.domainroutes",
    "coterie.base.signatures",
    "coterie.kuscia.controllers.clusterdomainroute.controller",
    "coterie.kuscia.controllers.domainroute.controller",
    "coterie.kuscia.controllers.gateway.controller",
    "coterie.kube.controllers.nodelifecycle.controller",
    "coterie.node.domain_keys_process",
    "re2",
)
_AGENT = ("coterie.node.domain_keys_process",)
_ALSO = {"master": _PLANE, "lite": _AGENT, "autonomy": (*_PLANE, *_AGENT)}


def preload(modes: Iterable[str]) -> None:
    """For a process without threads that forks next: whatever is here now is left alone by the collector, and so stays shared."""
    gc.disable()
    for mode in modes:
        # Nodes of a local network register or are control planes; none joins with a file.
        parts = [part.module for part in PARTS if mode in part.modes and part.name != "join"]
        for name in ("coterie.node.modes", *parts, *_ALSO[mode]):
            importlib.import_module(name)
        if mode != "lite":
            importlib.import_module("coterie.kube.api.schema.builtin").load().compile_common()
    gc.collect()
    gc.freeze()
    gc.enable()
