"""Protobuf answers, gzip, and long lists and watches at the speed of their readers."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import orjson
import pytest
from server_kit import ADMIN, CMS, CRDS, Api, Watch, config_map, serving

from coterie.http.messages import Peer, Request, Response
from coterie.kube.api.wire import decode
from coterie.kube.apiserver import list_body
from coterie.kube.apiserver.state import collection, watching

PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON = "application/json"
REMOTE = Peer("192.0.2.7", encrypted=True, connected=True)
LOOPBACK = Peer("127.0.0.1", encrypted=True, connected=True)


@pytest.fixture
async def api() -> Any:
    async with serving() as api:
        yield api


def frames(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """(type, object) of the frames of a watch: length, then WatchEvent{type = 1, object = 2 {raw = 1}}."""
    out = []
    while data:
        size = int.from_bytes(data[:4], "big")
        frame, data = data[4 : 4 + size], data[4 + size :]
        assert frame[0] == 0x0A
        kind = frame[2 : 2 + frame[1]].decode()
        out.append((kind, decode(frame[frame.index(b"k8s\0") :])))
    return out


async def remote(api: Api, path: str, peer: Peer = REMOTE, **headers: str) -> Response:
    path, _, query = path.partition("?")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.server.call(Request("GET", path, query, names, peer=peer, user=ADMIN))


class SlowReader(Watch):
    """Takes nothing until it is asked to."""

    def __init__(self, stream: Any) -> None:
        self._may_go_on = asyncio.Event()
        super().__init__(stream)

    def write(self, chunk: bytes) -> None:
        super().write(chunk)
        self.pending += len(chunk)

    async def drain(self) -> None:
        while self.pending > 64 * 1024 and not self.ended:
            self._may_go_on.clear()
            await self._may_go_on.wait()

    def read(self) -> None:
        self.pending = 0
        self._may_go_on.set()


async def read_all(answer: Response, turns: int = 100_000) -> bytes:
    assert answer.stream is not None
    reader = Watch(answer.stream)
    for _ in range(turns):
        if reader.ended:
            break
        await asyncio.sleep(0)
    assert reader.ended == "closed"
    return b"".join(reader.chunks)


async def fill(api: Api, count: int = 300, size: int = 5000) -> None:
    for number in range(count):
        await api.config_map(f"c{number:05}", x=f"{number}" + "x" * size)


# ---- protobuf ----


@pytest.mark.parametrize("accept", [PROTOBUF, f"{PROTOBUF},{JSON}", f"{JSON};q=0.5,{PROTOBUF}"])
async def test_objects_and_lists_in_protobuf(api: Api, accept: str):
    made = await api.config_map("a", x="1")
    answer = await api.call("GET", f"{CMS}/a", headers={"accept": accept})
    assert answer.content_type == PROTOBUF and decode(answer.body) == made
    answer = await api.call("GET", CMS, headers={"accept": accept})
    listed = decode(answer.body)
    assert answer.content_type == PROTOBUF and listed["kind"] == "ConfigMapList"
    assert listed["metadata"]["resourceVersion"] == str(api.revision)
    del made["apiVersion"], made["kind"]
    assert listed["items"][0] == made


async def test_json_stays_json_where_it_is_preferred(api: Api):
    answer = await api.call("GET", CMS, headers={"accept": f"{JSON},{PROTOBUF}"})
    assert answer.content_type == JSON


async def test_a_page_in_protobuf_says_how_to_go_on(api: Api):
    for name in "abc":
        await api.config_map(name)
    answer = await api.call("GET", f"{CMS}?limit=1", headers={"accept": PROTOBUF})
    metadata = decode(answer.body)["metadata"]
    assert metadata["continue"] and metadata["remainingItemCount"] == 2


async def test_a_write_is_answered_in_protobuf(api: Api):
    answer = await api.call("POST", CMS, config_map("a"), headers={"accept": PROTOBUF, "content-type": JSON})
    assert answer.status == 201 and decode(answer.body)["metadata"]["name"] == "a"
    answer = await api.call("DELETE", f"{CMS}/a", headers={"accept": PROTOBUF})
    assert decode(answer.body)["kind"] == "Status"


async def test_errors_and_reviews_in_protobuf(api: Api):
    answer = await api.call("GET", f"{CMS}/none", headers={"accept": PROTOBUF})
    status = decode(answer.body)
    assert answer.status == 404 and (status["kind"], status["reason"], status["code"]) == ("Status", "NotFound", 404)
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await api.call("POST", path, review, headers={"accept": PROTOBUF})
    assert decode(answer.body)["status"]["allowed"] is True


async def test_metadata_only_in_protobuf(api: Api):
    await api.config_map("a", x="1")
    accept = f"{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    listed = decode((await api.call("GET", CMS, headers={"accept": accept})).body)
    assert listed["kind"] == "PartialObjectMetadataList" and listed["apiVersion"] == "meta.k8s.io/v1"
    assert listed["items"][0]["metadata"]["name"] == "a" and "data" not in listed["items"][0]
    accept = f"{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    one = decode((await api.call("GET", f"{CMS}/a", headers={"accept": accept})).body)
    assert one["kind"] == "PartialObjectMetadata" and one["metadata"]["name"] == "a"
    watch = await api.watch(CMS, headers={"accept": accept})
    ((kind, seen),) = frames(b"".join(watch.chunks))
    assert kind == "ADDED" and seen["kind"] == "PartialObjectMetadata"


async def test_a_table_has_no_protobuf_form(api: Api):
    table = "as=Table;g=meta.k8s.io;v=v1"
    await api.refused(406, "GET", CMS, headers={"accept": f"{PROTOBUF};{table}"})
    answer = await api.call("GET", CMS, headers={"accept": f"{PROTOBUF};{table},{JSON};{table}"})
    assert answer.content_type == JSON and answer.json["kind"] == "Table"


async def test_custom_resources_have_no_protobuf_form_but_metadata_have(api: Api):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    await api.post(CRDS, {"metadata": {"name": "things.example.com"}, "spec": spec})
    path = "/apis/example.com/v1/namespaces/default/things"
    await api.post(path, {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}})
    assert (await api.call("GET", path, headers={"accept": PROTOBUF})).status == 406
    assert (await api.call("GET", f"{path}/a", headers={"accept": PROTOBUF})).status == 406
    answer = await api.call("GET", path, headers={"accept": f"{PROTOBUF},{JSON}"})
    assert answer.content_type == JSON and answer.names == ["a"]
    accept = f"{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    listed = decode((await api.call("GET", path, headers={"accept": accept})).body)
    assert listed["items"][0]["metadata"]["name"] == "a"


async def test_a_watch_in_protobuf(api: Api):
    accept = {"accept": f"{PROTOBUF};stream=watch"}
    response = await api.raw(
        "GET", CMS, query="watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", headers=accept
    )
    assert response.content_type == f"{PROTOBUF};stream=watch" and response.stream is not None
    watch = Watch(response.stream)
    made = await api.config_map("a")
    seen = frames(b"".join(watch.chunks))
    assert [kind for kind, _ in seen] == ["BOOKMARK", "ADDED"]
    assert seen[0][1]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert seen[1][1]["metadata"] == made["metadata"]


async def test_an_error_inside_a_watch_in_protobuf(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collection, "RING_EVENTS", 1)
    start = api.revision
    for number in range(4):
        await api.config_map(f"c{number}")
    await api.store.compact(api.revision)
    watch = await api.watch(f"{CMS}?resourceVersion={start}", headers={"accept": PROTOBUF})
    for _ in range(20):
        await asyncio.sleep(0)
    ((kind, status),) = frames(b"".join(watch.chunks))
    assert kind == "ERROR" and status["code"] == 410 and watch.ended == "closed"


# ---- long lists ----


async def test_a_long_list_is_sent_in_pieces_and_is_one_snapshot(api: Api):
    await fill(api)
    whole = await api.get(CMS)
    answer = await remote(api, CMS)
    assert answer.stream is not None
    reader = SlowReader(answer.stream)
    await asyncio.sleep(0.01)
    first = sum(len(chunk) for chunk in reader.chunks)
    assert first < 2 * list_body.PIECE and not reader.ended  # it waits for its reader
    await api.ok("DELETE", f"{CMS}/c00299")
    while not reader.ended:
        reader.read()
        await asyncio.sleep(0)
    assert orjson.loads(b"".join(reader.chunks)) == whole and reader.ended == "closed"


async def test_a_long_list_in_protobuf_is_sent_in_pieces(api: Api):
    await fill(api)
    want = await api.get(CMS)
    answer = await remote(api, CMS, accept=PROTOBUF)
    assert answer.content_type == PROTOBUF
    got = decode(await read_all(answer))
    for item in want["items"]:
        del item["apiVersion"], item["kind"]
    assert got == want


async def test_a_reader_that_leaves_ends_a_long_list(api: Api):
    await fill(api)
    answer = await remote(api, CMS)
    assert answer.stream is not None
    reader = SlowReader(answer.stream)
    await asyncio.sleep(0.01)
    reader.leave()
    await asyncio.sleep(0.01)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "list"]


async def test_callers_in_this_process_and_people_get_a_long_list_as_a_whole(api: Api):
    await fill(api)
    assert (await api.raw("GET", CMS)).stream is None
    assert (await remote(api, CMS, user_agent="curl/8")).stream is None


# ---- gzip ----


async def test_gzip_above_its_limit_for_remote_clients(api: Api):
    await api.config_map("big", x="x" * 200_000)
    await api.config_map("small", x="x")
    plain = (await remote(api, f"{CMS}/big")).body
    answer = await remote(api, f"{CMS}/big", accept_encoding="gzip, deflate")
    assert ("Content-Encoding", "gzip") in answer.headers and ("Vary", "Accept-Encoding") in answer.headers
    assert zlib.decompress(answer.body, 31) == plain and len(answer.body) < 10_000
    for other in (
        await remote(api, f"{CMS}/small", accept_encoding="gzip"),
        await remote(api, f"{CMS}/big", accept_encoding="identity"),
        await remote(api, f"{CMS}/big", LOOPBACK, accept_encoding="gzip"),
        await api.raw("GET", f"{CMS}/big", headers={"accept-encoding": "gzip"}),
    ):
        assert not [name for name, _ in other.headers if name == "Content-Encoding"]


@pytest.mark.parametrize("accept", [JSON, PROTOBUF])
async def test_gzip_of_a_long_list(api: Api, accept: str):
    await fill(api)
    plain = await read_all(await remote(api, CMS, accept=accept))
    answer = await remote(api, CMS, accept=accept, accept_encoding="gzip")
    assert ("Content-Encoding", "gzip") in answer.headers
    assert zlib.decompress(await read_all(answer), 31) == plain


async def test_a_watch_is_not_compressed(api: Api):
    answer = await remote(api, f"{CMS}?watch=true", accept_encoding="gzip")
    assert answer.stream is not None and answer.headers == []
    Watch(answer.stream).leave()


# ---- watch lists ----


async def test_a_watch_list_waits_for_its_reader_and_misses_nothing(api: Api):
    await fill(api)
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    response = await api.raw("GET", CMS, query=query)
    start = api.revision
    assert response.stream is not None
    reader = SlowReader(response.stream)
    await asyncio.sleep(0.01)
    assert sum(len(chunk) for chunk in reader.chunks) < 2 * list_body.PIECE
    # More than the ring holds, so that some of it comes from the store.
    for number in range(300):
        await api.patch(f"{CMS}/c00000", {"data": {"x": f"{number}" + "y" * 5000}})
    for _ in range(2000):
        reader.read()
        await asyncio.sleep(0)
    events = reader.take()
    assert [event["type"] for event in events[:300]] == ["ADDED"] * 300
    assert events[300]["type"] == "BOOKMARK"
    assert events[300]["object"]["metadata"]["resourceVersion"] == str(start)
    assert [event["type"] for event in events[301:]] == ["MODIFIED"] * 300
    revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events[301:]]
    assert revisions == sorted(set(revisions)) and revisions[-1] == api.revision
    await api.config_map("later")
    assert reader.told() == [("ADDED", "later")]


async def test_a_state_larger_than_what_may_pile_up_is_sent_all_the_same(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watching, "MAX_PENDING", 1024 * 1024)
    await fill(api)
    response = await api.raw("GET", CMS, query="watch=true")
    assert response.stream is not None
    reader = SlowReader(response.stream)
    for _ in range(500):
        reader.read()
        await asyncio.sleep(0)
    assert not reader.ended and len(reader.told()) == 300
