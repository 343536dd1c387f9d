"""`coterie audit prove`: one event with the proof that it is in the log."""

from __future__ import annotations

import argparse
import asyncio

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App, CliError, UsageError
from coterie.kuscia.evidence import export

HELP = """
Write one event with the proof that it is in the log. Nothing else of the log is in the file but the first event, which
certifies the key.

  --format evidence     for `coterie audit verify`
  --format tlog-proof   C2SP's format, for any program that knows it; checked with the key of the log (--log-key)

Examples:
  coterie audit prove 17 --file event.evidence
  coterie audit prove 17 --disclose person --file event.evidence
  coterie audit prove 17 --format tlog-proof --file event.tlog-proof
"""
_FORMATS = ("evidence", "tlog-proof")


def arguments(parser: options.Parser) -> None:
    audit_log.index_argument(parser)
    audit_log.log_option(parser)
    parser.add_argument("--file", metavar="FILE", required=True, help="where to write")
    parser.add_argument("--format", choices=_FORMATS, default="evidence", help="default: evidence")
    audit_log.disclose_option(parser)
    options.connection_options(parser)
    parser.complete(format=_FORMATS, file="files")


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        log = audit_log.find_log(args, app, args.log)
        disclose = audit_log.subjects(args.disclose)
        shown = audit_log.find_event(args, log)
        if shown.event is None:
            raise CliError(f"event {shown.index} was removed by retention; only its hash is left")
        asyncio.run(log.sign())
        if args.format == "evidence":
            lines = export.export_one(
                log.reader, log.header(whole=False), shown.index, disclose=disclose, witnesses=log.witnesses
            )
            return audit_log.written(args.file, app, lines)
        if disclose:
            raise UsageError("--disclose is for the format evidence; a tlog-proof contains the event and nothing else")
        text = export.tlog_proof_of(log.reader, shown.index)
        return audit_log.written(args.file, app, iter([text.encode()]), hint=f" --log-key {log.key}")
