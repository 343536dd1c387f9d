"""Measure everything and print one table.

    python -m benchmarks.run                             print it
    python -m benchmarks.run --write docs/benchmarks.md  and keep it
    python -m benchmarks.run --only watches --quick      see that a part works

The server has one core to itself, the load comes from another; a node with pods, its pods and who makes them share all
cores. "CPU µs each" is the server's CPU time for one operation (for pods: the node's and its supervisor's, from creation to
removal) and says more than the clock on a machine that does other things too. A ratio of 1 is the prototype's figure,
more is better; 0.8 is what was asked for.

Gateways share one core, client and service the other, and CPU time is that of both gateways together. Their "prototype" is
the pair of Envoys set up by hand (mutual TLS and HTTP/2 between them, nothing else); 0.9 is what was asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    bench_api,
    bench_autoscaling,
    bench_boundary,
    bench_cluster,
    bench_console,
    bench_data,
    bench_engines,
    bench_evidence,
    bench_evidence_jobs,
    bench_functions_bus,
    bench_functions_calls,
    bench_functions_cold,
    bench_gateway,
    bench_images,
    bench_jobs,
    bench_logs,
    bench_memory,
    bench_metrics,
    bench_ordinary,
    bench_pods,
    bench_psi,
    bench_runtimes,
    bench_scheduler,
    bench_services,
    bench_store,
    bench_stores,
    bench_traces,
    bench_transport,
    measures,
    simulate_domains,
)
from benchmarks.measures import Bench, Plan
from benchmarks.node import Cores
from benchmarks.table import Row, markdown
from coterie.kube.store import SqliteStore

Section = Callable[[Bench], list[Row]]


def store(bench: Bench) -> list[Row]:
    """The store alone, without HTTP: what the API server's writes cannot be faster than."""

    async def measure(folder: Path) -> list[Row]:
        log = SqliteStore(folder / "bench.db")
        await log.open()
        rows = []
        for writers, prototype in ((1, None), (64, None)):
            rate, median = await bench_store.commits(log, writers, bench.plan.seconds)
            rows.append(Row(f"store: commit of 2.4 kB, {writers} at once", rate, "/s", None, prototype, note=f"p50 {median:.2f} ms"))  # fmt: skip
        cost = await bench_store.settle_cost(log)
        rows.append(Row("store: CPU of a commit, all threads", cost, "µs", cost))
        await log.close()
        return rows

    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(measure(Path(place)))


def scheduler(bench: Bench) -> list[Row]:
    """Decisions alone, without an API server: a simulated cluster."""
    nodes, pods = bench.plan.cluster
    what = {
        "alone": "one by one",
        "gangs": "gangs of 3",
        "picky": "with affinities and spreading",
        "full": "one place free, many wait",
    }
    return [
        Row(
            f"scheduler: {nodes} nodes, {pods} pods, {what[done.name]}", done.rate, "/s", 1e6 / done.rate,
            note=f"{done.decisions} decisions, {done.megabytes:.0f} MB more",
        )
        for done in bench_scheduler.measure(nodes, pods)
    ]  # fmt: skip


SECTIONS: dict[str, Section] = {
    "yardsticks": measures.yardsticks,
    "store": store,
    "evidence": bench_evidence.rows,
    "bus": bench_functions_bus.bus,
    "transport": bench_transport.transport,
    "calls": bench_functions_calls.calls,
    "cold": bench_functions_cold.cold,
    "requests": measures.creates_and_gets,
    "lists": measures.lists_and_memory,
    "watches": measures.watches,
    "starts": measures.starts,
    "scheduler": scheduler,
    "autoscaling": bench_autoscaling.autoscaling,
    "metrics": bench_metrics.metrics,
    "traces": bench_traces.traces,
    "services": bench_services.services,
    "pods": bench_pods.pods,
    "images": bench_images.images,
    "api": bench_api.api,
    "gateway": bench_gateway.gateway,
    "boundary": bench_boundary.boundary,
    "runtimes": bench_runtimes.runtimes,
    "cluster": bench_cluster.cluster,
    "memory": bench_memory.memory,
    "ordinary": bench_ordinary.ordinary,
    "jobs": bench_jobs.jobs,
    "evidence-jobs": bench_evidence_jobs.rows,
    "logs": bench_logs.rows,
    "console": bench_console.console,
    "data": bench_data.data,
    "engines": bench_engines.engines,
    "psi": bench_psi.psi,
    "stores": bench_stores.rows,
    "domains": simulate_domains.rows,
}


def document(rows: Sequence[Row], cores: Cores) -> str:
    where = f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    one = "" if cores.server != cores.load else " **Only one core is available: server and load share it.**"
    load = os.getloadavg()[0]
    return (
        f"# Benchmarks\n\n{__doc__.partition('The server has')[1]}{(__doc__ or '').partition('The server has')[2]}\n"
        f"Measured {datetime.now(UTC):%Y-%m-%d} on {where}, load average {load:.1f} at the end.{one}\n\n{markdown(rows)}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a moment of everything; the numbers mean nothing")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a part; may be given several times")
    parser.add_argument("--write", metavar="FILE", type=Path, help="also write the table to a file")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where the nodes live: the disk that is measured")
    args = parser.parse_args(arguments)
    cores = Cores.pick()
    with tempfile.TemporaryDirectory(prefix="coterie-bench-", dir=args.dir) as folder:
        bench = Bench(Plan.quick() if args.quick else Plan(), Path(folder), cores)
        with bench.node():
            pass  # the first start compiles the modules; no measured one shall
        rows: list[Row] = []
        for name in args.only or SECTIONS:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            rows += SECTIONS[name](bench)
    text = document(rows, cores)
    print(text, end="")
    if args.write:
        args.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
