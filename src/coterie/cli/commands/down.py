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
from coterie.cli.node_stop import remove_files, stop_gateways, stop_pods
from coterie.cli.progress import working
from coterie.cli.session import root_of
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
        asyncio.run(stop_gateways(nodes))
        if not args.keep_pods:
            step.update("stopping pods")
            pods = asyncio.run(stop_pods(nodes, args.grace, forget=args.purge))
        if args.purge:
            step.update("removing files")
            for node in nodes:
                remove_files(node)
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


def _summary(domain: str, ran: bool, pods: int, purged: bool) -> str:
    what = "stopped" if ran else "was not running"
    with_pods = f", {pods} pod{'s' if pods > 1 else ''} stopped" if pods else ""
    return f"{domain} {what}{with_pods}{', files removed' if purged else ''}."


def _remove_if_empty(root: Path) -> None:
    with contextlib.suppress(OSError):
        root.rmdir()
