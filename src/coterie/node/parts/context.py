"""What the parts of one node share while they are put together: settings, clock, and what parts provide by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.base.clock import Clock
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.metrics.sources import MetricsSource
from coterie.node.config import NodeSettings

T = TypeVar("T")


@dataclass(slots=True)
class NodeContext:
    settings: NodeSettings
    """A part may replace them for those that come after it."""
    clock: Clock
    metrics_sources: list[MetricsSource] = field(default_factory=list)
    """Asked when somebody scrapes. The part `metrics` is built last and serves them."""
    sampled_metrics_sources: list[MetricsSource] = field(default_factory=list)
    """Too slow for a scrape: asked in the background while somebody scrapes."""
    protections_off: list[str] = field(default_factory=list)
    """What parts find missing; each is an event of the evidence log at every start."""
    _provided: dict[str, Any] = field(default_factory=dict)

    def provide(self, name: str, value: object) -> None:
        assert name not in self._provided, f"{name} is provided twice"
        self._provided[name] = value

    def get(self, name: str, type_: type[T]) -> T:
        """What an earlier part provides."""
        value = self._provided[name]
        assert isinstance(value, type_), f"{name} is no {type_.__name__}"
        return value

    def find(self, name: str, type_: type[T]) -> T | None:
        """As `get`, for what this node may not have."""
        return self.get(name, type_) if name in self._provided else None

    @property
    def client(self) -> Client:
        return self.get("client", Client)

    @property
    def informers(self) -> Informers:
        return self.get("informers", Informers)
