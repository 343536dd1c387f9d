"""On whose disk the embedded bus is, where a control plane has several members: a Lease names the member, and a change is told.

The bus of another member cannot be read from here. Its calls are not lost: they are answered when that member leads again, or end with their deadlines.
"""

from __future__ import annotations

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.coordination import LEASES, Lease, LeaseSpec
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kube.control.events import EventRecorder

BUS_LEASE, BUS_NAMESPACE = "coterie-functions-bus", "kube-system"
REASON = "CallsOnAnotherMember"
_RETRY_SECONDS = 5.0

log = logger("functions.bus")


def waiting_elsewhere(before: str) -> str:
    return (
        f"calls of functions that member {before} had accepted and not answered wait on its disk until it leads again; "
        "set functions.bus to Kafka for calls that must survive a member"
    )


class BusMember:
    """This member, from the first Action or Trigger of its term on."""

    def __init__(self, client: Client, member: str, domain: str, clock: Clock) -> None:
        self._client = client
        self._member = member
        self._domain = domain
        self._clock = clock

    async def take(self) -> None:
        """Written and told when it returns."""
        before = await self._before()
        if not before:
            log.info(
                "Calls of functions are kept on the disk of this member; set functions.bus to Kafka for calls that must survive it",
                member=self._member,
            )
        if before in ("", self._member):
            return
        log.warning("Functions moved to this member", member=self._member, what=waiting_elsewhere(before))
        events = EventRecorder(self._client, "functions", instance=self._member, clock=self._clock)
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._domain}}
        events.record(about, "Warning", REASON, waiting_elsewhere(before))
        events.stop()
        await events.run()

    async def _before(self) -> str:
        while True:
            try:
                return await self._exchange()
            except (ApiError, TransportError) as problem:
                log.debug("The member with the bus is not written yet", reason=str(problem))
            await self._clock.sleep(_RETRY_SECONDS)

    async def _exchange(self) -> str:
        """Who had it before; nobody: nothing."""
        spec = LeaseSpec(holder_identity=self._member)
        try:
            found = await self._client.get(LEASES, BUS_LEASE, BUS_NAMESPACE)
        except NotFound:
            made = Lease(metadata=ObjectMeta(name=BUS_LEASE, namespace=BUS_NAMESPACE), spec=spec)
            await self._client.create(LEASES, made, BUS_NAMESPACE)
            return ""
        before = found.spec.holder_identity or ""
        if before != self._member:
            patch = {"spec": {"holderIdentity": self._member}}
            await self._client.patch(LEASES, BUS_LEASE, BUS_NAMESPACE, patch)
        return before
