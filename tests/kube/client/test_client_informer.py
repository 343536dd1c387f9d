"""Reflector, cache, informer and shared informers: no gap, no duplicate, whatever the connection does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from fake_api import FakeApi
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.clock import VirtualClock
from coterie.kube.api import errors
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.core import CONFIG_MAPS, ConfigMap
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.cache import Cache
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeStream, FakeTransport, json_reply, stream_reply
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import Disconnected, NotSent, TransportRequest, TransportResponse

CM = Kind.dynamic(builtin("configmaps"))


@asynccontextmanager
async def running(informer: Informer[Any] | Informers) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def recorded(informer: Informer[Any]) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    informer.add_handler(lambda change: seen.append((change.type, informer.kind.key(change.object).name)))
    return seen


@pytest.mark.parametrize("watch_list", [True, False], ids=["watch-list", "list-and-watch"])
async def test_informer_follows(watch_list: bool) -> None:
    api = FakeApi(watch_list=watch_list)
    api.seed("configmaps", "a", "default")
    informer = Informer(api.client(), CONFIG_MAPS)
    seen = recorded(informer)
    async with running(informer):
        await informer.synced.wait()
        assert seen == [("added", "a")]
        api.seed("configmaps", "b", "other")
        client = api.client()
        await client.patch(CM, "a", "default", {"data": {"x": "1"}})
        await client.delete(CM, "b", "other")
        await settle()
        assert seen == [("added", "a"), ("added", "b"), ("updated", "a"), ("deleted", "b")]
        assert informer.cache.get("a", "default").data == {"x": "1"}
        assert len(informer.cache) == 1 and informer.resource_version == str(api.revision)
    assert api.watches == []


async def test_resumes_after_a_cut_without_fetching_everything_again() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    api.seed("configmaps", "a", "default")
    informer = Informer(api.client(), CM)
    seen = recorded(informer)
    async with running(informer):
        await settle()
        api.cut_watches()
        await settle()
        api.seed("configmaps", "b", "default")  # while nobody watches
        await clock.advance(2)
        assert seen == [("added", "a"), ("added", "b")]
        assert informer.restarts == 0


async def test_after_410_the_difference_is_told() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    for name in ("stays", "changes", "goes", "replaced"):
        api.seed("configmaps", name, "default")
    informer = Informer(api.client(), CM)
    seen = recorded(informer)
    async with running(informer):
        await settle()
        seen.clear()
        api.cut_watches()
        client = api.client()
        await client.patch(CM, "changes", "default", {"data": {"x": "1"}})
        await client.delete(CM, "goes", "default")
        await client.delete(CM, "replaced", "default")
        api.seed("configmaps", "replaced", "default")
        api.seed("configmaps", "new", "default")
        api.compact()
        await clock.advance(2)
        assert sorted(seen) == [
            ("added", "new"),
            ("added", "replaced"),
            ("deleted", "goes"),
            ("deleted", "replaced"),
            ("updated", "changes"),
        ]
        assert seen.index(("deleted", "replaced")) < seen.index(("added", "replaced"))
        assert informer.restarts == 1


async def test_an_error_event_410_fetches_everything_again() -> None:
    streams = [FakeStream(), FakeStream()]
    opened: list[TransportRequest] = []

    def answer(call: TransportRequest) -> TransportResponse:
        opened.append(call)
        return stream_reply(streams[len(opened) - 1])

    def added(name: str, version: int) -> dict[str, Any]:
        return {"type": "ADDED", "object": {"metadata": {"name": name, "resourceVersion": str(version), "uid": name}}}

    end = {
        "type": "BOOKMARK",
        "object": {"metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}},
    }
    informer = Informer(Client(FakeTransport(answer), clock=VirtualClock()), CM)
    seen = recorded(informer)
    async with running(informer):
        streams[0].send(added("a", 5), end, added("b", 8))
        await settle()
        assert seen == [("added", "a"), ("added", "b")] and informer.resource_version == "8"
        streams[0].send(added("c", 9), {"type": "ERROR", "object": errors.Expired("old").status()})
        streams[1].send(added("a", 5), added("b", 8), added("c", 9), end)
        await settle()
        assert seen == [("added", "a"), ("added", "b"), ("added", "c")]
        assert streams[0].closed and informer.restarts == 1


async def test_bookmarks_move_the_version_on() -> None:
    api = FakeApi()
    stream = FakeStream()
    transport = FakeTransport(lambda call: stream_reply(stream))
    informer = Informer(Client(transport, clock=VirtualClock()), CM)
    async with running(informer):
        mark = {"metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}}
        stream.send({"type": "BOOKMARK", "object": mark})
        stream.send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "4000"}}})
        await settle()
        assert informer.resource_version == "4000"
        stream.end()
        await settle()
    assert api.requests == []


async def test_an_unreachable_server_is_tried_again_with_growing_pauses() -> None:
    clock = VirtualClock()
    attempts: list[float] = []
    api = FakeApi(clock)
    real = api.client().transport

    async def answer(call: TransportRequest) -> TransportResponse:
        attempts.append(clock.monotonic())
        if len(attempts) < 6:
            raise NotSent("nobody there")
        return await real.send(call)

    informer = Informer(Client(FakeTransport(answer), clock=clock), CM)
    async with running(informer):
        await clock.advance(60)
        assert informer.synced.is_set()
    gaps = [b - a for a, b in pairwise(attempts[:6])]
    assert all(0.5 < later / earlier < 6 for earlier, later in pairwise(gaps)) and gaps[-1] > gaps[0] * 4


async def test_a_server_that_ends_watches_at_once_is_not_hammered() -> None:
    clock = VirtualClock()
    transport = FakeTransport(
        lambda call: (
            stream_reply(FakeStream().end())
            if call.stream
            else json_reply({"metadata": {"resourceVersion": "5"}, "items": []})
        )
    )
    informer = Informer(Client(transport, clock=clock), CM, watch_list=False)
    async with running(informer):
        await clock.advance(100)
    assert len(transport.calls) < 20


async def test_an_object_of_a_strange_shape_does_not_hide_the_others() -> None:
    api = FakeApi(watch_list=False)
    api.seed("configmaps", "good", "default")
    api.seed("configmaps", "bad", "default", data=["not", "a", "map"])
    informer = Informer(api.client(), CONFIG_MAPS)
    async with running(informer):
        await informer.synced.wait()
        assert [c.metadata.name for c in informer.cache] == ["good"]
        await settle()
        await api.client().patch(CM, "good", "default", {"data": ["now", "bad"]})
        await settle()
        assert len(informer.cache) == 0
        await api.client().patch(CM, "bad", "default", {"data": {"now": "good"}})
        await settle()
        assert [c.metadata.name for c in informer.cache] == ["bad"]


async def test_selectors_and_namespace_narrow_what_is_kept() -> None:
    api = FakeApi()
    api.seed("configmaps", "a", "default", metadata={"labels": {"app": "x"}})
    api.seed("configmaps", "b", "default")
    api.seed("configmaps", "c", "other", metadata={"labels": {"app": "x"}})
    informer = Informer(api.client(), CM, namespace="default", labels="app=x")
    seen = recorded(informer)
    async with running(informer):
        await settle()
        await api.client().patch(CM, "b", "default", {"metadata": {"labels": {"app": "x"}}})
        await api.client().patch(CM, "a", "default", {"metadata": {"labels": None}})
        await settle()
    assert seen == [("added", "a"), ("added", "b"), ("deleted", "a")]


async def test_transform_resync_and_late_handlers() -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    api.seed("configmaps", "a", "default", data={"big": "x" * 1000})
    informer: Informer[ConfigMap] = Informer(
        api.client(), CONFIG_MAPS, transform=lambda cm: msgspec.structs.replace(cm, data=None), resync=60
    )
    async with running(informer):
        await informer.synced.wait()
        assert informer.cache.get("a", "default").data is None
        changes: list[ObjectChange[ConfigMap]] = []
        remove = informer.add_handler(changes.append)
        assert [c.type for c in changes] == ["added"]
        await clock.advance(61)
        assert [c.type for c in changes] == ["added", "updated"] and changes[1].old is changes[1].object
        remove()
        await clock.advance(61)
        assert len(changes) == 2


async def test_informers_are_shared_and_started_late_or_early() -> None:
    api = FakeApi()
    informers = Informers(api.client())
    first = informers.get(CONFIG_MAPS)
    assert informers.get(CONFIG_MAPS) is first
    assert informers.get(CM) is not first and informers.get(CONFIG_MAPS, "default") is not first
    async with running(informers):
        await informers.ready.wait()
        late = informers.get(Kind.dynamic(builtin("secrets")))
        await asyncio.wait_for(late.synced.wait(), 1)
        assert len(informers) == 4 and len(api.watches) == 4
        await informers.drop(CM)
        assert len(informers) == 3 and len(api.watches) == 3
    assert api.watches == []


def _object(name: str, namespace: str, owner: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "owner": owner}


_steps = st.lists(
    st.tuples(st.booleans(), st.sampled_from("abc"), st.sampled_from(["n1", "n2"]), st.sampled_from(["x", "y", ""])),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=_steps)
def test_indexes_agree_with_a_full_scan(steps: list[tuple[bool, str, str, str]]) -> None:
    def by_owner(obj: Object) -> list[str]:
        return [obj["owner"]] if obj["owner"] else []

    cache: Cache[Object] = Cache(CM, {"owner": by_owner})
    for put, name, namespace, owner in steps:
        key = ObjectKey(namespace, name)
        if put:
            cache.put(key, _object(name, namespace, owner))
        else:
            cache.remove(key)
    every = cache.list()
    by_key = sorted(every, key=str)
    for namespace in ("n1", "n2"):
        assert sorted(cache.list(namespace), key=str) == [o for o in by_key if o["metadata"]["namespace"] == namespace]
    for owner in ("x", "y"):
        assert sorted(cache.by_index("owner", owner), key=str) == [o for o in by_key if o["owner"] == owner]
    assert set(cache.index_values("owner")) == {o["owner"] for o in every if o["owner"]}
    late: Cache[Object] = Cache(CM)
    for obj in every:
        late.put(CM.key(obj), obj)
    late.add_index("owner", by_owner)
    late.add_index("owner", by_owner)
    assert {v: len(late.by_index("owner", v)) for v in "xy"} == {v: len(cache.by_index("owner", v)) for v in "xy"}
    with pytest.raises(ValueError):
        late.add_index("owner", lambda obj: ())


async def test_a_watch_that_lasted_starts_the_pauses_anew() -> None:
    """Where nothing ever happens there are no events; a server that was away twice a day is still asked at once."""
    clock = VirtualClock()
    opened: list[float] = []

    def answer(call: TransportRequest) -> TransportResponse:
        opened.append(clock.monotonic())
        if "sendInitialEvents" in call.query:
            mark = {"annotations": {"k8s.io/initial-events-end": "true"}, "resourceVersion": "5"}
            return stream_reply(FakeStream([{"type": "BOOKMARK", "object": {"metadata": mark}}]).end())
        return stream_reply(_Lasting(clock, 60.0))

    informer = Informer(Client(FakeTransport(answer), clock=clock), CONFIG_MAPS)
    async with running(informer):
        for _ in range(12):
            await clock.advance(65.0)
    assert len(opened) > 10
    assert max(later - earlier for earlier, later in pairwise(opened)) < 61.0


class _Lasting(FakeStream):
    """Silent for a time, then broken off."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        super().__init__()
        self._clock, self._seconds = clock, seconds

    async def read(self) -> list[bytes]:
        await self._clock.sleep(self._seconds)
        raise Disconnected("the stream broke")
