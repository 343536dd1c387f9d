"""`coterie gpujob cancel`: end GPU jobs."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import gpu_jobs
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.gpujobs.types import GPU_JOBS
from coterie.kube.client.wait import wait_for

HELP = """
End GPU jobs: the pod is deleted, or the Slurm job is cancelled. They become Failed with reason Cancelled, and what they
printed is kept. `coterie delete gpujob NAME` ends a job too, and removes everything of it.

Examples:
  coterie gpujob cancel train
  coterie gpujob cancel first second --no-wait
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of the jobs")
    parser.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until they have ended (default: yes)"
    )
    parser.add_argument(
        "--timeout", type=options.seconds, metavar="TIME", default=60.0, help="wait timeout (default: 60s)"
    )
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(names="gpu-jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _cancel(session, args))


async def _cancel(session: CliSession, args: argparse.Namespace) -> int:
    for name in args.names:
        job = await gpu_jobs.find(session, name)
        if job.finished:
            session.app.warn(f"gpujob {name} has ended already: {job.status.phase}")
            continue
        await session.client.patch(GPU_JOBS, name, session.namespace, {"spec": {"cancel": True}})
    for name in args.names if args.wait else ():
        try:
            with working(session.app, f"gpujob {name}", "waiting for its end", done="ended"):
                await wait_for(
                    session.client,
                    GPU_JOBS,
                    name,
                    session.namespace,
                    lambda job: job is None or job.finished,
                    args.timeout,
                )
        except TimeoutError as error:
            job = await gpu_jobs.find(session, name)
            raise CliError(
                f"Error: {gpu_jobs.state_line(job)}; it will be cancelled when its cluster answers"
            ) from error
        session.app.say(f"gpujob {name} ended")
    return 0
