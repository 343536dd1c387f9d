"""`coterie audit ls`: the events of the log."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App
from coterie.cli.output import as_text, plain_table
from coterie.cli.tables import render_table
from coterie.kuscia.evidence import listing

HELP = """
List the events of the evidence log, the oldest first. Commitments whose salt exists are shown as what they stand for.

Examples:
  coterie audit ls
  coterie audit ls --kind grant. --since 7d
  coterie audit ls --job common-customers -o json
"""


def arguments(parser: options.Parser) -> None:
    audit_log.filter_options(parser)
    parser.add_argument("--limit", metavar="N", type=int, default=0, help="only the newest N")
    audit_log.log_option(parser)
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        log = audit_log.find_log(args, app, args.log)
        chosen = audit_log.filter_of(args)
        if args.limit > 0:
            found = listing.newest_shown(log.reader, chosen, args.limit)[::-1]
        else:
            found = list(listing.shown_events(log.reader, chosen))
    if args.output != "table":
        app.write(as_text([each.as_json() for each in found], args.output))
    elif not found:
        app.say("There are no such events.")
    else:
        table = plain_table(audit_log.COLUMNS, [audit_log.row_of(each) for each in found])
        app.write(render_table(table, colour=app.colour))
    return 0
