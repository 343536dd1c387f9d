"""`coterie api-resources`: what the server knows."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App
from coterie.cli.output import as_text, plain_table
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource

HELP = """
List the resource types of the server, with their short names.

Examples:
  coterie api-resources
  coterie api-resources --api-group kuscia.secretflow
  coterie api-resources --namespaced=false -o name
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("--api-group", metavar="GROUP", default=None, help="only types of this API group")
    parser.add_argument(
        "--namespaced",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only namespaced types, or only cluster-scoped ones",
    )
    parser.add_argument("--no-headers", action="store_true", help="omit the header line")
    options.output_option(parser)
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    return sessions.run(args, app, lambda session: _list(session, args))


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    catalogue = await session.catalogue()
    found = [resource for resource in catalogue.preferred() if _is_selected(resource, args)]
    app = session.app
    if args.output == "name":
        for resource in found:
            app.say(resource.group_resource)
    elif args.output in ("json", "yaml"):
        app.write(as_text([_entry(resource) for resource in found], args.output))
    else:
        app.write(
            render_table(_table(found), wide=args.output == "wide", no_headers=args.no_headers, colour=app.colour)
        )
    for group in catalogue.failed:
        app.warn(f"Error: the group {group} could not be read; what it has is missing here")
    return 1 if catalogue.failed else 0


def _is_selected(resource: Resource, args: argparse.Namespace) -> bool:
    if args.api_group is not None and resource.group != args.api_group:
        return False
    return args.namespaced is None or resource.namespaced == args.namespaced


def _table(found: list[Resource]) -> Object:
    columns = ("Name", "ShortNames", "APIVersion", "Namespaced", "Kind", "Verbs", "Categories")
    rows = [
        (
            r.plural,
            ",".join(r.short_names),
            r.api_version,
            r.namespaced,
            r.kind,
            ",".join(sorted(r.verbs)),
            ",".join(r.categories),
        )
        for r in found
    ]
    return plain_table(columns, rows, wide_from=5)


def _entry(resource: Resource) -> dict[str, object]:
    return {
        "name": resource.plural,
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
        "verbs": list(resource.verbs),
    }
