"""`coterie audit retain`: removes the content of old events."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App, UsageError
from coterie.kuscia.evidence.service import RETAIN_PATH

HELP = """
Remove the content of events that are older than so many days, in all logs of the domain. Their hashes stay, so the log
stays verifiable; `verify` counts them as removed. The removal is an event. The node must run.

Examples:
  coterie audit retain 730
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("days", metavar="DAYS", help="a number, such as 730")
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    try:
        days = float(args.days)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:
        raise UsageError("DAYS is a number, such as 730")
    with audit_log.failures():
        count = audit_log.run_node_call(audit_log.find_log(args, app), RETAIN_PATH, days)
    app.say(f"The content of {count} events was removed; their hashes stay.")
    return 0
