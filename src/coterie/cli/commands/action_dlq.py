"""`coterie action dlq`: calls that were given up."""

from __future__ import annotations

import argparse

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, UsageError
from coterie.cli.session import CliSession
from coterie.cli.terminal_format import safe
from coterie.kube.api.errors import NotFound
from coterie.kuscia.api.functions.types import DEAD_LETTERS, DeadLetter

HELP = """
Dead letters: calls whose actors crashed or ran out of time more often than spec.retries allows. Their callers got 502
or 504. The content stays on the bus until the call is replayed or removed.

  ls [ACTION]                          list dead letters
  replay NAME... | --action ACTION     send calls again; nobody waits for the answer (`coterie action result REQUEST`)
  rm NAME... | --action ACTION         drop calls

Examples:
  coterie action dlq ls
  coterie action dlq ls order -o json
  coterie action dlq replay order-3f9c01ab
  coterie action dlq replay --action order       # all of this function, after the fix
  coterie action dlq rm --action order
"""
_VERBS = ("ls", "list", "replay", "rm")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("verb", choices=_VERBS, metavar="ls|replay|rm", help="what to do")
    options.words_argument(parser)
    parser.add_argument("--action", metavar="ACTION", default="", help="all dead letters of this function")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(
        words={"ls": ("actions",), "replay": ("dead-letters", "*"), "rm": ("dead-letters", "*")}, action="actions"
    )


def run(args: argparse.Namespace, app: App) -> int:
    if args.verb in ("ls", "list"):
        if len(args.words) > 1:
            raise UsageError("name one function, or none")
        return actions.run(args, app, lambda session: _list(session, args))
    if bool(args.words) == bool(args.action):
        raise UsageError(f"name dead letters, or a function with --action; e.g. `coterie action dlq {args.verb} NAME`")
    return actions.run(args, app, lambda session: _settle(session, args))


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    wanted = args.words[0] if args.words else args.action
    found = [pair for pair in await actions.listed(session, DEAD_LETTERS) if not wanted or _is_of(pair[1], wanted)]
    none = "There are no dead letters"
    if not actions.print_listing(session, args.output, DEAD_LETTERS, found, none):
        columns = ("NAME", "ACTION", "ATTEMPTS", "SIZE", "AGE", "REASON")
        actions.print_table(session, columns, [_row(each) for _, each in found])
    return 0


def _is_of(letter: DeadLetter, action: str) -> bool:
    """Also calls of partners, which may be kept apart: ACTION.PARTNER."""
    return action in (letter.spec.action, letter.spec.action.partition(".")[0])


def _row(letter: DeadLetter) -> tuple[str, ...]:
    spec = letter.spec
    state = "replaying" if spec.replay else safe(spec.reason)
    age = actions.age(letter.metadata.creation_timestamp)
    return (letter.metadata.name, spec.action, str(spec.attempts), str(spec.size), age, state)


async def _settle(session: CliSession, args: argparse.Namespace) -> int:
    """Replay or drop."""
    names = list(dict.fromkeys(args.words))
    if args.action:
        found = await actions.listed(session, DEAD_LETTERS)
        names = [each.metadata.name for _, each in found if _is_of(each, args.action)]
        if not names:
            session.app.warn(f"There are no dead letters of {args.action}")
    failed = 0
    for name in names:
        try:
            if args.verb == "replay":
                await session.client.patch(DEAD_LETTERS, name, session.namespace, {"spec": {"replay": True}})
                session.app.say(f"deadletter {name} is sent again")
            else:
                await session.client.delete(DEAD_LETTERS, name, session.namespace)
                session.app.say(f"deadletter {name} removed")
        except NotFound:
            session.app.warn(f"Error: there is no dead letter {name}; `coterie action dlq ls` lists them")
            failed = 1
    return failed
