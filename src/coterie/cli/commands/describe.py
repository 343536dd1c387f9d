"""`coterie describe`: objects told for people, with what happened to them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from coterie.cli import arguments as options
from coterie.cli import resource_arguments
from coterie.cli import session as sessions
from coterie.cli.app import App, UsageError
from coterie.cli.describe import describe
from coterie.cli.error_messages import refusal
from coterie.cli.listing import JSON, ListQuery, fetch
from coterie.cli.resource_arguments import ResourceArgument
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin

HELP = """
Show objects in detail: spec, status and events. A name may be a prefix. Secret values are not shown.

Examples:
  coterie describe node alice-node
  coterie describe kj/psi-demo -n cross-domain    # why is my job not running?
  coterie describe pods -l app=web                # all pods with this label
  coterie describe pod web                        # all pods whose names begin with web
"""
_EVENTS = Kind.dynamic(builtin("events"))


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    options.namespace_option(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="in all namespaces")
    parser.add_argument("-l", "--selector", metavar="SELECTOR", default="", help="only objects with these labels")
    parser.add_argument("--no-events", action="store_true", help="omit the events")
    options.connection_options(parser)
    parser.complete(words="objects")


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _describe(session, args))


async def _describe(session: CliSession, args: argparse.Namespace) -> int:
    wanted = resource_arguments.parse(args.words, await session.catalogue(), "describe")
    if args.selector and any(target.names for target in wanted):
        raise UsageError("names and a selector cannot be used together; leave one of them out")
    printed = failed = 0
    for target in wanted:
        for name in target.names or ("",):
            try:
                objects = await _objects(session, args, target, name)
            except NotFound as error:
                session.app.warn(refusal(error))
                failed = 1
                continue
            for obj in objects:
                events = [] if args.no_events else await events_about(session, obj)
                text = describe(obj, events, target.resource, datetime.now(UTC))
                session.app.write(("\n\n" if printed else "") + text)
                printed += 1
    if not printed and not failed:
        session.app.warn("No resources found")
    return failed


async def _objects(session: CliSession, args: argparse.Namespace, target: ResourceArgument, name: str) -> list[Object]:
    namespace = session.place(target.resource, args.all_namespaces)
    everything = ListQuery(target.resource, namespace, labels=args.selector)
    if not name:
        return list((await fetch(session.client, everything, JSON)).get("items") or ())
    try:
        if namespace or not target.resource.namespaced:
            return [await fetch(session.client, ListQuery(target.resource, namespace, name), JSON)]
        raise NotFound(f'{target.resource.group_resource} "{name}" not found')
    except NotFound:
        items = (await fetch(session.client, everything, JSON)).get("items") or ()
        alike = [obj for obj in items if obj["metadata"]["name"].startswith(name)]
        if not alike:
            raise
        return alike


async def events_about(session: CliSession, obj: Object) -> list[Object]:
    """Events about this very object: one of the same name may have lived before it."""
    meta = obj["metadata"]
    about = {
        "involvedObject.kind": obj.get("kind"),
        "involvedObject.name": meta["name"],
        "involvedObject.uid": meta.get("uid"),
    }
    fields = ",".join(f"{key}={value}" for key, value in about.items() if value)
    try:
        page = await session.client.list(_EVENTS, meta.get("namespace") or "", fields=fields)
    except Forbidden:
        # Who may see the object may not always see events; the rest is still worth telling.
        return []
    return page.items
