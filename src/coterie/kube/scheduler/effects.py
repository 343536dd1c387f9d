"""What the engine wants done to the world. It decides; `apply.py` does, and tells it how it went."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.kube.api.meta import ObjectKey
from coterie.kube.scheduler.facts import PodFacts


@dataclass(frozen=True, slots=True)
class Bind:
    pod: PodFacts
    node: str


@dataclass(frozen=True, slots=True)
class Report:
    """The pod cannot be placed now; its condition and an event say why."""

    pod: PodFacts
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evict:
    """These leave the node for the pod."""

    pod: PodFacts
    node: str
    victims: tuple[PodFacts, ...]


@dataclass(frozen=True, slots=True)
class PluginEffect:
    """Something that a plug-in wants written; the plug-in applies it."""

    key: ObjectKey
    """Effects on one key are applied one after the other."""

    @property
    def plugin(self) -> str:
        """Name of the plug-in."""
        raise NotImplementedError


Effect = Bind | Report | Evict | PluginEffect
