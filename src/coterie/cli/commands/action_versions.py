"""`coterie action versions`: the versions of a function's code."""

from __future__ import annotations

import argparse

import msgspec

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.output import as_text
from coterie.cli.session import CliSession
from coterie.kuscia.api.functions.types import Action, ActionVersion

HELP = """
List the versions of a function that are kept, newest first, with their share of calls and their actors.

Examples:
  coterie action versions calc
  coterie action traffic calc v3f9c01ab22=90,v0a1b2c3d4e=10
  coterie action rollback calc
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions")


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _versions(session, args))


async def _versions(session: CliSession, args: argparse.Namespace) -> int:
    action = await actions.find(session, args.name)
    found = newest_first(action)
    if args.output in ("json", "yaml"):
        session.app.write(as_text([msgspec.to_builtins(each) for each in found], args.output))
    elif args.output == "name":
        for each in found:
            session.app.say(each.name)
    elif not found:
        session.app.warn(f"{args.name} has no version yet; `coterie action show {args.name}` may tell why")
    else:
        rows = [
            (each.name, f"{each.percent} %", str(each.replicas), actions.age(each.created or None)) for each in found
        ]
        actions.print_table(session, ("VERSION", "CALLS", "ACTORS", "AGE"), rows)
    return 0


def newest_first(action: Action) -> list[ActionVersion]:
    """By time; of versions of the same time the one that the status calls the newest comes first."""
    return sorted(
        action.status.versions or (), key=lambda each: (each.created, each.name == action.status.version), reverse=True
    )
