"""Pages of metrics that pods serve themselves, as a part of the node's page.

Fetched through the pods' network, a few at a time and each within two seconds; a pod that does not answer, or answers with something
else, is named by `coterie_source_up 0` and harms nobody. Asked in the background (`SampledSource`), never by a scrape.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httptools

from coterie.base.exposition import Family, Row, labels
from coterie.base.log import logger
from coterie.kube.agent.runtimes.protocol import PodAccess, RuntimeFailure
from coterie.kube.agent.server.page_parser import PageError, PageMerger, ParsedPage, parse_page
from coterie.kube.agent.server.pod_metrics import fetch_page

_log = logger("agent.metrics")
_TIMEOUT = 2.0
_AT_ONCE = 8
MAX_BYTES = 1 << 20
SOURCE = "engine"


@dataclass(frozen=True, slots=True)
class PodPage:
    """Where a pod shows metrics, and the labels that its rows get."""

    uid: str
    port: int
    path: str
    labels: Mapping[str, str]


class PodPagesSource:
    """A source of metrics. Its families come from outside, so the node's own names win over them."""

    name = "engines"

    def __init__(
        self,
        runtime: PodAccess,
        pages: Callable[[], Sequence[PodPage]],
        *,
        prefixes: tuple[str, ...] = (),
        names: frozenset[str] = frozenset(),
        timeout: float = _TIMEOUT,
    ) -> None:
        """`prefixes`, `names`: of the product's own families, besides the platform's."""
        self._reserved = (prefixes, names)
        self._runtime = runtime
        self._pages = pages
        self._timeout = timeout
        self._dropped: Counter[str] = Counter()
        self._failing: set[str] = set()

    async def families(self) -> Sequence[Family]:
        wanted = list(self._pages())
        merger = PageMerger(*self._reserved)
        up: list[Row] = []
        for at in range(0, len(wanted), _AT_ONCE):
            group = wanted[at : at + _AT_ONCE]
            for page, text in zip(group, await asyncio.gather(*map(self._fetch, group)), strict=True):
                parsed = self._parsed(page, text)
                up.append((labels(source=SOURCE, **page.labels), int(parsed is not None)))
                if parsed is not None:
                    merger.add(parsed)
                await asyncio.sleep(0)  # two thousand series take some milliseconds
        self._failing &= {page.uid for page in wanted}
        self._dropped.update(merger.dropped)
        return [
            *merger.families(),
            Family("coterie_source_up", "Whether a source of this page answered.", "gauge", up),
            Family(
                "coterie_engine_series_dropped_total",
                "Rows of engines' own pages that were left out, by reason.",
                "counter",
                [(labels(reason=reason), count) for reason, count in sorted(self._dropped.items())],
            ),
        ]

    async def _fetch(self, page: PodPage) -> str | Exception:
        try:
            async with asyncio.timeout(self._timeout):
                return await fetch_page(self._runtime, page.uid, page.port, page.path, MAX_BYTES)
        except (RuntimeFailure, OSError, EOFError, ValueError, httptools.HttpParserError) as problem:
            return problem

    def _parsed(self, page: PodPage, text: str | Exception) -> ParsedPage | None:
        problem = text
        if isinstance(text, str):
            try:
                parsed = parse_page(text, page.labels)
            except PageError as malformed:
                problem = malformed
            else:
                self._failing.discard(page.uid)
                return parsed
        if page.uid not in self._failing:
            self._failing.add(page.uid)
            why = str(problem) or type(problem).__name__
            _log.warning("The metrics of a pod cannot be read", pod=page.labels.get("pod", ""), why=why[:200])
        return None
