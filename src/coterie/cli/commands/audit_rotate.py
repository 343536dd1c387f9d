"""`coterie audit rotate|rotate-key|reopen`: begins the next log."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App
from coterie.kuscia.evidence.service import REOPEN_PATH, ROTATE_PATH

HELP = """
Begin a new log, whose first event names the last head of the old one. The node must run.

  rotate       close the log and begin the next one; a node does so by itself at the begin of each year (UTC)
  rotate-key   the same, and sign with a new key from then on; the old key and the new one both sign the change
  reopen       after an older backup was restored: the node refuses to record until a new log is begun

Examples:
  coterie audit rotate
  coterie audit rotate-key
  coterie audit reopen
"""
_CALLS: dict[str, tuple[str, object]] = {
    "rotate": (ROTATE_PATH, False),
    "rotate-key": (ROTATE_PATH, True),
    "reopen": (REOPEN_PATH, None),
}


def arguments(parser: options.Parser) -> None:
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    path, body = _CALLS[args.called]
    with audit_log.failures():
        origin = audit_log.run_node_call(audit_log.find_log(args, app), path, body)
    app.say(f"A new log was begun: {origin}. Its first event names the last head of the old one.")
    return 0
