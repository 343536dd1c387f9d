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
from typing import Generic, Protocol, TypeVar

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, BadRequest, Gone, Invalid
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kube.client.watch import Bookmark, Changed, UndecodableObject, Watch

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

RETRY = Policy(first=0.2, factor=2.0, limit=30.0, jitter=0.3)
_WATCH_SECONDS = (300, 600)
"""Watches end by themselves after a time in this range, so that they move away from a server that is going down."""

_random = Random()


class Receiver(Protocol[T_contra]):
    def replace(self, objects: Sequence[T_contra]) -> None:
        """These exist, and no others."""

    def changed(self, type: str, obj: T_contra) -> None:
        """ADDED, MODIFIED or DELETED."""

    def lost(self, key: ObjectKey) -> None:
        """The object exists but cannot be read as its type any more."""


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
    ) -> None:
        """`watch_list=False` is for servers before Kubernetes 1.27, which take the question for a plain watch."""
        self._client = client
        self._kind = kind
        self._receiver = receiver
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._watch_list = watch_list
        self._clock = clock or client.clock
        self._backoff = Backoff(retry)
        self._log = logger("client.reflector").bind(resource=str(kind), namespace=namespace or None)
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
            except (ApiError, TransportError) as error:
                wait = self._backoff.failed()
                self._log.warning("Watch failed; trying again", error=error, seconds=round(wait, 2))
                await self._clock.sleep(wait)

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
        for key, why in page.broken:
            self._unreadable(key, why)
        self._replace(page.items, page.resource_version)

    async def _receive_initial(self, watch: Watch[T]) -> None:
        """Collect until the server says that this was all."""
        found: dict[ObjectKey, T] = {}
        kind = self._kind
        while True:
            events = await watch.batch()
            if not events:
                raise TransportError("the watch ended before all objects had come")
            for i, event in enumerate(events):
                if isinstance(event, Changed):
                    key = kind.key(event.object)
                    if event.type == "DELETED":
                        found.pop(key, None)
                    else:
                        found[key] = event.object
                elif isinstance(event, UndecodableObject):
                    self._unreadable(event.key, event.why)
                elif event.initial_end:
                    self._replace(list(found.values()), event.resource_version)
                    self._deliver(events[i + 1 :])
                    return

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
                self._backoff.succeeded()
        finally:
            lasted = self._clock.monotonic() - opened >= 1.0
            if lasted:
                self._backoff.succeeded()  # also where nothing happened: failures of long ago say nothing of the next
        # A server that opens and ends watches at once must not be asked in a tight loop.
        if not lasted:
            await self._clock.sleep(self._backoff.failed())

    def _replace(self, objects: Sequence[T], version: str) -> None:
        self._receiver.replace(objects)
        self.resource_version = version
        self._backoff.succeeded()

    def _deliver(self, events: Sequence[Changed[T] | Bookmark | UndecodableObject]) -> None:
        receiver, version_of = self._receiver, self._kind.version
        for event in events:
            if isinstance(event, Changed):
                receiver.changed(event.type, event.object)
                self.resource_version = version_of(event.object) or self.resource_version
            elif isinstance(event, Bookmark):
                self.resource_version = event.resource_version or self.resource_version
            else:
                self._unreadable(event.key, event.why)
                receiver.lost(event.key)

    def _unreadable(self, key: ObjectKey, why: str) -> None:
        self._log.error("Object does not have the shape of its type and is left out", object=str(key), why=why)
