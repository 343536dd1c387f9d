"""Removes DomainData that jobs made long ago. The object goes, the file stays, as in Kuscia."""

from __future__ import annotations

import asyncio

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.data import DOMAIN_DATAS, DomainData
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.controllers.domaindatagc.plan import Settings, expired


class DomainDataCollector:
    """A Runnable: a pass over all DomainData every `period` seconds. Lists instead of watching: it has time."""

    name = "domaindatagc"

    def __init__(self, client: Client, informers: Informers, settings: Settings, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self._settings = settings
        self._clock = clock
        self._log = logger("controllers.domaindatagc")

    async def run(self) -> None:
        await self._jobs.ready.wait()
        self.ready.set()
        while True:
            await self.collect()
            await self._clock.sleep(self._settings.period)

    async def collect(self) -> None:
        try:
            datas = (await self._client.list(DOMAIN_DATAS)).items
        except (ApiError, TransportError) as error:
            self._log.warning("DomainData cannot be listed; retrying later", error=error)
            return
        running = {job.metadata.name for job in self._jobs.cache if not job.status.completion_time}
        found = expired(datas, running, self._clock.now(), self._settings.retention)
        for number, data in enumerate(found, 1):
            await self._remove(data)
            if number % self._settings.batch == 0:
                await self._clock.sleep(self._settings.pause)

    async def _remove(self, data: DomainData) -> None:
        meta = data.metadata
        try:
            await self._client.delete(DOMAIN_DATAS, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            return
        except (ApiError, TransportError) as error:
            self._log.warning("DomainData cannot be removed; retrying later", error=error, data=str(meta.key))
            return
        self._log.info("Old DomainData removed", data=str(meta.key), made=meta.creation_timestamp)


def make(
    client: Client, informers: Informers, *, settings: Settings, clock: Clock = SYSTEM_CLOCK
) -> DomainDataCollector:
    return DomainDataCollector(client, informers, settings, clock)
