"""`coterie action invoke`: call a function and print its answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from coterie.cli import action_calls, actions
from coterie.cli import arguments as options
from coterie.cli.action_calls import CallAnswer
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text
from coterie.cli.session import CliSession
from coterie.kuscia.api.functions import graph

HELP = """
Call a function through the gateway and print the body of its answer. The exit status is 1 when the HTTP status is 400
or more. With --async the command prints an id at once; `coterie action result ID` prints the answer later (for 24
hours). A call with the same --idempotency-key as an earlier one gets the answer of that one and runs nothing.

Examples:
  coterie action invoke calc --param a=1 --param b=2 --param sign=+
  coterie action invoke resize --body @picture.png --content-type image/png >small.png
  coterie action invoke order --body '{"item": 7}' --idempotency-key order-4711
  coterie action invoke report --async
  coterie action invoke calc --param a=1 -o json         # with status and content type
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    parser.add_argument("-p", "--param", metavar="K=V", action="append", default=[], help="parameter; may be repeated")
    parser.add_argument("--body", metavar="TEXT|@FILE", default="", help="body of the call; @- is standard input")
    parser.add_argument(
        "--content-type", metavar="TYPE", default="", help="of the body (default: JSON if it is JSON, else text)"
    )
    parser.add_argument("-X", "--method", metavar="METHOD", default="POST", help="HTTP method (default: POST)")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="do not wait for the answer")
    parser.add_argument("--key", metavar="TEXT", default="", help="calls with the same key run one after the other")
    parser.add_argument(
        "--idempotency-key", metavar="TEXT", default="", help="run the call once, however often it is sent"
    )
    parser.add_argument(
        "--timeout", metavar="TIME", type=options.seconds, default=95.0, help="wait timeout (default: 95s)"
    )
    parser.add_argument("-i", "--include", action="store_true", help="print status and headers to standard error")
    options.output_option(parser, ("table", "json", "yaml"))
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions", method=("GET", "POST", "PUT", "DELETE"))


def run(args: argparse.Namespace, app: App) -> int:
    if fault := graph.action_name_fault(args.name):
        raise UsageError(fault)
    query = urlencode(actions.pairs(args.param, "--param"))
    body = body_of_call(args.body, app)
    headers = checked_headers({"Coterie-Key": args.key, "Idempotency-Key": args.idempotency_key})
    if body:
        headers["Content-Type"] = args.content_type or _content_type(body)
    if args.asynchronous:
        headers["Prefer"] = "respond-async"
    return actions.run(args, app, lambda session: _invoke(session, args, query, headers, body))


def checked_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Those that are not empty."""
    for name, value in given.items():
        if not value.isascii() or not (value or "x").isprintable():
            raise UsageError(f"{name} must be printable ASCII")
    return {name: value for name, value in given.items() if value}


def body_of_call(given: str, app: App) -> bytes:
    if not given.startswith("@"):
        return given.encode()
    if given == "@-":
        return app.stdin.read().encode()
    try:
        return (app.cwd / Path(given[1:]).expanduser()).read_bytes()
    except OSError as error:
        raise CliError(f"Error: {given[1:]} cannot be read: {error.strerror}") from error


def _content_type(body: bytes) -> str:
    try:
        json.loads(body)
    except ValueError:
        try:
            body.decode()
        except UnicodeDecodeError:
            return "application/octet-stream"
        return "text/plain; charset=utf-8"
    return "application/json"


async def _invoke(
    session: CliSession, args: argparse.Namespace, query: str, headers: dict[str, str], body: bytes
) -> int:
    answer = await action_calls.call_gateway(
        session,
        args.method.upper(),
        f"/actions/{args.name}",
        query=query,
        headers=headers,
        body=body,
        timeout=args.timeout,
    )
    if args.asynchronous and answer.status == 202 and args.output == "table":
        call = json.loads(answer.body)["id"]
        session.app.say(str(call))
        session.app.warn(f"`coterie action result {call} --wait` prints the answer")
        return 0
    return print_answer(session, answer, args.output, include=args.include)


def print_answer(session: CliSession, answer: CallAnswer, form: str, *, include: bool = False) -> int:
    app = session.app
    if include:
        app.warn(f"HTTP {answer.status}")
        for name, value in answer.headers.items():
            app.warn(f"{name}: {value}")
    if form != "table":
        app.write(as_text(answer.as_object(), form))
    elif (raw := getattr(app.out, "buffer", None)) is not None and not app.out.isatty():
        raw.write(answer.body)  # as it is: it may be a picture
        raw.flush()
    elif answer.body:
        app.write(answer.text if answer.text.endswith("\n") else f"{answer.text}\n")
    if answer.status >= 400 and not include:
        app.warn(f"Error: the function answered {answer.status}")
    return 1 if answer.status >= 400 else 0
