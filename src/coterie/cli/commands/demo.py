"""`coterie demo`: a node from start to stop in a few seconds, with the very commands a user would type; and, as
`coterie demo psi`, two organisations that find their common customers (`psidemo`)."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from coterie.base.files import write_atomic
from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import background, node_health, psi_demo
from coterie.cli import session as sessions
from coterie.cli.app import INTERRUPTED, App, CliError, UsageError
from coterie.cli.arguments import Parser
from coterie.cli.commands.init import InitOptions, render
from coterie.cli.commands.kubectl import find_kubectl
from coterie.cli.demo_script import DeferredSignals, DemoScript, interrupted
from coterie.cli.listing import TABLE, ListQuery, changes
from coterie.cli.main import main
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.engines.psi.task import PROTOCOLS
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.runtimes.halt_node import halt_node
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.batch import JOBS
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node import config as node_config
from coterie.node.config import NodeSettings

HELP = """
Run a demonstration: start a node in a temporary directory, run pods, kill and restart the node while the pods keep
running, apply Kuscia objects and a custom resource, show validation errors and a watch, and clean up. It takes a few
seconds and changes nothing outside that directory. `coterie demo psi` starts two domains that compute their common
customers by private set intersection.

Examples:
  coterie demo
  coterie demo psi
  coterie demo psi --rows 1000000 --protocol ECDH -o json
  coterie demo psi --console # with links to the consoles; it stays until Ctrl-C
  coterie demo --keep        # leave it running, for use with coterie or kubectl
"""
_DOMAIN = "demo"
_NODE = "demo-node"
_TIMEOUT = 30.0
_POLL_SECONDS = 0.02
_GRACE = 10.0
_CONFIG = """
apiServer: {port: 0}
agent: {nodeName: %s, port: 0}
gateway: {enabled: false}
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("what", nargs="?", choices=("node", "psi"), default="node", help="node (the default) or psi")
    psi = parser.add_argument_group("for psi")
    psi.add_argument("--rows", metavar="N", type=int, default=10_000, help="rows of each table (default: 10000)")
    psi.add_argument("--protocol", choices=PROTOCOLS, default="RR22", metavar="NAME", help="RR22, KKRT or ECDH")
    options.output_option(parser, ("table", "json"))
    parser.add_argument("--keep", action="store_true", help="leave it running and print how to stop it")
    parser.add_argument(
        "--console",
        action="store_true",
        help="print links to the consoles, open one where there is a desktop, and stay until Ctrl-C",
    )


def run(args: argparse.Namespace, app: App) -> int:
    if args.console and args.output != "table":
        raise UsageError("--console is for people: leave -o json out")
    if args.what == "psi":
        if args.rows < 2:
            raise UsageError("--rows is at least 2")
        demo_options = psi_demo.PsiDemoOptions(
            args.rows, args.protocol, json=args.output == "json", keep=args.keep, console=args.console
        )
        return psi_demo.run(demo_options, app, main)
    if args.output != "table":
        raise UsageError("-o json is for `coterie demo psi`")
    folder = Path(tempfile.mkdtemp(prefix="coterie-demo-"))
    signal.signal(signal.SIGTERM, interrupted)  # so that the child and the files go, whoever ends us
    demo = _SampleDemo(app, folder)
    kept = False
    try:
        demo.start()
        demo.show_network()
        if args.console:
            demo.show_console([demo.node()], demo.folder, wait=not args.keep)
        kept = args.keep
    finally:
        if not kept:
            demo.stop()
            remove_tree(folder)
    demo.next_steps(kept)
    return 0


class _SampleDemo(DemoScript):
    def __init__(self, app: App, folder: Path) -> None:
        super().__init__(app)
        self.folder = folder
        self.paths = DomainPaths.of(folder, _DOMAIN)

    # The story.

    def start(self) -> None:
        self.heading("Start a node: control plane and agent in one")
        self.paths.prepare()
        config = background.config_file(self.paths)
        write_atomic(config, render(InitOptions("autonomy", _DOMAIN), str(config)) + _CONFIG % _NODE, durable=False)
        self.typed(f"coterie start -c {config} --root {self.folder}")
        with self.took() as took:
            self.spawn()
        self.app.say(
            "The Kubernetes API is served: store, discovery, OpenAPI, RBAC, admission, 18 Kuscia types, with\n"
            f"controllers and a scheduler; the agent runs pods as confined processes. {took()}"
        )

    def show_network(self) -> None:
        self.heading("Run pods: a Deployment and a Job")
        self.coterie("apply", "-f", str(self.sample("pods.yaml")))
        with self.took() as took:
            self.call_api(_pods_are_done)
        self.app.say(f"The Deployment is available and the Job complete. {took()}")
        self.coterie("get", "deploy,jobs,pods")
        self.coterie("logs", "job/primes")
        self.coterie("logs", "deploy/greeter")
        self.heading("Kill the node under its pods: they go on")
        self.crash()
        self.coterie("get", "pods", "-l", "app=greeter")
        self.coterie("exec", "deploy/greeter", "--", "echo", "still here")
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

    def next_steps(self, kept: bool) -> None:
        total = time.perf_counter() - self.began
        self.app.say()
        if kept:
            self.app.say(f"It is still running (process {background.running(self.paths)}). Look around:")
            self.app.say(f"  export KUBECONFIG={self.paths.kubeconfig}")
            self.app.say("  coterie get pods         # or: kubectl get pods")
            self.app.say(f"and when done: coterie down --root {self.folder} --purge")
        else:
            self.app.say(self.app.paint(f"Stopped and removed. The whole demo took {total:.1f} s.", "green"))
            self.app.say("Keep one to look around with `coterie demo --keep`, or begin your own: coterie init --help")

    # Its means.

    def coterie(self, *words: str, expect: int = 0) -> None:
        self.typed("coterie " + " ".join(words))
        with self.took() as took:
            # What a step refuses is part of the story here, so it goes where the story goes.
            app = App(self.app.out, self.app.out, self.environ, cwd=self.folder)
            code = main(["--kubeconfig", str(self.paths.kubeconfig), *words], app)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code != expect:
            raise CliError(f"Error: this step should have ended with {expect} but ended with {code}; {self.log_hint()}")
        self.app.say(took())

    @property
    def environ(self) -> dict[str, str]:
        return {**self.app.environ, "KUBECONFIG": str(self.paths.kubeconfig)}

    def sample(self, name: str) -> Path:
        target = self.paths.home / name
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
                timeout=_TIMEOUT,
                check=False,
            )
        self.app.write(done.stdout + done.stderr)
        self.app.say(took())

    def watch(self) -> None:
        self.typed("coterie get contracts -w     # and, elsewhere, somebody signs the contract")
        self.call_api(self.sign_and_see)

    def call_api(self, action: Callable[[CliSession], Awaitable[int]]) -> int:
        args = argparse.Namespace(
            kubeconfig=str(self.paths.kubeconfig), context="", root="", domain="", namespace="default"
        )
        return sessions.run(args, self.app, action)

    async def sign_and_see(self, session: CliSession) -> int:
        resource = (await session.catalogue()).find("contracts")
        kind = Kind.dynamic(resource)
        version = (await session.client.list(kind, "default")).resource_version
        question = ListQuery(resource, "default")
        widths: list[int] = []
        signed = asyncio.get_running_loop().create_future()

        async def see() -> None:
            async for _, table in changes(session.client, question, TABLE, version):
                delay = (time.perf_counter() - signed.result()) * 1000
                self.app.write(render_table(table, colour=self.app.colour, widths=widths))
                self.app.say(self.app.paint(f"(seen {delay:.1f} ms after it was sent)", "dim"))
                return

        async with asyncio.timeout(_TIMEOUT), asyncio.TaskGroup() as group:
            group.create_task(see(), name="demo watch")
            await asyncio.sleep(0.1)  # let the watch stand before the change comes
            signed.set_result(time.perf_counter())
            await session.client.patch_status(kind, "alice-bob", "default", {"status": {"state": "Signed"}})
        return 0

    # The node.

    def spawn(self) -> None:
        """Start it and wait until it does its work."""
        since = datetime.now(UTC)
        with asyncio.Runner() as runner:
            with DeferredSignals():
                background.start(self.paths, self.app.environ)
                runner.get_loop()  # a loop that is interrupted while it is made complains for ever after
            with working(self.app, "node", "starting"):
                runner.run(self._until_ready(since))

    def node(self) -> NodeSettings:
        return node_config.load(background.config_file(self.paths), root=self.folder)

    async def _until_ready(self, since: datetime) -> None:
        node = self.node()
        deadline = time.monotonic() + _TIMEOUT
        while not await node_health.is_ready(node, node, since):
            if not background.running(self.paths):
                raise CliError(f"Error: the node has ended; {self.log_hint()}")
            if time.monotonic() > deadline:
                raise CliError(f"Error: the node was not ready within {_TIMEOUT:g} s; {self.log_hint()}")
            await asyncio.sleep(_POLL_SECONDS)

    def crash(self) -> None:
        pid = background.running(self.paths)
        self.typed(f"kill -9 {pid}; coterie start -c {background.config_file(self.paths)} --root {self.folder}")
        with self.took() as took:
            os.kill(pid, signal.SIGKILL)
            while background.running(self.paths):
                time.sleep(_POLL_SECONDS)
            self.spawn()
        self.app.say(f"The node is back and has found its pods. {took()}")

    def log_hint(self) -> str:
        return "its last words: " + (" | ".join(background.log_tail(self.paths, 3)) or "none")

    def stop(self) -> None:
        with DeferredSignals():
            background.stop([self.paths], _GRACE)
            # Pods outlive their node, so they are ended by themselves.
            try:
                asyncio.run(halt_node(self.paths.run, _NODE, 1.0, forget=True))
            except RuntimeFailure as problem:
                self.app.warn(f"Pods of the demo may still run: {problem}")
            remove_tree(GatewayPaths.of(self.paths).run)  # sockets of a deep folder lie elsewhere


async def _pods_are_done(session: CliSession) -> int:
    """The Deployment is available and the Job complete."""
    async with asyncio.timeout(_TIMEOUT):
        while True:
            greeter = await session.client.get(DEPLOYMENTS, "greeter", "default")
            primes = await session.client.get(JOBS, "primes", "default")
            if greeter.status.available_replicas == greeter.spec.replicas and primes.status.succeeded:
                return 0
            await asyncio.sleep(_POLL_SECONDS)
