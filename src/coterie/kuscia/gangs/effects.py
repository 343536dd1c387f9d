"""What a gang wants written: the phase of its TaskResource."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.kube.scheduler.effects import PluginEffect

PLUGIN = "gangs"


@dataclass(frozen=True, slots=True)
class MarkReserved(PluginEffect):
    """The gang's room is taken: its TaskResource goes from Reserving to Reserved."""

    @property
    def plugin(self) -> str:
        return PLUGIN


@dataclass(frozen=True, slots=True)
class MarkWaiting(PluginEffect):
    """The gang cannot reserve now; the condition of its TaskResource's phase says why."""

    message: str

    @property
    def plugin(self) -> str:
        return PLUGIN


@dataclass(frozen=True, slots=True)
class MarkFailed(PluginEffect):
    """The gang gave its room back."""

    message: str

    @property
    def plugin(self) -> str:
        return PLUGIN
