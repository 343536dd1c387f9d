"""Intersections of two tables by hand and under Coterie, one after the other, on the same rows.

    python -m benchmarks.bench_psi [--rows 1000000] [--protocols RR22,ECDH] [--core 0] [--memory 2G]

By hand: two processes with the same library, on CSV files, calling each other directly; "tuned" is with what the engine tells
the library (keys that come once, in order, smaller buckets). Under Coterie: the job of `coterie demo psi`, from its creation
to its end, with data meshes, gateways and control planes, whose memory and processor time count too. With --core all of it
shares one core, with --memory also so much memory (of a control group: only root can).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import confined
from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.cli import process_usage, psi_demo, psi_environment
from coterie.cli.app import App

_MEMORY = 2 << 30


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    peaks: dict[str, float]
    """Megabytes, by party."""
    cpu: dict[str, float]
    """Seconds, by party."""
    common: int


def by_hand(place: Path, rows: int, protocol: str, folder: Path, *, tuned: bool = False) -> Result:
    tables = {"alice": ("id", psi_demo.customers(rows)), "bob": ("uid", psi_demo.visitors(rows))}
    heads = {"alice": "id,city,spent\n", "bob": "uid,visits,member\n"}
    port = _free_ports()
    commands = []
    for rank, (party, (key, lines)) in enumerate(tables.items()):
        home = folder / party
        home.mkdir()
        ordered = sorted(lines) if tuned else lines
        (home / "in.csv").write_text("".join((heads[party], *ordered)), encoding="utf-8")
        program = [str(place / "bin" / "python"), "-m", "benchmarks.psi_byhand", str(rank), str(port), protocol]
        commands.append([*program, str(home / "in.csv"), key, str(home / "out.csv"), *(["tuned"] if tuned else [])])
    homes = {party: folder / party for party in tables}
    began = time.perf_counter()
    with process_usage.MemoryPeaks(homes) as used:
        running = [
            subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(folder))
            for each in commands
        ]
        codes = [each.wait() for each in running]
    seconds = time.perf_counter() - began
    if any(codes):
        raise SystemExit(f"by hand, {protocol}: the parties ended with {codes}")
    with (folder / "alice" / "out.csv").open("rb") as file:
        return Result(seconds, used.mb, used.cpu, sum(1 for _ in file) - 1)


def under_coterie(rows: int, protocol: str, group: confined.Group | None = None) -> Result:
    words = ["demo", "psi", "--rows", str(rows), "--protocol", protocol, "-o", "json"]
    command = [sys.executable, "-m", "coterie", *words]
    command = group.within(command) if group else command
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"under Coterie, {protocol}: {done.stderr}")
    told = json.loads(done.stdout)
    return Result(told["seconds"], told["peak_mb"], told["cpu_seconds"], told["intersection"])


def _free_ports() -> int:
    """Two in a row."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])}


def ways(place: Path, rows: int, protocol: str, group: confined.Group | None = None) -> Iterator[tuple[str, Result]]:
    for tuned in (False, True):
        with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
            yield f"by hand{', tuned' if tuned else ''}", by_hand(place, rows, protocol, Path(folder), tuned=tuned)
    yield "under Coterie", under_coterie(rows, protocol, group)


def psi(bench: Bench) -> list[Row]:
    """RR22 and ECDH with all cores, then RR22 with everything on one core and in 2 GB."""
    app, rows = App.standard(), bench.plan.keys
    place = psi_environment.directory(app)
    if not psi_environment.installed(place):
        print("psi: left out, the environment of the engine is not there: make psi", file=sys.stderr)
        return []
    psi_environment.install(app)
    found: list[Row] = []
    for protocol in ("RR22", "ECDH"):
        found += _rows(place, rows, protocol, f"PSI {rows:,} x {rows:,}, {protocol}")
    with confined.on_core(bench.cores.server), ExitStack() as stack:
        what, group = f"PSI {rows:,} x {rows:,}, RR22, one core", None
        try:
            group = stack.enter_context(confined.in_memory(_MEMORY))
            what += " and 2 GB"
        except confined.CannotConfine as problem:
            print(f"psi: without a limit of memory: {problem}", file=sys.stderr)
        return found + list(_rows(place, rows, "RR22", what, group))


def _rows(place: Path, rows: int, protocol: str, what: str, group: confined.Group | None = None) -> Iterator[Row]:
    first: Result | None = None
    for way, result in ways(place, rows, protocol, group):
        first = first or result
        peaks = " + ".join(f"{value:.0f}" for value in result.peaks.values())
        yield Row(
            f"{what}: {way}", result.seconds, "s", sum(result.cpu.values()) / rows * 1e6,
            first.seconds if way == "under Coterie" else None, True, f"peak {peaks} MB; {result.common:,} in common",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--protocols", default="RR22,ECDH")
    parser.add_argument("--core", type=int, default=-1, help="the one core that everything shares")
    parser.add_argument("--memory", default="", help="what everything may take together, such as 2G")
    args = parser.parse_args()
    place = psi_environment.install(App.standard())
    group = None
    with ExitStack() as stack:
        if args.core >= 0:
            stack.enter_context(confined.on_core(args.core))
        if args.memory:
            try:
                group = stack.enter_context(confined.in_memory(confined.size(args.memory)))
            except confined.CannotConfine as problem:
                sys.exit(f"Error: {problem}")
        print(f"| {args.rows:,} x {args.rows:,} rows | seconds | CPU s | peak MB alice | peak MB bob | common | load |")
        print("|---|---|---|---|---|---|---|")
        for protocol in args.protocols.split(","):
            for way, result in ways(place, args.rows, protocol, group):
                _line(f"{protocol} {way}", result)
        if group:
            print(f"\nThe group took {group.peak_mb:.0f} MB at most.")


def _line(what: str, result: Result) -> None:
    cpu, (alice, bob), load = sum(result.cpu.values()), result.peaks.values(), os.getloadavg()[0]
    print(
        f"| {what} | {result.seconds:.1f} | {cpu:.1f} | {alice:.0f} | {bob:.0f} | {result.common:,} | {load:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
