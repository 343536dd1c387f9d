"""`coterie job watch`: see a job at work until it has ended."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App
from coterie.cli.jobs import live
from coterie.cli.output import as_text, without_managed_fields
from coterie.cli.session import CliSession
from coterie.kuscia.api.jobs.job_state import TIMED_OUT

HELP = """
Show the progress of a job until it ends: its tasks, their dependencies, and the state of every party. On a terminal the
display is updated in place; otherwise each change is printed as a line.

  ✔ succeeded   ● running   ◌ starting   ○ waiting for other tasks   ✘ failed   – skipped, because another task failed

Exit status: 0 Succeeded, 1 Failed, 3 Cancelled or rejected, 124 not ended within --timeout.

Examples:
  coterie job watch common-customers
  coterie job watch common-customers --timeout 10m && echo done
  coterie job watch common-customers -o json      # only print the job when it has ended
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        metavar="TIME",
        default=0.0,
        help="stop watching after this time; the job keeps running",
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(name="jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _watch(session, args))


async def _watch(session: CliSession, args: argparse.Namespace) -> int:
    try:
        last = await live.follow(session, args.name, timeout=args.timeout, quiet=args.output != "table")
    except TimeoutError:
        session.app.warn(f"Job {args.name} has not ended after {args.timeout:g} s, and goes on")
        return TIMED_OUT
    if args.output != "table":
        session.app.write(as_text(without_managed_fields(last.raw), args.output))
    live.final_message(session.app, last.state)
    return last.state.exit_code
