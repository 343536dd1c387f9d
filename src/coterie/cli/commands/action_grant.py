"""`coterie action grant`: let a partner call a function."""

from __future__ import annotations

import argparse

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, UsageError
from coterie.cli.session import CliSession
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api.functions.types import ACTION_GRANTS

HELP = """
Let a partner call one of our functions: how often, until when, on which of our tables. Without a grant no partner may
call anything. The partner names the function in its own Action: `next: [alice/score]`. A table needs a grant of its
own to the partner as well (`coterie data grant`). A second grant of the same function to the same partner replaces
the limits of the first.

Examples:
  coterie action grant score --to bob
  coterie action grant score --to bob --per-minute 60 --calls 10000 --until 30d
  coterie action grant score --to bob --table visitors
  coterie action grants
  coterie action revoke score --to bob
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    parser.add_argument("--to", metavar="PARTNER", default="", help="the partner's domain")
    parser.add_argument("--calls", metavar="N", type=int, default=None, help="calls in all (default: no limit)")
    parser.add_argument("--per-minute", metavar="N", type=int, default=None, help="calls a minute (default: no limit)")
    parser.add_argument(
        "--until", metavar="TIME", default="", help="e.g. 2026-12-31T00:00:00Z, 12h, 30d (default: no end)"
    )
    parser.add_argument(
        "--table",
        metavar="NAME",
        action="append",
        default=[],
        help="table that it may read for the partner; may be repeated",
    )
    parser.add_argument("--max-body", metavar="BYTES", type=int, default=None, help="size of a call (default: 1048576)")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions", to="domains", table="tables")


def run(args: argparse.Namespace, app: App) -> int:
    if not args.to:
        raise UsageError(f"say which partner may call it: `coterie action grant {args.name} --to PARTNER`")
    limit: Object = {}
    if args.calls is not None:
        limit["calls"] = args.calls
    if args.per_minute is not None:
        limit["callsPerMinute"] = args.per_minute
    if args.until:
        limit["expirationTime"] = actions.moment(args.until, SYSTEM_CLOCK.now())
    spec: Object = {"action": args.name, "grantDomain": args.to}
    if limit:
        spec["limit"] = limit
    if args.table:
        spec["tables"] = list(dict.fromkeys(args.table))
    if args.max_body is not None:
        spec["maxBodyBytes"] = args.max_body
    return actions.run(args, app, lambda session: _grant(session, args, spec))


async def _grant(session: CliSession, args: argparse.Namespace, spec: Object) -> int:
    await actions.find(session, args.name)
    name = grant_name(args.name, args.to)
    kind = ACTION_GRANTS.as_dynamic
    try:
        before: Object | None = await session.client.get(kind, name, session.namespace)
    except NotFound:
        before = None
    if before is None:
        head = {"apiVersion": actions.API_VERSION, "kind": ACTION_GRANTS.resource.kind}
        body = {**head, "metadata": {"name": name, "namespace": session.namespace}, "spec": spec}
        made = await session.client.create(kind, body)
    else:
        made = await session.client.update(kind, {**before, "spec": spec})
    if args.output in ("json", "yaml"):
        actions.print_objects(session, [made], args.output, single=True)
    elif args.output == "name":
        session.app.say(f"actiongrant.coterie.io/{name}")
    else:
        here = session.namespace
        session.app.say(f"{args.to} may call {args.name}; in its Actions: next: [{here}/{args.name}]")
    return 0


def grant_name(action: str, partner: str) -> str:
    return f"{action}-{partner}"
