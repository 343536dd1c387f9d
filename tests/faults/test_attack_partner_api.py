"""A partner's control plane is hostile input: whatever its API answers, the node's memory stays bounded, nothing is logged
with a traceback, what is wrong is named, and others are followed. Position: partner's control plane (docs/security.md)."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_api as api
import msgspec
import pytest
from hostile_api import NAMESPACE, Script, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.backoff import Policy
from coterie.base.rate_limited_log import RateLimit
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits, depth_of, many_items, object_fault
from coterie.kube.client.transport import (
    Disconnected,
    LimitExceeded,
    LineSplitter,
    TransportError,
    TransportRequest,
    TruncatedLine,
    UnreadableResponse,
)
from coterie.kube.client.watch import UndecodableObject, decode_event

LIMITS = ResponseLimits(
    body=256 << 10,
    object_bytes=32 << 10,
    objects=500,
    kept_bytes=4 << 20,
    pages=20,
    line_seconds=0.4,
    changes=RateLimit(burst=5000, per_second=5000),
    wait=0.05,
)
MAPS = CONFIG_MAPS.as_dynamic
QUICK = Policy(first=0.02, factor=2.0, limit=0.1, jitter=0.0)
GROWTH = 48 << 20
"""Bytes by which memory may grow while a server tries to send hundreds of megabytes. The limits above add up to a tenth."""


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def client_of(path: Path, limits: ResponseLimits | None = LIMITS) -> Client:
    way = HttpTransport(ClusterConnection(server="http://gateway"), socket=path, limits=limits, timeout=5)
    return Client(way, limits=limits)


class Observer:
    def __init__(self) -> None:
        self.failures: list[str] = []
        self.recoveries = 0
        self.names: list[tuple[str, str]] = []

    def failed(self, kind: Kind[Any], why: str) -> None:
        self.failures.append(why)

    def recovered(self, kind: Kind[Any]) -> None:
        self.recoveries += 1

    def left_out(self, kind: Kind[Any], key: ObjectKey, why: str) -> None:
        self.names.append((key.name, why))


@pytest.fixture
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    logging.getLogger("coterie").propagate = True
    with caplog.at_level(logging.INFO):
        yield
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def until(true: Any, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


class Follower:
    """Follows hostile ConfigMaps and good Secrets of one server."""

    def __init__(self, client: Client) -> None:
        self.observer = Observer()
        self.informers = Informers(client, retry=QUICK, observer=self.observer)
        self.hostile = self.informers.get(MAPS, NAMESPACE)
        self.others = self.informers.get(SECRETS.as_dynamic, NAMESPACE)
        self._client = client

    async def __aenter__(self) -> Follower:
        self._task = asyncio.create_task(self.informers.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        ended = self._task.done()
        self._task.cancel()
        outcome = (await asyncio.gather(self._task, return_exceptions=True))[0]
        await self._client.close()
        assert not ended, f"the informers ended: {outcome!r}"


WITHOUT_END: dict[str, tuple[Script, str]] = {
    "line": (api.endless_line, "a line has more than"),
    "body": (api.endless_body, "the answer has more than"),
    "head": (api.endless_head, "bytes of headers"),
    "header": (api.endless_header, "bytes of headers"),
    "trailers": (api.endless_trailers, ""),
    "trailer": (api.endless_trailer, ""),
    "chunk-extension": (api.endless_chunk_extension, ""),
    "100-continue": (api.endless_continue, "bytes of headers"),
    "objects-at-start": (api.endless_objects, "no room"),
    "bookmarks": (api.endless_bookmarks, "events came before all objects"),
    "pages": (api.endless_pages, ""),
    "tiny-items": (api.many_tiny_items, "more than"),
    "slow-line": (api.slow_line, "a line was not complete"),
}


@pytest.mark.parametrize(("script", "why"), WITHOUT_END.values(), ids=WITHOUT_END)
async def test_partner_api_answer_without_end(script: Script, why: str, tmp_path: Path, no_traceback: None) -> None:
    before = resident()
    async with serving(tmp_path / "s", configmaps=script), Follower(client_of(tmp_path / "s")) as follower:
        await until(lambda: follower.others.cache.get("good", NAMESPACE))
        await until(lambda: follower.observer.failures or follower.observer.names)
        told = [*follower.observer.failures, *(said for _, said in follower.observer.names)]
        assert any(why in each for each in told), told
        assert resident() - before < GROWTH


async def test_partner_api_blank_lines_without_end(tmp_path: Path, no_traceback: None) -> None:
    before = resident()
    path = tmp_path / "s"
    async with serving(path, configmaps=api.endless_blank_lines), Follower(client_of(path)) as follower:
        await until(lambda: follower.others.cache.get("good", NAMESPACE))
        await asyncio.sleep(0.5)
        assert resident() - before < GROWTH


async def test_partner_api_objects_without_end_after_a_good_start(tmp_path: Path, no_traceback: None) -> None:
    before = resident()
    path = tmp_path / "s"
    async with serving(path, configmaps=api.endless_objects_later), Follower(client_of(path)) as follower:
        await until(lambda: follower.observer.names)
        assert follower.hostile.cache.get("good", NAMESPACE), "what came first is kept"
        assert len(follower.hostile.cache) <= LIMITS.objects
        assert "no room" in follower.observer.names[0][1]
        assert follower.others.cache.get("good", NAMESPACE)
        assert resident() - before < GROWTH


ONE_BAD_OBJECT: dict[str, tuple[bytes | dict[str, Any], str, str]] = {
    "huge": (api.raw_event(api.named(b'"data":{"x":"' + b"y" * (40 << 10) + b'"}')), "bad", "more bytes"),
    "large": (api.raw_event(api.named(b'"data":{"x":"' + b"y" * (33 << 10) + b'"}')), "bad", "more than 32768 bytes"),
    "deep-object": (api.raw_event(api.named(b'"x":' + b'{"a":' * 500 + b"1" + b"}" * 500)), "bad", "nests deeper"),
    "deep-list": (api.raw_event(api.named(b'"x":' + b"[" * 5000 + b"]" * 5000)), "bad", "nests deeper"),
    "a-little-deep": (api.raw_event(api.named(b'"x":' + b"[" * 70 + b"]" * 70)), "bad", "nests deeper"),
    "nan": (api.raw_event(api.named(b'"data":{"x":NaN}')), "", ""),
    "not-utf-8": (api.raw_event(api.named(b'"data":{"x":"\xff\xfe"}')), "bad", "utf-8"),
    "enormous-number": (api.raw_event(api.named(b'"spec":{},"x":1e999999')), "bad", "number"),
    "no-metadata": (api.added({"data": {}}), "", "not an object"),
    "metadata-is-text": (api.added({"metadata": "x"}), "", "not an object"),
    "no-name": (api.added({"metadata": {"namespace": "alice"}}), "", "not an object"),
    "name-is-a-number": (api.added({"metadata": {"name": 7, "namespace": "alice"}}), "7", "not an object"),
    "name-with-slashes": (
        api.added({"metadata": {"name": "../../x", "namespace": "alice"}}),
        "../../x",
        "not a name",
    ),
    "long-name": (api.added({"metadata": {"name": "x" * 300, "namespace": "alice"}}), "x" * 120, "not a name"),
    "other-namespace": (api.added({"metadata": {"name": "bad", "namespace": "bob"}}), "bad", "namespace 'bob'"),
    "long-version": (
        api.added({"metadata": {"name": "bad", "namespace": "alice", "resourceVersion": "9" * 5000}}),
        "bad",
        "resourceVersion",
    ),
    "labels-are-a-list": (api.added({"metadata": {"name": "bad", "namespace": "alice", "labels": []}}), "bad", "not"),
    "annotation-is-a-number": (
        api.added({"metadata": {"name": "bad", "namespace": "alice", "annotations": {"a": 1}}}),
        "bad",
        "not an object",
    ),
    "another-shape": (api.added({"metadata": {"name": "bad", "namespace": "alice"}, "data": 7}), "bad", "Expected"),
    "object-is-text": (api.added("x"), "", "not an object"),
    "object-is-null": (api.added(None), "", "not an object"),
    "control-characters": (
        api.added({"metadata": {"name": "a\u001b[31m\n", "namespace": "alice"}}),
        "a?[31m?",
        "not a name",
    ),
}


@pytest.mark.parametrize(("bad", "name", "why"), ONE_BAD_OBJECT.values(), ids=ONE_BAD_OBJECT)
async def test_partner_api_one_bad_object_is_left_out_by_name(
    bad: bytes | dict[str, Any], name: str, why: str, tmp_path: Path, no_traceback: None
) -> None:
    path = tmp_path / "s"
    async with serving(path, configmaps=api.with_bad(bad)), Follower(client_of(path)) as follower:
        if not why:
            # Not JSON at all: nobody can tell where the object ends. The watch is opened again.
            await until(lambda: follower.observer.failures)
            return
        await until(lambda: follower.hostile.ready.is_set())
        assert {obj["metadata"]["name"] for obj in follower.hostile.cache.list()} == {"first", "good"}
        assert [each for each, _ in follower.observer.names] == [name]
        assert why in follower.observer.names[0][1]


AGAIN_AND_AGAIN: dict[str, Script] = {
    "html": api.always(b"<html>Sign in</html>", headers="Content-Type: text/html\r\n"),
    "empty": api.always(b""),
    "a-list": api.always(b"[]"),
    "redirect": api.always(b"", "302 Found", "Location: http://127.0.0.1/other\r\n"),
    "redirect-to-itself": api.always(b"", "307 Temporary Redirect", "Location: /\r\n"),
    "not-modified": api.always(b"", "304 Not Modified"),
    "switching": api.always(b"", "101 Switching Protocols", "Upgrade: x\r\n"),
    "gzip-bomb": api.gzip_bomb,
    "not-http": api.not_http,
    "gone": api.always(b'{"kind":"Status","code":410,"reason":"Gone"}', "410 Gone"),
    "expired-event": api.always_event({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}),
    "error-event": api.always_event({"type": "ERROR", "object": {"code": 500}}),
    "error-is-text": api.always_event({"type": "ERROR", "object": "x"}),
    "error-with-odd-fields": api.always_event(
        {"type": "ERROR", "object": {"code": "x", "reason": [], "details": [1], "message": {}}}
    ),
    "bookmark-is-text": api.always_event({"type": "BOOKMARK", "object": "x"}),
    "bookmark-with-a-long-version": api.always_event(
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9" * 100000}}}
    ),
    "unknown-event": api.always_event({"type": "SURPRISE", "object": api.thing()}),
    "no-event": api.always_event(b"garbage"),
    "deep-event": api.always_event(b"[" * 20000),
    "busy-for-ever": api.always(b"{}", "429 Too Many Requests", "Retry-After: 99999999\r\n"),
    "odd-retry-after": api.always(b"{}", "503 Service Unavailable", "Retry-After: \xb2\r\n"),
    "status-of-odd-shape": api.always(b'{"kind":"Status","details":7,"code":[]}', "500 Internal Server Error"),
    "huge-content-length": api.always(b"", headers="Content-Length: 99999999999999999999999\r\n"),
    "two-lengths": api.always(b"{}", headers="Content-Length: 1\r\n"),
}


@pytest.mark.parametrize("script", AGAIN_AND_AGAIN.values(), ids=AGAIN_AND_AGAIN)
async def test_partner_api_is_asked_again_with_pauses(script: Script, tmp_path: Path, no_traceback: None) -> None:
    before = resident()
    path = tmp_path / "s"
    async with serving(path, configmaps=script) as server, Follower(client_of(path)) as follower:
        await until(lambda: follower.others.cache.get("good", NAMESPACE))
        await asyncio.sleep(0.5)
        asked = sum("configmaps" in each for each in server.requests)
        # Pauses of 0.02, 0.04, ... 0.1 s; a start is a watch and a list, and a busy server is asked five times.
        assert 1 <= asked < 60, "not in a tight loop"
        assert not follower.hostile.cache.list()
        assert resident() - before < GROWTH


async def test_partner_api_that_is_well_again_is_followed_again(tmp_path: Path, no_traceback: None) -> None:
    path = tmp_path / "s"
    async with serving(path, configmaps=api.not_http) as server, Follower(client_of(path)) as follower:
        await until(lambda: follower.observer.failures)
        server.scripts["configmaps"] = api.good
        await until(lambda: follower.hostile.cache.get("good", NAMESPACE))
        assert follower.observer.recoveries == 1


async def test_partner_api_large_objects_come_in_smaller_pages(tmp_path: Path) -> None:
    """Together they are more than an answer may have; each is not."""
    objects = [api.thing(f"o-{i:02}", data={"x": "y" * (20 << 10)}) for i in range(40)]
    pages: list[str] = []

    async def paged(answer: api.Answer) -> None:
        query = dict(pair.split("=") for pair in answer.target.partition("?")[2].split("&"))
        pages.append(query["limit"])
        first = int(query.get("continue", "0"))
        last = min(first + int(query["limit"]), len(objects))
        rest = str(last) if last < len(objects) else ""
        body = {"metadata": {"resourceVersion": "1", "continue": rest}, "items": objects[first:last]}
        await answer.whole(msgspec.json.encode(body))

    async with serving(tmp_path / "s", configmaps=paged):
        client = client_of(tmp_path / "s")
        found = await client.list(MAPS, NAMESPACE)
        await client.close()
    assert [obj["metadata"]["name"] for obj in found.items] == [obj["metadata"]["name"] for obj in objects]
    assert pages[:2] == ["500", "50"] and set(pages[2:]) == {"5"}


async def test_an_endless_line_grew_a_node_by_300_megabytes(tmp_path: Path) -> None:
    """With the limits that nodes have."""
    before = resident()
    async with serving(tmp_path / "s", configmaps=api.endless_line):
        client = client_of(tmp_path / "s", ResponseLimits())
        watch = await client.watch(MAPS, NAMESPACE)
        with pytest.raises(LimitExceeded):
            while await watch.batch():
                pass
        await watch.close()
        await client.close()
    assert resident() - before < 24 << 20


async def test_a_trusted_server_has_a_longest_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splitter = LineSplitter(1000)
    assert splitter.feed(b"x" * 999) == [] and splitter.feed(b"xx") == []
    with pytest.raises(LimitExceeded):
        for _ in range(10):
            splitter.feed(b"y" * 1000)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 60))
def test_lines_are_cut_the_same_however_they_arrive(chunks: list[bytes], limit: int) -> None:
    splitter, found = LineSplitter(limit), []
    whole = b"".join(chunks)
    try:
        for chunk in chunks:
            found += splitter.feed(chunk)
    except LimitExceeded:
        assert any(len(line) > 4 * limit for line in whole.split(b"\n"))
        return
    rest = splitter.rest()
    expected = [line for line in whole.split(b"\n") if line]
    lines = [line for line in [*found, rest] if line]
    assert len(lines) == len(expected)
    for line, real in zip(lines, expected, strict=True):
        assert isinstance(line, TruncatedLine) == (len(real) > limit)
        assert real.startswith(line) if isinstance(line, TruncatedLine) else real == line


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_the_depth_of_json_is_counted_rightly(value: Any) -> None:
    def depth(each: Any) -> int:
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        return (1 if isinstance(each, dict | list) else 0) + max(map(depth, inner), default=0)

    data, real = msgspec.json.encode(value), depth(value)
    for limit in (0, 1, 3, 64):
        assert (depth_of(data, limit) > limit) == (real > limit)


@given(st.lists(JSON, max_size=12))
def test_the_items_of_a_list_are_counted_rightly(items: list[Any]) -> None:
    data = msgspec.json.encode({"metadata": {}, "items": items})
    assert many_items(data, 10) == (len(items) > 10)  # the comma before "items" counts too


META = st.dictionaries(
    st.sampled_from(["name", "namespace", "uid", "resourceVersion", "labels", "annotations", "finalizers", "x"]),
    st.sampled_from(["alice", "good", "", "../x", None, 7, {"a": "b"}, {"a": 1}, ["x"], [1], {}]) | JSON,
)
OBJECTS = st.fixed_dictionaries({}, optional={"metadata": META | JSON, "spec": JSON, "status": JSON, "data": JSON})
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "X", "", None, 1]),
        "object": OBJECTS | JSON,
    },
)


@settings(max_examples=500)
@given(EVENTS.map(msgspec.json.encode) | st.binary(max_size=200), st.sampled_from([MAPS, CONFIG_MAPS]))
def test_partner_api_generated_events(line: bytes, kind: Kind[Any]) -> None:
    """Either an event whose object has a key of the asked namespace, or an error that the reflector knows."""
    try:
        event = decode_event(kind, line, NAMESPACE, LIMITS)
    except (ApiError, Disconnected):
        return
    if not isinstance(event, UndecodableObject) and hasattr(event, "object"):
        key = kind.key(event.object)
        assert key.namespace == NAMESPACE and key.name
        assert isinstance(kind.version(event.object), str) and isinstance(kind.uid(event.object), str)


@settings(max_examples=300)
@given(OBJECTS.map(msgspec.json.encode) | st.binary(max_size=100))
def test_partner_api_generated_objects(data: bytes) -> None:
    assert isinstance(object_fault(data, NAMESPACE, LIMITS), str)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300) | EVENTS.map(lambda each: msgspec.json.encode(each) + b"\n"), max_size=6))
def test_partner_api_generated_answers(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Bytes that may or may not be HTTP, to each kind of question."""

    async def script(answer: api.Answer) -> None:
        await answer.send(api.STREAM if len(pieces) % 2 else b"")
        for piece in pieces:
            await answer.chunk(piece)
        await answer.send(b"0\r\n\r\n")
        raise ConnectionResetError

    async def ask() -> None:
        path = tmp_path_factory.mktemp("s") / "s"
        async with serving(path, configmaps=script):
            client = client_of(path)
            try:
                for question in (
                    client.list(MAPS, NAMESPACE),
                    _watched(client),
                    client.send(TransportRequest("GET", "/x/configmaps")),
                ):
                    try:
                        await question
                    except (ApiError, TransportError, UnreadableResponse):
                        continue
            finally:
                await client.close()

    asyncio.run(ask())


async def _watched(client: Client) -> None:
    async with await client.watch(MAPS, NAMESPACE) as watch:
        while await watch.batch():
            pass
