"""`coterie version`: of this program, and of the server when one can be reached."""

from __future__ import annotations

import argparse
import platform

import orjson

from coterie import __version__
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.output import as_text
from coterie.cli.session import CliSession

HELP = """
Print the version of this program and of the server.

Examples:
  coterie version
  coterie version --client
  coterie version -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("--client", action="store_true", help="only the version of this program")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    versions: dict[str, object] = {"client": {"version": __version__, "python": platform.python_version()}}
    failure: CliError | None = None
    if not args.client:
        try:
            sessions.run(args, app, lambda session: _ask(session, versions))
        except CliError as error:
            failure = error
    if args.output == "table":
        app.say(f"Client: coterie {__version__} (Python {platform.python_version()})")
        server = versions.get("server")
        if isinstance(server, dict):
            app.say(f"Server: Kubernetes API {server.get('gitVersion', 'of unknown version')}")
    else:
        app.write(as_text(versions, args.output))
    if failure is not None:
        raise failure
    return 0


async def _ask(session: CliSession, versions: dict[str, object]) -> int:
    versions["server"] = orjson.loads((await session.client.raw("GET", "/version")).body)
    return 0
