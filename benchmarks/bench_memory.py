"""What two domains at rest weigh: `coterie up`, nothing submitted, then all processes of both domains.

PSS, by process: memory that several processes share counts by its part. Programs of others that have the same libraries loaded
make it smaller, so this is for a quiet machine. Then one trivial job runs, and the same again when it is over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.job_network import PARTIES, JobNetwork, job
from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base.paths import DomainPaths
from coterie.cli import process_usage
from coterie.node import housekeeping

_IDLE = 3 * housekeeping.CHECK_SECONDS
_PROGRAMS = {
    "\0start\0": "node",
    "rootless.relay": "relay",
    "envoy\0": "Envoy",
    "runp.supervisor": "supervisor",
    "coterie-netns": "network",
}


def memory(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(_measure(bench, Path(place)))


async def _measure(bench: Bench, root: Path) -> list[Row]:
    net = JobNetwork(root, bench.bytecode)
    idle = min(_IDLE, bench.plan.idle)
    try:
        await net.start()
        await asyncio.sleep(idle)
        rows = [_row("two idle domains with their gateways, PSS", weigh(root))]
        await net.connect()
        made = job("only-one")
        _, wrong = await net.run(made)
        if wrong:
            raise RuntimeError("; ".join(wrong))
        await net.remove(made)
        await net.disconnect()
        await asyncio.sleep(idle)
        return [*rows, _row("two domains at rest after a trivial job, PSS", weigh(root))]
    finally:
        await net.down()


async def idle_total(bench: Bench, root: Path) -> float:
    """PSS in MiB of two domains at rest."""
    net = JobNetwork(root, bench.bytecode)
    try:
        await net.start()
        await asyncio.sleep(min(_IDLE, bench.plan.idle))
        return sum(sum(each) for each in weigh(root).values())
    finally:
        await net.down()


def weigh(root: Path) -> dict[str, list[float]]:
    """PSS in MiB of each process of the domains, by program."""
    table = process_usage.processes()
    found: dict[str, list[float]] = {}
    for domain in PARTIES:
        for pid in process_usage.belonging(table, f"{DomainPaths.of(root, domain).home}/"):
            line = table[pid][1]
            program = next((name for mark, name in _PROGRAMS.items() if mark in line), "other")
            found.setdefault(program, []).append(process_usage.pss_kb(pid) / 1024)
    return found


def _row(what: str, parts: Mapping[str, list[float]]) -> Row:
    told = (f"{name} {' + '.join(f'{each:.1f}' for each in parts[name])}" for name in sorted(parts))
    return Row(what, sum(sum(each) for each in parts.values()), "MiB", note=", ".join(told))
