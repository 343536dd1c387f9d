"""How many writes the smallest two-party job costs: each is a commit to disk and an event for every watcher.

The upper bounds are what is needed today; a change that needs more has to say why here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from interconn_kit import network
from job_world import JOB, a_job, a_task

from coterie.kube.store.protocol import StoreEvent

NOT_COUNTED = ("leases", "nodes")
MOST = {
    # Created, marked with ids and finalizer, AwaitingApproval, the partner's words, Running, Succeeded; the partner's
    # copy: created, approved and Running, named, Succeeded; the mirror for it.
    "kusciajobs": 11,
    # Created, approved by the partner, ended.
    "kusciajobsummaries": 3,
    # On each side: created, ports, Running or the own end, the other's end, Succeeded.
    "kusciatasks": 10,
    # Created, reserved by the partner, schedulable, the end of each side, Succeeded.
    "kusciatasksummaries": 6,
    # On each side: created, deleted. Its phase is only written when the task runs longer than the delay for changes that
    # only inform.
    "taskresourcegroups": 4,
    # Three: created, Reserved, Schedulable, deleted.
    "taskresources": 12,
    # Two: created, bound, Succeeded, deleted. The nodes of this world do not say Running in between.
    "pods": 8,
    # Two of each pod: created, deleted.
    "services": 8,
    "configmaps": 8,
    "events": 0,
}


class Writes:
    """By kind, of one control plane."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def __call__(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            kind = event.key.split("/")[3]
            if kind not in NOT_COUNTED:
                self.counted[kind] += 1


async def test_the_smallest_job_needs_no_more_writes_than_these() -> None:
    async with network("alice", "bob") as net:
        writes = Writes()
        for plane in net.planes.values():
            plane.server.state.store.subscribe(writes)
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("Succeeded")
        await net.until_clean()
        await net.settle(2)
        too_many = {kind: count for kind, count in writes.counted.items() if count > MOST.get(kind, 0)}
        assert not too_many, f"all: {sorted(writes.counted.items())}"
