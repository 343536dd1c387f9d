"""What agents of a domain share, wherever their pods run: what engines get, and who knows them."""

from __future__ import annotations

import asyncio
from functools import cache

from coterie.base.clock import Clock
from coterie.kube.client.client import Client
from coterie.kuscia.api.log_query import ALL_SOURCES, DATAMESH, ENGINE, GATEWAY, USAGE
from coterie.kuscia.engine.engine_plugin import EngineSettings
from coterie.kuscia.engine.templates.config_store import ConfigStore, DomainConfig, NoConfigStore, SealedConfig
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.identity import domain_identity
from coterie.node.config import AgentConfig, NodeSettings

_ADOPTION_SECONDS = 60.0
"""For an agent that was restarted to look at all its pods."""


def logged_here(settings: NodeSettings) -> tuple[str, ...]:
    """Beside a control plane the node's own log is that of the control plane, which searches it itself."""
    if settings.mode == "lite" or settings.join is not None:
        return ALL_SOURCES
    return ENGINE, GATEWAY, DATAMESH, USAGE


class StaleCallers:
    """A Runnable: once the agent had time to find its pods again, the gateway forgets those that are gone."""

    name = "stale-callers"

    def __init__(self, callers: PodCallers, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._callers = callers
        self._clock = clock
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        adopting = asyncio.ensure_future(self._clock.sleep(_ADOPTION_SECONDS))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((adopting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                self._callers.drop_stale()
                await stopping
        finally:
            adopting.cancel()
            stopping.cancel()


def engine_settings(settings: NodeSettings, chosen: AgentConfig) -> EngineSettings:
    """Config templates get the protocol of KusciaAPI, which may differ from the gateway's."""
    joined = settings.join is not None
    return EngineSettings(
        domain=settings.domain,
        # The domain's files are where its data mesh is, and pods of a backing cluster have none of this machine's.
        data=None if joined or settings.runk is not None else settings.paths.data,
        api_protocol=settings.kuscia_api.protocol,
        api_token=None if joined else settings.paths.api_token,
        joined=joined,
        taint=chosen.taint,
        bandwidth_mbit=chosen.bandwidth_mbit,
        reserved_bandwidth_mbit=chosen.reserved_bandwidth_mbit,
    )


def config_store(settings: NodeSettings, client: Client) -> ConfigStore:
    """The values that the domain keeps for its engines; a node that only joined has no key to read them with."""
    if settings.join is not None:
        return SealedConfig(client, settings.domain)
    if not settings.paths.domain_key.exists():
        return NoConfigStore()
    key = cache(lambda: domain_identity.load(settings.paths, settings.domain).key)
    return DomainConfig(client, settings.domain, key)
