"""`coterie bandwidth`: what nodes, links and tasks have, reserved and use; and what nodes and links have at most."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.bandwidth_view import own_reports, report_text
from coterie.cli.output import as_text
from coterie.cli.session import CliSession
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.nodes import NODES
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import MBIT, bandwidth_problem, parse_bits
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES

HELP = """
Show the bandwidth of nodes, links and running tasks: capacity, what is reserved, and what is used now, which the
gateways measure every two seconds. With --node or --link: set a capacity, such as 100Mbps, 1Gbps or 10Gi; `none`
takes it away.

Examples:
  coterie bandwidth
  coterie bandwidth --of alice -o json
  coterie bandwidth --link alice,bob 100Mbps
  coterie bandwidth --node alice-node 1Gbps
  coterie bandwidth --link alice,bob none
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("amount", metavar="AMOUNT", nargs="?", default="", help="the capacity; none: not stated")
    parser.add_argument("--of", metavar="ID", default="", help="show this domain only")
    parser.add_argument("--node", metavar="NAME", default="", help="set the capacity of this node")
    parser.add_argument("--link", metavar="A,B", default="", help="set the capacity of the link between two domains")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(of="domains", node="nodes", link="domains,")


def run(args: argparse.Namespace, app: App) -> int:
    if args.node and args.link:
        raise UsageError("give either --node or --link")
    if bool(args.amount) != bool(args.node or args.link):
        raise UsageError(
            "to set a capacity give --node or --link and the amount: `coterie bandwidth --node NAME 1Gbps`"
        )
    if args.amount not in ("", "none") and (problem := bandwidth_problem(args.amount)):
        raise UsageError(problem)
    if args.node and args.amount != "none" and parse_bits(args.amount) < MBIT:
        raise UsageError("a node has at least 1 Mbit/s")
    if args.amount:
        return sessions.run(args, app, lambda session: _set(session, args))
    return sessions.run(args, app, lambda session: _show(session, args))


async def _show(session: CliSession, args: argparse.Namespace) -> int:
    reports = await own_reports(session, args.of)
    if args.of and not reports:
        raise CliError(
            f'Error: this control plane hosts no domain "{args.of}"; `coterie domain ls` lists those it does'
        )
    if args.output != "table":
        session.app.write(as_text({"domains": [asdict(each) for each in reports]}, args.output))
    else:
        session.app.write("\n".join(map(report_text, reports)))
    return 0


async def _set(session: CliSession, args: argparse.Namespace) -> int:
    text = None if args.amount == "none" else args.amount
    if args.node:
        patch = {"metadata": {"annotations": {labels.COTERIE_NODE_BANDWIDTH: text}}}
        try:
            await session.client.patch(NODES, args.node, "", patch)
        except NotFound as error:
            raise CliError(f'Error: there is no node "{args.node}"') from error
        session.app.say(f"node {args.node}: capacity {args.amount}; its agent follows within half a minute")
        return 0
    ends = set(args.link.split(","))
    routes = [
        route
        for route in (await session.client.list(CLUSTER_DOMAIN_ROUTES)).items
        if {route.spec.source, route.spec.destination} == ends
    ]
    if len(ends) != 2 or not routes:
        raise CliError(f'Error: there is no route between "{args.link}"; write two domains, such as alice,bob')
    for route in routes:
        patch = {"metadata": {"annotations": {labels.COTERIE_LINK_BANDWIDTH: text}}}
        await session.client.patch(CLUSTER_DOMAIN_ROUTES, route.metadata.name, "", patch)
    session.app.say(f"link {'-'.join(sorted(ends))}: capacity {args.amount}")
    return 0
