"""The members of a control plane that several nodes share, as `coterie status` shows them: from their Leases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from coterie.base.clock import parse_rfc3339
from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kube.api.types.coordination import LEASES, Lease
from coterie.kube.apiserver.members import ADDRESS, IDENTITY, IDENTITY_LABEL, PREFIX, STORE, VERSION
from coterie.kube.client.client import Client
from coterie.node.parts.leadership import LEASE_NAME, LEASE_NAMESPACE

COLUMNS = ("MEMBER", "ADDRESS", "VERSION", "STATUS", "LEADS")
_LATE = 3.0
"""Of a Lease's duration: clocks of machines differ a little, and a member that is busy is not gone."""


@dataclass(frozen=True, slots=True)
class MemberState:
    name: str
    address: str
    version: str
    store: str
    silent_seconds: float
    alive: bool
    leads: bool

    @property
    def row(self) -> tuple[str, ...]:
        status = "Alive" if self.alive else f"Silent for {self.silent_seconds:.0f} s"
        return self.name, self.address, self.version, status, "leader" if self.leads else ""

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "address": self.address,
            "version": self.version,
            "alive": self.alive,
            "leader": self.leads,
        }


def states(leases: Iterable[Lease], leader: Lease | None, now: datetime) -> list[MemberState]:
    """Pure. The holder of the leader's Lease is a member's name and a mark of its process."""
    held = (leader.spec.holder_identity or "") if leader is not None else ""
    leading = held.rpartition("_")[0] if leader is not None and _age(leader, now) <= _limit(leader) else ""
    found = []
    for lease in leases:
        notes, age = lease.metadata.annotations or {}, _age(lease, now)
        name = lease.metadata.name.removeprefix(PREFIX)
        facts = (notes.get(ADDRESS, ""), notes.get(VERSION, ""), notes.get(STORE, ""))
        found.append(MemberState(name, *facts, age, age <= _limit(lease), name == leading))
    return sorted(found, key=lambda each: each.name)


def _age(lease: Lease, now: datetime) -> float:
    renewed = lease.spec.renew_time
    return (now - parse_rfc3339(renewed)).total_seconds() if renewed else float("inf")


def _limit(lease: Lease) -> float:
    return _LATE * (lease.spec.lease_duration_seconds or 0)


async def of_control_plane(client: Client, now: datetime) -> list[MemberState]:
    """Nothing where the store is one node's alone, or the Leases are not for us to see."""
    try:
        found = (await client.list(LEASES, LEASE_NAMESPACE, labels=f"{IDENTITY_LABEL}={IDENTITY}")).items
    except Forbidden:
        return []
    leader: Lease | None = None
    if found:
        with contextlib.suppress(NotFound):  # nobody has led yet
            leader = await client.get(LEASES, LEASE_NAME, LEASE_NAMESPACE)
    return states(found, leader, now)
