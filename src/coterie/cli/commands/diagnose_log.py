"""`coterie diagnose log`: what the access logs of a gateway say, in plain words."""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.diagnosis.access_log import EXTERNAL, INTERNAL, AccessLogReport, explain, feed_all
from coterie.cli.diagnosis.domain_choice import chosen_home
from coterie.cli.diagnosis.log_reading import lines_of, rotated_files
from coterie.cli.diagnosis.view import printable
from coterie.cli.output import as_text, plain_table
from coterie.cli.tables import render_table
from coterie.kuscia.gateway.paths import GatewayPaths

HELP = """
Read the access logs of the gateway on this machine, also rotated and compressed ones, and group failed calls by partner,
task, status and Envoy's response flags, each with its meaning and the next step; then the slowest calls. Give a task (or a
job's name, with which its tasks begin) to see only its calls.

Examples:
  coterie diagnose log
  coterie diagnose log psi-1a2b3c --since 30m
  coterie diagnose log --partner bob --slow 2s -o json
  coterie diagnose log --file external.log.2.gz          # a file from elsewhere
"""
_COLUMNS = ("Calls", "From", "To", "Task", "Code", "Flags", "Last", "Meaning")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("task", nargs="?", default="", metavar="TASK", help="only calls of this task or job")
    parser.add_argument("--since", type=options.seconds, metavar="TIME", default=None, help="e.g. 30m, 2h")
    parser.add_argument("--partner", metavar="DOMAIN", default="", help="only calls to and from this domain")
    parser.add_argument(
        "--slow", type=options.seconds, metavar="TIME", default=10.0, help="calls that took longer (default: 10s)"
    )
    parser.add_argument("--file", metavar="FILE", action="append", default=[], help="read this file instead")
    parser.add_argument("--all", action="store_true", help="with handshakes and diagnosis between gateways")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(task="tasks|jobs")


def run(args: argparse.Namespace, app: App) -> int:
    now = SYSTEM_CLOCK.now()
    since = now - timedelta(seconds=args.since) if args.since is not None else None
    report = AccessLogReport(since, args.task, args.partner, int(args.slow * 1000), args.all)
    if args.file:
        files = [(app.cwd / name, EXTERNAL if EXTERNAL in Path(name).name else INTERNAL) for name in args.file]
        for path, _ in files:
            if not path.is_file():
                raise UsageError(f"there is no file {path}")
        ours = args.domain or "here"
    else:
        home = chosen_home(sessions.root_of(args, app), args.domain)
        files = _files(home, since.timestamp() if since is not None else 0.0)
        ours = home.home.name
        if not files:
            raise CliError(f"Error: there are no access logs in {GatewayPaths.of(home).logs}")
    for path, side in files:
        feed_all(report, side, lines_of(path))
    if args.output != "table":
        app.write(as_text(report.document(), args.output))
    else:
        _print(report, app, ours)
    return 0


def _files(home: DomainPaths, since: float) -> list[tuple[Path, str]]:
    logs = GatewayPaths.of(home).logs
    return [(path, side) for side in (INTERNAL, EXTERNAL) for path in rotated_files(logs / f"{side}.log", since)]


def _print(report: AccessLogReport, app: App, ours: str) -> None:
    app.say(f"{report.calls} calls in {report.lines} lines, {report.failures} failed, {report.slow_calls} slow.")
    if report.unreadable:
        app.say(f"{report.unreadable} lines are no complete lines of an access log.")
    rows: list[tuple[str, ...]] = []
    advices: dict[str, str] = {}
    for each in report.failing:
        meaning, advice = explain(each)
        partner, task = printable(each.partner), printable(each.task or "-")
        ends = (partner, ours) if each.side == EXTERNAL else (ours, partner)
        last = f"{each.last:%m-%d %H:%M:%S}" if each.last else ""
        flags = printable(",".join(each.flags) or "-")
        rows.append((str(each.calls), *ends, task, str(each.code or "-"), flags, last, meaning))
        advices.setdefault(meaning, advice)
    if rows:
        app.write("\n" + render_table(plain_table(_COLUMNS, rows), colour=app.colour))
        app.say()
        for meaning, advice in advices.items():
            app.say(f"{meaning}\n  next: {advice}")
    if report.left_out:
        app.say(
            f"{report.left_out} more failed calls of other kinds are not listed; narrow down with --partner or TASK."
        )
    if report.slow:
        slow = [
            (
                f"{line.milliseconds / 1000:.1f}s",
                printable(line.partner),
                printable(line.task or "-"),
                str(line.code),
                f"{line.at:%m-%d %H:%M:%S}",
                printable(f"{line.method} {line.host}{line.path}"),
            )
            for line in report.slow
        ]
        app.write(
            "\n" + render_table(plain_table(("Took", "Partner", "Task", "Code", "At", "Call"), slow), colour=app.colour)
        )
