"""InterConn as a part of a control plane: the host's side for our own jobs, and one follower for each partner that
hosts jobs of which we are a member (InteropConfig).

A follower that ends is started again, with pauses that grow; the InteropConfig says so (`follower_status.py`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.exposition import Family
from coterie.base.exposition import labels as labels_of
from coterie.base.log import logger
from coterie.base.tasks import TaskFailed, TaskOwner
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.limits import printable
from coterie.kube.client.transport import TransportError
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.manager import Runnable
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import INTEROP_CONFIGS, InteropConfig
from coterie.kuscia.interconn import data_mirror, deployments, host, job_plans, log_requests, member
from coterie.kuscia.interconn.follower_status import WRITE_SECONDS, FollowerStatus, encode_reports
from coterie.kuscia.interconn.member import AWAY

_RESTART = Policy(first=1.0, factor=2.0, limit=60.0, jitter=0.3)
"""Pauses before a follower that ended is started again."""

Connect = Callable[[str], Client]
"""The API of a partner's control plane, as its gateway lets us have it."""


class MemberRunners:
    """A Runnable: keeps a follower for each pair of host and member that the InteropConfigs name."""

    name = "interconn"

    def __init__(
        self, client: Client, informers: Informers, connect: Connect, events: EventRecorder, clock: Clock
    ) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._informers = informers
        self._connect = connect
        self._clock = clock
        self._configs = informers.get(INTEROP_CONFIGS)
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._events = events
        self._status_changed = asyncio.Event()
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._statuses: dict[tuple[str, str], FollowerStatus] = {}
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
                owner.start("status", self._write_statuses(), endless=True)
                while not self._stop.is_set():
                    self._changed.clear()
                    await self._adjust(owner)
                    await self._changed.wait()
                for pair in list(self._running):
                    await self._end(pair)
        finally:
            remove()

    async def families(self) -> Sequence[Family]:
        """It is a source of metrics, too."""
        found = [(labels_of(host=host_, member=each), status) for (host_, each), status in self._statuses.items()]
        return [
            Family(
                "coterie_interconn_up",
                "Whether a partner's control plane is followed without problems.",
                "gauge",
                [(where, int(status.working)) for where, status in found],
            ),
            Family(
                "coterie_interconn_stops_total",
                "How often following a partner ended and was begun again.",
                "counter",
                [(where, status.stops) for where, status in found],
            ),
            Family(
                "coterie_interconn_left_out_total",
                "Objects of a partner that were left out.",
                "counter",
                [(where, status.left_out_count) for where, status in found],
            ),
        ]

    def _note(self, _: ObjectChange[InteropConfig]) -> None:
        self._changed.set()

    async def _adjust(self, owner: TaskOwner) -> None:
        wanted = {(config.spec.host, each) for config in self._configs.cache.list() for each in config.spec.members}
        for pair in self._running.keys() - wanted:
            await self._end(pair)
        for pair in sorted(wanted - self._running.keys()):
            self._statuses[pair] = FollowerStatus(
                self._clock, self._status_changed.set, partial(self._record_left_out, *pair)
            )
            self._running[pair] = owner.start(f"follow-{pair[0]}", self._keep_following(*pair), endless=True)

    async def _end(self, pair: tuple[str, str]) -> None:
        task = self._running.pop(pair)
        del self._statuses[pair]
        self._status_changed.set()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _keep_following(self, host_: str, namespace: str) -> None:
        """Whatever ends a follower ends none of the others, and not this one for good."""
        status, backoff = self._statuses[host_, namespace], Backoff(_RESTART)
        while True:
            began = self._clock.monotonic()
            try:
                await self._follow(host_, namespace, status)
            except TaskFailed as failure:
                why = printable(str(failure))
            else:
                why = "it ended"
            if self._clock.monotonic() - began > _RESTART.limit:
                backoff.succeeded()
            wait = backoff.failed()
            self._log.error("Following a partner stopped; starting again", host=host_, why=why, seconds=round(wait, 1))
            status.stopped(why)
            await self._clock.sleep(wait)
            status.started()

    async def _follow(self, host_: str, namespace: str, status: FollowerStatus) -> None:
        self._log.info("Following a partner's jobs", host=host_, member=namespace)
        remote = self._connect(host_)
        informers = Informers(remote, retry=AWAY, observer=status)
        optional = Informers(remote, retry=log_requests.SELDOM, observer=log_requests.OptionalKind(status))
        parts: list[Runnable] = [
            *member.make(host_, namespace, remote, informers, self._client, self._informers, clock=self._clock),
            deployments.make_member(
                host_, namespace, remote, informers, self._client, self._informers, clock=self._clock
            ),
            *data_mirror.make(host_, namespace, informers, self._client, self._informers, clock=self._clock),
            log_requests.make_member(
                host_, namespace, remote, optional, self._client, self._informers, clock=self._clock
            ),
            job_plans.make_member(host_, namespace, remote, optional, self._client, self._informers, clock=self._clock),
        ]
        try:
            async with TaskOwner(f"follow-{host_}") as owner:
                owner.start("informers", informers.run())
                owner.start("optional informers", optional.run())
                for part in parts:
                    owner.start(part.name, part.run())
                await owner.wait()
        finally:
            await remote.close()

    def _record_left_out(self, host_: str, namespace: str, name: str, why: str) -> None:
        for config in self._configs.cache.list():
            if config.spec.host == host_ and namespace in config.spec.members:
                reference = reference_to(config, api_version=INTEROP_CONFIGS.resource.api_version, kind="InteropConfig")
                self._events.warning(reference, "ObjectLeftOut", f"{name} of {host_}: {why}")

    async def _write_statuses(self) -> None:
        while True:
            await self._status_changed.wait()
            await self._clock.sleep(WRITE_SECONDS)
            self._status_changed.clear()
            for config in self._configs.cache.list():
                await self._write_status(config)

    async def _write_status(self, config: InteropConfig) -> None:
        reports = {
            member: self._statuses[config.spec.host, member].report()
            for member in config.spec.members
            if (config.spec.host, member) in self._statuses
        }
        text = encode_reports(reports)
        if text == (config.metadata.annotations or {}).get(labels.COTERIE_FOLLOWERS, ""):
            return
        patch = {"metadata": {"annotations": {labels.COTERIE_FOLLOWERS: text or None}}}
        try:
            await self._client.patch(INTEROP_CONFIGS.as_dynamic, config.metadata.name, "", patch)
        except NotFound:
            return
        except (ApiError, TransportError) as error:
            self._log.warning("The status of a follower was not written", error=error)
            self._status_changed.set()


def make(client: Client, informers: Informers, connect: Connect, *, clock: Clock = SYSTEM_CLOCK) -> list[Runnable]:
    events = EventRecorder(client, "interconn", clock=clock)
    return [
        events,
        *host.make(client, informers, clock=clock),
        deployments.make_host(client, informers, clock=clock),
        log_requests.make_host(client, informers, clock=clock),
        MemberRunners(client, informers, connect, events, clock),
    ]
