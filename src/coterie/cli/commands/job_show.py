"""`coterie job show`: all about one job, or where its time went."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from datetime import UTC, datetime

from coterie.base.paths import DomainPaths
from coterie.base.trace import trace_id
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.bandwidth_view import task_lines
from coterie.cli.commands.describe import events_about
from coterie.cli.describe import describe
from coterie.cli.jobs import chart, live
from coterie.cli.jobs.follow import fetch_snapshot, fetch_timeline
from coterie.cli.jobs.recorded_spans import RecordedJob, read_spans, recorded_job
from coterie.cli.jobs.view import picture
from coterie.cli.output import as_text, without_managed_fields
from coterie.cli.session import CliSession
from coterie.kuscia.api.jobs import timeline
from coterie.kuscia.api.types.job import KUSCIA_JOBS, JobPhase
from coterie.kuscia.control.job_snapshots import JobSnapshot
from coterie.node.trace_file import TRACE_FILE

HELP = """
Show a job in detail: task graph, approval of each party, why it waits or failed, conditions and events. With
--timeline: where the time went, for the job, its tasks and their parties on one time axis: waiting for room,
reserved, pulling images, starting, running; and what was said about waits. Bars marked with * are what a partner
reported. Objects store whole seconds only; for short jobs `coterie job run --timeline` is more precise, and so is a
domain of this machine that records traces.

Examples:
  coterie job show common-customers
  coterie job show common-customers --timeline
  coterie job show common-customers --timeline --task psi
  coterie job show common-customers --svg time.svg     # the timeline as an SVG file
  coterie job show common-customers -o yaml
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--timeline", action="store_true", help="show the timeline")
    parser.add_argument("--task", metavar="ALIAS", default="", help="with --timeline: only this task")
    parser.add_argument("--svg", metavar="FILE", default="", help="write the timeline as an SVG file")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(name="jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _show(session, args))


async def _show(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    if args.timeline or args.svg:
        _timeline(app, args, await fetch_timeline(session.client, args.name))
        return 0
    seen = await fetch_snapshot(session.client, args.name)
    if args.output != "table":
        app.write(as_text(without_managed_fields(seen.raw), args.output))
        return 0
    now = datetime.now(UTC)
    paper = live.terminal_format(app, whole=True)
    app.say("\n".join(picture(seen.state, paper, now.timestamp())) + "\n")
    if lines := await task_lines(session, {task.metadata.name for task in seen.tasks}):
        app.say("\n".join(lines) + "\n")
    app.write(describe(seen.raw, await events_about(session, seen.raw), KUSCIA_JOBS.resource, now))
    if seen.state.phase == JobPhase.FAILED:
        app.say(f"\n`coterie job bundle {args.name}` writes an archive for support, without secrets")
    return 0


def _recorded(app: App, args: argparse.Namespace, seen: JobSnapshot) -> RecordedJob:
    """Where the control plane is a domain of this machine that records traces."""
    home = sessions.kubeconfig_files(args, app)[0].parent
    trace = trace_id(seen.job.spec.initiator, seen.job.metadata.name)
    return recorded_job(seen.job, read_spans(DomainPaths(home).logs / TRACE_FILE, trace))


def _timeline(app: App, args: argparse.Namespace, seen: JobSnapshot) -> None:
    now, recorded = time.time(), _recorded(app, args, seen)
    notes = timeline.wait_notes(seen.job, seen.tasks, seen.events, now)
    times = seen.facts | dict(recorded.moments)
    line = timeline.timeline(seen.job, times, now, exact=recorded.whole, notes=notes, details=recorded.details)
    if args.task:
        if args.task not in {task.alias for task in seen.job.spec.tasks}:
            raise CliError(f"Error: job {args.name} has no task {args.task}")
        line = timeline.of_task(line, args.task)
    if args.output != "table":
        app.write(as_text(asdict(line), args.output))
    elif args.timeline:
        app.say("\n".join(chart.bars(line, live.terminal_format(app, whole=True))))
    if args.svg:
        live.write_svg(app, args.svg, line)
