"""`coterie action logs`: what the actors of a function print."""

from __future__ import annotations

import argparse
import asyncio
import re

from coterie.cli import actions
from coterie.cli import arguments as options
from coterie.cli.app import App, UsageError
from coterie.cli.session import CliSession
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.streams import log_stream
from coterie.kube.client.transport import LineSplitter, TransportError
from coterie.kuscia.api.functions.types import ACTION_LABEL

HELP = """
Print the logs of a function's actors, each line with the pod it comes from when there are several. What the code
prints during a call begins with `call=ID`, where ID is `req.id`; --call selects one. An actor's log goes with the
actor: -f follows those that come. Log what must be kept elsewhere.

Examples:
  coterie action logs calc
  coterie action logs calc -f
  coterie action logs calc --call 3f9c01ab        # the beginning of an id is enough
"""
_CONTAINER = "actor"
_PAUSE = 1.0
_CALL = re.compile("[0-9a-f]{1,64}")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the function")
    parser.add_argument("--call", metavar="ID", default="", help="only lines of this call")
    parser.add_argument("-f", "--follow", action="store_true", help="follow, also actors that come later")
    parser.add_argument("--tail", metavar="N", type=int, default=None, help="only the last lines of each actor")
    options.namespace_option(parser)
    options.connection_options(parser)
    parser.complete(name="actions")


def run(args: argparse.Namespace, app: App) -> int:
    if args.call and not _CALL.fullmatch(args.call):
        raise UsageError(f"--call {args.call[:60]}: ids of calls have hex digits; the function sees its own as req.id")
    return actions.run(args, app, lambda session: _logs(session, args))


async def _logs(session: CliSession, args: argparse.Namespace) -> int:
    await actions.find(session, args.name)
    printer = _LogPrinter(session, args)
    if args.follow:
        await printer.follow()
        return 0
    pods = await printer.pods()
    if not pods:
        session.app.warn(f"{args.name} has no actors now; an actor's log goes with it. -f waits for the next call")
    for pod in pods:
        await printer.print_log(pod.metadata.name, prefix=len(pods) > 1)
    return 0


class _LogPrinter:
    def __init__(self, session: CliSession, args: argparse.Namespace) -> None:
        self._session = session
        self._args = args
        self._begin = f"call={args.call}".encode() if args.call else b""

    async def pods(self) -> list[Pod]:
        """Also of actors that a partner has for itself, whose label is NAME.PARTNER."""
        found = (await self._session.client.list(PODS, self._session.namespace, labels=ACTION_LABEL)).items
        name = self._args.name
        mine = [each for each in found if (each.metadata.labels or {}).get(ACTION_LABEL, "").split(".")[0] == name]
        return sorted(mine, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name))

    async def follow(self) -> None:
        """Until the user has enough."""
        known: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                for pod in await self.pods():
                    if pod.metadata.uid not in known and pod.status.phase not in ("", "Pending"):
                        known.add(pod.metadata.uid)
                        group.create_task(
                            self.print_log(pod.metadata.name, prefix=True), name=f"log-{pod.metadata.name}"
                        )
                await self._session.client.clock.sleep(_PAUSE)

    async def print_log(self, pod: str, *, prefix: bool) -> None:
        lines = LineSplitter()
        try:
            async for data in log_stream(
                self._session.client,
                pod,
                self._session.namespace,
                container=_CONTAINER,
                follow=self._args.follow,
                tail=self._args.tail,
            ):
                for line in lines.feed(data):
                    self._print(line, pod if prefix else "")
        except (ApiError, TransportError) as error:
            self._session.app.warn(f"{pod}: {error}")

    def _print(self, line: bytes, pod: str) -> None:
        if not line.startswith(self._begin):
            return
        text = line.decode("utf-8", "replace").replace("\x1b", "^[").replace("\r", "")
        self._session.app.say(f"{pod}  {text}" if pod else text)
