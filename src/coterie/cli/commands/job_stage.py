"""`coterie job stop|suspend|restart|cancel`: an order to a job, given to all its parties."""

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
from coterie.kuscia.api.jobs.commands import carried_out, command_error, command_patch, own_parties
from coterie.kuscia.api.types.job import CROSS_DOMAIN, JobStage, KusciaJob
from coterie.kuscia.control.job_snapshots import JOBS, typed

HELP = """
Send a command to a job. Every party may do so; the other parties receive it and carry it out as well.

  stop      stop the tasks; the job becomes Failed and can be restarted
  suspend   stop the tasks of a Running job; it stays Suspended until it is restarted
  restart   continue a Failed or Suspended job: tasks that have not succeeded run again
  cancel    stop the tasks; the job becomes Cancelled and cannot be restarted

The command returns when the local control plane has carried it out (with --no-wait: when it is stored).

Examples:
  coterie job stop common-customers
  coterie job suspend common-customers
  coterie job restart common-customers && coterie job watch common-customers
  coterie job cancel common-customers --no-wait
"""
_DONE = {
    JobStage.STOP: "stopped",
    JobStage.SUSPEND: "suspended",
    JobStage.RESTART: "restarted",
    JobStage.CANCEL: "cancelled",
}


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--as", dest="trigger", metavar="ID", default="", help="domain that sends the command")
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until it is carried out (default: yes)",
    )
    parser.add_argument(
        "--timeout", type=options.seconds, metavar="TIME", default=60.0, help="wait timeout (default: 60s)"
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(name="jobs", trigger="job-parties")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _send_command(session, args, JobStage(args.called.title())))


async def _send_command(session: CliSession, args: argparse.Namespace, stage: JobStage) -> int:
    try:
        version = await retry_on_conflict(lambda: _apply_command(session, args, stage))
    except Conflict as error:
        raise CliError(f"Error: job {args.name} changes too quickly; try again") from error
    app = session.app
    if not args.wait:
        if args.output == "table":
            app.say(f"job {args.name}: the order to {stage.lower()} is given")
        else:
            app.write(as_text(without_managed_fields(await find(session.client, args.name)), args.output))
        return 0
    job = await _carried_out(session, args, version)
    if args.output != "table":
        app.write(as_text(without_managed_fields(job), args.output))
    status = typed(job, KusciaJob).status
    refused = [party for party, word in (status.stage_status or {}).items() if word == stage.failed]
    if refused:
        raise CliError(f"Error: {', '.join(refused)} could not {stage.lower()} job {args.name}: {status.message}")
    if args.output == "table":
        app.say(f"job {args.name} {_DONE[stage]}; it is {status.phase}")
    return 0


async def _apply_command(session: CliSession, args: argparse.Namespace, stage: JobStage) -> int:
    job = typed(await find(session.client, args.name), KusciaJob)
    if why := command_error(job, stage):
        raise CliError(f"Error: {why}")
    own = own_parties(job)
    if args.trigger and args.trigger not in own:
        raise UsageError(f"--as: {args.trigger} is no party of this job here; choose one of {', '.join(own)}")
    patch, version = command_patch(job, stage, args.trigger or next(iter(own), job.spec.initiator))
    await session.client.patch(JOBS, args.name, CROSS_DOMAIN, patch)
    return version


async def _carried_out(session: CliSession, args: argparse.Namespace, version: int) -> Object:
    def done(job: Object | None) -> bool:
        return job is None or carried_out(typed(job, KusciaJob), version)

    try:
        with working(session.app, f"job {args.name}", "waiting for its parties", quiet=args.output != "table"):
            job = await wait_for(session.client, JOBS, args.name, CROSS_DOMAIN, done, args.timeout)
    except TimeoutError as error:
        raise CliError(
            f"Error: the command was sent, but no controller carried it out within {args.timeout:g} s; "
            "see `coterie status` and the log of the control plane"
        ) from error
    if job is None:
        raise CliError(f"Error: job {args.name} was deleted meanwhile")
    return job
