"""`coterie down`: stop the network of domains that `coterie up` brought up."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli import background, network
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.progress import working
from coterie.cli.session import root_of
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.runtimes.halt_node import halt_node
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kuscia.gateway import orphaned_envoy
from coterie.kuscia.gateway.envoy import EnvoySettings
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import NodeSettings

HELP = """
Stop the network of domains under the root and the pods on it. Files are kept: `coterie up` starts it again with all
objects, and pods with restartPolicy Always are started again.

Examples:
  coterie down
  coterie down --keep-pods                  # stop only the nodes; pods keep running and `coterie up` adopts them
  coterie down --root /srv/coterie --purge  # also remove the files of the domains
"""
_NODE_GRACE = 10.0
_GATEWAY_GRACE = 5.0


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "--purge", action="store_true", help="remove all files of the domains: objects, keys, data, logs"
    )
    parser.add_argument("--keep-pods", action="store_true", help="leave the pods running")
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=options.seconds,
        default=5.0,
        help="seconds between SIGTERM and SIGKILL (default: 5)",
    )
    options.root_option(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if args.purge and args.keep_pods:
        raise UsageError("--purge removes the files of pods, so they cannot be kept; leave out --keep-pods or --purge")
    root = root_of(args, app)
    nodes = network.members(root)
    if not nodes:
        app.say(f"There is no network under {root}.")
        return 0
    pods: dict[str, int] = {}
    with working(app, "network", "stopping nodes", done="stopped") as step:
        try:
            ran = background.stop([node.paths for node in nodes], _NODE_GRACE)
        except PermissionError as problem:
            raise CliError(f"Error: {problem}; run this as the user who started it") from problem
        _refuse_foreign_nodes(nodes)
        step.update("stopping gateways")
        asyncio.run(_stop_gateways(nodes))
        if not args.keep_pods:
            step.update("stopping pods")
            pods = asyncio.run(_stop_pods(nodes, args.grace, forget=args.purge))
        if args.purge:
            step.update("removing files")
            for node in nodes:
                # Sockets of a deep root lie elsewhere.
                remove_tree(GatewayPaths.of(node.paths).run)
                remove_tree(node.paths.home)
    for node in nodes:
        app.say(_summary(node.domain, node.paths in ran, pods.get(node.domain, 0), args.purge))
    if args.purge:
        _remove_if_empty(root)
    return 0


def _refuse_foreign_nodes(nodes: list[NodeSettings]) -> None:
    """A node that somebody runs with `coterie start` is not ours to stop, and its files not ours to pull away."""
    for node in nodes:
        place = network.addresses_of(node)
        for port in filter(None, (place.api, place.agent)):
            with contextlib.suppress(OSError), socket.create_connection((place.address, port), timeout=1):
                raise CliError(
                    f"Error: something that `coterie up` did not start serves {node.domain} at {place.address}:{port}; "
                    "stop it first"
                )


async def _stop_gateways(nodes: list[NodeSettings]) -> None:
    """A gateway outlives a node that was killed, so that partners notice nothing. Now they shall."""
    left = []
    for node in nodes:
        places = GatewayPaths.of(node.paths)
        envoy = EnvoySettings(node.domain, places.directory, places.run, places.logs)
        pid = orphaned_envoy.running(envoy.pid_file, envoy.bootstrap)
        if pid is not None:
            left.append(orphaned_envoy.end(pid, _GATEWAY_GRACE))
    await asyncio.gather(*left)


async def _stop_pods(nodes: list[NodeSettings], grace: float, *, forget: bool) -> dict[str, int]:
    """How many pods of each domain ran."""
    agents = [(node, node.agent) for node in nodes if node.agent is not None]
    try:
        counts = await asyncio.gather(
            *(halt_node(node.paths.run, agent.node_name, grace, forget=forget) for node, agent in agents)
        )
    except RuntimeFailure as problem:
        raise CliError(f"Error: the pods could not be stopped: {problem}; try again") from problem
    return {node.domain: count for (node, _), count in zip(agents, counts, strict=True)}


def _summary(domain: str, ran: bool, pods: int, purged: bool) -> str:
    what = "stopped" if ran else "was not running"
    with_pods = f", {pods} pod{'s' if pods > 1 else ''} stopped" if pods else ""
    return f"{domain} {what}{with_pods}{', files removed' if purged else ''}."


def _remove_if_empty(root: Path) -> None:
    with contextlib.suppress(OSError):
        root.rmdir()
