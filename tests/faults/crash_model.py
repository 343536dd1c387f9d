"""What must hold for a server that is killed at any moment, written as things that watch it.

    Ledger     every revision anybody ever saw, and what was seen there: one revision, one content, for ever
    Writer     one connection that writes; knows what was acknowledged, and what may or may not have happened
    Follower   a plain list and watch client that resumes by resourceVersion; replays events into a state
    Listener   the handler of an informer, checked in the same way

All of them raise AssertionError at the moment the rule is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.transport import NotSent, TransportError
from coterie.kube.client.watch import Bookmark, Changed, UndecodableObject

NAMESPACE = "default"
CONFIGMAPS: Kind[Object] = Kind.dynamic(builtin("configmaps"))
MARK = "crash-test"
"""Label on everything the writers make: the server's own objects are not part of the model."""
GONE = "(deleted)"


def revision_of(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def token_of(obj: Object) -> str:
    """The text that only one write ever wrote."""
    return str(obj["data"]["token"])


class Ledger:
    def __init__(self) -> None:
        self.seen: dict[int, tuple[str, str]] = {}
        self.newest_acknowledged = 0

    def saw(self, revision: int, name: str, content: str) -> None:
        known = self.seen.setdefault(revision, (name, content))
        assert known == (name, content), f"revision {revision} was {known} and is now {(name, content)}"

    def acknowledged(self, revision: int, name: str, content: str, begun_after: int) -> None:
        """`begun_after` is the newest acknowledged revision when the request was sent."""
        assert revision > begun_after, f"{name}: revision {revision} after {begun_after} had been acknowledged"
        self.saw(revision, name, content)
        self.newest_acknowledged = max(self.newest_acknowledged, revision)


@dataclass(slots=True)
class Writer:
    """Writes to objects that nobody else writes to, so it knows their state exactly, or two possible ones."""

    number: int
    client: Client
    ledger: Ledger
    random: Random
    stop: asyncio.Event
    objects: int = 6
    state: dict[str, Object] = field(default_factory=dict)
    """What the server has acknowledged, by name."""
    acknowledged: int = 0
    cut: int = 0
    """Requests whose fate was unknown until the server was asked again."""
    _count: int = 0

    async def run(self) -> None:
        while not self.stop.is_set():
            name = f"w{self.number}-{self.random.randrange(self.objects)}"
            await self._step(name)

    async def _step(self, name: str) -> None:
        self._count += 1
        token = f"{self.number}:{self._count}"
        before = self.state.get(name)
        newest = self.ledger.newest_acknowledged
        choice = self.random.random()
        deleting = before is not None and choice < 0.2
        try:
            if before is None:
                after = await self.client.create(CONFIGMAPS, self._object(name, token), NAMESPACE)
            elif deleting:
                await self.client.delete(CONFIGMAPS, name, NAMESPACE)
                del self.state[name]
                self.acknowledged += 1
                return
            elif choice < 0.6:
                wanted = {**self._object(name, token), "metadata": {**before["metadata"], **self._labels()}}
                after = await self.client.update(CONFIGMAPS, wanted)
            else:
                change = {"data": {"token": token}, "metadata": self._labels()}
                after = await self.client.patch(CONFIGMAPS, name, NAMESPACE, change)
        except NotSent:
            await asyncio.sleep(0.02)  # the server is down: nothing happened
            return
        except TransportError:
            # The connection broke: whether the request was carried out is unknown until the server is asked.
            self.cut += 1
            await self._find_out(name, before, None if deleting else token)
            return
        assert token_of(after) == token
        self.ledger.acknowledged(revision_of(after), name, token, newest)
        self.state[name] = after
        self.acknowledged += 1

    async def _find_out(self, name: str, before: Object | None, token: str | None) -> None:
        """Either nothing happened, or all of it did. `token` is what was to be written; None: it was to be deleted."""
        now = await self._read(name)
        if now is None:
            assert before is None or token is None, f"{name}: is gone, though nobody deleted it"
            self.state.pop(name, None)
            return
        if before is not None and revision_of(now) == revision_of(before):
            assert now == before, f"{name}: the same revision with another content"
            return
        assert token_of(now) == token, f"{name}: holds {token_of(now)}, expected {token} or what was acknowledged"
        self.ledger.acknowledged(revision_of(now), name, token, revision_of(before) if before else 0)
        self.state[name] = now

    async def _read(self, name: str) -> Object | None:
        while True:
            try:
                return await self.client.get(CONFIGMAPS, name, NAMESPACE)
            except NotFound:
                return None
            except TransportError:
                await asyncio.sleep(0.02)

    def _labels(self) -> dict[str, Any]:
        return {"labels": {MARK: "yes", "side": self.random.choice(("left", "right"))}}

    def _object(self, name: str, token: str) -> Object:
        # Some values are big enough to be kept aside by the store.
        filler = "x" * (70_000 if self.random.random() < 0.02 else self.random.randrange(400))
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE, **self._labels()},
            "data": {"token": token, "filler": filler},
        }


class Replay:
    """Events in, state out; every event must fit the state it meets."""

    def __init__(self, who: str, ledger: Ledger) -> None:
        self.who = who
        self.ledger = ledger
        self.state: dict[str, Object] = {}
        self.newest: dict[str, int] = {}
        self.events = 0

    def start(self, objects: list[Object]) -> None:
        self.state = {name_of(obj): obj for obj in objects}
        self.newest = {name_of(obj): revision_of(obj) for obj in objects}

    def event(self, type: str, obj: Object, *, leaving: bool) -> None:
        """`leaving`: a deletion may also mean that the object left the selection, so its content lives on elsewhere."""
        name, revision = name_of(obj), revision_of(obj)
        self.events += 1
        before = self.newest.get(name, 0)
        assert revision > before, f"{self.who}: {type} of {name} at {revision} after {before}"
        self.newest[name] = revision
        if type == "ADDED":
            assert name not in self.state, f"{self.who}: {name} was added twice"
        else:
            assert name in self.state, f"{self.who}: {type} of {name}, which was never added"
        if type == "DELETED":
            del self.state[name]
            if not leaving:
                self.ledger.saw(revision, name, GONE)
            return
        self.state[name] = obj
        self.ledger.saw(revision, name, token_of(obj))


class Follower:
    """List once, then watch for ever; a broken or ended watch goes on behind the last version that was seen."""

    def __init__(self, who: str, client: Client, ledger: Ledger, *, labels: str = MARK, timeout: int = 0) -> None:
        self.replay = Replay(who, ledger)
        self.version = 0
        self.resumed = 0
        self.bookmarks = 0
        self._client = client
        self._labels = labels
        self._timeout = timeout

    async def run(self) -> None:
        page = await self._client.list(CONFIGMAPS, NAMESPACE, labels=self._labels)
        self.replay.start(list(page.items))
        self.version = int(page.resource_version)
        while True:
            try:
                await self._watch()
            except TransportError:
                await asyncio.sleep(0.02)

    async def _watch(self) -> None:
        watch = await self._client.watch(
            CONFIGMAPS, NAMESPACE, resource_version=str(self.version), labels=self._labels, timeout=self._timeout
        )
        self.resumed += 1
        async with watch:
            while events := await watch.batch():
                for event in events:
                    self._take(event)

    def _take(self, event: Changed[Object] | Bookmark | UndecodableObject) -> None:
        assert not isinstance(event, UndecodableObject), event
        if isinstance(event, Bookmark):
            self.bookmarks += 1
            revision = int(event.resource_version)
            assert revision >= self.version, f"{self.replay.who}: a bookmark went back"
        else:
            revision = revision_of(event.object)
            assert revision > self.version, f"{self.replay.who}: {revision} came again, or late, after {self.version}"
            self.replay.event(event.type, event.object, leaving=self._labels != MARK)
        self.version = revision


class Listener:
    """What an informer tells its handlers. After a gap it tells the difference, so changes may be skipped, not undone."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.state: dict[str, Object] = {}
        self.newest: dict[str, int] = {}

    def heard(self, change: ObjectChange[Object]) -> None:
        obj = change.object
        name, revision = name_of(obj), revision_of(obj)
        if change.type == "added":
            assert name not in self.state, f"informer: {name} was added twice"
        else:
            assert name in self.state, f"informer: {change.type} of {name}, which was never added"
        if change.type == "deleted":
            del self.state[name]
            return
        assert revision > self.newest.get(name, 0), f"informer: {name} went back to {revision}"
        self.newest[name] = revision
        self.state[name] = obj
        self.ledger.saw(revision, name, token_of(obj))


async def list_when_up(client: Client, labels: str = MARK) -> tuple[dict[str, Object], int]:
    """The server's own view."""
    while True:
        try:
            page = await client.list(CONFIGMAPS, NAMESPACE, labels=labels)
        except (TransportError, ApiError):
            await asyncio.sleep(0.05)
            continue
        return {name_of(obj): obj for obj in page.items}, int(page.resource_version)


async def until_equal(read: Callable[[], object], wanted: object, seconds: float = 90.0) -> None:
    """Give what follows the server time to catch up (a client that failed often waits up to 39 s); what differs then is a failure."""
    for _ in range(int(seconds / 0.05)):
        if read() == wanted:
            return
        await asyncio.sleep(0.05)
    assert read() == wanted
