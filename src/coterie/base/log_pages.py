"""One page of log lines from the pages of several machines. Pure.

A page is searched from its newest line back to its frontier: it has every line of that time and later. Several pages together
are complete only from the newest of their frontiers on; what is older is asked for again with the next page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RawLogPage:
    lines: Sequence[Line] = ()
    """Oldest first, each with its time as `at`."""
    frontier: str = ""
    """Empty: everything was searched."""
    notes: Sequence[str] = field(default_factory=tuple)


class LogSearch(Protocol):
    """Searches the logs that one machine, or one control plane, has of the pods of a namespace, also of those that are gone."""

    async def search(self, namespace: str, params: Mapping[str, str]) -> bytes:
        """`{"lines": [...], "frontier": "...", "notes": [...]}`. What `params` may say is the product's; ApiError refuses."""
        ...


def merged(pages: Iterable[RawLogPage], limit: int) -> RawLogPage:
    """At most `limit` lines, the newest, except that lines of one time stay together."""
    pages = list(pages)
    frontier = max((page.frontier for page in pages), default="")
    lines = sorted(
        (line for page in pages for line in page.lines if line["at"] >= frontier), key=lambda line: line["at"]
    )
    if len(lines) > limit > 0:
        first = len(lines) - limit
        while first > 0 and lines[first - 1]["at"] == lines[first]["at"]:
            first -= 1
        if first > 0:
            lines, frontier = lines[first:], lines[first]["at"]
    return RawLogPage(lines, frontier, tuple(dict.fromkeys(note for page in pages for note in page.notes)))
