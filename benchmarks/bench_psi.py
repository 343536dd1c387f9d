"""Intersections of two tables by hand and under Coterie, one after the other, on the same rows.

    python -m benchmarks.bench_psi [--rows 1000000] [--protocols RR22,ECDH] [--core 0]

By hand: two processes with the same library, on CSV files, calling each other directly. Under Coterie: the job of `coterie demo
psi`, from its creation to its end, with data meshes, gateways and control planes, whose memory counts too. With --core all of
it shares one core.
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
from pathlib import Path

from coterie.cli import footprint, psidemo, psienv
from coterie.cli.app import App

Result = tuple[float, dict[str, float], int]
"""Seconds, peak megabytes by party, rows of the result."""


def by_hand(place: Path, rows: int, protocol: str, folder: Path) -> Result:
    tables = {"alice": ("id", psidemo.customers(rows)), "bob": ("uid", psidemo.visitors(rows))}
    heads = {"alice": "id,city,spent\n", "bob": "uid,visits,member\n"}
    port = _free_ports()
    commands = []
    for rank, (party, (key, lines)) in enumerate(tables.items()):
        home = folder / party
        home.mkdir()
        (home / "in.csv").write_text("".join((heads[party], *lines)), encoding="utf-8")
        program = [str(place / "bin" / "python"), "-m", "benchmarks.psi_byhand", str(rank), str(port), protocol]
        commands.append([*program, str(home / "in.csv"), key, str(home / "out.csv")])
    homes = {party: folder / party for party in tables}
    began = time.perf_counter()
    with footprint.Peaks(homes) as peaks:
        running = [
            subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(folder))
            for each in commands
        ]
        codes = [each.wait() for each in running]
    seconds = time.perf_counter() - began
    if any(codes):
        raise SystemExit(f"by hand, {protocol}: the parties ended with {codes}")
    with (folder / "alice" / "out.csv").open("rb") as file:
        return seconds, peaks.mb, sum(1 for _ in file) - 1


def under_coterie(rows: int, protocol: str) -> Result:
    command = [
        sys.executable,
        "-m",
        "coterie",
        "demo",
        "psi",
        "--rows",
        str(rows),
        "--protocol",
        protocol,
        "-o",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"under Coterie, {protocol}: {done.stderr}")
    told = json.loads(done.stdout)
    return told["seconds"], told["peak_mb"], told["intersection"]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--protocols", default="RR22,ECDH")
    parser.add_argument("--core", type=int, default=-1, help="the one core that everything shares")
    args = parser.parse_args()
    place = psienv.install(App.standard())
    if args.core >= 0:
        os.sched_setaffinity(0, {args.core})
    print(f"| {args.rows:,} x {args.rows:,} rows | seconds | peak MB alice | peak MB bob | common | load |")
    print("|---|---|---|---|---|---|")
    for protocol in args.protocols.split(","):
        with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
            _line(f"{protocol} by hand", by_hand(place, args.rows, protocol, Path(folder)))
        _line(f"{protocol} under Coterie", under_coterie(args.rows, protocol))


def _line(what: str, result: Result) -> None:
    seconds, peaks, common = result
    load = os.getloadavg()[0]
    print(
        f"| {what} | {seconds:.1f} | {peaks['alice']:.0f} | {peaks['bob']:.0f} | {common:,} | {load:.1f} |", flush=True
    )


if __name__ == "__main__":
    main()
