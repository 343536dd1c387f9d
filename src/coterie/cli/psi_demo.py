"""The story of two organisations that find their common customers, told with the commands a user would type.

    up (p2p: alice, bob) ──> engine psi ──> data add, data grant ──> job run ──> data head ──> down

Everything lies in a directory of its own, which goes at the end. Where the library of the engine cannot be had, the
demo says so and shows the same network with the engine that is always there.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.cli import network, psi_environment
from coterie.cli.app import INTERRUPTED, App, CliError
from coterie.cli.demo_script import DeferredSignals, DemoScript, interrupted
from coterie.cli.output import as_json
from coterie.cli.process_usage import MemoryPeaks
from coterie.kube.agent.images.store import remove_tree

PARTIES = ("alice", "bob")
_JOB = "common-customers"
_RESULTS = {"alice": "common-customers", "bob": "common-visitors"}
_CITIES = ("Athens", "Bergen", "Cádiz", "Dakar", "Évora", "Fès", "Graz", "Hội An")
_SEED = 6

Main = Callable[[Sequence[str], App], int]


@dataclass(frozen=True, slots=True)
class PsiDemoOptions:
    rows: int
    protocol: str = "RR22"
    json: bool = False
    keep: bool = False
    console: bool = False


def run(options: PsiDemoOptions, app: App, main: Main) -> int:
    folder = Path(tempfile.mkdtemp(prefix="coterie-psi-"))
    signal.signal(signal.SIGTERM, interrupted)
    # Whoever wants one object gets just that; what a step says is kept for when it fails.
    teller = App(io.StringIO(), app.err, app.environ, app.stdin, app.cwd) if options.json else app
    demo = _PsiDemo(teller, folder, options, main)
    kept = False
    try:
        document = demo.result_document()
        if options.console:
            demo.show_console(network.members(demo.root), demo.root, wait=not options.keep, opened=True)
        kept = options.keep
    finally:
        if not kept:
            demo.stop()
    demo.next_steps(kept)
    if options.json:
        app.write(as_json(document))
    return 0


class _PsiDemo(DemoScript):
    def __init__(self, app: App, folder: Path, options: PsiDemoOptions, main: Main) -> None:
        super().__init__(app)
        self.folder = folder
        self.root = folder / "net"
        self.options = options
        self._main = main

    # The story.

    def result_document(self) -> dict[str, object]:
        """What `-o json` prints."""
        place = self.environment()
        self.heading("Bring two organisations up: alice and bob, each with control plane, gateway and node")
        more = ("--console",) if self.options.console else ()
        self.coterie("up", "--topology", "p2p", "--domains", ",".join(PARTIES), *more)
        if place is None:
            return self.greet()
        with self.took() as took:
            asyncio.run(psi_environment.register(network.members(self.root), place))
        self.typed("coterie engine add psi")
        self.app.say(f"Both can run the engine psi. {took()}")
        self.heading(f"Each has a table of {self.options.rows:,} rows that nobody else may see")
        self.tables()
        self.heading("bob lets tasks of alice use his table, and only these columns")
        self.coterie("data", "grant", "visitors", "alice", "--columns", "uid,visits", "--domain", "bob")
        self.heading("alice asks: which customers do we have in common?")
        seconds, used = self.intersect()
        self.heading("Each has the rows of its own table that the other knows too, in the same order, and no others")
        for party in PARTIES:
            self.coterie("data", "head", _RESULTS[party], "-l", "5", "--domain", party)
        counts = {party: self.count(party) for party in PARTIES}
        self.app.say(f"{counts['alice']:,} of {self.options.rows:,} customers are common.")
        self.heading("Every use of a grant is on record at its owner")
        self.coterie("data", "uses", "--domain", "bob")
        self.places()
        return {
            "rows": self.options.rows,
            "intersection": counts["alice"],
            "protocol": self.options.protocol,
            "seconds": round(seconds, 2),
            "peak_mb": {party: round(value) for party, value in used.mb.items()},
            "cpu_seconds": {party: round(value, 2) for party, value in used.cpu.items()},
        }

    def environment(self) -> Path | None:
        try:
            return psi_environment.install(self.app)
        except CliError as problem:
            if self.options.json:
                raise
            self.app.warn(str(problem))
            self.app.say("So this demo shows two organisations that greet each other instead.")
            return None

    def greet(self) -> dict[str, object]:
        self.heading("A job of both: their engines speak with each other through the gateways")
        self.coterie("job", "run", "--engine", "sample", "--parties", ",".join(PARTIES), "--domain", "alice")
        return {}

    def tables(self) -> None:
        alice, bob = self.folder / "customers.csv", self.folder / "visitors.csv"
        rows = self.options.rows
        alice.write_text("".join(("id,city,spent\n", *customers(rows))), encoding="utf-8")
        bob.write_text("".join(("uid,visits,member\n", *visitors(rows))), encoding="utf-8")
        self.coterie("data", "add", str(alice), "--domain", "alice")
        self.coterie("data", "head", "customers", "-l", "3", "--domain", "alice")
        self.coterie("data", "add", str(bob), "--domain", "bob")
        self.coterie("data", "head", "visitors", "-l", "3", "--domain", "bob")

    def intersect(self) -> tuple[float, MemoryPeaks]:
        wanted = {
            "protocol": self.options.protocol,
            "inputs": {"alice": "customers", "bob": "visitors"},
            "keys": {"alice": ["id"], "bob": ["uid"]},
            "outputs": _RESULTS,
        }
        question = self.folder / "question.json"
        question.write_text(json.dumps(wanted))
        homes = {party: self.root / party for party in PARTIES}
        words = ["job", "run", "--engine", "psi", "--parties", ",".join(PARTIES), "--name", _JOB]
        timer = self.took()
        with MemoryPeaks(homes) as peaks, timer:
            self.coterie(*words, "--input", f"@{question}", "--domain", "alice")
        return timer.seconds, peaks

    def count(self, party: str) -> int:
        with self.result(party).open("rb") as file:
            return sum(1 for _ in file) - 1

    def result(self, party: str) -> Path:
        return DomainPaths.of(self.root, party).data / f"{_RESULTS[party]}.csv"

    def places(self) -> None:
        self.heading("Where things are")
        for party in PARTIES:
            self.app.say(f"  {party}: {self.result(party)}")
        if not self.options.keep and not self.options.console:
            self.app.say("(They go now. `coterie demo psi --keep` leaves everything running, to look around.)")

    def next_steps(self, kept: bool) -> None:
        self.app.say()
        if not kept:
            self.app.say(
                self.app.paint(
                    f"Stopped and removed. The whole demo took {time.perf_counter() - self.began:.1f} s.", "green"
                )
            )
            self.app.say("Your own network: `coterie up`, `coterie engine add psi`, `coterie data --help`.")
            return
        self.app.say("It is still running. Look around:")
        self.app.say(f"  export COTERIE_ROOT={shlex.quote(str(self.root))}")
        self.app.say(f"  export KUBECONFIG={shlex.quote(str(DomainPaths.of(self.root, 'alice').kubeconfig))}")
        self.app.say(f"  coterie job show {_JOB} --timeline")
        self.app.say("  kubectl get kj,kt -n cross-domain      # or: coterie get kj,kt -n cross-domain")
        self.app.say("  coterie data ls --domain bob")
        self.app.say(f"and when done: coterie down --purge --root {shlex.quote(str(self.root))}")

    # Its means.

    def coterie(self, *words: str) -> None:
        self.typed("coterie " + " ".join(shlex.quote(word) for word in words))
        environ = {**self.app.environ, "COTERIE_ROOT": str(self.root)}
        environ.pop("KUBECONFIG", None)
        with self.took() as took:
            code = self._main(words, App(self.app.out, self.app.err, environ, self.app.stdin, self.folder))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise CliError(f"Error: this step of the demo failed (status {code}){self.output_tail()}")
        self.app.say(took())

    def output_tail(self) -> str:
        """What nobody saw so far."""
        if not isinstance(self.app.out, io.StringIO):
            return ""
        return ":\n" + "\n".join(self.app.out.getvalue().splitlines()[-20:])

    def stop(self) -> None:
        with DeferredSignals():
            if self.root.exists():
                silent = App(io.StringIO(), self.app.err, self.app.environ, self.app.stdin, self.folder)
                self._main(("down", "--purge", "--grace", "1", "--root", str(self.root)), silent)
            remove_tree(self.folder)


def customers(rows: int) -> Iterator[str]:
    """Lines of alice's table. Pure: the same in every demo."""
    dice = random.Random(_SEED)
    for number in _shuffled(range(rows), dice):
        yield f"{_name(number)},{_CITIES[number % len(_CITIES)]},{number * 7919 % 100_000 / 100:.2f}\n"


def visitors(rows: int) -> Iterator[str]:
    """Lines of bob's: the second half of alice's customers, and as many others."""
    dice = random.Random(_SEED + 1)
    for number in _shuffled(range(rows // 2, rows // 2 + rows), dice):
        yield f"{_name(number)},{number % 97},{'true' if number % 3 else 'false'}\n"


def _shuffled(numbers: range, dice: random.Random) -> list[int]:
    out = list(numbers)
    dice.shuffle(out)
    return out


def _name(number: int) -> str:
    """Thirty-two characters, as ids that are made of e-mail addresses have."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
