"""InterConn as a part of a control plane: the host's side for our own jobs, and one follower for each partner that
hosts jobs of which we are a member (InteropConfig)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.kuscia.api.types.domain import INTEROP_CONFIGS, InteropConfig
from coterie.kuscia.interconn import data_mirror, deployments, host, member
from coterie.kuscia.interconn.member import AWAY

Connect = Callable[[str], Client]
"""The API of a partner's control plane, as its gateway lets us have it."""


class MemberRunners:
    """A Runnable: keeps a follower for each pair of host and member that the InteropConfigs name."""

    name = "interconn"

    def __init__(self, client: Client, informers: Informers, connect: Connect, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._informers = informers
        self._connect = connect
        self._clock = clock
        self._configs = informers.get(INTEROP_CONFIGS)
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._log = logger("interconn")

    def stop(self) -> None:
        self._stop.set()
        self._changed.set()

    async def run(self) -> None:
        remove = self._configs.add_handler(self._note)
        try:
            await self._configs.ready.wait()
            self.ready.set()
            async with TaskOwner(self.name) as owner:
                while not self._stop.is_set():
                    self._changed.clear()
                    await self._adjust(owner)
                    await self._changed.wait()
                for pair in list(self._running):
                    await self._end(pair)
        finally:
            remove()

    def _note(self, _: ObjectChange[InteropConfig]) -> None:
        self._changed.set()

    async def _adjust(self, owner: TaskOwner) -> None:
        wanted = {(config.spec.host, each) for config in self._configs.cache.list() for each in config.spec.members}
        for pair in self._running.keys() - wanted:
            await self._end(pair)
        for pair in sorted(wanted - self._running.keys()):
            self._running[pair] = owner.start(f"follow-{pair[0]}", self._follow(*pair))

    async def _end(self, pair: tuple[str, str]) -> None:
        task = self._running.pop(pair)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _follow(self, host_: str, namespace: str) -> None:
        self._log.info("Following a partner's jobs", host=host_, member=namespace)
        remote = self._connect(host_)
        informers = Informers(remote, retry=AWAY)
        parts: list[Runnable] = [
            *member.make(host_, namespace, remote, informers, self._client, self._informers, clock=self._clock),
            deployments.make_member(
                host_, namespace, remote, informers, self._client, self._informers, clock=self._clock
            ),
            *data_mirror.make(host_, namespace, informers, self._client, self._informers, clock=self._clock),
        ]
        try:
            async with TaskOwner(f"follow-{host_}") as owner:
                owner.start("informers", informers.run())
                for part in parts:
                    owner.start(part.name, part.run())
                await owner.wait()
        finally:
            await remote.close()


def make(client: Client, informers: Informers, connect: Connect, *, clock: Clock = SYSTEM_CLOCK) -> list[Runnable]:
    return [
        *host.make(client, informers, clock=clock),
        deployments.make_host(client, informers, clock=clock),
        MemberRunners(client, informers, connect, clock),
    ]
