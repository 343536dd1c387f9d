"""`coterie demo`: a control plane from start to stop in a few seconds, with the very commands a user would type."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import NoReturn

from coterie.api.errors import ApiError
from coterie.api.types.kind import Kind
from coterie.base.paths import DomainPaths
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.arguments import Parser
from coterie.cli.commands.init import render
from coterie.cli.commands.kubectl import find_kubectl
from coterie.cli.listing import TABLE, Question, changes
from coterie.cli.main import main
from coterie.cli.session import Session
from coterie.cli.tables import render_table
from coterie.client.transport import TransportError

HELP = """
Show the best that works so far: start a control plane in a directory of its own, give it objects, look at them, see bad
ones refused and changes arrive, and clean up. Takes a few seconds and touches nothing outside that directory.

Examples:
  coterie demo
  coterie demo --keep        # leave it running, to look around with coterie or kubectl
"""
_DOMAIN = "demo"
_PATIENCE = 30.0


def arguments(parser: Parser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave the control plane running and say how to stop it")


def run(args: argparse.Namespace, app: App) -> int:
    folder = Path(tempfile.mkdtemp(prefix="coterie-demo-"))
    signal.signal(signal.SIGTERM, _interrupted)  # so that the child and the files go, whoever ends us
    demo = _Demo(app, folder)
    kept = False
    try:
        demo.start()
        demo.tell()
        kept = args.keep
    finally:
        if not kept:
            demo.stop()
            shutil.rmtree(folder, ignore_errors=True)
    demo.farewell(kept)
    return 0


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class _Demo:
    def __init__(self, app: App, folder: Path) -> None:
        self.app = app
        self.folder = folder
        self.paths = DomainPaths.of(folder, _DOMAIN)
        self.log = folder / "demo.log"
        self.began = time.perf_counter()
        self.step = 0
        self.child: subprocess.Popen[bytes] | None = None

    # The story.

    def start(self) -> None:
        self.heading("Start a control plane")
        config = self.folder / "coterie.yaml"
        config.write_text(render("master", _DOMAIN, str(config)) + "\napiServer: {port: 0}\n")
        self.typed(f"coterie start -c {config} --root {self.folder}")
        with self.took() as took:
            self.child = self.spawn(config)
            self.until_ready()
        self.app.say(
            f"The Kubernetes API is served: store, discovery, OpenAPI, RBAC, admission, 18 Kuscia types. {took()}"
        )

    def tell(self) -> None:
        self.heading("Apply Kuscia objects, a ConfigMap, and a type of your own with a CEL rule")
        self.coterie("apply", "-f", str(self.sample("objects.yaml")))
        self.heading("Look at them")
        self.coterie("get", "domains,aimg,kj", "-A")
        self.coterie("get", "contracts")
        self.heading("Bad objects are refused, with every reason")
        self.coterie("apply", "-f", str(self.sample("refused.yaml")), expect=1)
        self.heading("A watch sees changes as they happen")
        self.watch()
        self.heading("Everything about one object")
        self.coterie("describe", "kj/common-customers", "-n", "cross-domain")
        self.heading("The same with kubectl, and the state of it all")
        self.kubectl()
        self.coterie("status")

    def farewell(self, kept: bool) -> None:
        total = time.perf_counter() - self.began
        self.app.say()
        if kept and self.child is not None:
            self.app.say(f"It is still running (process {self.child.pid}). Look around:")
            self.app.say(f"  export KUBECONFIG={self.paths.kubeconfig}")
            self.app.say("  coterie get kj -A        # or: kubectl get kj -A")
            self.app.say(f"and when done: kill {self.child.pid}; rm -r {self.folder}")
        else:
            self.app.say(self.app.paint(f"Stopped and removed. The whole demo took {total:.1f} s.", "green"))
            self.app.say("Keep one to look around with `coterie demo --keep`, or begin your own: coterie init --help")

    # Its means.

    def heading(self, text: str) -> None:
        self.step += 1
        line = f"{self.step}. {text}"
        self.app.say()
        self.app.say(self.app.paint(line, "bold") if self.app.colour else f"== {line} ==")

    def typed(self, line: str) -> None:
        self.app.say(self.app.paint(f"$ {line}", "cyan"))

    def took(self) -> _Timer:
        return _Timer(self.app)

    def coterie(self, *words: str, expect: int = 0) -> None:
        self.typed("coterie " + " ".join(words))
        with self.took() as took:
            # What a step refuses is part of the story here, so it goes where the story goes.
            told = App(self.app.out, self.app.out, self.environ, cwd=self.folder)
            code = main(["--kubeconfig", str(self.paths.kubeconfig), *words], told)
        if code != expect:
            raise CliError(f"Error: this step should have ended with {expect} but ended with {code}; {self.log_hint()}")
        self.app.say(took())

    @property
    def environ(self) -> dict[str, str]:
        return {**self.app.environ, "KUBECONFIG": str(self.paths.kubeconfig)}

    def sample(self, name: str) -> Path:
        target = self.folder / name
        target.write_text(resources.files("coterie.cli").joinpath("demo", name).read_text())
        return target

    def kubectl(self) -> None:
        command = f"KUBECONFIG={self.paths.kubeconfig} kubectl get kj -A"
        try:
            program = find_kubectl(self.app)
        except CliError:
            self.app.say(f"With kubectl installed: {command}")
            return
        self.typed(command)
        with self.took() as took:
            done = subprocess.run(
                [program, "get", "kj", "-A"],
                env=self.environ,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
        self.app.write(done.stdout + done.stderr)
        self.app.say(took())

    def watch(self) -> None:
        self.typed("coterie get contracts -w     # and, elsewhere, somebody signs the contract")
        args = argparse.Namespace(
            kubeconfig=str(self.paths.kubeconfig), context="", root="", domain="", namespace="default"
        )
        sessions.run(args, self.app, self.sign_and_see)

    async def sign_and_see(self, session: Session) -> int:
        resource = (await session.catalogue()).find("contracts")
        kind = Kind.dynamic(resource)
        version = (await session.client.list(kind, "default")).resource_version
        question = Question(resource, "default")
        widths: list[int] = []
        signed = asyncio.get_running_loop().create_future()

        async def see() -> None:
            async for _, table in changes(session.client, question, TABLE, version):
                delay = (time.perf_counter() - signed.result()) * 1000
                self.app.write(render_table(table, colour=self.app.colour, widths=widths))
                self.app.say(self.app.paint(f"(seen {delay:.1f} ms after it was sent)", "dim"))
                return

        async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(see(), name="demo watch")
            await asyncio.sleep(0.1)  # let the watch stand before the change comes
            signed.set_result(time.perf_counter())
            await session.client.patch_status(kind, "alice-bob", "default", {"status": {"state": "Signed"}})
        return 0

    # The child.

    def spawn(self, config: Path) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "coterie", "start", "-c", str(config), "--root", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to translate
                env=dict(os.environ),
            )

    def until_ready(self) -> None:
        args = argparse.Namespace(kubeconfig=str(self.paths.kubeconfig), context="", root="", domain="", namespace="")
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if self.child is not None and self.child.poll() is not None:
                raise CliError(f"Error: the control plane ended with status {self.child.returncode}; {self.log_hint()}")
            if self.paths.kubeconfig.exists() and sessions.run(args, self.app, _is_ready):
                return
            time.sleep(0.02)
        raise CliError(f"Error: the control plane was not ready within {_PATIENCE:g} s; {self.log_hint()}")

    def log_hint(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-3:] if self.log.exists() else []
        return "its last words: " + (" | ".join(lines) or "none")

    def stop(self) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


async def _is_ready(session: Session) -> int:
    try:
        await session.client.raw("GET", "/readyz", headers={"Accept": "*/*"})
    except (ApiError, TransportError):
        return 0
    return 1


class _Timer:
    """`with timer as took: ...` and then `took()` is how long it took, in the words of the demo."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._seconds = 0.0

    def __enter__(self) -> Callable[[], str]:
        self._started = time.perf_counter()
        return lambda: self._app.paint(f"({self._seconds:.2f} s)", "dim")

    def __exit__(self, *_: object) -> None:
        self._seconds = time.perf_counter() - self._started
