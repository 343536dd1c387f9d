"""`coterie gpujob logs`: what a GPU job printed, and what it prints."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import gpu_jobs
from coterie.cli import session as sessions
from coterie.cli.app import App
from coterie.cli.session import CliSession
from coterie.gpujobs.types import POD

HELP = """
Print the output of a GPU job: standard output to standard output, standard error to standard error. Of a job on Slurm the last
64 KiB of each are kept while it runs, and 512 KiB after its end.

Examples:
  coterie gpujob logs train
  coterie gpujob logs train -f             # follow until it ends
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the job ends")
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="gpu-jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _logs(session, args))


async def _logs(session: CliSession, args: argparse.Namespace) -> int:
    if args.follow:
        await gpu_jobs.follow(session, args.name, phases=False)
        return 0
    job = await gpu_jobs.find(session, args.name)
    output = gpu_jobs.OutputFollower(session)
    if job.status.backend == POD and await output.print_pod(job, follow=False):
        return 0
    await output.print_new(job)
    return 0
