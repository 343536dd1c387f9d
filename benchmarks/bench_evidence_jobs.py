"""What evidence adds to a trivial job of two partners: two networks side by side, one of which records nothing, and a job in each by turns.

    python -m benchmarks.bench_evidence_jobs 40 [DIR]

The engine is `true`. Both networks are there all the time, and each pair of jobs sees the same machine, so the difference holds also where other
things run. What goes on after a job (cosignatures, the statements of its tasks) ends before the next one begins. CPU is that of both nodes' processes
together, for one job with all that follows it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench_jobs import JobsLost
from benchmarks.job_network import JobNetwork, job, job_network
from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.kuscia.api import evidence
from coterie.kuscia.evidence.log_file import EvidenceReader

UNRECORDED = "benchmarks.unrecorded_node"
_WARM_UP = 2
_SETTLE = 2.5
"""Seconds in which partners have cosigned and signed the statements (`witnesses.py`, `statement_exchange.py`)."""


@dataclass(slots=True)
class Measured:
    """One network: seconds and CPU seconds of each job."""

    net: JobNetwork
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def one(self, name: str) -> None:
        before = self._used()
        made = job(name)
        seconds, wrong = await self.net.run(made)
        if wrong:
            raise JobsLost("; ".join(wrong))
        await asyncio.sleep(_SETTLE)
        await self.net.remove(made)
        self.seconds.append(seconds)
        self.cpu.append(self._used() - before)

    def _used(self) -> float:
        return sum(side.cpu() for side in self.net.sides.values())


async def measure(root: Path, count: int, bytecode: Path | None = None) -> list[Row]:
    async with AsyncExitStack() as stack:
        without, recorded = [
            Measured(await stack.enter_async_context(job_network(root / name, bytecode, module)))
            for name, module in (("u", UNRECORDED), ("r", "coterie"))
        ]
        for number in range(_WARM_UP):
            for each in (without, recorded):
                await each.one(f"warm-up-{number}")
        for each in (without, recorded):
            each.seconds.clear()
            each.cpu.clear()
        for number in range(count):
            # Whoever comes second has warmer caches.
            for each in (without, recorded) if number % 2 else (recorded, without):
                await each.one(f"one-{number}")
        _check(root)
        return compared(without.seconds, recorded.seconds, without.cpu, recorded.cpu)


def _check(root: Path) -> None:
    """That one network recorded tasks and the other did not: else nothing was compared."""
    for name, wanted in (("u", False), ("r", True)):
        for path in (root / name).glob("*/var/storage/evidence/1/evidence.db"):
            kinds = {evidence.decode(each.body).kind for each in EvidenceReader(path).events() if each.body is not None}
            if (evidence.TASK_STARTED in kinds) is not wanted:
                raise JobsLost(f"{path} has {'no ' if wanted else ''}events of tasks")


def compared(
    without: list[float], recorded: list[float], without_cpu: list[float], recorded_cpu: list[float]
) -> list[Row]:
    more = [(b - a) * 1e3 for a, b in zip(without, recorded, strict=True)]
    middle = statistics.quantiles(more, n=4) if len(more) > 1 else [more[0]] * 3
    cpu, cpu_without = statistics.mean(recorded_cpu) * 1e6, statistics.mean(without_cpu) * 1e6
    note = f"median of {len(more)} pairs, quartiles {middle[0]:+.1f} and {middle[2]:+.1f} ms"
    return [
        Row("two-party job, engine `true`, nothing recorded", statistics.median(without) * 1e3, "ms", cpu_without),
        Row("two-party job, engine `true`, with evidence", statistics.median(recorded) * 1e3, "ms", cpu),
        Row("two-party job: what evidence adds", statistics.median(more), "ms", cpu - cpu_without, note=note),
    ]


def rows(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(measure(Path(place), bench.plan.jobs, bench.bytecode))


def main(count: str = "40", folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for row in asyncio.run(measure(Path(place), int(count))):
            print(f"{row.what:<50} {row.value:>8.1f} {row.unit}  CPU {(row.cpu or 0) / 1e3:.1f} ms  {row.note}")


if __name__ == "__main__":
    main(*sys.argv[1:])
