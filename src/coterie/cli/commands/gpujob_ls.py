"""`coterie gpujob ls`: the GPU jobs of a namespace."""

from __future__ import annotations

import argparse

from coterie.base.clock import SYSTEM_CLOCK, parse_rfc3339
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.gpujobs.types import GPU_JOBS, GpuJob
from coterie.kube.api.meta import is_true
from coterie.kuscia.routes.model import age_text

HELP = """
List GPU jobs, oldest first: phase, where they run, GPU seconds used. A phase with a question mark may be old: the cluster
does not answer.

Examples:
  coterie gpujob ls
  coterie gpujob ls -A --phase Running
  coterie gpujob ls -o wide                # with Slurm ids, nodes and messages
  coterie gpujob ls -o json
"""
_COLUMNS = ("NAME", "PHASE", "REASON", "WHERE", "GPUS", "GPU-SECONDS", "EXIT", "AGE", "SLURM", "NODES", "MESSAGE")
_WIDE = 8


def arguments(parser: options.Parser) -> None:
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="jobs of all namespaces")
    parser.add_argument("--phase", metavar="PHASE", default="", help="only jobs in this phase, e.g. Running")
    parser.add_argument("-l", "--selector", metavar="SELECTOR", default="", help="only jobs with these labels")
    parser.add_argument("--no-headers", action="store_true", help="omit the header line")
    options.output_option(parser)
    options.namespace_option(parser)
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _list(session, args))


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    app, kind = session.app, GPU_JOBS.as_dynamic
    found = (
        await session.client.list(kind, session.place(kind.resource, args.all_namespaces), labels=args.selector)
    ).items
    found = [{"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **each} for each in found]
    pairs = [(each, GPU_JOBS.decode(kind.encode(each))) for each in found]
    pairs.sort(key=lambda pair: (pair[1].metadata.creation_timestamp or "", pair[1].metadata.name))
    if args.phase:
        pairs = [pair for pair in pairs if pair[1].status.phase.lower() == args.phase.lower()]
    if args.output in ("json", "yaml"):
        app.write(as_text(as_list([without_managed_fields(each) for each, _ in pairs]), args.output))
        return 0
    if args.output == "name":
        for _, job in pairs:
            app.say(f"gpujob.coterie.io/{job.metadata.name}")
        return 0
    if not pairs:
        app.warn("There are no GPU jobs; `coterie gpujob run --help`")
        return 0
    rows = [(*((job.metadata.namespace,) if args.all_namespaces else ()), *_row(job)) for _, job in pairs]
    columns = (*(("NAMESPACE",) if args.all_namespaces else ()), *_COLUMNS)
    table = plain_table(columns, rows, _WIDE + int(args.all_namespaces))
    app.write(render_table(table, wide=args.output == "wide", no_headers=args.no_headers, colour=app.colour))
    return 0


def _row(job: GpuJob) -> tuple[str, ...]:
    status = job.status
    made = job.metadata.creation_timestamp
    age = (SYSTEM_CLOCK.now() - parse_rfc3339(made)).total_seconds() if made else None
    doubt = "?" if is_true(status.conditions, "Unreachable") else ""
    return (
        job.metadata.name,
        (status.phase or "New") + doubt,
        status.reason,
        status.cluster or status.pod_name or status.backend,
        _number(status.gpus),
        _number(status.gpu_seconds),
        _number(status.exit_code),
        age_text(age),
        status.slurm_job_id,
        status.nodes,
        status.message,
    )


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
