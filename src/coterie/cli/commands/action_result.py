"""`coterie action result`: the answer of an asynchronous call."""

from __future__ import annotations

import argparse
import re
import time

from coterie.cli import action_calls, actions
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.commands.action_invoke import print_answer
from coterie.cli.session import CliSession

HELP = """
Print the answer of a call that `coterie action invoke --async` sent. Answers are kept for 24 hours. Without --wait
the exit status is 1 while there is none.

Examples:
  coterie action result 0f6c1e...
  coterie action result 0f6c1e... --wait --timeout 10m
"""
_ID = re.compile("[A-Za-z0-9_-]{1,128}")
_PAUSE = 0.5


def arguments(parser: options.Parser) -> None:
    parser.add_argument("id", metavar="ID", help="what `action invoke --async` printed")
    parser.add_argument("--wait", action="store_true", help="wait for the answer")
    parser.add_argument(
        "--timeout", metavar="TIME", type=options.seconds, default=90.0, help="wait timeout (default: 90s)"
    )
    parser.add_argument("-i", "--include", action="store_true", help="print status and headers to standard error")
    options.output_option(parser, ("table", "json", "yaml"))
    options.namespace_option(parser)
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if not _ID.fullmatch(args.id):
        raise UsageError(f"{args.id[:60]!r} is not the id of a call")
    return actions.run(args, app, lambda session: _result(session, args))


async def _result(session: CliSession, args: argparse.Namespace) -> int:
    deadline = time.monotonic() + args.timeout
    while True:
        answer = await action_calls.call_gateway(session, "GET", f"/calls/{args.id}", timeout=30)
        if answer.status == 404:
            raise CliError(f"Error: there is no call {args.id}, or its answer is older than 24 hours")
        if answer.status != 202:
            return print_answer(session, answer, args.output, include=args.include)
        if not args.wait or time.monotonic() > deadline:
            raise CliError(f"Error: call {args.id} has no answer yet" + ("" if args.wait else "; --wait waits for it"))
        await session.client.clock.sleep(_PAUSE)
