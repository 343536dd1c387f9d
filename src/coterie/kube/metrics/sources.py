"""Sources of one page of metrics, asked side by side when somebody scrapes; each has a deadline and says when it failed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from coterie.base.clock import Clock
from coterie.base.exposition import MAX_ROWS, Family, Row, labels, merged, text_pieces
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner

_log = logger("metrics")
_DEADLINE = 2.0
"""Seconds for one source: a page without one of them is better than none."""


SOURCE_UP = "coterie_source_up"
_SHARED = frozenset((SOURCE_UP,))
"""Families of the page itself to which foreign sources add rows of their own making."""
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def series_names(family: Family) -> list[str]:
    """Names that rows of the family have, and its name in OpenMetrics."""
    return [
        family.name,
        family.name.removesuffix("_total"),
        *(family.name + suffix for suffix in _SUFFIXES.get(family.kind, ())),
    ]


class SourceFailed(Exception):
    """A source has nothing to tell now; the message says why."""


class MetricsSource(Protocol):
    @property
    def name(self) -> str: ...

    async def families(self) -> Sequence[Family]:
        """What there is now. Raises SourceFailed or OSError."""


class MetricsPage:
    """All sources of a node as one page."""

    def __init__(
        self,
        sources: Sequence[MetricsSource] = (),
        deadline: float = _DEADLINE,
        *,
        foreign: Sequence[MetricsSource] = (),
    ) -> None:
        """`foreign`: sources whose families others wrote (engines). What has a name of ours is left out of them."""
        self.sources = [*sources, *foreign]
        self._foreign = frozenset(source.name for source in foreign)
        self._dropped: Counter[str] = Counter()
        self._deadline = deadline
        self._failing: set[str] = set()

    async def text(self) -> str:
        """In the text format."""
        return "".join(text_pieces(await self.families()))

    async def families(self) -> list[Family]:
        """All there is now, each name once."""
        answers = await asyncio.gather(*(self._ask(source) for source in self.sources))
        own = [
            family
            for source, (families, _, _) in zip(self.sources, answers, strict=True)
            for family in families
            if source.name not in self._foreign
        ]
        taken = {name: family.name for family in own for name in series_names(family)}
        own += [
            family
            for source, (families, _, _) in zip(self.sources, answers, strict=True)
            if source.name in self._foreign
            for family in self._without_collisions(families, taken)
        ]
        up: list[Row] = []
        took: list[Row] = []
        for source, (_, seconds, failed) in zip(self.sources, answers, strict=True):
            where = labels(source=source.name)
            up.append((where, 0 if failed else 1))
            took.append((where, seconds))
        own += [
            Family(SOURCE_UP, "Whether a source of this page answered.", "gauge", up),
            Family("coterie_source_seconds", "Time that a source of this page took.", "gauge", took),
        ]
        found = merged(own)
        for family in found:
            if len(family.rows) > MAX_ROWS:
                self._dropped[family.name] += len(family.rows) - MAX_ROWS
        rows = [(labels(family=name), count) for name, count in self._dropped.items()]
        words = "Rows left out of this page, by family."
        found.append(Family("coterie_series_dropped_total", words, "counter", rows))
        return found

    def _without_collisions(self, families: Sequence[Family], taken: dict[str, str]) -> list[Family]:
        found = []
        for family in families:
            collides = next((taken[name] for name in series_names(family) if name in taken), "")
            if collides and family.name not in _SHARED:
                self._dropped[collides] += len(family.rows)
            else:
                found.append(family)
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
