"""`coterie audit export`: the log, or some of its events, as a file for others."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.progress import working
from coterie.kuscia.evidence import event_formats, export, listing
from coterie.kuscia.evidence.local_log import LocalLog

HELP = """
Write the log into a file that anybody can check offline (`coterie audit verify`). With filters, only these events are
in it, each with the proof that it is in the log. Names of people and tables are in it only with --disclose.

  --format evidence   the whole log, or events with proofs; needs --file
  --format json       lines of JSON; the owner's view: with what commitments stand for
  --format csv        a table
  --format otlp       OpenTelemetry logs, as JSON: what POST /v1/logs of a collector takes

Examples:
  coterie audit export --file alice.evidence
  coterie audit export --job common-customers --disclose person,table --file job.evidence
  coterie audit export --format csv --since 30d --file month.csv
  coterie audit export --format otlp | curl -H 'content-type: application/json' -d @- http://127.0.0.1:4318/v1/logs
"""
EVIDENCE = "evidence"
_FORMATS = (EVIDENCE, event_formats.JSON, event_formats.CSV, event_formats.OTLP)


def arguments(parser: options.Parser) -> None:
    audit_log.filter_options(parser)
    audit_log.log_option(parser)
    parser.add_argument("--file", metavar="FILE", default="", help="where to write")
    parser.add_argument("--format", choices=_FORMATS, default=EVIDENCE, help="default: evidence")
    audit_log.disclose_option(parser)
    options.connection_options(parser)
    parser.complete(format=_FORMATS, file="files")


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        log = audit_log.find_log(args, app, args.log)
        disclose, chosen = audit_log.subjects(args.disclose), audit_log.filter_of(args)
        if args.format != EVIDENCE:
            if disclose:
                raise UsageError(
                    "--disclose is for files of the format evidence; the others show all that the owner sees"
                )
            return _export_rows(args, app, log, chosen)
        if not args.file:
            raise UsageError("coterie audit export needs --file FILE")
        if not chosen.empty and not listing.newest_shown(log.reader, chosen, 1, None):
            raise CliError(
                "there are no such events", "`coterie audit ls` takes the same options and lists what there is"
            )
        asyncio.run(log.sign())
        if chosen.empty:
            lines = export.export_log(log.reader, log.header(whole=True), disclose=disclose, witnesses=log.witnesses)
        else:
            lines = export.export_events(
                log.reader,
                log.header(whole=False),
                chosen.matches,
                disclose=disclose,
                witnesses=log.witnesses,
            )
        return audit_log.written(args.file, app, lines)


def _export_rows(args: argparse.Namespace, app: App, log: LocalLog, chosen: listing.EventFilter) -> int:
    with working(app, log.key.name, "reading its events", quiet=not args.file):
        rows = [each.as_json() for each in listing.shown_events(log.reader, chosen)]
        text = event_formats.formatted(rows, args.format, log.domain)
    if args.file:
        audit_log.write_file(Path(args.file), iter([text.encode()]))
        app.say(f"{args.file}: {len(rows)} events")
    else:
        app.write(text)
    return 0
