"""Reserving for gangs: take room for all pods at once, hold it while other domains do the same, then bind or give back.

Two gangs can each hold what the other needs in another domain. No hold outlasts its time, so they always part; but they
could meet again in the same way for ever. Therefore a gang that goes first (`gangs.goes_first`, decided alike in all
domains) may claim the room of one that does not, once that has had a fair time (`patience`) to be confirmed. The first
of all competing gangs so gets its room everywhere within one round, as long as its parties start within the time that
is left of a hold.

Giving back is a question put to the API server (`MarkFailed`): the room is free when the TaskResource says Failed, and
is bound after all when it turned Schedulable in the last moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from coterie.kube.api.meta import ObjectKey
from coterie.kube.scheduler.effects import Bind
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.filters import UnschedulableCause
from coterie.kube.scheduler.plan import UNSCHEDULABLE_REASON, Unschedulable, could_take
from coterie.kube.scheduler.state import SchedulerState
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import INSUFFICIENT, MBIT, bits_text, larger
from coterie.kuscia.gangs.bandwidth import (
    BandwidthState,
    Claim,
    LinkShortage,
    link_shortage,
    shortage_text,
)
from coterie.kuscia.gangs.effects import MarkFailed, MarkReserved, MarkWaiting
from coterie.kuscia.gangs.gangs import (
    FAILED,
    RESERVED,
    RESERVING,
    SCHEDULABLE,
    Gang,
    GangHold,
    GangMember,
    GangPlan,
    TaskFacts,
    bandwidth_of,
    goes_first,
    link_bits,
    not_reserved_message,
    plan_gang,
    refusal,
)

_RIVALS = 32
"""Holds that one attempt considers to claim."""


class GangReservations:
    def __init__(
        self,
        state: SchedulerState,
        *,
        hold_seconds: float = 30.0,
        claim_after: float = 1 / 3,
        bandwidth: BandwidthState | None = None,
    ) -> None:
        """`hold_seconds` when the TaskResource says nothing; `claim_after` as a share of the hold."""
        self._state = state
        self._bandwidth = bandwidth or BandwidthState(lambda: datetime.now(UTC))
        self._hold_seconds = hold_seconds
        self._claim_after = claim_after
        self.gangs: dict[ObjectKey, Gang] = {}
        self._by_id: dict[str, Gang] = {}
        self._deadlines: list[tuple[float, ObjectKey]] = []
        self.held: dict[ObjectKey, Gang] = {}
        self._link_waiters: dict[ObjectKey, Gang] = {}
        """Gangs that wait for bandwidth of a link."""

    # What is seen.

    def member_pending(self, pod: PodFacts) -> None:
        gang = self._gang(_key(pod))
        gang.members[pod.uid] = GangMember(pod)
        if gang.hold is None:
            self._state.queue.put(gang.id, gang.queue_order)

    def member_bound(self, pod: PodFacts, node: str) -> None:
        gang = self._gang(_key(pod))
        gang.members[pod.uid] = GangMember(pod, node)
        if gang.hold is not None:
            gang.hold.placed.pop(pod.uid, None)
        if not self._unplaced(gang):
            self._state.queue.remove(gang.id)
        self._bandwidth_changed(gang)

    def member_gone(self, pod: PodFacts) -> None:
        gang = self.gangs.get(_key(pod))
        if gang is None or gang.members.pop(pod.uid, None) is None:
            return
        if gang.hold is not None and gang.hold.placed.pop(pod.uid, None) is not None and not self._complete(gang):
            self._give_up(gang, f'pod "{pod.key.name}" of task resource "{gang.key}" is gone')
        self._drop_if_empty(gang)
        self._bandwidth_changed(gang)

    def task_seen(self, task: TaskFacts) -> None:
        gang = self._gang(task.key)
        if gang.task is not None and task.version < gang.task.version:
            return  # an echo: the answer to our own write came first
        before, gang.task = gang.task, task
        if task.phase in (FAILED, SCHEDULABLE):
            gang.giving_up = False
        if gang.hold is not None:
            if task.phase == FAILED:
                self._release(gang, gang.hold.why_over or task.failure or self._who_is_missing(gang), mark=False)
            elif task.phase == SCHEDULABLE:
                self._bind(gang)
        elif before != task:
            if task.phase == RESERVING and (before is None or before.phase != RESERVING):
                self._state.queue.forgive(gang.id)
                gang.waiting_message = ""
            if self._unplaced(gang):
                self._state.queue.put(gang.id, gang.queue_order)

    def task_gone(self, key: ObjectKey) -> None:
        gang = self.gangs.get(key)
        if gang is None:
            return
        gang.task, gang.giving_up = None, False
        if gang.hold is not None:
            self._release(gang, f'task resource "{key}" is gone', mark=False)
        self._drop_if_empty(gang)

    def node_gone(self, name: str) -> None:
        """Room on a node that is not there any more is none."""
        for gang in [g for g in self.held.values() if g.hold is not None and name in g.hold.placed.values()]:
            self._release(gang, f'node "{name}" is gone', mark=True)

    def mark_gave_up(self, key: ObjectKey) -> None:
        """The TaskResource could not be marked; the room is free, and the next attempt starts from whatever phase it has."""
        gang = self.gangs.get(key)
        if gang is None:
            return
        if gang.hold is not None:
            self._release(gang, gang.hold.why_over, mark=False)
        gang.giving_up = False
        self._state.queue.retry_later(gang.id, self._state.now())

    # What is done.

    def find(self, queue_key: str) -> Gang | None:
        return self._by_id.get(queue_key)

    def attempt(self, queue_key: str) -> None:
        gang = self._by_id[queue_key]
        state = self._state
        waiting = self._unplaced(gang)
        if not waiting:
            state.queue.remove(gang.id)
            return
        why = refusal(gang)
        if why is not None:
            self._refuse(gang, waiting, why)
            return
        assert gang.task is not None  # else it was refused
        short = self._link_shortage(gang)
        if short is not None:
            self._wait_for_link(gang, waiting, short)
            return
        ready = [pod for pod in waiting if pod.gang_uid]
        needed = max(0, gang.task.min_reserved - self._assigned(gang))
        found = plan_gang(state.snapshot, ready, needed, state.cursor, state.sampling)
        state.cursor = found.next_cursor
        look_again: float | None = None
        if not found.enough:
            look_again = self._claim(gang, ready, needed)
            self._report_failures(gang, found, len(ready), needed)
            state.queue.wait(gang.id, _causes(found), state.now())
            if look_again is not None:
                state.queue.retry_later(gang.id, state.now(), look_again)
            return
        gang.waiting_message = ""
        self._link_waiters.pop(gang.key, None)
        state.assumed.update(found.placed)
        if gang.task.phase == SCHEDULABLE:
            gang.hold = GangHold(found.placed, state.now(), state.now())
            self._bind(gang, found)
        elif found.placed:
            self._hold(gang, found)
        else:
            # Enough are bound already, and for the others there is no room.
            self._report_failures(gang, found, len(ready), needed)
            state.queue.wait(gang.id, _causes(found), state.now())

    def expire(self) -> None:
        """Give back what was held too long."""
        now = self._state.now()
        if self._bandwidth.measures and self._bandwidth.expire(now):
            self.bandwidth_seen()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, key = heapq.heappop(self._deadlines)
            gang = self.held.get(key)
            if gang is not None and gang.hold is not None and gang.hold.deadline == deadline:
                self._give_up(gang, self._who_is_missing(gang))

    def next_deadline(self) -> float | None:
        stale = self._bandwidth.next_expiry()
        while self._deadlines:
            deadline, key = self._deadlines[0]
            gang = self.held.get(key)
            if gang is not None and gang.hold is not None and gang.hold.deadline == deadline:
                return deadline if stale is None else min(deadline, stale)
            heapq.heappop(self._deadlines)
        return stale

    def held_pods(self) -> set[str]:
        return {uid for gang in self.held.values() if gang.hold is not None for uid in gang.hold.placed}

    def helped_by(self, queue_key: str, nodes: Iterable[str]) -> bool:
        """Whether one of its pods could go to one of the nodes."""
        gang = self._by_id.get(queue_key)
        snapshot = self._state.snapshot
        waiting = self._unplaced(gang) if gang is not None else ()
        return any(could_take(snapshot, node, pod) for node in nodes for pod in waiting)

    def bind_failed(self, pod: PodFacts) -> None:
        self._state.queue.retry_later(self._gang(_key(pod)).id, self._state.now())

    # Inside.

    def _gang(self, key: ObjectKey) -> Gang:
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(key)
            self._by_id[gang.id] = gang
        return gang

    def _drop_if_empty(self, gang: Gang) -> None:
        if not self._unplaced(gang) and gang.hold is None:
            self._state.queue.remove(gang.id)
        if not gang.members and gang.task is None:
            self.gangs.pop(gang.key, None)
            self._by_id.pop(gang.id, None)
            self._link_waiters.pop(gang.key, None)

    def _unplaced(self, gang: Gang) -> list[PodFacts]:
        assumed, pending = self._state.assumed, self._state.pending
        return [pending[uid] for uid in gang.members if uid in pending and uid not in assumed]

    def _assigned(self, gang: Gang) -> int:
        return sum(1 for uid, member in gang.members.items() if member.node or uid in self._state.assumed)

    def _complete(self, gang: Gang) -> bool:
        return gang.task is not None and self._assigned(gang) >= gang.task.min_reserved

    def _refuse(self, gang: Gang, waiting: Iterable[PodFacts], why: str) -> None:
        # Between two attempts to reserve it still waits for what it lacked in the last one.
        reason = INSUFFICIENT if gang.waiting_message else UNSCHEDULABLE_REASON
        for pod in waiting:
            self._state.report(pod, reason, why)
        self._state.queue.wait(gang.id, UnschedulableCause.GANG, self._state.now())

    def _report_failures(self, gang: Gang, found: GangPlan, of: int, needed: int) -> None:
        state = self._state
        failed = {pod.uid for pod, _ in found.failures}
        for pod, why in found.failures:
            state.report(pod, why.reason, self._why_message(gang, pod, why))
        if found.enough or not found.failures:
            return
        pod, why = found.failures[0]
        if why.reason == INSUFFICIENT:
            self._mark_waiting(gang, self._why_message(gang, pod, why))
        fit = of - len(failed)
        message = (
            f'{fit} of {needed} pods that task resource "{gang.key}" needs fit at once; '
            f'pod "{pod.key.name}" does not: {why.message}'
        )
        for other in self._unplaced(gang):
            if other.uid not in failed:
                state.report(other, UNSCHEDULABLE_REASON, message)

    def _hold(self, gang: Gang, found: GangPlan) -> None:
        assert gang.task is not None
        now = self._state.now()
        seconds = gang.task.hold_seconds or self._hold_seconds
        gang.hold = GangHold(dict(found.placed), now, now + seconds)
        self.held[gang.key] = gang
        heapq.heappush(self._deadlines, (gang.hold.deadline, gang.key))
        for pod, why in found.failures:
            self._state.report(pod, why.reason, why.message)
        if gang.task.phase == RESERVING:
            self._state.effects.append(MarkReserved(gang.key))

    def _bind(self, gang: Gang, found: GangPlan | None = None) -> None:
        state = self._state
        assert gang.hold is not None
        for uid, node in gang.hold.placed.items():
            if uid in state.pending:
                state.effects.append(Bind(state.pending[uid], node))
        gang.hold = None
        self.held.pop(gang.key, None)
        left = self._unplaced(gang)
        if found is not None and found.failures:
            for pod, why in found.failures:
                state.report(pod, why.reason, why.message)
            state.queue.wait(gang.id, _causes(found), state.now())
        elif left:
            state.queue.put(gang.id, gang.queue_order)

    def _give_up(self, gang: Gang, why: str, claimant: ObjectKey | None = None) -> None:
        """Ask for the end of the hold; it ends when the TaskResource says so."""
        assert gang.hold is not None
        if gang.giving_up:
            return
        gang.giving_up = True
        gang.hold.why_over, gang.hold.claimant = why, claimant
        self._state.effects.append(MarkFailed(gang.key, why))

    def _release(self, gang: Gang, message: str, *, mark: bool) -> None:
        state = self._state
        assert gang.hold is not None
        claimant = self.gangs.get(gang.hold.claimant) if gang.hold.claimant is not None else None
        for uid in gang.hold.placed:
            state.forget(uid)
        gang.hold = None
        self.held.pop(gang.key, None)
        for pod in self._unplaced(gang):
            state.report(pod, UNSCHEDULABLE_REASON, message)
        if mark:
            gang.giving_up = True
            state.effects.append(MarkFailed(gang.key, message))
        state.queue.put(gang.id, gang.queue_order)
        state.queue.wait(gang.id, UnschedulableCause.GANG, state.now())
        if claimant is not None and claimant.hold is None and claimant.id in state.queue:
            # At once, before anybody else takes what was given for it.
            state.queue.take(claimant.id, state.now())
            self.attempt(claimant.id)

    def _who_is_missing(self, gang: Gang) -> str:
        """Names the domains of the group that did not reserve, as far as they can be seen from here."""
        group = gang.group
        domains = {
            other.key.namespace
            for other in self.gangs.values()
            if group and other.group == group and other.task is not None and other is not gang
            and other.task.phase not in (RESERVED, SCHEDULABLE)
        }  # fmt: skip
        if gang.task is not None and gang.task.phase == RESERVING:
            domains.add(gang.key.namespace)
        return not_reserved_message(sorted(domains)) if domains else "other domains can not reserve resources for pods"

    # Bandwidth.

    def bandwidth_seen(self) -> None:
        """Capacities or measurements changed: who waits for bandwidth is tried again."""
        state = self._state
        state.freed |= state.snapshot.set_excess(labels.KUSCIA_BANDWIDTH, self._excess())
        for gang in self._link_waiters.values():
            state.queue.wake_one(gang.id)

    def _bandwidth_changed(self, gang: Gang) -> None:
        """Pods of the gang came or went."""
        if self._bandwidth.measures:
            self._state.freed |= self._state.snapshot.set_excess(labels.KUSCIA_BANDWIDTH, self._excess())
        for other in self._link_waiters.values():
            if other.namespace == gang.namespace:
                self._state.queue.wake_one(other.id)

    def _excess(self) -> dict[str, int]:
        """Mbit/s by node that running tasks use beyond what they reserved, spread evenly over their pods."""
        found: dict[str, int] = {}
        if not self._bandwidth.measures:
            return found
        places = self._state.snapshot.places
        for gang in self.gangs.values():
            placed = [pod for pod in gang.pods if pod.uid in places]
            if gang.task is None or not gang.task.task or not placed:
                continue
            reserved = sum(map(bandwidth_of, placed)) * MBIT
            used = self._bandwidth.task_use(gang.namespace, gang.task.task)
            over = larger(reserved, used) - reserved
            if over <= 0:
                continue
            each = -(-over // (MBIT * len(placed)))
            for pod in placed:
                name = places[pod.uid].name
                found[name] = found.get(name, 0) + each
        return found

    def _link_reservations(self, gang: Gang, peer: str, without: frozenset[ObjectKey] = frozenset()) -> dict[str, int]:
        """By task, what gangs of the same domain hold of the link."""
        places = self._state.snapshot.places
        found: dict[str, int] = {}
        for other in self.gangs.values():
            if other is gang or other.key in without or other.namespace != gang.namespace or other.task is None:
                continue
            if peer in other.task.peers and any(uid in places for uid in other.members):
                name = other.task.task or str(other.key)
                found[name] = found.get(name, 0) + link_bits(other)
        return found

    def _link_shortage(self, gang: Gang, without: frozenset[ObjectKey] = frozenset()) -> LinkShortage | None:
        wanted = link_bits(gang)
        if not wanted or gang.task is None or any(uid in self._state.snapshot.places for uid in gang.members):
            return None  # what some of its pods have already, all of them have
        for peer in gang.task.peers:
            reserved = self._link_reservations(gang, peer, without)
            short = link_shortage(self._bandwidth, gang.namespace, peer, wanted, reserved, gang.task.task)
            if short is not None:
                return short
        return None

    def _wait_for_link(self, gang: Gang, waiting: Sequence[PodFacts], short: LinkShortage) -> None:
        state = self._state
        message = shortage_text(self._bandwidth, short)
        for pod in waiting:
            state.report(pod, INSUFFICIENT, message)
        self._mark_waiting(gang, message)
        look_again = self._claim_link(gang)
        self._link_waiters[gang.key] = gang
        state.queue.wait(gang.id, UnschedulableCause.GANG | UnschedulableCause.ROOM, state.now())
        if look_again is not None:
            state.queue.retry_later(gang.id, state.now(), look_again)

    def _claim_link(self, gang: Gang) -> float | None:
        """As `_claim`, for a link that gangs hold which go later."""
        assert gang.task is not None
        state, promised = self._state, gang.task.phase == SCHEDULABLE
        rivals = [
            other
            for other in self.held.values()
            if other.namespace == gang.namespace
            and other.task is not None
            and other.task.phase != SCHEDULABLE
            and not set(other.task.peers).isdisjoint(gang.task.peers)
            and (other.giving_up or promised or goes_first(gang, other))
        ]
        rivals.sort(key=lambda other: (other.giving_up, other.group), reverse=True)
        giving: list[Gang] = []
        for rival in rivals[:_RIVALS]:
            giving.append(rival)
            if self._link_shortage(gang, frozenset(each.key for each in giving)) is None:
                break
        else:
            return None
        fair = max(state.now() if promised or each.giving_up else self._fair_until(each) for each in giving)
        if fair > state.now():
            return fair
        for rival in giving:
            self._give_up(rival, f'yielded its link to task resource "{gang.key}"', gang.key)
        return None

    def _mark_waiting(self, gang: Gang, message: str) -> None:
        if gang.task is not None and gang.task.phase == RESERVING and gang.waiting_message != message:
            gang.waiting_message = message
            self._state.effects.append(MarkWaiting(gang.key, f"{INSUFFICIENT}: {message}"))

    def _why_message(self, gang: Gang, pod: PodFacts, why: Unschedulable) -> str:
        """With the node that has most, and when it will have enough, where bandwidth alone is missing."""
        if why.reason != INSUFFICIENT:
            return why.message
        wanted = bandwidth_of(pod) * MBIT
        nodes = self._state.snapshot.candidates(pod.static).nodes
        name = labels.KUSCIA_BANDWIDTH
        best = max(
            nodes,
            key=lambda node: node.room_others.get(name, 0) - node.others.get(name, 0) - node.excess.get(name, 0),
            default=None,
        )
        if best is None:
            return why.message
        room = best.room_others.get(name, 0) * MBIT
        taken = (best.others.get(name, 0) + best.excess.get(name, 0)) * MBIT
        text = f"{why.message} Node {best.name} has {bits_text(room)} for tasks, {bits_text(taken)} of it are taken"
        text = f"{text} and the pod requests {bits_text(wanted)}; "
        if wanted > room:
            return f"{text}it can never start"
        claims = [
            Claim(other.task.task, bandwidth_of(each) * MBIT)
            for other in self.gangs.values()
            if other.task is not None
            for each in other.pods
            if each.uid in best.pods
        ]
        return text + self._bandwidth.expected(claims, taken + wanted - room)

    # Claiming.

    def _claim(self, gang: Gang, pods: Sequence[PodFacts], needed: int) -> float | None:
        """Asks those who go later for their room when that helps. The moment to look again, if they need not give it yet."""
        state = self._state
        snapshot, version = state.snapshot, state.snapshot.release_version
        lifted: list[tuple[PodFacts, str]] = []
        giving: list[Gang] = []
        enough = False
        for rival in self._rivals(gang, pods):
            assert rival.hold is not None
            giving.append(rival)
            for uid, node in rival.hold.placed.items():
                pod = snapshot.remove(uid)
                if pod is not None:
                    lifted.append((pod, node))
            found = plan_gang(snapshot, pods, needed, state.cursor, state.sampling)
            for uid in found.placed:
                snapshot.remove(uid)
            if found.enough:
                enough = True
                break
        for pod, node in lifted:
            snapshot.place(pod, node)
        snapshot.release_version = version
        if not enough:
            return None
        assert gang.task is not None
        promised = gang.task.phase == SCHEDULABLE
        fair = max(state.now() if promised or g.giving_up else self._fair_until(g) for g in giving)
        if fair > state.now():
            return fair
        for rival in giving:
            self._give_up(rival, f'yielded to the pods of task resource "{gang.key}"', gang.key)
        return None

    def _rivals(self, gang: Gang, pods: Sequence[PodFacts]) -> list[Gang]:
        """Those who hold room that these pods could use and do not go first; the last of them first."""
        if not self.held or gang.task is None:
            return []
        promised = gang.task.phase == SCHEDULABLE
        usable = {node.name for pod in pods for node in self._state.snapshot.candidates(pod.static).nodes}
        found = [
            other
            for other in self.held.values()
            if other.hold is not None
            and (other.giving_up or promised or goes_first(gang, other))
            and other.task is not None
            and other.task.phase != SCHEDULABLE
            and not usable.isdisjoint(other.hold.placed.values())
        ]
        found.sort(key=lambda other: (other.giving_up, other.group), reverse=True)
        return found[:_RIVALS]

    def _fair_until(self, gang: Gang) -> float:
        hold = gang.hold
        assert hold is not None
        return hold.since + self._claim_after * (hold.deadline - hold.since)


def _key(pod: PodFacts) -> ObjectKey:
    assert pod.gang is not None  # callers have looked
    return pod.gang


def _causes(found: GangPlan) -> UnschedulableCause:
    causes = UnschedulableCause.GANG
    for _, why in found.failures:
        causes |= why.causes
    return causes
