"""`coterie audit compare`: do the logs of two domains tell the same story?"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import BinaryIO

from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App
from coterie.cli.commands.audit_verify import report_json, trusted_keys
from coterie.cli.output import as_text
from coterie.cli.progress import working
from coterie.kuscia.api.log_query import printable
from coterie.kuscia.evidence import comparison

HELP = """
Check that the logs of two domains tell the same story: the same tasks with the same parties, engines and agreement, and
heads that one got from the other are in the other's log. For a third person who trusts neither. Without --trust the files' own certificates
are used, and anybody may have written them. Exit status 0: they do.

Examples:
  coterie audit compare alice.evidence bob.evidence --trust alice.crt --trust bob.crt
  coterie audit compare alice.evidence bob.evidence -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("first", metavar="FILE", help="of one domain, written by `coterie audit export`")
    parser.add_argument("second", metavar="FILE", help="of the other domain")
    parser.add_argument("--trust", metavar="CERT", action="append", default=[], help="certificate of a domain")
    options.output_option(parser, ("table", "json", "yaml"))
    parser.complete(first="files", second="files", trust="files")


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        first, second = (partial(_opened, path) for path in (args.first, args.second))
        with working(app, "both logs", "comparing", done="compared", quiet=args.output != "table"):
            report = comparison.compare(first, second, trusted=trusted_keys(args.trust))
    if args.output != "table":
        content = {
            "same": report.ok,
            "contradictions": [each.sentence for each in report.contradictions],
            "agreedTasks": report.agreed_tasks,
            "sharedHeads": report.shared_heads,
            "files": [report_json(each) for each in (report.first, report.second)],
        }
        app.write(as_text(content, args.output))
        return 0 if report.ok else 1
    for path, each in zip((args.first, args.second), (report.first, report.second), strict=True):
        if each.fault is not None:
            app.warn(printable(f"{path}: NOT VALID: {each.fault}"))
        elif not each.trusted:
            domain = each.header.domain
            app.warn(
                f"{path}: the certificate of {domain} is the file's own: compare it with one that you trust (--trust FILE)"
            )
    for found in report.contradictions:
        where = ", ".join(f"{domain} event {index}" for domain, index in found.indexes)
        app.warn(printable(found.sentence) + (f" ({where})" if where else ""))
    if report.ok:
        app.say(
            f"Both logs tell the same: {report.agreed_tasks} tasks agreed, {report.shared_heads} heads of one in the other"
        )
    return 0 if report.ok else 1


def _opened(path: str) -> BinaryIO:
    return Path(path).open("rb")
