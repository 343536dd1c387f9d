"""What a store counts, as families for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from coterie.base.exposition import Family, labels
from coterie.base.measurements import Histogram

_COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class StoreMetrics:
    def __init__(self) -> None:
        self.transactions = 0
        self.rows = 0
        """Revisions written."""
        self.failures = 0
        self.durations = Histogram(_COMMIT_SECONDS)
        """Of transactions, the wait for the disk included; empty for a store in memory."""
        self.compactions = 0
        self.compaction_seconds = 0.0

    def compacted(self, seconds: float) -> None:
        self.compactions += 1
        self.compaction_seconds += seconds

    def families(self, sizes: Mapping[str, int]) -> list[Family]:
        def one(name: str, words: str, kind: str, value: float) -> Family:
            return Family(f"coterie_store_{name}", words, kind, [("", value)])

        return [
            one("transactions_total", "Transactions that were written.", "counter", self.transactions),
            one("writes_total", "Changes of objects that were written.", "counter", self.rows),
            one("failures_total", "Transactions that failed.", "counter", self.failures),
            Family(
                "coterie_store_commit_seconds",
                "Duration of transactions, until they are on disk.",
                "histogram",
                self.durations.rows(),
            ),
            one("compactions_total", "Compactions.", "counter", self.compactions),
            one("compaction_seconds_total", "Time spent on compactions.", "counter", self.compaction_seconds),
            Family(
                "coterie_store_size_bytes",
                "Size on disk, by part.",
                "gauge",
                [(labels(part=part), size) for part, size in sizes.items()],
            ),
        ]


class MeasuredStore(Protocol):
    @property
    def metrics(self) -> StoreMetrics: ...

    def sizes(self) -> Mapping[str, int]: ...


class StoreSource:
    """A source of metrics."""

    name = "store"

    def __init__(self, store: MeasuredStore) -> None:
        self._store = store

    async def families(self) -> Sequence[Family]:
        return self._store.metrics.families(await asyncio.to_thread(self._store.sizes))
