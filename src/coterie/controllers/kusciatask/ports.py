"""Port numbers for engines, one pool for each domain.

Numbers are written into the task's status before anything uses them, and the pool is only a view of those statuses: a
restart or another leader begins with every number that is in use already taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from coterie.api.types.kuscia_job import KusciaTask, PartyAllocatedPorts
from coterie.controllers.kusciatask.kit import KitFault, PartyKit

_TRIES = 10


@dataclass(frozen=True, slots=True)
class PortRange:
    """From the first to the last, both included. Domains that share a machine need ranges that do not meet."""

    first: int = 20000
    last: int = 32766


class PortPool:
    """Which numbers are taken, by domain and by the task that has them."""

    def __init__(self, range_: PortRange, random: Random | None = None) -> None:
        self._range = range_
        self._random = random or Random()
        self._taken: dict[str, set[int]] = {}
        self._by_task: dict[str, set[tuple[str, int]]] = {}

    def learn(self, task: KusciaTask) -> None:
        """What a task's status says it has; nothing any more when it has ended."""
        self.release(task.metadata.uid)
        if task.status.completion_time:
            return
        for party in task.status.allocated_ports or ():
            for number in (party.named_port or {}).values():
                self._take(task.metadata.uid, party.domain_id, number)

    def _take(self, uid: str, domain: str, number: int) -> None:
        self._taken.setdefault(domain, set()).add(number)
        self._by_task.setdefault(uid, set()).add((domain, number))

    def release(self, uid: str) -> None:
        for domain, number in self._by_task.pop(uid, ()):
            self._taken[domain].discard(number)

    def allot(self, uid: str, kits: Iterable[PartyKit]) -> tuple[PartyAllocatedPorts, ...]:
        """Numbers for every pod of these parties. KitFault when a domain has no more."""
        out = []
        for kit in kits:
            keys = [f"{pod.name}/{port.name}" for pod in kit.pods for port in kit.ports]
            numbers = self._free(kit.domain, len(keys), uid)
            out.append(
                PartyAllocatedPorts(
                    domain_id=kit.domain, role=kit.role, named_port=dict(zip(keys, numbers, strict=True))
                )
            )
        return tuple(out)

    def _free(self, domain: str, count: int, uid: str) -> list[int]:
        taken = self._taken.setdefault(domain, set())
        size = self._range.last - self._range.first + 1
        if count > size - len(taken):
            raise KitFault(f"domain {domain} has no free ports left")
        # Neighbours are easier on people's eyes; a random start keeps a number from being used again at once.
        start = self._random.randrange(size)
        for _ in range(_TRIES):
            if self._range.first + start not in taken:
                break
            start = self._random.randrange(size)
        found: list[int] = []
        for step in range(size):
            if len(found) == count:
                break
            number = self._range.first + (start + step) % size
            if number not in taken:
                self._take(uid, domain, number)
                found.append(number)
        return found


def numbers_of(allotted: Iterable[PartyAllocatedPorts] | None) -> Mapping[tuple[str, str], int]:
    """(domain, `<pod>/<port>`) -> number."""
    return {
        (party.domain_id, key): number for party in allotted or () for key, number in (party.named_port or {}).items()
    }
