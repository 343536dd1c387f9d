"""The console's process, started when a browser connects or `coterie console` asks for a link, and ended when nobody looks.

It has no credentials: what it asks of the API server carries the token of the person who asks.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from coterie.base import listener_handover
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.console.settings import CONTROL, WEB, ConsoleLocation, ConsoleSettings
from coterie.kube.client.client import Client
from coterie.kube.control.on_demand_process import (
    IDLE,
    HeldListener,
    OnDemandProcess,
    OnDemandProcessSpec,
    OnDemandRunnable,
    OpenPort,
)

_CONTROL_SOCKET, _NODE_SOCKET = "console.sock", "console-api.sock"


class ConsoleProcess(OnDemandRunnable):
    """A Runnable, ready as soon as the listeners are open. OSError when the port cannot be had."""

    name = "console"

    def __init__(
        self,
        settings: ConsoleSettings,
        paths: DomainPaths,
        run: Path,
        client: Client,
        clock: Clock,
        idle: float = IDLE,
        open_port: OpenPort = listener_handover.listen,
    ) -> None:
        """`run`: where the sockets lie, private and short."""

        def open_web() -> socket.socket:
            made = open_port(settings.address, settings.port)
            self.settings = replace(settings, port=int(made.getsockname()[1]))
            return made

        self.settings = settings
        plan = OnDemandProcessSpec(
            name=self.name,
            who="the console",
            module="coterie.console",
            options={**settings.options(), "--beat": str(idle / 4)},
            listeners=[
                HeldListener(WEB, open_web),
                HeldListener.unix(CONTROL, run / _CONTROL_SOCKET),
            ],
            api=run / _NODE_SOCKET,
            log_file=paths.log(self.name),
            # It calls our own API server alone, whose authority it is told: the machine's list of CAs is 2 MB for nothing.
            env={"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull},
            logging=paths.logging,
            log_rotation=settings.log_rotation,
        )
        self._held = OnDemandProcess(plan, client.transport, _nothing, clock, idle=idle)
        self._paths = paths
        ConsoleLocation(self.settings.url, run / _CONTROL_SOCKET).write(paths)

    def release(self) -> None:
        self._held.release()
        ConsoleLocation.remove(self._paths)

    async def run(self) -> None:
        try:
            await self._held.run()
        finally:
            ConsoleLocation.remove(self._paths)


def _nothing(method: str, path: str, query: str) -> bool:
    """The node's own rights are not the console's."""
    return False
