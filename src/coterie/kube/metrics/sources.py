"""Sources of one page of metrics, asked side by side when somebody scrapes; each has a deadline and says when it failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from coterie.base.clock import Clock
from coterie.base.exposition import Family, Row, dropped, labels, merged, text_pieces
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner

_log = logger("metrics")
_DEADLINE = 2.0
"""Seconds for one source: a page without one of them is better than none."""


class SourceFailed(Exception):
    """A source has nothing to tell now; the message says why."""


class MetricsSource(Protocol):
    @property
    def name(self) -> str: ...

    async def families(self) -> Sequence[Family]:
        """What there is now. Raises SourceFailed or OSError."""


class MetricsPage:
    """All sources of a node as one page."""

    def __init__(self, sources: Sequence[MetricsSource] = (), deadline: float = _DEADLINE) -> None:
        self.sources = list(sources)
        self._deadline = deadline
        self._failing: set[str] = set()

    async def text(self) -> str:
        """In the text format."""
        return "".join(text_pieces(await self.families()))

    async def families(self) -> list[Family]:
        """All there is now, each name once."""
        answers = await asyncio.gather(*(self._ask(source) for source in self.sources))
        found = merged(family for families, _, _ in answers for family in families)
        up: list[Row] = []
        took: list[Row] = []
        for source, (_, seconds, failed) in zip(self.sources, answers, strict=True):
            where = labels(source=source.name)
            up.append((where, 0 if failed else 1))
            took.append((where, seconds))
        found += [
            Family("coterie_source_up", "Whether a source of this page answered.", "gauge", up),
            Family("coterie_source_seconds", "Time that a source of this page took.", "gauge", took),
            Family("coterie_series_dropped", "Rows left out of this page, by family.", "gauge", dropped(found)),
        ]
        return found

    async def _ask(self, source: MetricsSource) -> tuple[Sequence[Family], float, str]:
        """(families, seconds, why it failed)."""
        began = time.monotonic()
        failed = ""
        families: Sequence[Family] = ()
        try:
            async with asyncio.timeout(self._deadline):
                families = await source.families()
        except TimeoutError:
            failed = f"no answer within {self._deadline:g} s"
        except (SourceFailed, OSError) as problem:
            failed = str(problem) or type(problem).__name__
        if failed and source.name not in self._failing:
            _log.warning("A source of metrics does not answer", source=source.name, why=failed)
            self._failing.add(source.name)
        elif not failed:
            self._failing.discard(source.name)
        return families, time.monotonic() - began, failed


class SampledSource:
    """A source that is too slow for a scrape: it is asked in the background, and scrapes get what it answered last.

    It is asked when somebody scrapes and the last answer is old, so nothing is measured that nobody wants to know. Only the
    first scrape waits.
    """

    def __init__(self, source: MetricsSource, clock: Clock, owner: TaskOwner, lasts: float = 10.0) -> None:
        self.name = source.name
        self._source = source
        self._clock = clock
        self._owner = owner
        self._lasts = lasts
        self._found: Sequence[Family] = ()
        self._failed: SourceFailed | OSError | None = None
        self._at = -lasts
        self._asking: asyncio.Task[None] | None = None

    async def families(self) -> Sequence[Family]:
        first = self._asking is None
        if self._clock.monotonic() - self._at >= self._lasts and (self._asking is None or self._asking.done()):
            self._asking = self._owner.start(f"sample-{self.name}", self._ask())
        if first and self._asking is not None:
            await asyncio.shield(self._asking)
        if self._failed is not None:
            raise SourceFailed(str(self._failed)) from self._failed
        return self._found

    async def _ask(self) -> None:
        try:
            self._found = await self._source.families()
            self._failed = None
        except (SourceFailed, OSError) as problem:
            self._failed = problem
        self._at = self._clock.monotonic()
