"""The process that serves, started when somebody calls and ended when it holds nothing and nobody calls
(kube/control/on_demand_process.py)."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from coterie.base.clock import Clock
from coterie.base.files import private_directory
from coterie.kube.client.client import Client
from coterie.kube.control.on_demand_process import (
    IDLE,
    HeldListener,
    OnDemandProcess,
    OnDemandProcessSpec,
    OnDemandRunnable,
)
from coterie.kuscia.transport.settings import ENGINES, PARTNERS, TransportSettings

API_SOCKET = "ptp-node.sock"
"""Short: the path of a socket has a limit."""
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_BEATS = 4


def allowed(method: str, path: str, query: str, domain: str) -> bool:
    """Own pods, and values of theirs by name."""
    if method != "GET" or "watch=" in query:
        return False
    own = f"/api/v1/namespaces/{domain}"
    return path == f"{own}/pods" or re.fullmatch(rf"{re.escape(own)}/configmaps/{_NAME}", path) is not None


class TransportProcess(OnDemandRunnable):
    """A Runnable, ready as soon as the sockets are open."""

    name = "transport"

    def __init__(
        self, settings: TransportSettings, run: Path, client: Client, clock: Clock, *, idle: float = IDLE
    ) -> None:
        """`run`: where its socket to the API lies, private and short."""
        directory = private_directory(settings.paths.var / "transport")
        plan = OnDemandProcessSpec(
            name=self.name,
            who="the message queue",
            module="coterie.kuscia.transport",
            options={
                "--domain": settings.domain,
                "--directory": str(directory),
                "--limits": msgspec.json.encode(settings.limits).decode(),
                "--beat": str(idle / _BEATS),
            },
            listeners=[
                HeldListener.unix(PARTNERS, settings.partners),
                HeldListener.unix(ENGINES, settings.engines),
            ],
            api=run / API_SOCKET,
            log_file=settings.paths.log("transport"),
            logging=settings.paths.logging,
            log_rotation=settings.log_rotation,
        )

        def passes(method: str, path: str, query: str) -> bool:
            return allowed(method, path, query, settings.domain)

        self._held = OnDemandProcess(plan, client.transport, passes, clock, idle=idle)

    async def run(self) -> None:
        await self._held.run()
