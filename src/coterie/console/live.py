"""One WebSocket for each tab: the page names the lists it shows, and gets their rows as they change.

    page ──{"subscribe": 1, "resource": "kusciajobs", "group": "kuscia.secretflow", "version": "v1alpha1", "namespace": "cross-domain"}──>
         <──{"id": 1, "rows": [...], "reset": true}── everything there is; with "more": true, what follows belongs to it
         <──{"id": 1, "rows": [...], "gone": ["cross-domain/old"]}── changes, at most ten times a second
         ──{"unsubscribe": 1}──>

Only the newest row of an object waits to be sent, so a slow browser skips what it did not see in time. Lists are read as rows,
so no more than a row of an object is ever kept here, and only until the browser has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.console.rows import row_of, text
from coterie.http.websocket import WebSocket
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind, ListPage
from coterie.kube.client.client import Client
from coterie.kube.client.reflector import Reflector

log = logger("console.live")

FLUSH_SECONDS: Final = 0.1
MAX_SUBSCRIPTIONS: Final = 16
_ALIVE_SECONDS: Final = 20.0
_ROWS_PER_MESSAGE: Final = 500
_BYTES_PER_MESSAGE: Final = 256 << 10
MAX_PENDING: Final = 1 << 20
"""Bytes of changes of a list that wait for a slow browser; beyond it they are dropped, and it gets the whole list again."""
_STORED_PHASES: Final = ("AwaitingApproval", "Running")
"""Phases that stand in an object as they are shown, and that most objects of a long list do not have."""
_LONGEST_SELECTOR: Final = 1024
_RESOURCE: Final = re.compile(r"[a-z][a-z0-9]{0,62}")
_VERSION: Final = re.compile(r"v[0-9][0-9a-z]{0,15}")
_NAME: Final = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)?")


class LiveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends."""

    subscribe: int = 0
    unsubscribe: int = 0
    resource: str = ""
    group: str = ""
    version: str = "v1"
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    phase: str = ""
    """Only rows of this phase; others count as gone."""


def fault_of(asked: LiveRequest) -> str:
    """Why this is no list of the API; empty: it is one. Nothing in it can lead to another address."""
    if not _RESOURCE.fullmatch(asked.resource) or not _VERSION.fullmatch(asked.version):
        return "resource and version must be those of a list"
    if not _NAME.fullmatch(asked.group) or not _NAME.fullmatch(asked.namespace):
        return "group and namespace must be names"
    if max(map(len, (asked.labels, asked.fields, asked.phase))) > _LONGEST_SELECTOR:
        return "the selectors are too long"
    return ""


class EncodedRow(msgspec.Struct, frozen=True, gc=False):
    """A row as it is sent: a tenth of the memory of the object that it shows."""

    key: ObjectKey
    version: str
    phase: str
    body: bytes

    @property
    def id(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"


class _IdentifiedMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _Identified(msgspec.Struct, frozen=True):
    """Just enough of an object that is not shown."""

    metadata: _IdentifiedMeta


_identified: Final = msgspec.json.Decoder(_Identified)


@dataclass(frozen=True)
class RowKind(Kind[EncodedRow]):
    """Reads objects as rows."""

    only: bytes = b""
    """Objects without this text are not shown: they are read as their names alone."""

    @staticmethod
    def of(resource: Resource, phase: str = "") -> RowKind:
        only = phase.encode() if phase in _STORED_PHASES else b""
        return RowKind(resource, dict, only=only)  # type: ignore[arg-type]

    def decode(self, data: bytes | msgspec.Raw) -> EncodedRow:
        if self.only and self.only not in bytes(data):
            meta = _identified.decode(data).metadata
            return EncodedRow(ObjectKey(sys.intern(meta.namespace), meta.name), meta.resource_version, "", b"")
        return self.row(super().decode(data))

    def decode_list(self, data: bytes) -> ListPage[EncodedRow]:
        page = super().decode_list(data)
        return replace(page, items=[self.row(each) for each in page.items])

    def row(self, obj: Any) -> EncodedRow:
        meta = obj["metadata"]
        made = row_of(self.resource.plural, obj)
        key = ObjectKey(sys.intern(meta.get("namespace", "")), meta["name"])
        if made["id"] == f"{made['namespace']}/{made['name']}":
            del made["namespace"], made["name"]  # the page has them from the id
        body = msgspec.json.encode(made)
        return EncodedRow(key, meta.get("resourceVersion", ""), sys.intern(str(made.get("phase", ""))), body)

    def key(self, obj: EncodedRow) -> ObjectKey:
        return obj.key

    def version(self, obj: EncodedRow) -> str:
        return obj.version


class RowSubscription:
    """Receives one list and keeps what the page has not got yet."""

    def __init__(
        self,
        number: int,
        changed: Callable[[], None],
        phase: str = "",
        overflowed: Callable[[RowSubscription], None] = lambda _: None,
    ) -> None:
        self.number = number
        self._phase = phase
        self._shown: set[str] = set()
        """With a phase: the rows that the page has."""
        self._changed = changed
        self._overflowed = overflowed
        self._reset = False
        self._list: deque[bytes] = deque()
        """Of a list that came as a whole, what is still to be sent; before all changes."""
        self._rows: dict[str, bytes] = {}
        self._gone: dict[str, None] = {}
        self._bytes = 0
        """Of the changes that wait."""
        self._problem: str | None = None
        self.arriving = False
        """A list has begun and is not whole yet."""
        self._promised = False
        """The page was told that more of the list comes, and draws it when it has."""
        self._arrived = 0
        """Of that list, how many rows were taken; -1: not all of them count, so the list is taken as a whole."""

    # As a reflector's receiver. A list is taken in parts, so that the page draws its first rows while others still come.

    def begin(self) -> None:
        self.clear()
        self._reset = self.arriving = True
        self._arrived = 0

    def part(self, objects: Sequence[EncodedRow], *, consistent: bool) -> None:
        if not consistent:
            self._arrived = -1
        if self._arrived < 0:
            return
        self._arrived += len(objects)
        self._take(objects)
        self._changed()

    def replace(self, objects: Sequence[EncodedRow]) -> None:
        if not self.arriving or self._arrived != len(objects):
            self.clear()
            self._reset = True
            self._take(objects)
        self.arriving = False
        self._changed()

    def _take(self, objects: Sequence[EncodedRow]) -> None:
        for each in objects:
            if self._wanted(each):
                self._list.append(each.body)
                if self._phase:
                    self._shown.add(each.id)

    def changed(self, type: str, obj: EncodedRow) -> None:
        key = obj.id
        if type != "DELETED" and self._wanted(obj):
            self._gone.pop(key, None)
            self._bytes += len(obj.body) - len(self._rows.get(key, b""))
            self._rows[key] = obj.body
            if self._phase:
                self._shown.add(key)
        elif self._phase and key not in self._shown:
            return
        else:
            self._remove(key)
        self._bound()

    def lost(self, key: ObjectKey) -> None:
        self._remove(f"{key.namespace}/{key.name}")
        self._bound()

    # As its observer.

    def failed(self, kind: Kind[Any], why: str) -> None:
        self._problem = text(why)
        self._changed()

    def recovered(self, kind: Kind[Any]) -> None:
        self._problem = ""
        self._changed()

    def left_out(self, kind: Kind[Any], key: ObjectKey, why: str) -> None:
        """An object that cannot be read is not in the list."""

    def clear(self) -> None:
        """Forget what waits: everything will come again."""
        self._list.clear()
        self._rows, self._gone, self._shown = {}, {}, set()
        self._bytes = 0

    def next_message(self) -> bytes | None:
        """Something that the page has not got; None: it has everything."""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            return msgspec.json.encode({"id": self.number, "problem": problem})
        if self.arriving and len(self._list) < _ROWS_PER_MESSAGE:
            return None  # there will be more in a moment, and large messages are compressed better
        rows: list[bytes] = []
        size = 0
        while (self._list or self._rows) and len(rows) < _ROWS_PER_MESSAGE and size < _BYTES_PER_MESSAGE:
            row = self._list.popleft() if self._list else self._rows.pop(next(iter(self._rows)))
            rows.append(row)
            size += len(row)
        gone = [] if self._list else list(self._gone)
        if not rows and not gone and not self._reset and not self._promised:
            return None
        if not self._list:
            self._gone = {}
            self._bytes = sum(map(len, self._rows.values())) if self._rows else 0
        more = {**({"reset": True} if self._reset else {}), **({"gone": gone} if gone else {})}
        self._reset, self._promised = False, self.arriving or bool(self._list)
        if self._promised:
            more["more"] = True
        rest = b"," + msgspec.json.encode(more)[1:] if more else b"}"
        return b'{"id":%d,"rows":[%b]%b' % (self.number, b",".join(rows), rest)

    def _wanted(self, row: EncodedRow) -> bool:
        return not self._phase or row.phase == self._phase

    def _remove(self, key: str) -> None:
        self._shown.discard(key)
        self._bytes += len(key) - len(self._rows.pop(key, b""))
        self._gone[key] = None

    def _bound(self) -> None:
        if self._bytes > MAX_PENDING:
            self._overflowed(self)
        self._changed()


class LiveConnection:
    """Serves one tab until it goes, or its session ends."""

    def __init__(
        self, socket: WebSocket, client: Client, clock: Clock, alive: Callable[[], bool], owner: TaskOwner
    ) -> None:
        self._socket = socket
        self._client = client
        self._clock = clock
        self._alive = alive
        self._owner = owner
        self._subscriptions: dict[int, tuple[RowSubscription, asyncio.Task[None]]] = {}
        self._requests: dict[int, LiveRequest] = {}
        self._behind: set[int] = set()
        """Lists whose changes were dropped: followed again once the browser has taken what was sent."""
        self._changes = asyncio.Event()

    async def run(self) -> None:
        sending = self._owner.start("live sender", self._send(), vital=False)
        try:
            while (message := await self._socket.receive()) is not None:
                if not self._alive() or not self._receive(message):
                    break
                await self._socket.drain()  # who asks without reading has to wait
        finally:
            sending.cancel()
            for number in list(self._subscriptions):
                self._unsubscribe(number)
            self._socket.close()

    def _receive(self, message: bytes) -> bool:
        """False: this is not our page."""
        try:
            asked = msgspec.json.decode(message, type=LiveRequest)
        except (msgspec.MsgspecError, RecursionError) as problem:
            self._say({"problem": f"the message cannot be read: {problem}"})
            return False
        if asked.unsubscribe:
            self._unsubscribe(asked.unsubscribe)
        elif asked.subscribe:
            self._subscribe(asked)
        return True

    def _subscribe(self, asked: LiveRequest) -> None:
        number = asked.subscribe
        self._unsubscribe(number)
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            self._say({"id": number, "problem": f"a tab can follow {MAX_SUBSCRIPTIONS} lists at once"})
            return
        if fault := fault_of(asked):
            self._say({"id": number, "problem": fault})
            return
        subscription = RowSubscription(number, self._changes.set, asked.phase, self._overflowed)
        self._requests[number] = asked
        self._subscriptions[number] = (subscription, self._follow(subscription, asked))

    def _follow(self, subscription: RowSubscription, asked: LiveRequest) -> asyncio.Task[None]:
        resource = Resource(asked.group, asked.version, asked.resource, "", bool(asked.namespace))
        reflector = Reflector(
            self._client,
            RowKind.of(resource, asked.phase),
            subscription,
            namespace=asked.namespace,
            labels=asked.labels,
            fields=asked.fields,
            clock=self._clock,
            observer=subscription,
            parts=subscription,
        )
        return self._owner.start(f"live {asked.resource}", reflector.run(), vital=False)

    def _unsubscribe(self, number: int) -> None:
        self._requests.pop(number, None)
        self._behind.discard(number)
        if found := self._subscriptions.pop(number, None):
            found[1].cancel()

    def _overflowed(self, subscription: RowSubscription) -> None:
        if found := self._subscriptions.get(subscription.number):
            found[1].cancel()
            subscription.clear()
            self._behind.add(subscription.number)

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):  # the browser went; whoever receives hears of it too
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changes.wait(), _ALIVE_SECONDS)
                if not self._alive():
                    return
                changed = self._changes.is_set()
                self._changes.clear()
                if not await self._send_changes() and not changed:
                    self._say({})  # an empty message now and then shows that the connection lives
                    await self._socket.drain()
                self._catch_up()
                if not any(each.arriving for each, _ in self._subscriptions.values()):
                    await self._clock.sleep(FLUSH_SECONDS)

    async def _send_changes(self) -> bool:
        sent = False
        for subscription, _ in list(self._subscriptions.values()):
            while (message := subscription.next_message()) is not None:
                self._socket.send_text(message)
                sent = True
                await self._socket.drain()
        return sent

    def _catch_up(self) -> None:
        for number in self._behind:
            subscription, _ = self._subscriptions[number]
            self._subscriptions[number] = (subscription, self._follow(subscription, self._requests[number]))
        self._behind.clear()

    def _say(self, message: dict[str, Any]) -> None:
        self._socket.send_text(msgspec.json.encode(message))


def say_goodbye(socket: WebSocket) -> None:
    socket.send_text(b'{"ended":true}')
