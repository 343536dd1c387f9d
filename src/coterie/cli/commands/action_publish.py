"""`coterie action publish`: write a record to a topic that Triggers read."""

from __future__ import annotations

import argparse
import json
import re

from coterie.cli import action_calls, actions
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.commands.action_invoke import body_of_call, checked_headers
from coterie.cli.output import as_text
from coterie.cli.session import CliSession

HELP = """
Write a record to a topic. Each Trigger of the topic calls its function with the record as the body. Records with the
same key are called one after the other. The command ends when the record is on disk; it does not wait for the calls.

Examples:
  coterie action trigger add order --topic orders
  coterie action publish orders --body '{"item": 7}'
  coterie action publish orders --body @order.json --key customer-12
"""

_TOPIC = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_SECONDS = 30.0


def arguments(parser: options.Parser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument("--body", metavar="TEXT|@FILE", default="", help="the record; @- is standard input")
    parser.add_argument("--key", metavar="TEXT", default="", help="calls with the same key run one after the other")
    options.output_option(parser, ("table", "json", "yaml"))
    options.namespace_option(parser)
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if not _TOPIC.fullmatch(args.topic):
        raise UsageError(f"{args.topic[:60]!r} is no name of a topic: letters, digits, '.', '_' and '-'")
    body, headers = body_of_call(args.body, app), checked_headers({"Coterie-Key": args.key})
    return actions.run(args, app, lambda session: _publish(session, args, headers, body))


async def _publish(session: CliSession, args: argparse.Namespace, headers: dict[str, str], body: bytes) -> int:
    path = f"/coterie/topics/{args.topic}"
    answer = await action_calls.call_gateway(session, "POST", path, headers=headers, body=body, timeout=_SECONDS)
    if answer.status != 200:
        hint = "; `coterie action trigger add ACTION --topic NAME` makes one" if answer.status == 404 else ""
        raise CliError(f"Error: {answer.text.strip() or f'the gateway answered {answer.status}'}{hint}")
    place = json.loads(answer.body)
    if args.output != "table":
        session.app.write(as_text(place, args.output))
    else:
        session.app.say(f"topic {place['topic']}, partition {place['partition']}, offset {place['offset']}")
    return 0
