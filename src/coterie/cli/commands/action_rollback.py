"""`coterie action rollback`: send all calls to an earlier version."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.commands.action_versions import newest_first
from coterie.cli.session import CliSession
from coterie.kuscia.api.functions.types import ACTIONS, Action

HELP = """
Send all calls of a function to the version before the one that gets most of them, or to the one given with --to. The
code of the Action stays as it is: the next `coterie action create NAME --script FILE` gets all calls again, and so
does the newest version with `coterie action traffic NAME latest`.

Examples:
  coterie action rollback calc
  coterie action rollback calc --to v3f9c01ab22
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    parser.add_argument("--to", metavar="VERSION", default="", help="version (default: the one before)")
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions", to="action-versions")


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _rollback(session, args))


async def _rollback(session: CliSession, args: argparse.Namespace) -> int:
    action = await actions.find(session, args.name)
    version = chosen(action, args.to)
    patch = {"spec": {"traffic": [{"version": version, "percent": 100}]}}
    await session.client.patch(ACTIONS, args.name, session.namespace, patch)
    session.app.say(f"action {args.name}: all calls go to {version}")
    return 0


def chosen(action: Action, wanted: str) -> str:
    name, known = action.metadata.name, [each.name for each in newest_first(action)]
    if wanted:
        if wanted not in known:
            raise CliError(f"Error: {wanted} is no version of {name}; there are: {', '.join(known) or 'none yet'}")
        return wanted
    serving = serving_version(action)
    place = known.index(serving) + 1 if serving in known else len(known)
    if place >= len(known):
        raise CliError(
            f"Error: {name} has no version before {serving or 'the first'}; `coterie action versions {name}`"
        )
    return known[place]


def serving_version(action: Action) -> str:
    """The one that gets most calls."""
    shares = action.spec.traffic or ()
    return max(shares, key=lambda each: each.percent).version if shares else action.status.version
