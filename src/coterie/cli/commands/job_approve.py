"""`coterie job approve`: the word of this control plane's parties to a job that a partner started."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.jobs.follow import find
from coterie.cli.output import as_text, without_managed_fields
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Conflict
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kube.client.wait import wait_for
from coterie.kuscia.api.jobs.commands import NEW, approval_patch, approvers, initiates, unanswered
from coterie.kuscia.api.types.job import CROSS_DOMAIN, JobPhase, KusciaJob
from coterie.kuscia.control.job_snapshots import JOBS, typed

HELP = """
Accept or reject a job that a partner started and that waits for approval. `coterie job show` shows its parties and
tasks. If one party rejects a job, it ends for all parties.

Examples:
  coterie job ls --phase AwaitingApproval
  coterie job show common-customers
  coterie job approve common-customers
  coterie job approve common-customers --reject --reason "not before the contract is signed"
  coterie job approve common-customers --as bob     # for one of several domains of this control plane
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--reject", action="store_true", help="reject the job")
    parser.add_argument(
        "--reason", metavar="TEXT", default="", help="with --reject: why; the partner who started the job sees it"
    )
    parser.add_argument("--as", dest="party", metavar="ID", default="", help="approve for this domain only")
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until it has taken effect (default: yes)",
    )
    parser.add_argument(
        "--timeout", type=options.seconds, metavar="TIME", default=60.0, help="wait timeout (default: 60s)"
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(name="jobs", party="job-parties")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _approve(session, args))


async def _approve(session: CliSession, args: argparse.Namespace) -> int:
    try:
        parties = await retry_on_conflict(lambda: _answer(session, args))
    except Conflict as error:
        raise CliError(f"Error: job {args.name} changes too quickly; try again") from error
    job = await (_settled(session, args) if args.wait else find(session.client, args.name))
    if args.output != "table":
        session.app.write(as_text(without_managed_fields(job), args.output))
        return 0
    typed_job = typed(job, KusciaJob)
    open_ = unanswered(typed_job) if typed_job.status.phase == JobPhase.AWAITING_APPROVAL and not args.reject else ()
    waits = f", and waits for {', '.join(open_)}" if open_ else ""
    done = "rejected" if args.reject else "accepted"
    session.app.say(f"job {args.name} {done} for {', '.join(parties)}; it is {typed_job.status.phase}{waits}")
    return 0


async def _answer(session: CliSession, args: argparse.Namespace) -> tuple[str, ...]:
    job = typed(await find(session.client, args.name), KusciaJob)
    if job.status.phase != JobPhase.AWAITING_APPROVAL:
        raise CliError(f"Error: job {args.name} is {job.status.phase or NEW}; it waits for nobody's approval")
    parties = approvers(job)
    if initiates(job) or not parties:
        raise CliError(
            f"Error: job {args.name} was started here, by {job.spec.initiator}; "
            f"it waits for the approval of {', '.join(unanswered(job))}, which is given at theirs"
        )
    if args.party and args.party not in parties:
        raise UsageError(f"--as: {args.party} is not asked here; choose one of {', '.join(parties)}")
    chosen = (args.party,) if args.party else parties
    if args.reason and not args.reject:
        raise UsageError("--reason: goes with --reject")
    patch = approval_patch(job, chosen, reject=args.reject, reason=args.reason)
    await session.client.patch_status(JOBS, args.name, CROSS_DOMAIN, patch)
    return chosen


async def _settled(session: CliSession, args: argparse.Namespace) -> Object:
    """The job when it has gone on, or when only others keep it waiting."""

    def gone_on(job: Object | None) -> bool:
        if job is None:
            return True
        typed_job = typed(job, KusciaJob)
        if typed_job.status.phase != JobPhase.AWAITING_APPROVAL:
            return True
        return not args.reject and bool(unanswered(typed_job))

    try:
        with working(session.app, f"job {args.name}", "waiting for its controller", quiet=args.output != "table"):
            job = await wait_for(session.client, JOBS, args.name, CROSS_DOMAIN, gone_on, args.timeout)
    except TimeoutError as error:
        raise CliError(
            f"Error: the answer is given, but the job did not move within {args.timeout:g} s; "
            "see `coterie status` and the log of the control plane"
        ) from error
    if job is None:
        raise CliError(f"Error: job {args.name} was deleted meanwhile")
    return job
