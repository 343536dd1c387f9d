"""Guides of engines between three organisations, run as they stand, and what was measured on the way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubectl_runner
from jobs_kit import Net, network

PARTIES = ("alice", "bob", "carol")
FIGURES = "COTERIE_ENGINE_FIGURES"
"""The file in which benchmarks want the figures, a line of JSON for each engine."""
_GUIDES = Path(__file__).parents[2] / "docs" / "guide"


class EngineGuide:
    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.text = (_GUIDES / f"{engine}.md").read_text()

    @property
    def steps(self) -> str:
        """The commands of the guide, in a network that runs."""
        install, steps = self._blocks("sh")[:2]
        return f"{install.splitlines()[1]}\n{steps}"

    @property
    def input(self) -> str:
        (text,) = self._blocks("json")
        return text

    @property
    def question(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.input)
        return found

    def _blocks(self, language: str) -> list[str]:
        return re.findall(rf"```{language}\n(.*?)```", self.text, re.DOTALL)

    def run(
        self, net: Net, folder: Path, name: str, question: dict[str, Any], *options: str
    ) -> subprocess.CompletedProcess[str]:
        """A job of the engine, after the steps of the guide."""
        (folder / f"{name}.json").write_text(json.dumps(question))
        words = f"coterie job run --engine {self.engine} --parties {','.join(PARTIES)} --domain alice --name {name} --input @{name}.json"
        return shell(net, folder, " ".join((words, *options)))

    def note_figures(self, net: Net, folder: Path, *, guide: float, plain: float = 0.0, ours: float = 0.0) -> None:
        """Says what was measured, in seconds; with a second job for the time before engines run, where a benchmark asks for it.

        `guide`: all its commands. `plain`: the same work without Coterie, and `ours`, where the engine tells how long it took through the gateways.
        """
        figures = {"guide": guide, "plain": plain, "ours": ours}
        path = os.environ.get(FIGURES)
        if path:
            done = self.run(net, folder, "measured", self.question, "--timeline")
            assert done.returncode == 0, done.stdout + done.stderr
            (whole, shares) = re.findall(r"^(\S+) in all: (.*)$", done.stdout + done.stderr, re.MULTILINE)[-1]
            (ran,) = re.findall(r"\brun (\S+)", shares)
            figures |= {"job": in_seconds(whole), "run": in_seconds(ran)}
            with open(path, "a") as out:
                out.write(json.dumps({"engine": self.engine, **figures}) + "\n")
        print(f"\n{self.engine}: " + ", ".join(f"{what} {each:.1f} s" for what, each in figures.items() if each))


def in_seconds(text: str) -> float:
    """`1.25s` or `980ms`."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


@contextmanager
def three_organisations(root: Path) -> Iterator[Net]:
    with network(root / "net", "p2p", *PARTIES, kubectl=kubectl_runner.chosen()[-1]) as made:
        yield made
        assert [line for each in made.domains.values() for line in each.complaints()] == []


def shell(net: Net, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environ = {**os.environ, "PATH": path, "COTERIE_ROOT": str(net.root)}
    return subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, cwd=folder, env=environ, timeout=400, check=False
    )
