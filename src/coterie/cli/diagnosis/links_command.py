"""What `coterie diagnose network` and `coterie diagnose job` share: options, where to look from, and the result on the screen."""

from __future__ import annotations

import argparse

from coterie import __version__
from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.diagnosis.gather import GraphProbe, Vantage, local_gateways
from coterie.cli.diagnosis.model import MIB, JobNeeds, LinkThresholds
from coterie.cli.diagnosis.view import graph_text
from coterie.cli.output import as_text
from coterie.cli.progress import working
from coterie.kube.client.client import Client
from coterie.kuscia.gateway.diagnosis.messages import ProbePlan

MOST_PARTIES = 16
_DEFAULT_IDLE = 10.0


def link_options(parser: options.Parser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--idle",
        type=options.seconds,
        metavar="TIME",
        default=_DEFAULT_IDLE,
        help="hold a silent call open so long on every link, at most 10m; 0 skips it (default: 10s)",
    )
    group.add_argument("--body", type=int, metavar="MIB", default=16, help="largest request body to try (default: 16)")
    group.add_argument("--no-grpc", action="store_true", help="leave out gRPC")
    group.add_argument("--no-bandwidth", action="store_true", help="leave out the rates")
    group.add_argument("--quick", action="store_true", help="only reach, protocols, round trip and clock")
    limits = parser.add_argument_group("when to warn")
    limits.add_argument("--rtt", type=float, metavar="MS", default=50.0, help="round trips above this (default: 50)")
    limits.add_argument("--speed", type=float, metavar="MBPS", default=10.0, help="Mbit/s below this (default: 10)")
    limits.add_argument(
        "--size", type=float, metavar="MIB", default=1.0, help="bodies below this fail the link (default: 1)"
    )
    parser.add_argument("--all", action="store_true", help="also print what is well")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)


def plan_of(args: argparse.Namespace) -> ProbePlan:
    if args.quick:
        return ProbePlan(not args.no_grpc, False, 0, 0)
    if not 0 <= args.body <= 16:
        raise UsageError("--body is a number of MiB from 0 to 16")
    return ProbePlan(not args.no_grpc, True, args.body * MIB, 0 if args.no_bandwidth else 8 * MIB)


def aim(args: argparse.Namespace, app: App, parties: tuple[str, ...]) -> None:
    """Of several control planes on this machine that of the first party is meant, unless one was named."""
    if args.kubeconfig or args.context or args.domain or (app.environ.get("KUBECONFIG") and not args.root):
        return
    domains = sessions.domains_under(sessions.root_of(args, app))
    if len(domains) > 1:
        args.domain = next((name for name in parties if name in domains), domains[0])


async def diagnose_links(app: App, args: argparse.Namespace, client: Client | None, needs: JobNeeds) -> int:
    root = sessions.root_of(args, app)
    if len(needs.parties) > MOST_PARTIES:
        raise UsageError(f"that are {len(needs.parties)} parties; name at most {MOST_PARTIES}")
    gateways = local_gateways(root, needs.parties)
    if not gateways and client is None:
        raise CliError(f"Error: no gateway runs under {root}; run this on the machine of one of the parties")
    hint = f" --domain {args.domain}" if args.domain else ""
    vantage = Vantage(root, gateways, client, hint, __version__)
    idle = 0.0 if args.quick else min(args.idle, 600.0)
    thresholds = LinkThresholds(args.rtt, args.speed * 1e6, int(args.size * MIB))
    with working(app, "network", "measuring links", done="measured", quiet=args.output != "table") as step:
        result = await GraphProbe(vantage, SYSTEM_CLOCK, step.update).run(needs, plan_of(args), idle, thresholds)
    if args.output != "table":
        app.write(as_text(result.document(), args.output))
    else:
        app.write(graph_text(result, app.paint, colour=app.colour, everything=args.all))
    if result.ok:
        return 0
    broken = ", ".join(str(each.facts.link) for each in result.links if each.status == "Failed")
    parties = ", ".join(each.party for each in result.parties if each.status == "Failed")
    app.warn(f"Error: not ready: {', '.join(part for part in (broken, parties) if part)}")
    return 1
