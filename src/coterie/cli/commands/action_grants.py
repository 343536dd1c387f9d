"""`coterie action grants`: which partners may call which functions."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.session import CliSession
from coterie.cli.terminal_format import safe
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ActionGrant

HELP = """
List which partners may call which functions of ours, the limits, and how often they did.

Examples:
  coterie action grants
  coterie action grants score
  coterie action grants -o yaml            # with the records of the latest uses
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="only grants of this function")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions")


def run(args: argparse.Namespace, app: App) -> int:
    return actions.run(args, app, lambda session: _list(session, args))


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    found = [pair for pair in await actions.listed(session, ACTION_GRANTS) if args.name in ("", pair[1].spec.action)]
    none = "No partner may call anything; `coterie action grant NAME --to PARTNER` allows it"
    if not actions.print_listing(session, args.output, ACTION_GRANTS, found, none):
        columns = ("NAME", "ACTION", "PARTNER", "STATE", "USES", "LAST USE", "LIMITS")
        actions.print_table(session, columns, [_row(each) for _, each in found])
    return 0


def _row(grant: ActionGrant) -> tuple[str, ...]:
    spec, status = grant.spec, grant.status
    state = f"{status.phase}: {safe(status.message)}" if status.message else status.phase
    uses = str(status.uses)
    return (
        grant.metadata.name,
        spec.action,
        spec.grant_domain,
        state,
        uses,
        actions.age(status.last_use_time),
        limits(grant),
    )


def limits(grant: ActionGrant) -> str:
    limit, found = grant.spec.limit, []
    found += [f"{limit.calls} calls"] if limit.calls else []
    found += [f"{limit.calls_per_minute} a minute"] if limit.calls_per_minute else []
    found += [f"until {limit.expiration_time}"] if limit.expiration_time else []
    found += [f"tables {','.join(grant.spec.tables)}"] if grant.spec.tables else []
    return ", ".join(found) or "no limits"
