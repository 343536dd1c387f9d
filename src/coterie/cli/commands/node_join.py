"""`coterie node join`: make this machine a node of a control plane, with a file from `coterie node add`."""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import time
from datetime import datetime
from pathlib import Path

import yaml

import coterie
from coterie.base import files
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import background, network, node_health
from coterie.cli.app import App, CliError
from coterie.cli.error_messages import cli_errors
from coterie.cli.nodes import local_node
from coterie.cli.output import as_text
from coterie.cli.progress import working
from coterie.cli.session import root_of
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.transport import TransportError
from coterie.node import config, join_bundle
from coterie.node.config import ConfigError
from coterie.node.join_bundle import Bundle

HELP = """
Make this machine a node: write its configuration below the root, start it in the background and wait until it is Ready.
FILE is the join file from `coterie node add`; - reads it from standard input. The node listens on the first of the
addresses in the file that this machine has. Without FILE, the node that joined before is started again, e.g. after a
boot.

Examples:
  coterie node join node-2.join
  coterie node join node-2.join --root /srv/coterie
  ssh 10.0.0.1 coterie node add node-2 --address 10.0.0.2 -o - | coterie node join -
  coterie node join                                     # start it again after a boot
  coterie node leave                                    # the way back
"""
_LONGEST_FILE = 1 << 20
_POLL_SECONDS = 0.1
_HEAD = (
    "# Written by `coterie node join`, which keeps what it finds here: change what you like and start the node again.\n"
)


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="", help="join file from `coterie node add`; -: standard input"
    )
    parser.add_argument("--address", metavar="IP", default="", help="address of this machine (default: as in the file)")
    parser.add_argument("--port", metavar="N", type=int, default=0, help="port of the node's agent (default: 10250)")
    parser.add_argument(
        "--wait", metavar="TIME", type=options.seconds, default=60.0, help="timeout until it is Ready (default: 60s)"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", metavar="FORMAT", help="table, json"
    )
    options.root_option(parser)
    parser.add_argument("--domain", metavar="ID", default=argparse.SUPPRESS, help="without FILE: domain of the node")


def run(args: argparse.Namespace, app: App) -> int:
    bundle = _read(args.file, app) if args.file else _known(args, app)
    if not bundle.domain:
        raise CliError(
            f"Error: {args.file} was made by an earlier version; make a new one with `coterie node add {bundle.node}`"
        )
    paths = DomainPaths.of(root_of(args, app), bundle.domain)
    quiet = args.output != "table"
    began = time.monotonic()
    running = background.running(paths)
    try:
        if not running:
            _prepare(paths, bundle, args.address or local_address(bundle), args.port)
            asyncio.run(_check_server(bundle))
        since = None if running else SYSTEM_CLOCK.now()
        pid = running or background.start(paths, {**os.environ, **app.environ})
    except OSError as problem:
        raise CliError(
            f"Error: {problem.filename or paths.home}: {problem.strerror}; choose another --root"
        ) from problem
    if running and not quiet:
        app.say(f"{bundle.node} is already running (process {pid}).")
    with cli_errors(bundle.server), working(app, f"node {bundle.node}", "starting", done="Ready", quiet=quiet):
        asyncio.run(_until_ready(paths, bundle, since, args.wait))
    if quiet:
        document = {
            "node": bundle.node,
            "domain": bundle.domain,
            "server": bundle.server,
            "podCIDR": bundle.pod_cidr,
            "config": str(background.config_file(paths)),
            "log": str(background.log_file(paths)),
            "process": pid,
            "ready": True,
        }
        app.write(as_text(document, "json"))
        return 0
    ranges = f", its pods have the addresses {bundle.pod_cidr}" if bundle.pod_cidr else ""
    app.say(app.paint(f"{bundle.node} is Ready after {time.monotonic() - began:.1f} s{ranges}.", "green"))
    app.say(f"  control plane  {bundle.server} (domain {bundle.domain})")
    app.say(f"  configuration  {background.config_file(paths)}")
    app.say(f"  log            {background.log_file(paths)}")
    app.say(f"  process        {pid}")
    app.say("Stop it and move its pods elsewhere with `coterie node leave`; remove it with `coterie node reset`.")
    return 0


def _read(name: str, app: App) -> Bundle:
    try:
        if name == "-":
            return join_bundle.parse_bundle(app.stdin.read(_LONGEST_FILE).encode(), "standard input")
        return join_bundle.read_bundle(app.cwd / Path(name).expanduser())
    except ConfigError as problem:
        raise CliError(f"Error: {problem}") from problem


def _known(args: argparse.Namespace, app: App) -> Bundle:
    """Of the node that joined before."""
    node = local_node.find(args, app)
    if node.bundle is None:
        raise CliError(f"Error: {node.settings.join} cannot be read; name a join file from `coterie node add`")
    return node.bundle


def local_address(bundle: Bundle) -> str:
    """The first address of the file that this machine has."""
    for address in bundle.addresses:
        if network.source_towards(address) == address:
            return address
    raise CliError(
        f"Error: this machine has none of the addresses in the file ({', '.join(bundle.addresses)}); "
        f"make a new one with `coterie node add {bundle.node} --address IP`"
    )


def _prepare(paths: DomainPaths, bundle: Bundle, address: str, port: int) -> None:
    """The files of the node. A configuration that is there already is kept, if it is of this node."""
    file = background.config_file(paths)
    if file.exists():
        _check_same_node(file, paths, bundle)
    else:
        paths.prepare()
        agent: dict[str, object] = {"nodeName": bundle.node, "address": address}
        if port:
            agent["port"] = port
        document = {
            "mode": "lite",
            "domainID": bundle.domain,
            "root": str(paths.home.parent),
            "join": str(local_node.join_file(paths)),
            "agent": agent,
        }
        text = _HEAD + yaml.safe_dump(document, sort_keys=False)
        try:
            config.parse(yaml.safe_load(text))
        except ConfigError as problem:
            raise CliError(f"Error: {problem}") from problem
        files.write_atomic(file, text)
    bundle.write(local_node.join_file(paths))


def _check_same_node(file: Path, paths: DomainPaths, bundle: Bundle) -> None:
    try:
        settings = config.load(file, root=paths.home.parent)
    except ConfigError as problem:
        raise CliError(f"Error: {problem}") from problem
    name = settings.agent.node_name if settings.agent is not None else ""
    if settings.join != local_node.join_file(paths) or name != bundle.node:
        raise CliError(
            f"Error: {paths.home} belongs to another node ({name or settings.mode}); choose another --root, "
            "or remove it with `coterie node reset`"
        )


async def _check_server(bundle: Bundle) -> None:
    """Before anything is started: a wrong address or an old file is said at once."""
    try:
        async with local_node.client_of(bundle) as client:
            await client.get(NODES, bundle.node)
            # Whether it accepts a node of our version.
            version = {"status": {"nodeInfo": {"kubeletVersion": f"v{coterie.__version__}"}}}
            await client.patch(NODES, bundle.node, "", version, subresource="status", dry_run=True)
    except NotFound:
        return  # the agent registers it again
    except ssl.SSLError as problem:
        raise CliError(
            f"Error: the certificates in the file cannot be used; make a new one with `coterie node add {bundle.node}`"
        ) from problem
    except Forbidden as problem:
        raise CliError(f"Error: the control plane at {bundle.server} refuses this node: {problem.message}") from problem
    except ApiError as problem:
        raise CliError(
            f"Error: the control plane at {bundle.server} does not accept the file: {problem.message}; "
            f"make a new one with `coterie node add {bundle.node}`"
        ) from problem
    except TransportError as problem:
        raise CliError(
            f"Error: the control plane at {bundle.server} cannot be reached from this machine ({problem}); check the "
            "route to it and its firewall, or make a new file with another --server"
        ) from problem


async def _until_ready(paths: DomainPaths, bundle: Bundle, since: datetime | None, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    async with local_node.client_of(bundle) as client:
        while True:
            try:
                if await node_health.node_is_ready(client, bundle.node, since):
                    return
            except (ApiError, TransportError):
                pass  # it starts
            if not background.running(paths):
                raise CliError(f"Error: {bundle.node} did not start.{_log(paths)}")
            if time.monotonic() >= deadline:
                raise CliError(
                    f"Error: {bundle.node} is not Ready within {timeout:g} s; it goes on trying.{_log(paths)}\n"
                    "Wait on with the same command, or stop it with `coterie node reset`"
                )
            await asyncio.sleep(_POLL_SECONDS)


def _log(paths: DomainPaths) -> str:
    lines = background.log_tail(paths)
    shown = "".join(f"\n  {line}" for line in lines) or "\n  (nothing)"
    return f"\nThe end of {background.log_file(paths)}:{shown}"
