"""`coterie audit erase`: destroys the salt of a person's name."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App
from coterie.kuscia.api import evidence
from coterie.kuscia.evidence.service import ERASE_PATH

HELP = """
Destroy the salt of a person's name, in all logs of the domain: nobody can tell or guess any more whom the events meant.
The events themselves stay, and the log stays verifiable. The erasure is an event. The node must run.

Examples:
  coterie audit erase carol
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("person", metavar="PERSON", help="name of the account, as `coterie audit ls` shows it")
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        count = audit_log.run_node_call(audit_log.find_log(args, app), ERASE_PATH, (evidence.PERSON, args.person))
    app.say("The salt was destroyed." if count else "No event has a commitment to this name.")
    return 0 if count else 1
