"""The calls and actors of one action: which call may begin, and where. No input or output here.

Calls with the same key run one after the other: only the first of them is *ready*. Ready calls wait for a free place of an actor
of their version, in the order in which they came.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence

from coterie.functions.dispatcher.output_writer import PartitionOf
from coterie.functions.dispatcher.versions import pick_version
from coterie.functions.messages import Invoke
from coterie.functions.model import ActionConfig, ActorAddress


class CallPhase(enum.Enum):
    WAITING = 1
    """For an earlier call of its key, an actor, or its next attempt."""
    RUNNING = 2
    ANSWERED = 3


class PendingCall:
    """A call that was read from the bus and is not done."""

    __slots__ = (
        "__weakref__", "arrived", "attempts", "cold", "invoke", "offset", "partition", "phase", "reason", "version",
    )  # fmt: skip

    def __init__(self, invoke: Invoke, partition: PartitionOf, offset: int, arrived: int) -> None:
        self.invoke = invoke
        self.partition = partition
        self.offset = offset
        self.arrived = arrived
        self.attempts = partition.progress.attempts(offset)
        """That failed."""
        self.reason = ""
        """Why the last one failed."""
        self.version = invoke.version
        self.phase = CallPhase.WAITING
        self.cold = False

    @property
    def key(self) -> tuple[int, str]:
        return self.partition.number, self.invoke.key or self.invoke.request_uid


class ActorPlaces:
    """An actor and how many calls it runs."""

    __slots__ = ("address", "failures", "paused", "removed", "running")

    def __init__(self, address: ActorAddress) -> None:
        self.address = address
        self.running = 0
        self.paused = False
        """It could not be reached; it gets calls again after a while."""
        self.removed = False
        """It gets no more calls."""
        self.failures = 0


class ActionLane:
    def __init__(self, config: ActionConfig) -> None:
        self.config = config
        self.actors: dict[str, ActorPlaces] = {}
        self._stuck: set[str] = set()
        self._ready: dict[str, deque[PendingCall]] = {}
        self._behind: dict[tuple[int, str], deque[PendingCall]] = {}
        """By key, the calls behind the first; a key is here as long as it has a call."""
        self.running = 0

    def configure(self, config: ActionConfig) -> None:
        self.config = config
        waiting = sorted(
            (call for calls in self._ready.values() for call in calls), key=lambda call: (call.arrived, call.offset)
        )
        self._ready = {}
        for call in waiting:
            self._make_ready(call)

    def set_actors(self, addresses: Sequence[ActorAddress]) -> list[ActorPlaces]:
        """These take calls from now on. Returns those that do not any more; what they run goes on."""
        given = {address.name: address for address in addresses}
        gone = [places for name, places in self.actors.items() if given.get(name) != places.address]
        for places in gone:
            places.removed = True
            del self.actors[places.address.name]
        self._stuck &= given.keys()
        for name, address in given.items():
            if name not in self.actors and name not in self._stuck:
                self.actors[name] = ActorPlaces(address)
        return gone

    def retire(self, places: ActorPlaces) -> None:
        """It does not come back from a call. It gets no more, also when it is named again by whoever does not know yet."""
        places.removed = True
        self._stuck.add(places.address.name)
        if self.actors.get(places.address.name) is places:
            del self.actors[places.address.name]

    def add(self, call: PendingCall) -> None:
        call.cold = not self.actors
        behind = self._behind.get(call.key)
        if behind is not None:
            behind.append(call)
            return
        self._behind[call.key] = deque()
        self._make_ready(call)

    def _make_ready(self, call: PendingCall, *, first: bool = False) -> None:
        traffic = self.config.traffic
        if call.version not in traffic:
            call.version = pick_version(call.invoke.request_uid, traffic)
        queue = self._ready.setdefault(call.version, deque())
        if first:
            queue.appendleft(call)
        else:
            queue.append(call)

    def again(self, call: PendingCall) -> None:
        """It is ready for another attempt, before those that came later."""
        call.phase = CallPhase.WAITING
        self._make_ready(call, first=True)

    def ended(self, call: PendingCall) -> None:
        """The next one of its key may begin."""
        behind = self._behind.get(call.key)
        while behind:
            following = behind.popleft()
            if following.phase is CallPhase.WAITING:
                self._make_ready(following)
                return
        self._behind.pop(call.key, None)

    def start(self) -> Iterator[tuple[PendingCall, ActorPlaces]]:
        """Calls that begin now, each with its actor."""
        for version, queue in list(self._ready.items()):
            while queue:
                if queue[0].phase is not CallPhase.WAITING:
                    queue.popleft()
                    continue
                places = self._free(version)
                if places is None:
                    break
                call = queue.popleft()
                call.phase = CallPhase.RUNNING
                places.running += 1
                self.running += 1
                yield call, places
            if not queue:
                self._ready.pop(version, None)

    def take_ready(self) -> list[PendingCall]:
        """All that could begin if there were an actor. They count as answered."""
        found = [call for queue in self._ready.values() for call in queue if call.phase is CallPhase.WAITING]
        self._ready.clear()
        for call in found:
            call.phase = CallPhase.ANSWERED
        return found

    def release(self, places: ActorPlaces) -> None:
        places.running -= 1
        self.running -= 1

    def _free(self, version: str) -> ActorPlaces | None:
        best: ActorPlaces | None = None
        for places in self.actors.values():
            if (
                places.running < self.config.concurrency
                and not places.paused
                and (not version or places.address.version == version)
                and (best is None or places.running < best.running)
            ):
                best = places
        return best

    def waiting_versions(self) -> list[str]:
        """Versions with a call that is ready and has no place."""
        return [version for version, queue in self._ready.items() if queue]
