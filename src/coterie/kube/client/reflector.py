"""Keeps a receiver in step with the server: everything that exists once, then every change, without gap or duplicate.

           ┌────────────── too old (410) ──────────────┐
           v                                           │
    everything at version N  ──replace──>  watch after N ──change──> ... ──bookmark──> N moves on
           ^                                           │
           └ first time                     ends or breaks: watch again after the last seen version

"Everything" comes as a streamed WatchList when the server offers it: then no list is ever held as one block, neither
here nor there. Otherwise it is listed page by page. A server that cannot be reached is tried again with back-off, for
ever: it is not the reflector's to give up.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimitedLog
from coterie.kube.api.errors import ApiError, BadRequest, Gone, Invalid
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.limits import ChangePace, KeptObjects, printable
from coterie.kube.client.transport import LimitExceeded, TransportError
from coterie.kube.client.watch import Bookmark, Changed, UndecodableObject, Watch

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

RETRY = Policy(first=0.2, factor=2.0, limit=30.0, jitter=0.3)
_WATCH_SECONDS = (300, 600)
"""Watches end by themselves after a time in this range, so that they move away from a server that is going down."""

_WARN_SECONDS = 60.0
_BEYOND_LIMITS = Policy(first=5.0, factor=2.0, limit=300.0, jitter=0.3)
"""Pauses before a server is asked again that sent more than it may."""
_QUICK = 10.0
"""Seconds after a start in which a version that is too old again counts as a failure."""
_REPORTED = 1000
"""Left-out objects that are remembered, so that each is reported once."""

_random = Random()


class FollowObserver(Protocol):
    """Hears how following a server goes."""

    def failed(self, kind: Kind[Any], why: str) -> None:
        """The server is not followed at the moment; it is tried again."""

    def recovered(self, kind: Kind[Any]) -> None: ...

    def left_out(self, kind: Kind[Any], key: ObjectKey, why: str) -> None:
        """One object is not taken. Told once for each."""


class Receiver(Protocol[T_contra]):
    def replace(self, objects: Sequence[T_contra]) -> None:
        """These exist, and no others."""

    def changed(self, type: str, obj: T_contra) -> None:
        """ADDED, MODIFIED or DELETED."""

    def lost(self, key: ObjectKey) -> None:
        """The object exists but cannot be read as its type any more."""


class PartsReceiver(Receiver[T_contra], Protocol[T_contra]):
    """A receiver that can do something with a list before it is whole."""

    def part(self, objects: Sequence[T_contra], *, consistent: bool) -> None:
        """These exist. `consistent`: none of them came before, and none that came is gone. `replace` follows in any case, unless
        the list breaks off; then it begins anew."""

    def begin(self) -> None:
        """A list begins."""


class Reflector(Generic[T]):
    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        receiver: Receiver[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        watch_list: bool = True,
        retry: Policy = RETRY,
        clock: Clock | None = None,
        kept: KeptObjects | None = None,
        observer: FollowObserver | None = None,
        parts: PartsReceiver[T] | None = None,
    ) -> None:
        """`parts`: the receiver, where it takes lists in parts. `watch_list=False` is for servers before Kubernetes 1.27, which take the question for a plain watch.
        `kept`: the share of memory with other reflectors of the same server, where the client has limits."""
        self._client = client
        self._kind = kind
        self._receiver = receiver
        self._parts = parts
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._watch_list = watch_list
        self._clock = clock or client.clock
        self._backoff = Backoff(retry)
        self._limits = client.limits
        self._kept = kept if kept is not None or self._limits is None else KeptObjects(self._limits)
        self._sizes: dict[ObjectKey, int] = {}
        """Of the objects that are kept; only with limits."""
        self._pace = ChangePace(self._limits.changes, self._clock.monotonic()) if self._limits is not None else None
        self._beyond_limits = Backoff(_BEYOND_LIMITS)
        self._quick_restarts = Backoff(retry)
        self._started_at: float | None = None
        self._no_room = False
        self._reported: dict[ObjectKey, None] = {}
        self._observer = observer
        self._failing = False
        self._warned_at = 0.0
        self._log = logger("client.reflector").bind(resource=str(kind), namespace=namespace or None)
        self._rate_limited_log = RateLimitedLog(self._log, self._clock)
        self.resource_version = ""
        """The version up to which everything was delivered; empty: start from everything."""
        self.restarts = 0
        """How often everything was fetched again after the first time."""

    async def run(self) -> None:
        while True:
            try:
                if not self.resource_version:
                    await self._start()
                else:
                    await self._follow()
            except Gone:
                self._log.info("Version is too old for the server; fetching everything again")
                self.resource_version = ""
                self.restarts += 1
                await self._pause_between_restarts()
            except (ApiError, TransportError) as error:
                backoff = self._beyond_limits if isinstance(error, LimitExceeded) else self._backoff
                wait = backoff.failed()
                if self._limits is None:
                    self._warn(error, wait)
                else:
                    self._rate_limited_log.warn(
                        "Watch failed; trying again", why=printable(str(error)), seconds=round(wait, 2)
                    )
                self._failing = True
                if self._observer is not None:
                    self._observer.failed(self._kind, printable(str(error)))
                await self._clock.sleep(wait)

    def _warn(self, error: Exception, wait: float) -> None:
        """At first, and then now and then: a server may be away for long."""
        now = self._clock.monotonic()
        if not self._failing or now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            self._log.warning("Watch failed; trying again", error=error, seconds=round(wait, 2))

    async def _pause_between_restarts(self) -> None:
        """A server may forget a version; one that forgets each version at once is not asked in a tight loop."""
        started, self._started_at = self._started_at, None
        if started is not None and self._clock.monotonic() - started > _QUICK:
            self._quick_restarts.succeeded()
            return
        if self._quick_restarts.attempts:
            await self._clock.sleep(self._quick_restarts.failed())
        else:
            self._quick_restarts.failed()

    async def _start(self) -> None:
        if self._watch_list:
            try:
                watch = await self._open("", initial=True)
            except (Invalid, BadRequest):
                self._watch_list = False  # the server does not offer it
            else:
                async with watch:
                    await self._receive_initial(watch)
                    await self._receive(watch)
                return
        page = await self._client.list(self._kind, self._namespace, labels=self._labels, fields=self._fields)
        self._forget_sizes()
        for key, why in page.broken[:_REPORTED]:
            self._unreadable(key, why)
        items = page.items
        if self._limits is not None:
            key_of = self._kind.key
            items = [obj for obj, size in zip(items, page.sizes, strict=True) if self._admit(key_of(obj), size)]
        self._replace(items, page.resource_version)

    async def _receive_initial(self, watch: Watch[T]) -> None:
        """Collect until the server says that this was all."""
        found: dict[ObjectKey, T] = {}
        kind = self._kind
        self._forget_sizes()
        received = 0
        if self._parts is not None:
            self._parts.begin()
        while True:
            events = await watch.batch()
            if not events:
                raise TransportError("the watch ended before all objects had come")
            received += len(events)
            if self._limits is not None and received > self._limits.initial_events:
                raise LimitExceeded(f"more than {self._limits.initial_events} events came before all objects had")
            part: list[T] = []
            consistent = True
            for i, event in enumerate(events):
                if isinstance(event, Changed):
                    key = kind.key(event.object)
                    part.append(event.object)
                    consistent = consistent and event.type == "ADDED" and key not in found
                    if event.type == "DELETED":
                        found.pop(key, None)
                        self._release(key)
                    elif self._admit(key, event.size):
                        found[key] = event.object
                    else:
                        found.pop(key, None)
                elif isinstance(event, UndecodableObject):
                    self._unreadable(event.key, event.why)
                elif event.initial_end:
                    if self._parts is not None:
                        self._parts.part(part, consistent=consistent)
                    self._replace(list(found.values()), event.resource_version)
                    self._deliver(events[i + 1 :])
                    return
            if self._parts is not None:
                self._parts.part(part, consistent=consistent)

    async def _follow(self) -> None:
        async with await self._open(self.resource_version) as watch:
            await self._receive(watch)

    async def _open(self, version: str, *, initial: bool = False) -> Watch[T]:
        return await self._client.watch(
            self._kind,
            self._namespace,
            resource_version=version,
            labels=self._labels,
            fields=self._fields,
            initial_events=initial,
            timeout=_random.randint(*_WATCH_SECONDS),
        )

    async def _receive(self, watch: Watch[T]) -> None:
        opened = self._clock.monotonic()
        try:
            while events := await watch.batch():
                self._deliver(events)
                self._succeeded()
                if self._pace is not None and (wait := self._pace.pause(len(events), self._clock.monotonic())):
                    await self._clock.sleep(wait)
        finally:
            lasted = self._clock.monotonic() - opened >= 1.0
            if lasted:
                self._succeeded()  # also where nothing happened: failures of long ago say nothing of the next
            if self._no_room:
                self.resource_version = ""  # there may be room by now
        # A server that opens and ends watches at once must not be asked in a tight loop.
        if not lasted:
            await self._clock.sleep(self._backoff.failed())

    def _replace(self, objects: Sequence[T], version: str) -> None:
        self._receiver.replace(objects)
        self.resource_version = version
        self._started_at = self._clock.monotonic()
        self._succeeded()

    def _succeeded(self) -> None:
        self._backoff.succeeded()
        self._beyond_limits.succeeded()
        if self._failing:
            self._failing = False
            if self._observer is not None:
                self._observer.recovered(self._kind)

    def _admit(self, key: ObjectKey, size: int) -> bool:
        """Whether there is room for this object; without limits always."""
        if self._limits is None or self._kept is None:
            return True
        before = self._sizes.get(key, 0)
        if (not before and len(self._sizes) >= self._limits.objects) or not self._kept.change(before, size):
            self._release(key)
            self._no_room = True
            self._unreadable(key, "there is no room for more objects of this server")
            return False
        self._sizes[key] = size
        return True

    def _release(self, key: ObjectKey) -> None:
        if self._kept is not None and (size := self._sizes.pop(key, 0)):
            self._kept.change(size, 0)

    def _forget_sizes(self) -> None:
        self._no_room = False
        for key in list(self._sizes):
            self._release(key)

    def _deliver(self, events: Sequence[Changed[T] | Bookmark | UndecodableObject]) -> None:
        receiver, version_of = self._receiver, self._kind.version
        for event in events:
            if isinstance(event, Changed):
                key = self._kind.key(event.object) if self._limits is not None else None
                if key is None:
                    receiver.changed(event.type, event.object)
                elif event.type == "DELETED":
                    self._release(key)
                    receiver.changed(event.type, event.object)
                elif self._admit(key, event.size):
                    receiver.changed(event.type, event.object)
                else:
                    receiver.lost(key)
                self.resource_version = version_of(event.object) or self.resource_version
            elif isinstance(event, Bookmark):
                self.resource_version = event.resource_version or self.resource_version
            else:
                self._unreadable(event.key, event.why)
                self._release(event.key)
                receiver.lost(event.key)

    def _unreadable(self, key: ObjectKey, why: str) -> None:
        if self._limits is not None:
            self._left_out(ObjectKey(printable(key.namespace), printable(key.name)), printable(why))
            return
        self._log.error("Object does not have the shape of its type and is left out", object=str(key), why=why)

    def _left_out(self, key: ObjectKey, why: str) -> None:
        if key in self._reported:
            return
        if len(self._reported) >= _REPORTED:
            del self._reported[next(iter(self._reported))]
        self._reported[key] = None
        self._rate_limited_log.warn("An object of a server that is not trusted is left out", object=str(key), why=why)
        if self._observer is not None:
            self._observer.left_out(self._kind, key, why)
