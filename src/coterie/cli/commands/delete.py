"""`coterie delete`: objects by name, by selector or by file, and the wait until they are gone."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.cli import arguments as options
from coterie.cli import manifests, resource_arguments
from coterie.cli import session as sessions
from coterie.cli.app import App, UsageError
from coterie.cli.error_messages import refusal
from coterie.cli.listing import JSON, ListQuery, fetch
from coterie.cli.manifests import Manifest
from coterie.cli.progress import working
from coterie.cli.resource_arguments import kind_name
from coterie.cli.session import CliSession
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.requests import Propagation
from coterie.kube.client.wait import wait_for

HELP = """
Delete objects and wait until they are gone. Dependent objects are deleted in the background; `--cascade foreground`
deletes them first, `--cascade orphan` keeps them.

Examples:
  coterie delete pod web-0 web-1
  coterie delete kj/psi-demo -n cross-domain
  coterie delete -f job.yaml                      # the objects in this file
  coterie delete pods -l app=web --no-wait        # by label, return at once
  coterie delete pods --all --now                 # all pods of the namespace, grace period of 1 second
  coterie delete deploy web --cascade orphan      # keep its pods
"""
_CASCADES: dict[str, Propagation] = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}


@dataclass(frozen=True, slots=True)
class _DeletionTarget:
    resource: Resource
    namespace: str
    name: str

    @property
    def label(self) -> str:
        return f'{kind_name(self.resource)} "{self.name}"'


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    options.file_options(parser, "the objects to delete")
    options.namespace_option(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="with -l or --all: in all namespaces")
    options.selector_options(parser)
    parser.add_argument("--all", action="store_true", help="all objects of the type in the namespace")
    parser.add_argument(
        "--cascade",
        choices=tuple(_CASCADES),
        default="background",
        metavar="HOW",
        help="dependents: background, foreground or orphan (default: background)",
    )
    parser.add_argument(
        "--grace-period", type=int, metavar="SECONDS", default=None, help="grace period for termination"
    )
    parser.add_argument("--now", action="store_true", help="grace period of 1 second")
    parser.add_argument("--force", action="store_true", help="no grace period: remove the object immediately")
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until the objects are gone (default: yes)",
    )
    parser.add_argument(
        "--timeout", type=options.seconds, metavar="TIME", default=60.0, help="wait timeout (default: 60s)"
    )
    parser.add_argument("--ignore-not-found", action="store_true", help="do not fail if an object does not exist")
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const="server",
        default="none",
        choices=("none", "server"),
        metavar="server",
        help="validate on the server without deleting",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "name"),
        default="table",
        metavar="FORMAT",
        help="name: print kind/name only",
    )
    options.connection_options(parser)
    parser.complete(words="objects")


def run(args: argparse.Namespace, app: App) -> int:
    if args.filename and args.words:
        raise UsageError("name objects either in words or with -f, not both at once")
    if args.now and args.grace_period is not None:
        raise UsageError("--now and --grace-period both say how long; leave one of them out")
    by_rule = bool(args.selector or args.field_selector or args.all)
    named = len(args.words) > 1 or any("/" in word for word in args.words)
    if not args.filename and args.words and named == by_rule:
        raise UsageError("name the objects, or choose them with -l SELECTOR or --all" + (", not both" if named else ""))
    found = manifests.read(args.filename, app, recursive=args.recursive) if args.filename else []
    return sessions.run(args, app, lambda session: _delete(session, args, found))


async def _delete(session: CliSession, args: argparse.Namespace, found: Sequence[Manifest]) -> int:
    victims = await _from_files(session, found) if found else await _from_arguments(session, args)
    if not victims:
        session.app.warn("No resources found")
        return 0
    failed = 0
    waiting: list[tuple[_DeletionTarget, str]] = []
    for victim in victims:
        try:
            uid = await _delete_one(session, args, victim)
        except NotFound as error:
            if not args.ignore_not_found:
                session.app.warn(refusal(error))
                failed = 1
            continue
        except ApiError as error:
            session.app.warn(refusal(error))
            failed = 1
            continue
        if args.output == "name":
            session.app.say(f"{kind_name(victim.resource)}/{victim.name}")
        else:
            dry = " (server dry run)" if args.dry_run != "none" else ""
            session.app.say(f"{victim.label} {'force deleted' if args.force else 'deleted'}{dry}")
        if uid:
            waiting.append((victim, uid))
    if args.wait and args.dry_run == "none":
        failed = await _wait(session, waiting, args.timeout, quiet=args.output != "table") or failed
    return failed


async def _from_files(session: CliSession, found: Sequence[Manifest]) -> list[_DeletionTarget]:
    """In reverse: what came last may need what came first."""
    catalogue = await session.catalogue()
    out = []
    for manifest in reversed(found):
        resource = catalogue.of_kind(manifest.api_version, manifest.kind)
        namespace = (manifest.namespace or session.namespace) if resource.namespaced else ""
        out.append(_DeletionTarget(resource, namespace, manifest.name))
    return out


async def _from_arguments(session: CliSession, args: argparse.Namespace) -> list[_DeletionTarget]:
    out = []
    for target in resource_arguments.parse(args.words, await session.catalogue(), "delete"):
        namespace = session.place(target.resource, args.all_namespaces)
        if target.names:
            if target.resource.namespaced and not namespace:
                raise UsageError("an object with a name lives in one namespace; use -n instead of -A")
            out += [_DeletionTarget(target.resource, namespace, name) for name in target.names]
            continue
        question = ListQuery(target.resource, namespace, labels=args.selector, fields=args.field_selector)
        for item in (await fetch(session.client, question, JSON)).get("items") or ():
            meta = item["metadata"]
            out.append(_DeletionTarget(target.resource, meta.get("namespace") or "", meta["name"]))
    return out


async def _delete_one(session: CliSession, args: argparse.Namespace, target: _DeletionTarget) -> str:
    """The uid to wait for; empty when the server says that it is gone already and the uid is not known."""
    grace = 0 if args.force else 1 if args.now else args.grace_period
    answer = await session.client.delete(
        Kind.dynamic(target.resource),
        target.name,
        target.namespace,
        propagation=_CASCADES[args.cascade],
        grace=grace,
        dry_run=args.dry_run != "none",
    )
    if answer.get("kind") == "Status":
        return str((answer.get("details") or {}).get("uid") or "")
    return str(answer["metadata"].get("uid") or "")


async def _wait(
    session: CliSession, waiting: Sequence[tuple[_DeletionTarget, str]], timeout: float, *, quiet: bool
) -> int:
    deadline = time.monotonic() + timeout
    for victim, uid in waiting:

        def gone(obj: Object | None, uid: str = uid) -> bool:
            return obj is None or obj["metadata"].get("uid") != uid

        kind = Kind.dynamic(victim.resource)
        try:
            left = max(0.1, deadline - time.monotonic())
            with working(session.app, victim.label, "waiting until it is gone", done="gone", quiet=quiet):
                await wait_for(session.client, kind, victim.name, victim.namespace, gone, left)
        except TimeoutError:
            session.app.warn(await _why_still_there(session, victim, timeout))
            return 1
    return 0


async def _why_still_there(session: CliSession, target: _DeletionTarget, timeout: float) -> str:
    head = f"Error: {target.label} is still there after {timeout:g} s"
    try:
        obj = await session.client.get(Kind.dynamic(target.resource), target.name, target.namespace)
    except NotFound:
        return f"{head}, but gone now; run the command again to be sure of the rest"
    # A namespace has its own in the spec: it waits until everything in it is gone.
    finalizers = obj["metadata"].get("finalizers") or (obj.get("spec") or {}).get("finalizers")
    if finalizers:
        return f"{head}: it waits for the finalizers {', '.join(finalizers)}; see `coterie describe`, or use --no-wait"
    return f"{head}; see `coterie describe`, wait longer with --timeout, or use --no-wait"
