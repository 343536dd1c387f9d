"""`coterie logs`: what a container wrote, and what it writes."""

from __future__ import annotations

import argparse
import math

from coterie.cli import arguments as options
from coterie.cli import pods
from coterie.cli import session as sessions
from coterie.cli.app import App, UsageError
from coterie.cli.session import CliSession
from coterie.cli.terminal import Screen
from coterie.kube.client.streams import log_stream

HELP = """
Print the standard output and standard error of a container. Instead of a pod, name an object that selects pods
(`deploy/web`): one of its running pods is used.

Examples:
  coterie logs web-0
  coterie logs web-0 -c proxy --tail 20
  coterie logs deploy/web -f                    # follow
  coterie logs job/sum --since 10m --timestamps
  coterie logs web-0 --previous                 # from before the last restart
"""


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    options.namespace_option(parser)
    parser.add_argument("-c", "--container", metavar="NAME", default="", help="container (default: the first)")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the container ends")
    parser.add_argument("--tail", metavar="N", type=number_of_lines, default=None, help="only the last N lines")
    parser.add_argument(
        "--since",
        metavar="DURATION",
        type=options.seconds,
        default=0.0,
        help="only lines newer than this, e.g. 30s, 5m, 1h",
    )
    parser.add_argument(
        "--since-time", metavar="TIME", default="", help="only lines after this time, e.g. 2026-01-02T03:04:05Z"
    )
    parser.add_argument("-p", "--previous", action="store_true", help="logs from before the last restart")
    parser.add_argument("--timestamps", action="store_true", help="print a timestamp before each line")
    options.connection_options(parser)
    parser.complete(words="pods", container="containers")


def number_of_lines(text: str) -> int | None:
    """-1 means all, as in kubectl."""
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines") from error
    if number < -1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return None if number == -1 else number


def run(args: argparse.Namespace, app: App) -> int:
    if len(args.words) != 1:
        raise UsageError("say whose log is meant: a pod, or TYPE/NAME; e.g. `coterie logs deploy/web`")
    if args.since and args.since_time:
        raise UsageError("use one of --since and --since-time, not both")
    return sessions.run(args, app, lambda session: _logs(session, args))


async def _logs(session: CliSession, args: argparse.Namespace) -> int:
    pod = await pods.find(session, args.words[0])
    container = pods.container_of(pod, args.container, session.app)
    screen = Screen(session.app.out)
    async for data in log_stream(
        session.client,
        pod["metadata"]["name"],
        pod["metadata"]["namespace"],
        container=container,
        follow=args.follow,
        previous=args.previous,
        timestamps=args.timestamps,
        tail=args.tail,
        since_seconds=math.ceil(args.since) or None,
        since_time=args.since_time,
    ):
        screen.write(data)
    return 0
