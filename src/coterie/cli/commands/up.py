"""`coterie up`: a network of domains on this machine, in the background, ready when the command ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import orjson

from coterie.api.errors import AlreadyExists, ApiError
from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import background, health, network
from coterie.cli.app import App, CliError
from coterie.cli.health import Health
from coterie.cli.output import as_text, plain_table
from coterie.cli.session import root_of
from coterie.cli.tables import render_table
from coterie.client.client import Client
from coterie.client.kubeconfig import KubeconfigError
from coterie.client.transport import TransportError
from coterie.node.config import NodeSettings

HELP = """
Bring a network of domains up on this machine, in the background, and wait until it is ready. In topology center, one
control plane serves a node of each domain; in p2p, each domain is a control plane and a node in one. Each has its own
directory under the root and its own loopback address. What is up already stays as it is; domains that were there
before come back with all they had.

Examples:
  coterie up                                          # center: alice and bob
  coterie up --topology p2p --domains alice,bob,carol
  coterie up --root /srv/coterie --wait 60
  coterie up -o json
"""
_LOOK = 0.03
_STOP_GRACE = 10.0
_FRAMES = "|/-\\"


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "--topology",
        choices=network.TOPOLOGIES,
        default="",
        help="one control plane for all (center, the default), or p2p",
    )
    parser.add_argument("--domains", metavar="IDS", default="", help="who takes part (default: alice,bob)")
    parser.add_argument(
        "--wait", metavar="SECONDS", type=options.seconds, default=30.0, help="give up after this long (default: 30)"
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.root_option(parser)


def run(args: argparse.Namespace, app: App) -> int:
    domains = network.check_domains(args.domains)
    root = root_of(args, app)
    started = time.monotonic()
    with network.alone():
        try:
            nodes = network.choose(root, args.topology, domains)
            states = _Start(app, nodes, quiet=args.output != "table").run(args.wait)
        except OSError as problem:
            raise CliError(f"Error: {problem.filename or root}: {problem.strerror}; choose another --root") from problem
    if args.output != "table":
        app.write(as_text([each.told() for each in states], args.output))
        return 0
    app.write(render_table(plain_table(health.COLUMNS, [each.row for each in states]), colour=app.colour))
    app.say(app.paint(f"Ready after {time.monotonic() - started:.1f} s.", "green"))
    app.say()
    app.say("Next:")
    for line in next_steps(root, nodes, args.root):
        app.say(f"  {line}")
    return 0


def next_steps(root: Path, nodes: Sequence[NodeSettings], named_root: str) -> list[str]:
    planes = [node for node in nodes if node.mode != "lite"]
    where = f" --root {shlex.quote(str(root))}" if named_root else ""
    more = f"   # or of {', '.join(plane.domain for plane in planes[1:])}" if len(planes) > 1 else ""
    return [
        f"export KUBECONFIG={shlex.quote(str(planes[0].paths.kubeconfig))}{more}",
        "coterie get nodes",
        f"coterie status{where}",
        f"coterie down{where}",
    ]


class _Start:
    """One start of a network. Whatever goes wrong, the nodes that it started itself do not stay behind."""

    def __init__(self, app: App, nodes: Sequence[NodeSettings], *, quiet: bool) -> None:
        self.app = app
        self.nodes = nodes
        self.quiet = quiet
        self.mine: list[NodeSettings] = []
        self.since: dict[str, datetime] = {}
        self.waiting: list[str] = []
        self.began = time.monotonic()

    def run(self, patience: float) -> list[Health]:
        try:
            self.start()
            asyncio.run(self.until_ready(patience))
        except BaseException:
            background.stop([node.paths for node in self.mine], _STOP_GRACE)
            raise
        return asyncio.run(health.of_all(self.nodes))

    def start(self) -> None:
        master = next((node for node in self.nodes if node.mode == "master"), None)
        environ = {**os.environ, **self.app.environ}
        for node in self.nodes:
            pid = background.running(node.paths)
            if pid:
                self.say(f"{node.domain} is already running (process {pid}).")
                continue
            network.prepare(node, master)
            self.since[node.domain] = SYSTEM_CLOCK.now()
            self.mine.append(node)
            background.start(node.paths, environ)

    async def until_ready(self, patience: float) -> None:
        self.waiting = [node.domain for node in self.nodes]
        try:
            async with asyncio.timeout(patience):
                with self.progress() as tick:
                    async with asyncio.TaskGroup() as group:
                        for node in self.nodes:
                            group.create_task(self.one_ready(node, tick), name=f"wait for {node.domain}")
        except TimeoutError as problem:
            late = ", ".join(self.waiting)
            words = "".join(_words(node) for node in self.nodes if node.domain in self.waiting)
            raise CliError(
                f"Error: {late} not ready within {patience:g} s, so all was stopped again.{words}"
            ) from problem
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from problems  # the first node that failed says enough

    async def one_ready(self, node: NodeSettings, tick: Callable[[], None]) -> None:
        plane = health.plane_of(node, self.nodes)
        if plane is None:
            raise CliError(f"Error: {node.domain} is a lite node, but there is no master under its root")
        since = self.since.get(node.domain)
        introduced = False
        while True:
            with contextlib.suppress(ApiError, TransportError, KubeconfigError):
                async with health.client_of(plane) as client:
                    while await health.answers(client):
                        if not introduced:
                            await introduce(client, node)
                            introduced = True
                        if node.agent is None or await health.node_is_ready(client, node.agent.node_name, since):
                            self.waiting.remove(node.domain)
                            self.tell_ready(node, since)
                            return
                        await self.pause(node, tick)
            await self.pause(node, tick)

    async def pause(self, node: NodeSettings, tick: Callable[[], None]) -> None:
        """Between two looks. A node that has ended need not be waited for."""
        if not background.running(node.paths):
            raise CliError(f"Error: {node.domain} did not start, so all was stopped again.{_words(node)}")
        tick()
        await asyncio.sleep(_LOOK)

    # What the user sees meanwhile: lines that stay, and on a terminal one that moves.

    def say(self, text: str) -> None:
        if not self.quiet:
            self.app.say(("\r\x1b[K" if self.app.colour else "") + text)

    def tell_ready(self, node: NodeSettings, since: datetime | None) -> None:
        if since is not None:
            self.say(f"{node.domain} is ready after {time.monotonic() - self.began:.1f} s.")

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[], None]]:
        moving = self.app.colour and not self.quiet

        def tick() -> None:
            if moving:
                age = time.monotonic() - self.began
                frame = _FRAMES[int(age * 8) % len(_FRAMES)]
                self.app.write(f"\r\x1b[K{frame} waiting for {', '.join(self.waiting)} ({age:.1f} s)")

        try:
            yield tick
        finally:
            if moving:
                self.app.write("\r\x1b[K")


async def introduce(client: Client, node: NodeSettings) -> None:
    """The domain of a node as its control plane knows it: a namespace for what it runs, and who it is."""
    if node.mode == "master":
        return
    name = {"name": node.domain}
    for path, obj in (
        ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": name}),
        (
            "/apis/kuscia.secretflow/v1alpha1/domains",
            {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": name, "spec": {}},
        ),
    ):
        with contextlib.suppress(AlreadyExists):
            headers = {"Accept": "application/json", "Content-Type": "application/json"}
            await client.raw("POST", path, "fieldManager=coterie-up", orjson.dumps(obj), headers)


def _words(node: NodeSettings) -> str:
    lines = background.last_words(node.paths)
    shown = "".join(f"\n  {line}" for line in lines) or "\n  (nothing)"
    return f"\nThe end of {background.log_file(node.paths)}:{shown}"
