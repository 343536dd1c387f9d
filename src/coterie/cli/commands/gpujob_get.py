"""`coterie gpujob get`: the files that a GPU job made."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli import gpu_jobs
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.output import as_text, plain_table, without_managed_fields
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.gpujobs import storage
from coterie.gpujobs.files import FileTree, InvalidFiles, digest, join, read_archive
from coterie.gpujobs.types import GPU_JOBS, GpuJob

HELP = """
Download the artifacts of a GPU job into a directory and check them against the sha256 in its status. Files that exist are
not overwritten unless --force is given. With --list nothing is downloaded; -o json prints the whole GpuJob.

Examples:
  coterie gpujob get train                 # into ./train
  coterie gpujob get train --to results
  coterie gpujob get train --list
  coterie gpujob get train -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--to", metavar="DIR", default="", help="directory (default: the name of the job)")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--force", action="store_true", help="overwrite files")
    options.output_option(parser, ("table", "json", "yaml"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="gpu-jobs")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _get(session, args))


async def _get(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    job = await gpu_jobs.find(session, args.name)
    if args.output != "table":
        found = await session.client.get(GPU_JOBS.as_dynamic, args.name, session.namespace)
        app.write(as_text(without_managed_fields(found), args.output))
        return 0
    if not job.finished:
        raise CliError(f"Error: {gpu_jobs.state_line(job)}; artifacts come at its end")
    if not job.status.artifacts:
        app.warn(f"gpujob {args.name} has no artifacts; spec.artifacts (--artifact PATTERN) names them")
        return 0
    if not args.list:
        with working(app, f"gpujob {args.name}", "fetching its files", done="fetched"):
            files = await _download(session, job)
        write_files(files, app.cwd / (args.to or args.name), force=args.force)
    rows = [(each.path, str(each.size), each.sha256) for each in job.status.artifacts]
    app.write(render_table(plain_table(("FILE", "SIZE", "SHA256"), rows), colour=app.colour))
    return 0


async def _download(session: CliSession, job: GpuJob) -> FileTree:
    parts = await storage.load(
        session.client, job.metadata.namespace, job.metadata.uid, "out", job.status.artifact_parts or 0
    )
    if parts is None:
        raise CliError(f"Error: the artifacts of {job.metadata.name} were deleted")
    try:
        files = read_archive(join(parts, job.status.artifacts_sha256))
    except InvalidFiles as error:
        raise CliError(f"Error: {error}") from error
    for each in job.status.artifacts or ():
        if each.path not in files or digest(files[each.path].data) != each.sha256:
            raise CliError(f"Error: {each.path} does not have the sha256 of the job's status; nothing was written")
    return files


def write_files(files: FileTree, place: Path, *, force: bool) -> None:
    """Names come from a job and were checked by `read_archive`; links below `place` are not followed."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        top = place.resolve()
        for path, file in files.items():
            target = top / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(top):
                raise CliError(f"Error: {path} leads out of {place}; nothing more is written")
            if force:
                target.unlink(missing_ok=True)
            descriptor = os.open(
                target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if file.executable else 0o644
            )
            with os.fdopen(descriptor, "wb") as out:
                out.write(file.data)
    except FileExistsError as error:
        raise CliError(f"Error: {error.filename} exists; take another directory with --to, or add --force") from error
    except OSError as error:
        raise CliError(f"Error: {place} cannot be written: {error.strerror}") from error
