"""Engines of other projects between three organisations: how long it takes until they run, and the same work without Coterie.

It runs the tests of the guides (tests/e2e/test_e2e_flower.py and others), which check the result too, for each engine whose environment is
installed (`coterie engine add`, `make flower`, ...); the others are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.cli.app import App
from coterie.cli.engine_environment import FLOWER, MPYC, NVFLARE, XGBOOST

_TOP = Path(__file__).parents[1]
_ENGINES = (MPYC, FLOWER, XGBOOST, NVFLARE)


def engines(bench: Bench) -> list[Row]:
    found = bench.folder / "engines.jsonl"
    for engine in _ENGINES:
        if not engine.installed(engine.directory(App.standard())):
            print(f"{engine.name}: its environment is not installed", file=sys.stderr)
            continue
        environ = {**os.environ, "COTERIE_ENGINE_FIGURES": str(found), f"COTERIE_{engine.name.upper()}": "1"}
        test = f"tests/e2e/test_e2e_{engine.name}.py"
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-k", "guide", test], cwd=_TOP, env=environ, check=True)
    lines = found.read_text().splitlines() if found.exists() else []
    return [row for line in lines for row in rows(json.loads(line))]


def rows(figures: dict[str, float | str]) -> list[Row]:
    """Of one line of `engine_guide_kit`, in seconds."""
    name = figures["engine"]
    job, run, guide, plain, ours = (float(figures[each]) for each in ("job", "run", "guide", "plain", "ours"))
    made = [
        Row(
            f"{name}, 3 organisations: job until its engines run",
            job - run,
            "s",
            note=f"job {job:.1f} s; the guide {guide:.1f} s",
        )
    ]
    if plain:
        what = "its work" if ours else "run of the engines"
        made.append(
            Row(
                f"{name}, 3 organisations: {what} through the gateways",
                ours or run,
                "s",
                None,
                plain,
                lower_is_better=True,
                note="beside it: without Coterie",
            )
        )
    return made
