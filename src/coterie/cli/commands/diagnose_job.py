"""`coterie diagnose job`: whether a job could run: its links, engines and capacity at every party."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import manifests
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.diagnosis.links_command import aim, diagnose_links, link_options
from coterie.cli.diagnosis.model import needs_of_job
from coterie.cli.session import CliSession
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api.engine_versions import images_named
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KusciaJob
from coterie.kuscia.control.job_snapshots import JOBS, typed

HELP = """
Check a job before it starts, or one that exists: every link between parties of the same task (as `coterie diagnose
network`), the protocols that its engines use, the same engine with the same image id at every party, and whether each
part would fit on a node now.

Exit status: 0 nothing is broken, 1 a link or a party is not ready.

Examples:
  coterie diagnose job job.yaml
  coterie diagnose job psi-1a2b3c --quick
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("job", metavar="FILE|JOB", help="YAML or JSON file with a KusciaJob, or the name of a job")
    link_options(parser)
    parser.complete(job="jobs|files")


def run(args: argparse.Namespace, app: App) -> int:
    given = _from_file(args.job, app)
    if given is not None:
        aim(args, app, given.spec.party_domains)
    return sessions.run(args, app, lambda session: _diagnose(session, args, given))


async def _diagnose(session: CliSession, args: argparse.Namespace, given: KusciaJob | None) -> int:
    job = given if given is not None else await _from_server(session, args.job)
    known = {each.metadata.name: each for each in (await session.client.list(APP_IMAGES)).items}
    images = images_named((task.app_image for task in job.spec.tasks), known)
    return await diagnose_links(session.app, args, session.client, needs_of_job(job, images))


def _from_file(name: str, app: App) -> KusciaJob | None:
    if name != "-" and not (app.cwd / name).is_file():
        return None
    jobs = [each.object for each in manifests.read([name], app) if each.kind == KUSCIA_JOBS.resource.kind]
    if len(jobs) != 1:
        raise CliError(f"Error: there are {len(jobs)} KusciaJobs in {name}; one is wanted")
    return typed(_named(jobs[0]), KusciaJob)


def _named(job: Object) -> Object:
    meta = job.get("metadata") or {}
    return {**job, "metadata": {**meta, "name": meta.get("name") or "job"}}


async def _from_server(session: CliSession, name: str) -> KusciaJob:
    try:
        return typed(await session.client.get(JOBS, name, CROSS_DOMAIN), KusciaJob)
    except NotFound as problem:
        raise CliError(f'Error: there is neither a file nor a job "{name}"; `coterie job ls` lists jobs') from problem
