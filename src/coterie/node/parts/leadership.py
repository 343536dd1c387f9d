"""What must run once in a control plane of several members: made anew for each term of whoever leads, and stopped before another can.

    store that several write ──> one election (Lease kube-system/coterie-controllers) ──> controllers, scheduler, InterConn, evidence log ...
    store of this node alone ──> no election; `Leadership` is not made

The parts of a term have a client and informers of their own. The client is fenced: a leader that was paused and wakes up after its
lease ran out writes nothing (`kube/control/leader.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from coterie.base.clock import Clock
from coterie.base.files import read_bytes_or_none, write_atomic
from coterie.base.ids import suffix
from coterie.base.paths import DomainPaths
from coterie.kube.api.types.coordination import LEASES, Lease
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import Transport
from coterie.kube.control.leader import LeaderElected, LeaderElection, LeaderFence, Timing
from coterie.kube.control.manager import Runnable

LEASE_NAME, LEASE_NAMESPACE = "coterie-controllers", "kube-system"
TIMING = Timing(duration=10.0, renew_deadline=6.0, retry=1.0)
_GRACE = 0.9
"""To stop by themselves, then for their cancellation, for each of two groups: all of it is over before the lease is."""
_MEMBER_FILE = "member"

TermParts = Callable[[Client, Informers], Sequence[Runnable]]


def member_name(paths: DomainPaths, host: str) -> str:
    """Of this member, the same at each start: several may run on one machine."""
    path = paths.storage / _MEMBER_FILE
    kept = read_bytes_or_none(path)
    if kept is not None and kept.strip():
        return kept.decode().strip()
    made = f"{host[:40].strip('.-')}-{suffix(5)}"
    write_atomic(path, made)
    return made


class Leadership:
    """Who leads, and what a leader runs."""

    def __init__(self, member: str, transport: Transport, observers: Informers, clock: Clock) -> None:
        """`transport`: to our own API server, for the election and for all of a term. `observers`: informers that run all the time."""
        self.member = member
        self._transport = transport
        self._clock = clock
        # A process of its own: one that is killed and started again must not take the old one's lease for its own while
        # another process of the same name may be alive.
        identity = f"{member}_{uuid.uuid4().hex[:12]}"
        self.election = LeaderElection(
            Client(transport, field_validation="Ignore"),
            LEASE_NAME,
            LEASE_NAMESPACE,
            identity,
            timing=TIMING,
            clock=clock,
        )
        self._makers: list[TermParts] = []
        self._first: list[TermParts] = []
        self.elected = LeaderElected("controllers", self.election, self._term, grace=_GRACE, clock=clock)
        observers.get(LEASES, LEASE_NAMESPACE, fields=f"metadata.name={LEASE_NAME}").add_handler(self._lease_changed)

    @property
    def leads(self) -> bool:
        return self.election.certain

    def add(self, make: TermParts, *, first: bool = False) -> None:
        """Called at the beginning of each term, with its client and informers. `first`: ready before the others begin."""
        (self._first if first else self._makers).append(make)

    def _term(self) -> list[list[Runnable]]:
        client = Client(LeaderFence(self._transport, self.election), field_validation="Ignore")
        informers = Informers(client)
        before = [part for make in self._first for part in make(client, informers)]
        parts = [part for make in self._makers for part in make(client, informers)]
        return [[informers, *before], parts]

    def _lease_changed(self, change: ObjectChange[Lease]) -> None:
        if change.type == "deleted" or not change.object.spec.holder_identity:
            self.election.nudge()
