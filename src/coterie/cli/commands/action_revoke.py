"""`coterie action revoke`: a partner may no longer call a function."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.session import CliSession
from coterie.kuscia.api.functions.types import ACTION_GRANTS

HELP = """
Take back all grants of a function to a partner. Calls that were accepted already are still answered.

Examples:
  coterie action revoke score --to bob
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    parser.add_argument("--to", metavar="PARTNER", default="", help="the partner's domain")
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions", to="domains")


def run(args: argparse.Namespace, app: App) -> int:
    if not args.to:
        raise UsageError(f"say from which partner: `coterie action revoke {args.name} --to PARTNER`")
    return actions.run(args, app, lambda session: _revoke(session, args))


async def _revoke(session: CliSession, args: argparse.Namespace) -> int:
    found = [
        each.metadata.name
        for _, each in await actions.listed(session, ACTION_GRANTS)
        if (each.spec.action, each.spec.grant_domain) == (args.name, args.to)
    ]
    if not found:
        raise CliError(f"Error: {args.to} has no grant of {args.name}; `coterie action grants` lists them")
    for name in found:
        await session.client.delete(ACTION_GRANTS, name, session.namespace)
    session.app.say(f"{args.to} may no longer call {args.name}")
    return 0
