"""`coterie action traffic`: split calls between versions."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, UsageError
from coterie.cli.commands.action_versions import newest_first
from coterie.cli.session import CliSession
from coterie.kube.api.meta import Object
from coterie.kuscia.api.functions.types import ACTIONS

HELP = """
Split the calls of a function between its versions, in percent that add up to 100, or send all to the newest (latest).
A call that is repeated after a crash keeps its version. `coterie action versions NAME` lists versions.

Examples:
  coterie action create calc --script new.py --no-traffic
  coterie action traffic calc v3f9c01ab22=90,v0a1b2c3d4e=10
  coterie action traffic calc latest
"""
LATEST = "latest"


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    parser.add_argument("shares", metavar="VERSION=PERCENT,...|latest", help="shares of calls")
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions", shares="action-versions,")


def run(args: argparse.Namespace, app: App) -> int:
    shares = parse_shares(args.shares)
    return actions.run(args, app, lambda session: _traffic(session, args.name, shares))


def parse_shares(text: str) -> list[Object]:
    """Empty: all calls go to the newest."""
    if text == LATEST:
        return []
    found: list[Object] = []
    for name, percent in actions.pairs(text.split(","), "traffic").items():
        number = percent.removesuffix("%")
        if not number.isdigit() or int(number) > 100:
            raise UsageError(f"{name}={percent}: write a share from 0 to 100, such as {name}=10")
        found.append({"version": name.strip(), "percent": int(number)})
    if sum(int(each["percent"]) for each in found) != 100:
        raise UsageError(f"{text}: the shares must add up to 100")
    return found


async def _traffic(session: CliSession, name: str, shares: list[Object]) -> int:
    action = await actions.find(session, name)
    known = [each.name for each in newest_first(action)]
    for share in shares:
        if share["version"] not in known:
            raise UsageError(f"{share['version']} is no version of {name}; there are: {', '.join(known) or 'none yet'}")
    await session.client.patch(ACTIONS, name, session.namespace, {"spec": {"traffic": shares or None}})
    if shares:
        session.app.say(f"action {name}: " + ", ".join(f"{each['percent']} % to {each['version']}" for each in shares))
    else:
        session.app.say(f"action {name}: all calls go to the newest version")
    return 0
