"""The extension point of autoscaling: a product may allow fewer replicas than metrics ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """The growth of a target that an autoscaler is about to write."""

    group: str
    kind: str
    namespace: str
    name: str
    current: int
    wanted: int


@dataclass(frozen=True, slots=True)
class ScaleAllowance:
    replicas: int
    """At least the current number."""
    why: str
    """Why not all of them; a sentence for people."""


class ScaleHook(Protocol):
    def allow(self, request: ScaleRequest) -> ScaleAllowance | None:
        """None: all that is wanted. Synchronous, so that what it reserves is reserved when it answers."""
