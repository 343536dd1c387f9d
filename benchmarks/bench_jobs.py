"""What jobs of two partners cost: one at a time, many at once, one of many tasks, and what stays in memory.

Two autonomous domains with their gateways, their engines and who submits share all cores. The engine is `true`, so what is
measured is everything around it; the row with `sample` has an engine that really talks to its partner. A job has ended when
a watch at the initiator says so. CPU is that of both nodes' processes together, for one job; Envoys and engines come on top.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.job_network import TRIVIAL, JobNetwork, job, job_network, task
from benchmarks.job_writes import writes_of_one
from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.node import housekeeping

T = TypeVar("T")
_LAYER = 8
_BATCH = 25
_SETTLE = 2.5 * housekeeping.CHECK_SECONDS
"""Nodes tidy up when they have been calm for a look."""
EVENTS = Kind.dynamic(builtin("events"))


class JobsLost(Exception):
    """Something that was submitted did not succeed: the numbers would mean nothing."""


def jobs(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(_measure(bench, Path(place)))


async def _measure(bench: Bench, root: Path) -> list[Row]:
    async with job_network(root, bench.bytecode) as net:
        await _succeed(net, job("warm-up"), job("warm-up-sample", image="sample"))
        return [
            *await _one_by_one(net, bench.plan.jobs, TRIVIAL, "engine `true`"),
            *await _one_by_one(net, bench.plan.jobs, "sample", "engine `sample`"),
            *[await _writes(net, image) for image in (TRIVIAL, "sample")],
            await _at_once(net, bench.plan.burst),
            await _graph(net, bench.plan.graph),
            *await _memory(net, bench.plan.remembered),
        ]


async def _succeed(net: JobNetwork, *made: Object) -> float:
    seconds, wrong = await net.run(*made)
    if wrong:
        raise JobsLost("; ".join(wrong[:5]))
    await net.remove(*made)
    return seconds


async def _one_by_one(net: JobNetwork, count: int, image: str, what: str) -> list[Row]:
    cpu, took = await _with_cpu(net, count, lambda: _each(net, count, image))
    ordered = sorted(took)
    note = f"{count} jobs, best {ordered[0] * 1e3:.0f}, worst {ordered[-1] * 1e3:.0f} ms"
    return [Row(f"two-party job, {what}, submit to Succeeded", statistics.median(took) * 1e3, "ms", cpu, note=note)]


async def _writes(net: JobNetwork, image: str) -> Row:
    """`python -m benchmarks.job_writes` shows which."""
    found = await writes_of_one(net, f"writes-{image}", image)
    kinds = Counter(write.kind for write in found).most_common()
    note = ", ".join(f"{count} {kind}" for kind, count in kinds)
    name = "true" if image == TRIVIAL else image
    return Row(f"API writes of a two-party job, engine `{name}`, both sides, with clean-up", len(found), "", note=note)


async def _each(net: JobNetwork, count: int, image: str) -> list[float]:
    return [await _succeed(net, job(f"one-{image}-{number}", image=image)) for number in range(count)]


async def _at_once(net: JobNetwork, count: int) -> Row:
    cpu, seconds = await _with_cpu(net, count, lambda: _succeed(net, *(job(f"burst-{n}") for n in range(count))))
    return Row(f"{count} two-party jobs at once", count / seconds, "jobs/s", cpu, note=f"{seconds:.1f} s, none lost")


async def _graph(net: JobNetwork, count: int) -> Row:
    """Layers in which each task waits for two of the layer before."""
    made = [
        task(f"t{n}", [f"t{n - _LAYER}", f"t{n - n % _LAYER - _LAYER + (n + 1) % _LAYER}"] if n >= _LAYER else ())
        for n in range(count)
    ]
    cpu, seconds = await _with_cpu(net, count, lambda: _succeed(net, job("graph", made, maxParallelism=_LAYER)))
    return Row(f"one job of {count} two-party tasks, {_LAYER} at once", seconds, "s", cpu, note=f"{count / seconds:.1f} tasks/s")  # fmt: skip


async def _with_cpu(net: JobNetwork, count: int, work: Callable[[], Awaitable[T]]) -> tuple[float, T]:
    """Microseconds of both nodes for each of so many, and what the work answers."""
    before = sum(side.cpu() for side in net.sides.values())
    answer = await work()
    return (sum(side.cpu() for side in net.sides.values()) - before) * 1e6 / count, answer


async def _memory(net: JobNetwork, count: int) -> list[Row]:
    """Jobs are removed when they have ended, so nothing of them should be left in memory either. The first so many fill what
    is bounded: the recent past of each collection, for watches that resume, pages of the store, and gaps between objects."""
    await _many(net, "first", count)
    before = await _settled(net)
    await _many(net, "then", count)
    after = await _settled(net)
    return [
        Row(f"memory of both nodes after {count:,} jobs came and went, PSS", before, "MiB"),
        Row(
            f"memory of both nodes after {count:,} more, PSS",
            after,
            "MiB",
            note=f"{(after / before - 1) * 100:+.1f} %, {(after - before) * 1024 / count:+.1f} KiB a job",
        ),
    ]


async def _many(net: JobNetwork, word: str, count: int) -> None:
    for first in range(0, count, _BATCH):
        await _succeed(net, *(job(f"{word}-{n}") for n in range(first, min(count, first + _BATCH))))


async def _settled(net: JobNetwork) -> float:
    """Without the events, which are kept for an hour and then go by themselves."""
    for side in net.sides.values():
        for namespace in (CROSS_DOMAIN, side.domain):
            await side.client.delete_collection(EVENTS, namespace)
    await asyncio.sleep(_SETTLE)
    return sum(side.memory() for side in net.sides.values())
