"""`coterie up`: a network of domains on this machine, in the background, ready when the command ends."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import console_link, network, network_start, node_health
from coterie.cli.app import App, CliError
from coterie.cli.output import as_text, plain_table
from coterie.cli.progress import ProgressTable
from coterie.cli.session import root_of
from coterie.cli.tables import render_table
from coterie.kuscia.routes import model
from coterie.kuscia.routes.model import RouteLine
from coterie.node.config import NodeSettings

HELP = """
Start a network of domains on this machine, in the background, and wait until it is ready: every node runs, and every
route between two domains works in both directions. In topology center, one control plane serves a node of each domain;
the nodes register through its gateway. In topology p2p, each domain has its own control plane and node, and all domains
are partners whose policies are open: each accepts the jobs and deployments of the others. Each domain has its own
directory under the root and its own loopback address. Domains that already run are not changed; existing domains start
with all their objects.

Examples:
  coterie up                                          # p2p: alice and bob
  coterie up --topology center --domains alice,bob,carol
  coterie up --topology center --master east --domains dave   # a name of its own, to join it with another network
  coterie up --root /srv/coterie --wait 60
  coterie up --console                                # and a link to the console of each control plane
  coterie up -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "--topology",
        choices=network.TOPOLOGIES,
        default="",
        help="p2p: one control plane for each domain (default); center: one for all",
    )
    parser.add_argument("--domains", metavar="IDS", default="", help="domains (default: alice,bob)")
    parser.add_argument(
        "--master",
        metavar="ID",
        default="",
        help=f"domain of the control plane in topology center (default: {network.MASTER})",
    )
    parser.add_argument(
        "--wait", metavar="SECONDS", type=options.seconds, default=60.0, help="timeout in seconds (default: 60)"
    )
    parser.add_argument(
        "--console",
        action="store_true",
        help="print a link to the console of each control plane, and open the first one where there is a desktop",
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.root_option(parser)


def run(args: argparse.Namespace, app: App) -> int:
    domains = network.check_domains(args.domains)
    network.check_domains(args.master, "--master")
    root = root_of(args, app)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            with network.address_lock():
                nodes = network.choose(root, args.topology, domains, args.master)
                stack.enter_context(network.reserve_addresses(network.addresses_of(node).address for node in nodes))
            board = ProgressTable(app, quiet=args.output != "table")
            network_start.NetworkStart(app, nodes, board).run(args.wait)
    except OSError as problem:
        raise CliError(f"Error: {problem.filename or root}: {problem.strerror}; choose another --root") from problem
    states, lines = asyncio.run(_gather(nodes, SYSTEM_CLOCK.now()))
    if args.output != "table":
        document: dict[str, object] = {
            "domains": [each.document() for each in states],
            "routes": [each.document() for each in lines],
        }
        if args.console:
            document["consoleLinks"] = console_link.links_of_all(app, nodes)
        app.write(as_text(document, args.output))
        return 0
    app.write(render_table(plain_table(node_health.COLUMNS, [each.row for each in states]), colour=app.colour))
    if lines:
        app.say()
        app.write(render_table(plain_table(model.COLUMNS, [each.row for each in lines]), colour=app.colour))
    app.say(app.paint(f"Ready after {time.monotonic() - began:.1f} s.", "green"))
    if sum(node.mode != "lite" for node in nodes) > 1:
        app.say(
            "Policies are open: each domain accepts what the others begin (`coterie policy ls`, `coterie policy deny`)."
        )
    app.say()
    app.say("Next:")
    for line in next_steps(root, nodes, args.root):
        app.say(f"  {line}")
    if args.console and (links := console_link.links_of_all(app, nodes)):
        app.say()
        console_link.print_links(app, links, str(root) if args.root else "")
    return 0


async def _gather(nodes: Sequence[NodeSettings], now: datetime) -> tuple[list[node_health.NodeHealth], list[RouteLine]]:
    return await asyncio.gather(node_health.of_all(nodes), node_health.routes_of(nodes, now))


def next_steps(root: Path, nodes: Sequence[NodeSettings], named_root: str) -> list[str]:
    planes = [node for node in nodes if node.mode != "lite"]
    where = f" --root {shlex.quote(str(root))}" if named_root else ""
    more = f"   # or of {', '.join(plane.domain for plane in planes[1:])}" if len(planes) > 1 else ""
    members = [node.domain for node in nodes if node.mode != "master"]
    steps = [
        f"export KUBECONFIG={shlex.quote(str(planes[0].paths.kubeconfig))}{more}",
        "coterie get nodes",
        f"coterie status{where}",
    ]
    if len(members) > 1:
        steps.append(f"coterie route check {members[0]} {members[1]}{where}")
    if planes[0].console.enabled:
        steps.append(f"coterie console --domain {planes[0].domain}{where}{more}")
    return [*steps, f"coterie down{where}"]
