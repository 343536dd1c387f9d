"""The order of admission, and what an admission step is: a function that looks at an attempt and refuses or amends it.

A step may take something up until the write is done (a quota's room): it appends the undoing to `attempt.release`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from coterie.http.messages import Request, UserInfo
from coterie.kube.api.resources import Resource

Object = dict[str, Any]


@dataclass(slots=True)
class AdmissionRequest:
    """One write about to be decided. Steps may change `obj` in place; `old` is None for a create."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    obj: Object
    old: Object | None
    user: UserInfo
    dry_run: bool
    subresource: str = ""
    release: list[Callable[[], None]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Sent with the answer."""
    request: Request | None = None
    """The request that asks for it, where audit annotations are kept; None for writes of the server itself."""
    preview: bool = False
    """Webhooks will change the object, and the steps will see it again: a step that only refuses may wait for that."""
    repeated: bool = False
    """The steps have seen it before, and webhooks in between: a step that may act only once leaves it alone."""

    guards: dict[str, int] = field(default_factory=dict)
    """Keys and revisions of the guards that what was given away depends on (`state.py`)."""

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def annotate(self, key: str, value: str) -> None:
        """Add an annotation to the audit event of the request."""
        if self.request is not None:
            self.request.annotations = {**(self.request.annotations or {}), key: value}


Step = Callable[[AdmissionRequest], None]
GuardOf = Callable[[str], tuple[str, int]]
"""The key of a guard and the revision that was seen of it."""
LazyStep = Callable[[Callable[[], AdmissionRequest]], None]
"""A step for requests that seldom concern it: the attempt is made only when the step wants to see it."""


def admit_all(attempt: Callable[[], AdmissionRequest]) -> None:
    """A LazyStep that refuses nothing."""


class AdmissionReservations:
    """What the attempts of one write hold until it is done."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._attempts: list[AdmissionRequest] = []

    def admit(self, attempt: AdmissionRequest) -> None:
        self._attempts.append(attempt)
        for step in self._steps:
            step(attempt)

    @property
    def seen(self) -> tuple[tuple[str, int], ...]:
        """The guards of the last attempt, which is the one that is written."""
        return tuple(self._attempts[-1].guards.items()) if self._attempts else ()

    def release(self) -> None:
        for attempt in self._attempts:
            for undo in attempt.release:
                undo()


class Admission:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)

    @contextmanager
    def reserving(self) -> Iterator[AdmissionReservations]:
        reservations = AdmissionReservations(self._steps)
        try:
            yield reservations
        finally:
            reservations.release()
