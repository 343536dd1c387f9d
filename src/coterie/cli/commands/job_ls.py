"""`coterie job ls`: the jobs of a control plane, and how far they are."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App
from coterie.cli.jobs.view import LIST_COLUMNS, list_row
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.resource_arguments import kind_name
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.cli.terminal import size_of
from coterie.cli.terminal_format import cut
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.job_state import JobState, job_state
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, STRICT, JobPhase, KusciaJob, KusciaTask
from coterie.kuscia.control.job_snapshots import JOBS, TASKS, typed

HELP = """
List the jobs of this control plane, newest last: initiator, phase, finished tasks, duration, and a message if there is
one.

Examples:
  coterie job ls
  coterie job ls --phase Running
  coterie job ls -l kuscia.job.custom-fields/team=fraud
  coterie job ls -o wide                # with parties and mode
  coterie job ls -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("--phase", metavar="PHASE", default="", help="only jobs in this phase, e.g. Running")
    parser.add_argument("-l", "--selector", metavar="SELECTOR", default="", help="only jobs with these labels")
    parser.add_argument("--no-headers", action="store_true", help="omit the header line")
    options.output_option(parser)
    options.connection_options(parser)
    parser.complete(phase=tuple(JobPhase))


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _list(session, args))


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    jobs = (await session.client.list(JOBS, CROSS_DOMAIN, labels=args.selector)).items
    resource = KUSCIA_JOBS.resource
    jobs = [{"apiVersion": resource.api_version, "kind": resource.kind, **job} for job in jobs]
    jobs.sort(key=lambda job: (str(job["metadata"].get("creationTimestamp")), job["metadata"]["name"]))
    if args.phase:
        jobs = [job for job in jobs if _phase(job).lower() == args.phase.lower()]
    if args.output in ("json", "yaml"):
        app.write(as_text(as_list([without_managed_fields(job) for job in jobs]), args.output))
        return 0
    if args.output == "name":
        for job in jobs:
            app.say(f"{kind_name(resource)}/{job['metadata']['name']}")
        return 0
    if not jobs:
        app.warn("There are no jobs" + (f" that are {args.phase}" if args.phase else "") + "; `coterie job run --help`")
        return 0
    by_job: dict[str, list[KusciaTask]] = {}
    for task in (await session.client.list(TASKS, CROSS_DOMAIN)).items:
        uid = (task["metadata"].get("labels") or {}).get(labels.KUSCIA_JOB_UID, "")
        by_job.setdefault(uid, []).append(typed(task, KusciaTask))
    typed_jobs = [typed(job, KusciaJob) for job in jobs]
    _print(app, args, [(job, job_state(job, by_job.get(job.metadata.uid, ()))) for job in typed_jobs])
    return 0


def _phase(job: Object) -> str:
    return str((job.get("status") or {}).get("phase") or "New")


def _print(app: App, args: argparse.Namespace, jobs: Sequence[tuple[KusciaJob, JobState]]) -> None:
    now = time.time()
    rows = [list(list_row(state, now)) for _, state in jobs]
    columns = list(LIST_COLUMNS)
    if args.output == "wide":
        columns[-1:-1] = ["PARTIES", "MODE"]
        for row, (job, state) in zip(rows, jobs, strict=True):
            row[-1:-1] = [",".join(state.parties), job.spec.schedule_mode or STRICT]
    else:
        _shorten(app, rows)
    app.write(render_table(plain_table(columns, rows), no_headers=args.no_headers, colour=app.colour))


def _shorten(app: App, rows: list[list[str]]) -> None:
    """On a terminal the message, which stands last, takes what the other columns leave of the line."""
    size = size_of(app.out)
    if size is None:
        return
    used = sum(max(len(LIST_COLUMNS[i]), *(len(row[i]) for row in rows)) + 3 for i in range(len(LIST_COLUMNS) - 1))
    for row in rows:
        row[-1] = cut(row[-1], max(len(LIST_COLUMNS[-1]), size[0] - used))
