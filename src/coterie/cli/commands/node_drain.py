"""`coterie node drain`: move the pods of a node to other nodes."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.nodes import lite_domain
from coterie.cli.nodes.drain import DrainOptions, drain
from coterie.cli.output import as_text
from coterie.cli.progress import working
from coterie.kube.client.client import Client

HELP = """
Empty a node: no new pods are scheduled there (it is cordoned), and its pods are evicted gracefully, as fast as their
PodDisruptionBudgets allow. Their controllers create replacements on other nodes. The command ends when the pods are
gone. Pods of DaemonSets cannot be moved, and pods without a controller are not replaced: both are named before anything
is evicted, and need --ignore-daemonsets or --force. The same as `kubectl drain`. At a lite it works for the nodes of its
own domain.

Examples:
  coterie node drain node-2 --ignore-daemonsets
  coterie node drain node-2 --ignore-daemonsets --force --grace-period 10 --timeout 2m
  coterie kubectl uncordon node-2                       # use it again
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NODE", help="name of the node")
    drain_options(parser)
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", metavar="FORMAT", help="table, json"
    )
    options.connection_options(parser)


def drain_options(parser: options.Parser) -> None:
    add = parser.add_argument
    add("--ignore-daemonsets", action="store_true", help="leave the pods of DaemonSets")
    add("--force", action="store_true", help="evict pods that no controller replaces, too")
    add("--delete-emptydir-data", action="store_true", help="evict pods with emptyDir volumes, whose data is lost")
    add(
        "--grace-period",
        metavar="SECONDS",
        type=int,
        default=None,
        help="seconds for pods to end (default: as each pod says)",
    )
    add("--timeout", metavar="TIME", type=options.seconds, default=0.0, help="give up after this time, e.g. 2m")


def options_of(args: argparse.Namespace) -> DrainOptions:
    grace = args.grace_period if args.grace_period is not None and args.grace_period >= 0 else None
    return DrainOptions(args.ignore_daemonsets, args.force, args.delete_emptydir_data, grace, args.timeout)


def run(args: argparse.Namespace, app: App) -> int:
    async def do(client: Client, namespace: str) -> int:
        quiet = args.output != "table"
        evicted: list[str] = []

        def say(line: str) -> None:
            evicted.append(line.split()[1])
            step.print_line(line)
            step.update(f"{len(evicted)} pods evicted")

        with working(app, f"node {args.name}", "evicting pods", done="drained", quiet=quiet) as step:
            await drain(client, args.name, options_of(args), say, namespace)
        if quiet:
            app.write(as_text({"node": args.name, "drained": True, "evicted": sorted(evicted)}, "json"))
        else:
            app.say(f"node/{args.name} drained")
        return 0

    return lite_domain.run(args, app, do)
