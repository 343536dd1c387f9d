"""`coterie job rm`: remove jobs, with their tasks and whatever these left."""

from __future__ import annotations

import argparse
import time

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.jobs.follow import find
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.kube.api.errors import NotFound
from coterie.kube.client.wait import wait_until_gone
from coterie.kuscia.api.jobs.job_state import job_state
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KusciaJob
from coterie.kuscia.control.job_snapshots import JOBS, typed

HELP = """
Delete jobs with their tasks and pods, at all parties. A job that has not ended is only deleted with --force. To end a
job and keep its history, use `coterie job stop`.

Examples:
  coterie job rm common-customers
  coterie job rm first second third
  coterie job rm common-customers --force --no-wait
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of the jobs")
    parser.add_argument("--force", action="store_true", help="also delete jobs that have not ended")
    parser.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until they are gone (default: yes)"
    )
    parser.add_argument(
        "--timeout", type=options.seconds, metavar="TIME", default=60.0, help="wait timeout (default: 60s)"
    )
    parser.add_argument("--ignore-not-found", action="store_true", help="do not fail if a job does not exist")
    options.connection_options(parser)
    parser.complete(names="jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _remove(session, args))


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    failed = 0
    deadline = time.monotonic() + args.timeout
    for name in dict.fromkeys(args.names):
        try:
            await _remove_one(session, args, name, deadline)
        except CliError as problem:
            session.app.warn(str(problem))
            failed = 1
    return failed


async def _remove_one(session: CliSession, args: argparse.Namespace, name: str, deadline: float) -> None:
    try:
        job = await find(session.client, name)
    except CliError:
        if args.ignore_not_found:
            return
        raise
    state = job_state(typed(job, KusciaJob), ())
    if not state.over and not args.force:
        raise CliError(
            f"Error: job {name} is {state.phase}; end it first with `coterie job stop {name}`, or add --force"
        )
    try:
        await session.client.delete(JOBS, name, CROSS_DOMAIN, uid=job["metadata"]["uid"], propagation="Background")
        if args.wait:
            with working(session.app, f"job {name}", "waiting until its tasks are gone", done="removed"):
                left = max(0.1, deadline - time.monotonic())
                await wait_until_gone(session.client, JOBS, name, CROSS_DOMAIN, left)
    except NotFound:
        pass
    except TimeoutError as error:
        raise CliError(f"Error: job {name} is still there; `coterie job show {name}` may tell why") from error
    session.app.say(f"job {name} removed")
