"""API servers on one store: each has a Lease, and the endpoints of `default/kubernetes` are those of all that live.

    kube-system/apiserver-<member>   renewed by its server    ──> who lives, by the clock of who looks ──> endpoints

Clocks of different machines are never compared: a member lives while its Lease changes. One that stops in order takes its
Lease along; one that was killed is left out once its Lease has stood still for its whole duration. All members compute the
same endpoints, so it does not matter who writes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.base.clock import Clock, rfc3339_micro
from coterie.base.log import logger
from coterie.kube.api import errors
from coterie.kube.apiserver import bootstrap
from coterie.kube.apiserver.bootstrap import Send, ServerEndpoint

log = logger("apiserver.members")

Object = dict[str, Any]

NAMESPACE = "kube-system"
LEASES_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
IDENTITY_LABEL = "apiserver.kubernetes.io/identity"
"""As kube-apiserver labels its own."""
IDENTITY = "coterie-apiserver"
ADDRESS, VERSION, STORE = "coterie.io/address", "coterie.io/version", "coterie.io/store"
"""Annotations: where the member's API is reached, what it runs, where its objects are (without passwords)."""
PREFIX = "apiserver-"
DURATION, RENEW = 10.0, 2.0
_ATTEMPTS = 10
FORGOTTEN = 600.0
"""Seconds after which the Lease of a member that was killed is removed."""


@dataclass(frozen=True, slots=True)
class ServerMember:
    """One API server as it presents itself to the others."""

    name: str
    version: str = ""
    store: str = ""


@dataclass(frozen=True, slots=True)
class ObservedMember:
    """A member's Lease as it was seen to change last, by the clock of who looks."""

    name: str
    endpoint: ServerEndpoint | None
    renewed: str
    at: float


def observed(leases: Iterable[Object], before: Mapping[str, ObservedMember], now: float) -> dict[str, ObservedMember]:
    """What the Leases say now. Pure. One that is seen for the first time counts as changed: it may be alive."""
    found: dict[str, ObservedMember] = {}
    for lease in leases:
        metadata, spec = lease["metadata"], lease.get("spec") or {}
        name = metadata["name"].removeprefix(PREFIX)
        renewed = spec.get("renewTime") or ""
        known = before.get(name)
        at = known.at if known is not None and known.renewed == renewed else now
        where = ServerEndpoint.parse((metadata.get("annotations") or {}).get(ADDRESS, ""))
        found[name] = ObservedMember(name, where, renewed, at)
    return found


def living(members: Mapping[str, ObservedMember], now: float, own: str) -> list[ServerEndpoint]:
    """Pure."""
    alive = (each for each in members.values() if each.name == own or now - each.at < DURATION)
    return sorted({each.endpoint for each in alive if each.endpoint is not None})


class ServerMembers:
    """The membership of one API server. `run` goes on until it is cancelled; `leave` is for a planned end."""

    def __init__(
        self,
        member: ServerMember,
        endpoint: ServerEndpoint,
        cluster_ip: str,
        send: Send,
        leases: Callable[[], Iterable[Object]],
        clock: Clock,
    ) -> None:
        """`leases`: those of the namespace kube-system, from the server's own cache."""
        self._member = member
        self._endpoint = endpoint
        self._cluster_ip = cluster_ip
        self._send = send
        self._leases = leases
        self._clock = clock
        self._seen: dict[str, ObservedMember] = {}
        self._published: Sequence[ServerEndpoint] = ()
        self._writing = asyncio.Lock()
        self._left = False

    async def announce(self) -> None:
        """Renew the own Lease, and publish who lives. Raises ApiError."""
        async with self._writing:
            if not self._left:
                await self._announce()

    async def _announce(self) -> None:
        await self._renew()
        now = self._clock.monotonic()
        self._seen = observed(self._members(), self._seen, now)
        for each in self._seen.values():
            if each.name != self._member.name and now - each.at >= FORGOTTEN:
                await bootstrap.delete(self._send, f"{LEASES_PATH}/{PREFIX}{each.name}")
        alive = living(self._seen, now, self._member.name) or [self._endpoint]
        if alive != self._published:
            log.info("API servers of this control plane", addresses=[str(each) for each in alive])
        # Also where nothing changed here: another member may have written what it knew before.
        await self._publish(alive)
        self._published = alive

    async def run(self) -> None:
        while True:
            await self._clock.sleep(RENEW)
            try:
                await self.announce()
            except errors.ApiError as problem:
                log.warning("The Lease of this API server cannot be renewed", error=problem)

    async def leave(self) -> None:
        """Others need not wait for the Lease to run out."""
        async with self._writing:
            self._left = True
            await self._leave()

    async def _leave(self) -> None:
        try:
            await bootstrap.delete(self._send, f"{LEASES_PATH}/{PREFIX}{self._member.name}")
            others = [each for each in living(self._seen, self._clock.monotonic(), "") if each != self._endpoint]
            if others:
                await self._publish(others)
        except errors.ApiError as problem:
            log.warning("The Lease of this API server cannot be removed; it will expire", error=problem)

    async def _publish(self, servers: Sequence[ServerEndpoint]) -> None:
        """Others write the same objects at the same time, at most the same things: who comes second looks again."""
        for attempt in range(_ATTEMPTS):
            try:
                return await bootstrap.ensure_own_service(self._send, self._cluster_ip, servers)
            except errors.Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise

    def _members(self) -> list[Object]:
        return [
            each
            for each in self._leases()
            if ((each["metadata"].get("labels") or {}).get(IDENTITY_LABEL)) == IDENTITY
            and each["metadata"]["name"].startswith(PREFIX)
        ]

    async def _renew(self) -> None:
        name = f"{PREFIX}{self._member.name}"
        known = next((each for each in self._members() if each["metadata"]["name"] == name), None)
        facts = {ADDRESS: str(self._endpoint), VERSION: self._member.version, STORE: self._member.store}
        before: Object = known["metadata"] if known is not None else {"name": name, "namespace": NAMESPACE}
        metadata = {
            **before,
            "labels": {**(before.get("labels") or {}), IDENTITY_LABEL: IDENTITY},
            "annotations": {**(before.get("annotations") or {}), **facts},
        }
        renewed = rfc3339_micro(self._clock.now())
        spec = {"holderIdentity": self._member.name, "leaseDurationSeconds": int(DURATION), "renewTime": renewed}
        lease = {"metadata": metadata, "spec": spec}
        if known is None:
            await bootstrap.create(self._send, LEASES_PATH, lease)
        else:
            await bootstrap.update(self._send, f"{LEASES_PATH}/{name}", lease)
