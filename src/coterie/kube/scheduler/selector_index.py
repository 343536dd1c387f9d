"""Finds the selectors that may match a pod without asking all of them.

Nearly every selector demands one exact value of some label. Such a selector is found under that label and value; the few
others are always asked. With hundreds of workloads that have rules, a pod is so compared with its own alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from coterie.kube.api.selectors import IN, LabelSelector
from coterie.kube.scheduler.terms import Labels

T = TypeVar("T")


class LabelIndex(Generic[T]):
    """Things (hashable) under the selector that concerns them."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], dict[T, None]] = {}
        self._broad: dict[T, None] = {}

    def add(self, selector: LabelSelector, thing: T) -> None:
        label = _exact_label(selector)
        (self._broad if label is None else self._exact.setdefault(label, {}))[thing] = None

    def discard(self, selector: LabelSelector, thing: T) -> None:
        label = _exact_label(selector)
        if label is None:
            self._broad.pop(thing, None)
            return
        things = self._exact.get(label)
        if things is not None:
            things.pop(thing, None)
            if not things:
                del self._exact[label]

    def about(self, labels: Labels) -> Iterator[T]:
        """Things whose selector may match these labels; the caller still asks it."""
        yield from self._broad
        if self._exact:
            for label in labels.items():
                yield from self._exact.get(label, ())


def _exact_label(selector: LabelSelector) -> tuple[str, str] | None:
    for requirement in selector.requirements:
        if requirement.operator == IN and len(requirement.values) == 1:
            return requirement.key, next(iter(requirement.values))
    return None
