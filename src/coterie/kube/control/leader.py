"""Leader election on a Lease: of many candidates one leads, and stops leading before another can start.

Clocks of different machines are never compared. A candidate notes by its own clock when it last saw the lease change;
only when it has stayed the same for its whole duration may it be taken. A leader that cannot renew within
`renew_deadline` (shorter than the duration) stops by itself. The times in the lease are for people to read.

A process that was stopped for a while (a paused machine, SIGSTOP) may wake up with work in its hands and a lease that is
somebody else's. `LeaderFence` refuses its writes: it asks the clock before each of them, and the clock went on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339_micro
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.coordination import LEASES
from coterie.kube.client.client import Client
from coterie.kube.client.transport import NotSent, Transport, TransportError, TransportRequest, TransportResponse
from coterie.kube.control.manager import Manager, Runnable

_PLAIN = LEASES.as_dynamic


@dataclass(frozen=True, slots=True)
class Timing:
    duration: float = 15.0
    """How long a lease counts after its last change."""
    renew_deadline: float = 10.0
    """How long a leader tries to renew before it stops leading."""
    retry: float = 2.0
    """Pause between attempts."""

    def __post_init__(self) -> None:
        if not self.retry < self.renew_deadline < self.duration:
            raise ValueError("needed: retry < renew_deadline < duration")


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease as a candidate saw it change last, by the candidate's own clock."""

    holder: str
    renewed: str
    at: float


Decision = Literal["renew", "take", "wait"]


def decide(spec: Object, identity: str, seen: ObservedLease, now: float, default_duration: float) -> Decision:
    """Whether the lease is ours, free, or somebody's."""
    holder = spec.get("holderIdentity") or ""
    if holder == identity:
        return "renew"
    if not holder:
        return "take"
    duration = float(spec.get("leaseDurationSeconds") or default_duration)
    return "take" if now - seen.at >= duration else "wait"


class LeaderElection:
    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        timing: Timing | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.leading = asyncio.Event()
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._timing = timing or Timing()
        self._clock = clock
        self._seen = ObservedLease("", "", clock.monotonic())
        self._renewed_at = float("-inf")
        """Before the request that took or renewed the lease last: the server's answer may have been slow."""
        self._nudged = asyncio.Event()
        self._log = logger("control.leader").bind(lease=f"{namespace}/{name}", identity=identity)

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def holder(self) -> str:
        """Who led when the lease was looked at last; empty: nobody."""
        return self._seen.holder

    @property
    def certain(self) -> bool:
        """Whether nobody else can lead at this moment, by our own clock."""
        return self.leading.is_set() and self._clock.monotonic() < self._renewed_at + self._timing.renew_deadline

    def nudge(self) -> None:
        """Somebody saw that the lease is free: a candidate looks at once."""
        self._nudged.set()

    async def acquire(self) -> None:
        """Until we lead."""
        while not await self._try():
            await self._pause()
        self.leading.set()
        self._log.info("Leading")

    async def _pause(self) -> None:
        nudged = asyncio.ensure_future(self._nudged.wait())
        slept = asyncio.ensure_future(self._clock.sleep(self._timing.retry))
        try:
            await asyncio.wait({nudged, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudged.cancel()
            slept.cancel()
            self._nudged.clear()

    async def hold(self) -> None:
        """Renew for as long as it works; returns when we must not lead any more."""
        try:
            while True:
                await self._clock.sleep(self._timing.retry)
                left = self._renewed_at + self._timing.renew_deadline - self._clock.monotonic()
                if left > 0 and await self._try_within(left):
                    continue
                if self._seen.holder not in ("", self._identity) or (
                    self._clock.monotonic() - self._renewed_at >= self._timing.renew_deadline
                ):
                    self._log.warning("Lost leadership", holder=self._seen.holder)
                    return
        finally:
            self.leading.clear()

    async def _try_within(self, seconds: float) -> bool:
        """One attempt that cannot outlast the deadline: a leader stuck in a request would lead for too long."""
        attempt = asyncio.ensure_future(self._try())
        limit = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({attempt, limit}, return_when=asyncio.FIRST_COMPLETED)
            return attempt.done() and attempt.result()
        finally:
            attempt.cancel()
            limit.cancel()

    async def release(self) -> None:
        """Give the lease up, so that others need not wait for it to run out."""
        self.leading.clear()
        try:
            lease = await self._client.get(_PLAIN, self._name, self._namespace)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                now = rfc3339_micro(self._clock.now())
                lease["spec"] = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
                await self._client.update(_PLAIN, lease)
                self._log.info("Released leadership")
        except (ApiError, TransportError) as error:
            self._log.warning("Could not release the lease; it will expire", error=error)

    async def _try(self) -> bool:
        """Take or renew the lease once; True when it is ours afterwards."""
        asked_at = self._clock.monotonic()
        if not await self._claimed():
            return False
        self._renewed_at = asked_at
        return True

    async def _claimed(self) -> bool:
        try:
            lease = await self._client.get(_PLAIN, self._name, self._namespace)
        except NotFound:
            return await self._create()
        except (ApiError, TransportError) as error:
            self._log.warning("Cannot read the lease", error=error)
            return False
        spec = lease.get("spec") or {}
        self._notice(spec)
        decision = decide(spec, self._identity, self._seen, self._clock.monotonic(), self._timing.duration)
        if decision == "wait":
            return False
        lease["spec"] = self._claim(spec, taking=decision == "take")
        try:
            lease = await self._client.update(_PLAIN, lease)
        except Conflict:
            return False
        except (ApiError, TransportError) as error:
            self._log.warning("Cannot write the lease", error=error)
            return False
        self._notice(lease["spec"])
        return True

    async def _create(self) -> bool:
        meta = {"name": self._name, "namespace": self._namespace}
        try:
            lease = await self._client.create(_PLAIN, {"metadata": meta, "spec": self._claim({}, taking=True)})
        except AlreadyExists:
            return False
        except (ApiError, TransportError) as error:
            self._log.warning("Cannot create the lease", error=error)
            return False
        self._notice(lease["spec"])
        return True

    def _claim(self, spec: Object, *, taking: bool) -> Object:
        now = rfc3339_micro(self._clock.now())
        claimed = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "renewTime": now,
        }
        if taking:
            claimed["acquireTime"] = now
            claimed["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if spec else 0)
        return claimed

    def _notice(self, spec: Object) -> None:
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if (holder, renewed) != (self._seen.holder, self._seen.renewed):
            self._seen = ObservedLease(holder, renewed, self._clock.monotonic())


class LeaderFence:
    """A transport that sends writes only while its election is certain that nobody else leads."""

    def __init__(self, inner: Transport, election: LeaderElection) -> None:
        self._inner = inner
        self._election = election

    async def send(self, call: TransportRequest) -> TransportResponse:
        if call.mutating and not self._election.certain:
            raise NotSent(f"{call.method} {call.path}: not sent, because this control plane does not lead any more")
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


class LeaderElected:
    """A Runnable that runs others only while it leads; ready as soon as it is a candidate.

    The parts are made anew for each term by `make`, since a runnable that has stopped is not started again. They stop
    before the lease is released, and before anybody else may take it.
    """

    def __init__(
        self,
        name: str,
        election: LeaderElection,
        make: Callable[[], Sequence[Sequence[Runnable]]],
        *,
        grace: float = 3.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`grace` plus the renew deadline must be shorter than the lease, or two could lead at once."""
        self.name = name
        self.ready = asyncio.Event()
        self.parts: list[Runnable] = []
        """Those of the term, while there is one."""
        self._election = election
        self._make = make
        self._grace = grace
        self._clock = clock
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self._stop.wait())
        try:
            while not self._stop.is_set():
                acquired = asyncio.ensure_future(self._election.acquire())
                try:
                    await asyncio.wait({acquired, stopped}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    acquired.cancel()
                    await asyncio.wait({acquired})
                if self._election.leading.is_set() and not self._stop.is_set():
                    await self._lead(stopped)
        finally:
            stopped.cancel()
            # Also on cancellation: a released lease saves the next leader the wait.
            await asyncio.shield(self._election.release())

    async def _lead(self, stopped: asyncio.Future[Any]) -> None:
        groups = self._make()
        self.parts = [each for group in groups for each in group]
        manager = Manager(groups, name=self.name, grace=self._grace, clock=self._clock)
        work: asyncio.Future[Any] = asyncio.ensure_future(manager.run())
        hold: asyncio.Future[Any] = asyncio.ensure_future(self._election.hold())
        try:
            await asyncio.wait({work, hold, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            manager.stop()
            # Renewed while the parts stop: they may take their time when it was us who decided to.
            await asyncio.wait({work})
            hold.cancel()
            await asyncio.wait({hold})
            self.parts = []
        if not work.cancelled():
            work.result()  # a failure of the parts is ours
