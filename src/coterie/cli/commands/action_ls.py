"""`coterie action ls`: the functions of a namespace."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.output import plain_table
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.cli.terminal_format import safe
from coterie.kuscia.api.functions.types import ACTIONS, Action

HELP = """
List functions: version, actors (ready/desired), calls and errors of the last minute, dead letters, and what is wrong.

Examples:
  coterie action ls
  coterie action ls -A -o wide            # with images, cold starts and next actions
  coterie action ls -o json
"""
_COLUMNS = ("NAME", "VERSION", "ACTORS", "CALLS/MIN", "ERRORS/MIN", "DEAD", "AGE", "STATE", "IMAGE", "COLD", "NEXT")
_WIDE = 8


def arguments(parser: options.Parser) -> None:
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="functions of all namespaces")
    parser.add_argument("--no-headers", action="store_true", help="omit the header line")
    options.output_option(parser)
    options.namespace_option(parser)
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _list(session, args))


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    found = await actions.listed(session, ACTIONS, everywhere=args.all_namespaces)
    none = "There are no functions; `coterie action create NAME --script FILE` makes one"
    if actions.print_listing(session, args.output, ACTIONS, found, none):
        return 0
    rows = [(*((each.metadata.namespace,) if args.all_namespaces else ()), *_row(each)) for _, each in found]
    columns = (*(("NAMESPACE",) if args.all_namespaces else ()), *_COLUMNS)
    table = plain_table(columns, rows, _WIDE + int(args.all_namespaces))
    app.write(render_table(table, wide=args.output == "wide", no_headers=args.no_headers, colour=app.colour))
    return 0


def _row(action: Action) -> tuple[str, ...]:
    status = action.status
    return (
        action.metadata.name,
        status.version,
        f"{status.ready_replicas}/{status.desired_replicas}",
        str(status.calls_per_minute),
        str(status.errors_per_minute),
        str(status.dead_letters),
        actions.age(action.metadata.creation_timestamp),
        safe(actions.condition_line(action))[:60],
        action.spec.image,
        str(status.cold_starts),
        ",".join(action.spec.targets),
    )
