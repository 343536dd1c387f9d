"""`coterie job graph`: which task waits for which."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import manifests
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.jobs import graph
from coterie.cli.jobs.follow import fetch_snapshot
from coterie.cli.live_display import takes_unicode
from coterie.cli.output import as_text
from coterie.cli.session import CliSession
from coterie.cli.terminal_format import safe
from coterie.kuscia.api.jobs.graph import circle
from coterie.kuscia.api.jobs.job_state import JobState, job_state
from coterie.kuscia.api.types.job import KUSCIA_JOBS, KusciaJob
from coterie.kuscia.control.job_snapshots import typed

HELP = """
Draw the task dependencies of a job. With -f, draw a job file before running it. `-o mermaid` prints a diagram that
GitHub and other tools render.

Examples:
  coterie job graph common-customers
  coterie job graph -f job.yaml
  coterie job graph common-customers -o mermaid
  coterie job graph common-customers -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the job")
    parser.add_argument("-f", "--filename", metavar="FILE", default="", help="job file to draw instead")
    options.output_option(parser, ("table", "mermaid", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(name="jobs")


def run(args: argparse.Namespace, app: App) -> int:
    if bool(args.name) == bool(args.filename):
        raise UsageError("name a job, or a file with -f; e.g. `coterie job graph -f job.yaml`")
    if args.filename:
        for job in _from_file(args.filename, app):
            _draw(app, args, job)
        return 0
    return sessions.run(args, app, lambda session: _graph(session, args))


async def _graph(session: CliSession, args: argparse.Namespace) -> int:
    _draw(session.app, args, (await fetch_snapshot(session.client, args.name)).state)
    return 0


def _from_file(name: str, app: App) -> list[JobState]:
    jobs = [each for each in manifests.read([name], app) if each.kind == KUSCIA_JOBS.resource.kind]
    if not jobs:
        raise CliError(f"Error: there is no KusciaJob in {name}")
    found = [typed(each.object, KusciaJob) for each in jobs]
    for job, place in zip(found, jobs, strict=True):
        if round_ := circle(job.spec.tasks):
            raise CliError(f"Error: {place.place}: the tasks wait for each other in a circle: {' -> '.join(round_)}")
    return [job_state(job, ()) for job in found]


def _draw(app: App, args: argparse.Namespace, job: JobState) -> None:
    if args.output == "mermaid":
        app.write(graph.mermaid(job))
        return
    if args.output in ("json", "yaml"):
        tasks = [
            {
                "alias": task.alias,
                "after": list(task.after),
                "layer": task.layer,
                "phase": task.phase,
                "parties": [party.domain for party in task.parties],
            }
            for task in job.tasks
        ]
        app.write(as_text({"job": job.name, "tasks": tasks}, args.output))
        return
    rows = graph.lanes(job.tasks)
    wide = graph.width(rows) + 2
    for row in rows:
        line = row.lanes
        if row.task is not None:
            line = line[: row.at] + "●" + line[row.at + 1 :]
            line = f"{line:<{wide}}{safe(row.task.alias)}"
        app.say(line if takes_unicode(app.out) else graph.plain_letters(line).replace("●", "*"))
