"""`coterie exec`: run a command in a container, with the user's terminal if wanted; its exit status is ours."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Iterator

from coterie.cli import arguments as options
from coterie.cli import pods, terminal
from coterie.cli import session as sessions
from coterie.cli.app import App, UsageError
from coterie.cli.session import CliSession
from coterie.kube.client.streams import STDERR, Remote, exec_stream
from coterie.kube.client.transport import Disconnected

HELP = """
Run a command in a running container and exit with its exit status. The command after `--` is executed without a shell;
use `sh -c` for pipes and variables.

Examples:
  coterie exec web-0 -- ls -l /tmp
  coterie exec web-0 -c proxy -- env
  coterie exec -it deploy/web -- sh             # an interactive shell
  coterie exec -i web-0 -- wc -l < data.csv     # pass standard input to the command
"""


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    options.command_argument(parser)
    options.namespace_option(parser)
    parser.add_argument("-c", "--container", metavar="NAME", default="", help="container (default: the first)")
    parser.add_argument("-i", "--stdin", action="store_true", help="pass standard input to the command")
    parser.add_argument("-t", "--tty", action="store_true", help="allocate a terminal")
    options.connection_options(parser)
    parser.complete(words="pods", container="containers")


def run(args: argparse.Namespace, app: App) -> int:
    if len(args.words) != 1 or not args.command:
        raise UsageError("write a pod, then the command after `--`, e.g. `coterie exec web-0 -- ls`")
    return sessions.run(args, app, lambda session: _exec(session, args))


async def _exec(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    pod = await pods.find(session, args.words[0])
    container = pods.container_of(pod, args.container, app)
    tty = args.tty and args.stdin and terminal.is_terminal(app.stdin)
    if args.tty and not tty:
        app.warn("There is no terminal here to hand over, so the command gets none.")
    async with exec_stream(
        session.connection,
        pod["metadata"]["name"],
        pod["metadata"]["namespace"],
        args.command,
        container=container,
        stdin=args.stdin,
        tty=tty,
    ) as remote:
        with terminal.raw(app.stdin) if tty else contextlib.nullcontext():
            return await _converse(remote, app, stdin=args.stdin, tty=tty)


async def _converse(remote: Remote, app: App, *, stdin: bool, tty: bool) -> int:
    out, err = terminal.Screen(app.out), terminal.Screen(app.err)
    helpers = [asyncio.ensure_future(_type(remote, app))] if stdin else []
    if tty:
        helpers.append(asyncio.ensure_future(_follow_size(remote, app)))
    try:
        while (piece := await remote.read()) is not None:
            channel, data = piece
            (err if channel == STDERR else out).write(data)
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    return remote.exit_code()


async def _type(remote: Remote, app: App) -> None:
    keyboard = terminal.Keyboard(app.stdin)
    # A command may end while there is input left; its status tells what happened, not our unsent bytes.
    with contextlib.suppress(Disconnected):
        while data := await keyboard.read():
            await remote.write(data)
        await remote.end_input()


async def _follow_size(remote: Remote, app: App) -> None:
    with _resized() as changed, contextlib.suppress(Disconnected):
        while True:
            size = terminal.size_of(app.stdin)
            if size is not None:
                await remote.resize(*size)
            await changed.wait()
            changed.clear()


@contextlib.contextmanager
def _resized() -> Iterator[asyncio.Event]:
    changed, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        yield changed
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
