"""The same as root and as an ordinary user: pod starts, calls from pod to pod through the gateways, memory of two domains.

Needs root, to become somebody else, and a Python of the system's own of the same version, which everybody can read. Both
take turns, each time as a process that measures and prints:

    python -m benchmarks.bench_ordinary FOLDER QUICK
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bench_boundary, bench_memory
from benchmarks.measures import Bench, Plan
from benchmarks.node import Cores
from benchmarks.table import Row

_NOBODY = 65534
_FIGURES = {
    "requests": ("calls from pod to pod, 32 connections", "/s", False, "goal 0.8"),
    "latency": ("one call from pod to pod at a time, p50", "µs", True, "goal 0.8"),
    "start": ("pod start of the runtime, p50", "ms", True, ""),
    "memory": ("two idle domains, PSS", "MiB", True, "178 before pods had networks; goal: 5 a domain more at most"),
}


def ordinary(bench: Bench) -> list[Row]:
    python = _python_of_the_system()
    if os.getuid() or python is None or shutil.which("setpriv") is None:
        return []
    quick = bench.plan.seconds < 1
    found: dict[str, dict[str, list[float]]] = {"root": {}, "user": {}}
    for _ in range(1 if quick else 2):
        for who, command in (("root", [sys.executable]), ("user", _as_nobody(python))):
            for name, value in _measured(command, who, quick).items():
                found[who].setdefault(name, []).append(value)
    rows = []
    for name, (what, unit, lower, note) in _FIGURES.items():
        root, user = ((min if lower else max)(found[who][name]) for who in ("root", "user"))
        rows.append(Row(f"as root: {what}", root, unit))
        rows.append(Row(f"as an ordinary user: {what}", user, unit, None, root, lower, note))
    return rows


def _python_of_the_system() -> str | None:
    name = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    return name if os.access(name, os.X_OK) else None


def _as_nobody(python: str) -> list[str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    source = Path(__file__).resolve().parent.parent
    path = ":".join([str(source / "src"), str(source), *packages])
    become = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    return [*become, "env", f"PYTHONPATH={path}", "HOME=/nonexistent", python]


def _measured(command: list[str], who: str, quick: bool) -> dict[str, float]:
    """Short, below /tmp: paths of sockets have a limit, and the folder of root's benchmarks is root's."""
    folder = tempfile.mkdtemp(prefix="cb-", dir="/tmp")
    try:
        if who == "user":
            os.chown(folder, _NOBODY, _NOBODY)
        words = [*command, "-m", "benchmarks.bench_ordinary", folder, "1" if quick else ""]
        done = subprocess.run(words, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent, check=True)
        return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _figures(bench: Bench) -> dict[str, float]:
    calls = await bench_boundary.from_pod_to_pod(bench, bench.folder / "g")
    return {
        "requests": calls.best.rate,
        "latency": calls.quickest.p50 * 1e3,
        "start": await bench_boundary.fenced_start(bench, bench.folder / "s"),
        "memory": await bench_memory.idle_total(bench, bench.folder / "m"),
    }


def main() -> None:
    folder, quick = sys.argv[1:]
    bench = Bench(Plan.quick() if quick else Plan(), Path(folder), Cores.pick())
    print(json.dumps(asyncio.run(_figures(bench))))


if __name__ == "__main__":
    main()
