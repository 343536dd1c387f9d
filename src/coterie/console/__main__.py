"""The process that serves: `python -m coterie.console --domain ... --api <socket>`. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from coterie.base import child_logging, listener_handover
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.tasks import TaskOwner
from coterie.console import api_access
from coterie.console.exec_terminal import opener
from coterie.console.server import ConsoleServer, problem_response
from coterie.console.settings import CONTROL, WEB, ConsoleSettings
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.client import kubeconfig
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.transport import Transport, TransportError
from coterie.kube.control.child_api_client import child_transport, notify_parent
from coterie.kube.control.child_api_listener import READY, USED

_LIMITS = HttpLimits(
    max_body=2 << 20,
    max_connections=500,
    max_unknown_per_address=200,
    max_body_in_flight=16 << 20,
    body_timeout=20.0,
    idle_timeout=60.0,
)
_ANSWERS = ResponseLimits(body=api_access.LONGEST_ANSWER, object_bytes=4 << 20)
"""Of the API server: logs of pods and objects of partners come through it."""


async def serve(settings: ConsoleSettings, api: Path, listeners: Mapping[str, socket.socket], interval: float) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    node = child_transport(api)
    known = kubeconfig.read(settings.kubeconfig).resolve()
    cluster = ClusterConnection(server=known.server, ca=known.ca)
    personal = HttpTransport(cluster, user_agent="coterie-console", limits=_ANSWERS, lean=True)
    try:
        async with TaskOwner("console") as owner:
            console = ConsoleServer(settings, personal, SYSTEM_CLOCK, owner, open_terminal=opener(cluster))
            web = web_server(console)
            control = HttpServer(console.handle_control, problem_response=problem_response)
            await web.serve(listeners[WEB], _tls(settings))
            await control.serve(listeners[CONTROL])
            await notify_parent(node, READY)
            owner.start("use", _notify_use(console, node, interval), vital=False)
            async with child_logging.following():
                await stop.wait()
            await web.stop()
            await control.stop()
    finally:
        await personal.close()
        await node.close()


def web_server(console: ConsoleServer) -> HttpServer:
    """Pages are for everybody, so no header shows who somebody is; only who has opened a WebSocket is known."""
    return HttpServer(console.handle, limits=_LIMITS, problem_response=problem_response, credential_headers=frozenset())


def _tls(settings: ConsoleSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.certificate, settings.key)
    return context


async def _notify_use(console: ConsoleServer, transport: Transport, interval: float) -> None:
    """Sessions are in this memory: while there are any, the process must stay."""
    while True:
        await asyncio.sleep(interval)
        if console.sessions.in_use:
            with contextlib.suppress(TransportError):  # the node hears of it the next time
                await notify_parent(transport, USED)


def main() -> None:
    parser = argparse.ArgumentParser(prog="coterie.console", description="serves the console")
    for name in ("--domain", "--mode", "--address"):
        parser.add_argument(name, required=True)
    for name in ("--api", "--kubeconfig"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--certificate", "--key"):
        parser.add_argument(name, type=Path)
    for name in ("--read-only", "--exec"):
        parser.add_argument(name, choices=("true", "false"), required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--beat", type=float, required=True)
    parser.add_argument("--listeners", type=listener_handover.inherited, required=True)
    chosen = parser.parse_args()
    child_logging.configure()
    settings = ConsoleSettings(
        chosen.domain,
        chosen.mode,
        chosen.address,
        chosen.listeners[WEB].getsockname()[1],
        chosen.kubeconfig,
        chosen.certificate,
        chosen.key,
        read_only=chosen.read_only == "true",
        exec=chosen.exec == "true",
        names=tuple(filter(None, chosen.names.split(","))),
    )
    asyncio.run(serve(settings, chosen.api, chosen.listeners, chosen.beat))


if __name__ == "__main__":
    main()
