"""`coterie audit show`: one event."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App
from coterie.cli.output import as_text

HELP = """
Show one event with all its fields, and what its commitments stand for as long as their salts exist.

Examples:
  coterie audit show 17
  coterie audit show 17 -o json
"""


def arguments(parser: options.Parser) -> None:
    audit_log.index_argument(parser)
    audit_log.log_option(parser)
    options.output_option(parser, ("yaml", "json"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        shown = audit_log.find_event(args, audit_log.find_log(args, app, args.log))
    app.write(as_text(shown.as_json(), args.output))
    return 0
