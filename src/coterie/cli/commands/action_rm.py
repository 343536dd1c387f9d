"""`coterie action rm`: delete functions."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.error_messages import refusal
from coterie.cli.session import CliSession
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.functions import graph
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTIONS, TRIGGERS

HELP = """
Delete functions with their triggers and grants, their versions and the calls that wait. A function that another one
names in `next` is not deleted; of several names, callers are deleted first.

Examples:
  coterie action rm hello
  coterie action rm calc add mul
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of the functions")
    parser.add_argument("--ignore-not-found", action="store_true", help="do not fail if a function does not exist")
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(names="actions")


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _remove(session, args))


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    edges = {each.metadata.name: each.spec.targets for _, each in await actions.listed(session, ACTIONS)}
    order = {name: place for place, name in enumerate(reversed(graph.callees_first(edges)))}
    failed = 0
    for name in sorted(dict.fromkeys(args.names), key=lambda each: order.get(each, -1)):
        try:
            await session.client.delete(ACTIONS, name, session.namespace)
        except NotFound:
            if not args.ignore_not_found:
                session.app.warn(f"Error: there is no Action {name}; `coterie action ls` lists those that exist")
                failed = 1
            continue
        except ApiError as error:
            session.app.warn(refusal(error))
            failed = 1
            continue
        await _remove_belongings(session, name)
        session.app.say(f"action {name} removed")
    return failed


async def _remove_belongings(session: CliSession, action: str) -> None:
    for trigger in await actions.triggers_of(session, action):
        await _delete_if_there(session, TRIGGERS.as_dynamic, trigger.metadata.name)
    for _, grant in await actions.listed(session, ACTION_GRANTS):
        if grant.spec.action == action:
            await _delete_if_there(session, ACTION_GRANTS.as_dynamic, grant.metadata.name)


async def _delete_if_there(session: CliSession, kind: Kind[Object], name: str) -> None:
    try:
        await session.client.delete(kind, name, session.namespace)
    except NotFound:
        return
