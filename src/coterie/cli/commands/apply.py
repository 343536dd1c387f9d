"""`coterie apply`: server-side apply of files, object by object, each with one line about what became of it."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from coterie.cli import arguments as options
from coterie.cli import manifests
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.error_messages import refusal
from coterie.cli.manifests import Manifest
from coterie.cli.output import as_list, as_text, without_managed_fields
from coterie.cli.resource_arguments import kind_name
from coterie.cli.session import CliSession
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.discovery import UnknownResource

HELP = """
Create or update objects from files (server-side apply). Fields that the files do not set are not changed. A field that
another manager owns is a conflict, unless --force-conflicts is given. A CustomResourceDefinition and objects of that
type may be in one file.

Examples:
  coterie apply -f job.yaml
  coterie apply -f manifests/ -R                  # a directory with its subdirectories
  cat job.yaml | coterie apply -f -
  coterie apply -f job.yaml --dry-run             # validate on the server without storing
  coterie apply -f quota.yaml --force-conflicts   # take ownership of fields that others manage
"""
_NEW_TYPE_TIMEOUT = 10.0
_CHANGED_BY_WRITING = ("managedFields", "resourceVersion", "generation")


def arguments(parser: options.Parser) -> None:
    options.file_options(parser, "what to apply")
    options.namespace_option(parser)
    parser.add_argument("--force-conflicts", action="store_true", help="take ownership of fields that others manage")
    parser.add_argument("--field-manager", metavar="NAME", default="coterie", help="field manager (default: coterie)")
    parser.add_argument("--server-side", action="store_true", help="accepted for compatibility with kubectl; always on")
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const="server",
        default="none",
        choices=("none", "server"),
        metavar="server",
        help="validate on the server without storing",
    )
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if not args.filename:
        raise UsageError("say what to apply with -f FILE, -f DIRECTORY or -f - (see `coterie apply --help`)")
    found = manifests.read(args.filename, app, recursive=args.recursive)
    for manifest in found:
        if not manifest.name:
            raise CliError(
                f"Error: {manifest.place}: metadata.name is missing; apply needs to know which object is meant"
            )
    return sessions.run(args, app, lambda session: _apply(session, args, found))


async def _apply(session: CliSession, args: argparse.Namespace, found: Sequence[Manifest]) -> int:
    """All of them, also when one is refused: the others may be fine, and the user sees all faults at once."""
    applied: list[Object] = []
    # A dry run keeps no definition, so there is no use in waiting for the types that the files define.
    defined = {_defines(manifest) for manifest in found} if args.dry_run == "none" else set()
    failed = 0
    for manifest in found:
        try:
            resource = await _resource(session, manifest, defined)
            obj, outcome = await _apply_one(session, args, manifest, resource)
        except ApiError as error:
            session.app.warn(f"{refusal(error)}\n  (from {manifest.place})")
            failed = 1
            continue
        except UnknownResource as error:
            session.app.warn(
                f"Error: {error}; apply its definition first, or see `coterie api-resources` (from {manifest.place})"
            )
            failed = 1
            continue
        applied.append(without_managed_fields(obj))
        name = f"{kind_name(resource)}/{manifest.name}"
        if args.output == "table":
            session.app.say(f"{name} {outcome}" + (" (server dry run)" if args.dry_run != "none" else ""))
        elif args.output == "name":
            session.app.say(name)
    if args.output in ("json", "yaml") and applied:
        session.app.write(as_text(applied[0] if len(found) == 1 else as_list(applied), args.output))
    return failed


async def _apply_one(
    session: CliSession, args: argparse.Namespace, manifest: Manifest, resource: Resource
) -> tuple[Object, str]:
    kind = Kind.dynamic(resource)
    namespace = _namespace(session, args, manifest, resource)
    try:
        before = await session.client.get(kind, manifest.name, namespace)
    except NotFound:
        before = None
    after = await session.client.apply(
        kind,
        manifest.object,
        namespace,
        force=args.force_conflicts,
        dry_run=args.dry_run != "none",
        field_manager=args.field_manager,
    )
    if before is None:
        return after, "created"
    return after, "unchanged" if _content(before) == _content(after) else "configured"


def _content(obj: Object) -> Object:
    """What a user would call a change. Versions do not tell: a dry run is answered with the old one, and a server may
    write a new one for its bookkeeping alone."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in _CHANGED_BY_WRITING}
    return {**obj, "metadata": meta}


def _namespace(session: CliSession, args: argparse.Namespace, manifest: Manifest, resource: Resource) -> str:
    if not resource.namespaced:
        return ""
    if args.namespace and manifest.namespace and manifest.namespace != args.namespace:
        raise CliError(
            f'Error: {manifest.place} says namespace "{manifest.namespace}" but -n says "{args.namespace}"; '
            "make them the same or leave one out"
        )
    return manifest.namespace or session.namespace


async def _resource(session: CliSession, manifest: Manifest, defined: set[tuple[str, str]]) -> Resource:
    """The resource of an object. One that these very files define may take a moment to be served."""
    catalogue = await session.catalogue()
    deadline = time.monotonic() + _NEW_TYPE_TIMEOUT
    while True:
        try:
            return catalogue.of_kind(manifest.api_version, manifest.kind)
        except UnknownResource:
            group = manifest.api_version.rpartition("/")[0]
            if (group, manifest.kind) not in defined or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)
        catalogue = await session.catalogue(fresh=True)


def _defines(manifest: Manifest) -> tuple[str, str]:
    """(group, kind) that a CustomResourceDefinition brings; a pair that never occurs for anything else."""
    spec = manifest.object.get("spec")
    names = spec.get("names") if isinstance(spec, dict) else None
    if manifest.kind != "CustomResourceDefinition" or not isinstance(names, dict) or not isinstance(spec, dict):
        return "", ""
    return str(spec.get("group")), str(names.get("kind"))
