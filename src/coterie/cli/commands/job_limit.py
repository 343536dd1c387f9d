"""`coterie job limit`: how much the running tasks of a job may send to a partner."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.jobs.follow import fetch_snapshot
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Conflict
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import KIB_BITS, bandwidth_problem, limited_party, parse_bits
from coterie.kuscia.api.jobs.commands import own_parties
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASKS

HELP = """
Limit what the running tasks of a job send to and receive from a partner by their own calls; `none` takes the limit
away. It holds at our gateway for all requests that begin after it, within two seconds, and closes no connection.

Examples:
  coterie job limit common-customers --to bob 50Mbps
  coterie job limit common-customers --to bob --task psi 10Mbps
  coterie job limit common-customers --to bob none
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("amount", metavar="AMOUNT", help="such as 50Mbps; none: no limit")
    parser.add_argument("--to", metavar="ID", required=True, help="the partner")
    parser.add_argument("--task", metavar="ALIAS", default="", help="this task only")
    parser.add_argument("--party", metavar="ID", default="", help="our domain, where several of ours take part")
    options.connection_options(parser)
    parser.complete(name="jobs", to="job-parties", task="job-tasks", party="job-parties")


def run(args: argparse.Namespace, app: App) -> int:
    if args.amount != "none" and (problem := bandwidth_problem(args.amount)):
        raise UsageError(problem)
    return sessions.run(args, app, lambda session: _limit(session, args))


async def _limit(session: CliSession, args: argparse.Namespace) -> int:
    seen = await fetch_snapshot(session.client, args.name)
    own = [party for party in own_parties(seen.job) if party != args.to]
    party = args.party or (own[0] if len(own) == 1 else "")
    if party not in own:
        raise UsageError(f"--party: choose one of our domains in this job: {', '.join(own) or 'there is none'}")
    kib = 0 if args.amount == "none" else max(1, parse_bits(args.amount) // KIB_BITS)
    chosen = [
        task.metadata.name
        for task in seen.tasks
        if task.status.phase not in TASK_ENDED
        and args.task in ("", (task.metadata.annotations or {}).get(labels.KUSCIA_TASK_ALIAS, ""))
        and {party, args.to} <= {each.domain_id for each in task.spec.parties}
    ]
    if not chosen:
        raise CliError(f"Error: job {args.name} has no such task that runs between {party} and {args.to}")
    for name in chosen:
        try:
            await retry_on_conflict(lambda name=name: _patch(session, name, party, args.to, kib))  # type: ignore[misc]
        except Conflict as error:
            raise CliError(f"Error: task {name} changes too quickly; try again") from error
        session.app.say(f"task {name}: {party} to {args.to} {args.amount if kib else 'without limit'}")
    return 0


async def _patch(session: CliSession, name: str, party: str, to: str, kib: int) -> None:
    kind = KUSCIA_TASKS.as_dynamic
    task = await session.client.get(kind, name, CROSS_DOMAIN)
    meta = task["metadata"]
    patch: Object = {
        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        "spec": {"parties": [limited_party(each, party, to, kib) for each in task["spec"]["parties"]]},
    }
    await session.client.patch(kind, name, CROSS_DOMAIN, patch)
