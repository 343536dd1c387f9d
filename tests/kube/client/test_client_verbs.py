"""The client's requests, answers and errors, over every transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import orjson
import pytest
from aiohttp import web
from fake_api import FakeApi, query_of

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.http.messages import Request, Response, UserInfo
from coterie.kube.api import errors
from coterie.kube.api.meta import Object, ObjectMeta, PartialObjectMetadata
from coterie.kube.api.types.coordination import LEASES, Lease, LeaseSpec
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES, ConfigMap
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client, retry_on_conflict
from coterie.kube.client.discovery import RestMapper, UnknownResource, discover
from coterie.kube.client.fake import FakeTransport, json_reply, script
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.namespaced import Namespaced
from coterie.kube.client.requests import delete_options, path, query
from coterie.kube.client.transport import (
    Disconnected,
    LineSplitter,
    NotSent,
    ResponseTimeout,
    TransportError,
    TransportResponse,
    UnreadableResponse,
)
from coterie.kube.client.wait import exists, wait_for, wait_until_gone
from coterie.kube.client.watch import Bookmark, Changed, UndecodableObject, decode_event
from coterie.kube.client.wrappers import Counting, DryRun, Impersonating, ReadOnly

PODS = Kind.dynamic(builtin("pods"))
DEPLOYMENTS = Kind.dynamic(builtin("deployments", "apps"))
CM = CONFIG_MAPS.as_dynamic


@pytest.fixture(params=["in-process", "http"])
async def api_client(request: pytest.FixtureRequest) -> AsyncIterator[tuple[FakeApi, Client]]:
    """The same tests through a function call and through a real socket."""
    api = FakeApi()
    if request.param == "in-process":
        yield api, api.client()
        return
    async with serve(api.handle) as url:
        client = Client(HttpTransport(ClusterConnection(url)))
        yield api, client
        await client.close()


class serve:
    """A handler behind a real HTTP server."""

    def __init__(self, handler, ssl_context: ssl.SSLContext | None = None) -> None:
        self._handler, self._ssl = handler, ssl_context

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._ssl)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {k.lower(): v for k, v in request.headers.items()}
        asked = Request(request.method, request.path, request.query_string, headers, await request.read())
        response = self._handler(asked)
        if response.stream is None:
            return web.Response(
                status=response.status,
                body=response.body,
                headers=dict(response.headers),
                content_type="application/json",
            )
        out = web.StreamResponse()
        await out.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        sink = _QueueSink(queue)
        response.stream.opened(sink)
        try:
            while (chunk := await queue.get()) is not None:
                await out.write(chunk)
            if sink.broken:
                request.transport.abort()
        finally:
            response.stream.closed()
        return out


class _QueueSink:
    def __init__(self, queue: asyncio.Queue[bytes | None]) -> None:
        self.queue, self.pending, self.broken = queue, 0, False

    def write(self, chunk: bytes) -> None:
        self.queue.put_nowait(chunk)

    async def drain(self) -> None:
        return

    def close(self) -> None:
        self.queue.put_nowait(None)

    def abort(self) -> None:
        self.broken = True
        self.close()


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def test_create_get_update_delete(api_client: tuple[FakeApi, Client]) -> None:
    _, client = api_client
    created = await client.create(CM, config_map("a", x="1"))
    assert created["kind"] == "ConfigMap" and created["metadata"]["uid"]
    got = await client.get(CM, "a", "default")
    assert got["data"] == {"x": "1"}
    got["data"]["x"] = "2"
    updated = await client.update(CM, got)
    with pytest.raises(errors.Conflict):
        await client.update(CM, got)
    assert (await client.get(CONFIG_MAPS, "a", "default")).data == {"x": "2"}
    with pytest.raises(errors.Conflict):
        await client.delete(CM, "a", "default", uid="another")
    await client.delete(CM, "a", "default", uid=updated["metadata"]["uid"])
    with pytest.raises(errors.NotFound) as caught:
        await client.get(CM, "a", "default")
    assert caught.value.name == "a"


async def test_list_goes_through_all_pages(api_client: tuple[FakeApi, Client]) -> None:
    api, client = api_client
    for i in range(7):
        api.seed("configmaps", f"c{i}", "default", metadata={"labels": {"odd": str(i % 2)}})
    page = await client.list(CONFIG_MAPS, "default", page_size=2)
    assert [c.metadata.name for c in page.items] == [f"c{i}" for i in range(7)]
    assert sum(r == "GET /api/v1/namespaces/default/configmaps" for r in api.requests) == 4
    odd = await client.list(CONFIG_MAPS, labels="odd=1")
    assert len(odd.items) == 3 and odd.resource_version == str(api.revision)


async def test_list_starts_again_when_the_snapshot_expires_between_pages() -> None:
    answers = script(
        json_reply({"metadata": {"resourceVersion": "5", "continue": "t"}, "items": [config_map("old")]}),
        errors.Expired("the continue token is too old"),
        json_reply({"metadata": {"resourceVersion": "9"}, "items": [config_map("a"), config_map("b")]}),
    )
    transport = FakeTransport(answers)
    page = await Client(transport).list(CM, "default")
    assert [c["metadata"]["name"] for c in page.items] == ["a", "b"] and page.resource_version == "9"
    assert "limit" not in query_of(transport.calls[2].query)


async def test_items_of_plain_lists_carry_their_kind() -> None:
    transport = FakeTransport(lambda call: json_reply({"metadata": {}, "items": [config_map("a")]}))
    page = await Client(transport).list(CM, "default")
    assert (page.items[0]["apiVersion"], page.items[0]["kind"]) == ("v1", "ConfigMap")


async def test_watch_streams_changes_and_ends_when_closed(api_client: tuple[FakeApi, Client]) -> None:
    api, client = api_client
    async with await client.watch(CONFIG_MAPS, "default", resource_version=str(api.revision)) as watch:
        api.seed("configmaps", "a", "default")
        api.seed("configmaps", "elsewhere", "other")
        await client.delete(CM, "a", "default")
        seen: list[tuple[str, str]] = []
        async for event in watch:
            assert isinstance(event, Changed)
            seen.append((event.type, event.object.metadata.name))
            if event.type == "DELETED":
                break
    assert seen == [("ADDED", "a"), ("DELETED", "a")]
    for _ in range(100):
        if not api.watches:
            break
        await asyncio.sleep(0.01)
    assert api.watches == []


async def test_watch_of_a_version_that_is_gone(api_client: tuple[FakeApi, Client]) -> None:
    api, client = api_client
    old = api.revision
    api.seed("configmaps", "a", "default")
    api.compact()
    with pytest.raises(errors.Gone):
        await client.watch(CM, "default", resource_version=str(old))


async def test_a_broken_stream_is_not_a_finished_one(api_client: tuple[FakeApi, Client]) -> None:
    api, client = api_client
    async with await client.watch(CM, "default", resource_version=str(api.revision)) as watch:
        for _ in range(100):
            if api.watches:
                break
            await asyncio.sleep(0.01)
        api.cut_watches()
        with pytest.raises(TransportError):
            await watch.batch()


async def test_patch_and_apply(api_client: tuple[FakeApi, Client]) -> None:
    api, client = api_client
    api.seed("configmaps", "a", "default", data={"x": "1", "y": "2"})
    patched = await client.patch(CONFIG_MAPS, "a", "default", {"data": {"x": None, "z": "3"}})
    assert patched.data == {"y": "2", "z": "3"}
    with pytest.raises(errors.Conflict):
        await client.patch(CM, "a", "default", {"metadata": {"resourceVersion": "1"}})
    applied = await client.apply(
        CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name="b", namespace="default"), data={"k": "v"})
    )
    assert applied.data == {"k": "v"}


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("json", "application/json-patch+json"),
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
async def test_patch_types(kind, content_type: str) -> None:
    transport = FakeTransport(lambda call: json_reply(config_map("a")))
    await Client(transport, field_manager="tests").patch(CM, "a", "default", {}, type=kind, force=kind == "apply")
    call = transport.calls[0]
    assert call.method == "PATCH" and call.headers["Content-Type"] == content_type
    wanted = {"fieldManager": "tests"} | ({"force": "true"} if kind == "apply" else {})
    assert query_of(call.query) == wanted


async def test_modify_keeps_fields_the_type_does_not_know(api_client: tuple[FakeApi, Client]) -> None:
    api, client = api_client
    api.seed(
        "leases",
        "l",
        "default",
        spec={"holderIdentity": "a", "strategy": "OldestEmulationVersion"},
        metadata={"managedFields": [{"manager": "x"}]},
    )
    changed = await client.modify(
        LEASES,
        "l",
        "default",
        lambda lease: msgspec.structs.replace(lease, spec=msgspec.structs.replace(lease.spec, holder_identity="b")),
    )
    assert changed.spec.holder_identity == "b"
    stored = api.find("leases", "l", "default")
    assert stored["spec"] == {"holderIdentity": "b", "strategy": "OldestEmulationVersion"}
    assert stored["metadata"]["managedFields"] == [{"manager": "x"}]


async def test_modify_writes_nothing_when_nothing_changes() -> None:
    api = FakeApi()
    api.seed("leases", "l", "default", spec={"holderIdentity": "a"})
    await api.client().modify(LEASES, "l", "default", lambda lease: lease)
    assert not any(line.startswith("PUT") for line in api.requests)


async def test_modify_starts_over_after_a_conflict() -> None:
    api = FakeApi()
    api.seed("leases", "l", "default", spec={"leaseTransitions": 0})
    client, interfered = api.client(), []

    def bump(lease: Lease) -> Lease:
        if not interfered:  # somebody else writes between our read and our write
            interfered.append(True)
            key = ("leases", "default", "l")
            api._update(
                LEASES.resource, key, api.objects[key], {**api.objects[key], "spec": {"leaseTransitions": 5}}, ""
            )
        return msgspec.structs.replace(lease, spec=LeaseSpec(lease_transitions=(lease.spec.lease_transitions or 0) + 1))

    assert (await client.modify(LEASES, "l", "default", bump)).spec.lease_transitions == 6


async def test_update_refuses_typed_kinds() -> None:
    with pytest.raises(TypeError, match="modify"):
        await FakeApi().client().update(LEASES, Lease())  # type: ignore[arg-type]


async def test_scale() -> None:
    seen: list[tuple[str, str]] = []

    def answer(call):
        seen.append((call.method, call.path))
        return json_reply({"kind": "Scale", "spec": {"replicas": 3}})

    client = Client(FakeTransport(answer))
    assert await client.scale(DEPLOYMENTS, "web", "default") == 3
    assert await client.scale(DEPLOYMENTS, "web", "default", 3) == 3
    assert seen == [(m, "/apis/apps/v1/namespaces/default/deployments/web/scale") for m in ("GET", "PATCH")]


async def test_metadata_kinds_ask_for_metadata_only() -> None:
    api = FakeApi()
    api.seed("secrets", "s", "default", data={"password": "c2VjcmV0"})
    kind = Kind.metadata(builtin("secrets"))
    client = api.client()
    assert await client.get(kind, "s", "default") == (await client.list(kind)).items[0]
    assert isinstance((await client.list(kind)).items[0], PartialObjectMetadata)


async def test_busy_servers_are_asked_again() -> None:
    clock = VirtualClock()
    busy = json_reply(errors.TooManyRequests("slow down", retry_after=3).status(), 429, {"retry-after": "3"})
    transport = FakeTransport(script(busy, busy, json_reply(config_map("a"))))
    task = asyncio.create_task(Client(transport, clock=clock).get(CM, "a", "default"))
    await clock.advance(2.9)
    assert len(transport.calls) == 1
    await clock.advance(3.2)
    assert (await task)["metadata"]["name"] == "a"


async def test_a_refused_eviction_is_an_answer_not_a_busy_server() -> None:
    status = errors.TooManyRequests("budget", causes=[errors.StatusCause("DisruptionBudget", "x")]).status()
    transport = FakeTransport(lambda call: json_reply(status, 429))
    with pytest.raises(errors.TooManyRequests):
        await Client(transport).get(CM, "a", "default")
    assert len(transport.calls) == 1


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (TransportResponse(404, {}, b"404 page not found\n"), errors.NotFound),
        (TransportResponse(502, {}, b"<html>bad gateway"), errors.InternalError),
        (TransportResponse(403, {}, b'{"kind":"Status"'), errors.Forbidden),
        (TransportResponse(401, {}, b""), errors.Unauthorized),
        (TransportResponse(200, {}, b"<html>a proxy's login page"), UnreadableResponse),
        (TransportResponse(200, {}, b"[]"), UnreadableResponse),
    ],
    ids=["text", "html", "cut-json", "empty", "not-json", "not-an-object"],
)
async def test_strange_answers_become_errors(reply: TransportResponse, error: type[Exception]) -> None:
    with pytest.raises(error):
        await Client(FakeTransport(lambda call: reply)).get(CM, "a", "default")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb"])
async def test_names_cannot_leave_their_place_in_the_path(name: str) -> None:
    with pytest.raises(ValueError):
        await Client(FakeTransport(lambda call: json_reply({}))).delete(CM, name, "default")


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ((builtin("pods"), "ns", "p", "log"), "/api/v1/namespaces/ns/pods/p/log"),
        ((builtin("pods"),), "/api/v1/pods"),
        ((builtin("nodes"), "", "n", "status"), "/api/v1/nodes/n/status"),
        (
            (builtin("clusterroles", "rbac.authorization.k8s.io"), "", "system:node"),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
        ),
    ],
    ids=["sub", "all-namespaces", "cluster", "colon"],
)
def test_paths(args, wanted: str) -> None:
    assert path(*args) == wanted


@pytest.mark.parametrize(
    "args", [(builtin("pods"), "", "p"), (builtin("nodes"), "ns", "n"), (builtin("pods"), "ns", "", "log")]
)
def test_paths_that_make_no_sense(args) -> None:
    with pytest.raises(ValueError):
        path(*args)


def test_queries_leave_out_what_is_not_given() -> None:
    assert query(a="", b=None, c=False, d=True, e=3, f="x=y,z") == "d=true&e=3&f=x%3Dy%2Cz"


def test_delete_options() -> None:
    assert delete_options() == b""
    body = orjson.loads(delete_options(propagation="Orphan", grace=0, uid="u", resource_version="7"))
    assert body["propagationPolicy"] == "Orphan" and body["gracePeriodSeconds"] == 0
    assert body["preconditions"] == {"uid": "u", "resourceVersion": "7"}


async def test_retry_on_conflict_gives_up_and_lets_other_refusals_through() -> None:
    tries: list[int] = []

    async def always(error: errors.ApiError) -> None:
        tries.append(1)
        raise error

    with pytest.raises(errors.Conflict):
        await retry_on_conflict(lambda: always(errors.Conflict("changed")), attempts=3)
    assert len(tries) == 3
    with pytest.raises(errors.AlreadyExists):
        await retry_on_conflict(lambda: always(errors.AlreadyExists("there")))
    assert len(tries) == 4


@pytest.mark.parametrize("aggregated", [True, False], ids=["aggregated", "plain"])
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("po", "pods"),
        ("Pod", "pods"),
        ("deploy", "deployments.apps"),
        ("deployments.apps", "deployments.apps"),
        ("deployments.v1.apps", "deployments.apps"),
        ("events", "events"),
        ("events.events.k8s.io", "events.events.k8s.io"),
        ("ev", "events"),
    ],
)
async def test_discovery_finds_what_people_type(aggregated: bool, name: str, found: str) -> None:
    catalogue = await discover(FakeApi(aggregated=aggregated).client())
    assert catalogue.find(name).group_resource == found


async def test_discovery_says_what_it_does_not_have() -> None:
    api = FakeApi(aggregated=False)
    api.fail["GET /apis/batch/v1"] = errors.ServiceUnavailable("down")
    catalogue = await discover(api.client())
    assert catalogue.failed == ("batch/v1",)
    with pytest.raises(UnknownResource, match='doesn\'t have a resource type "jobs"'):
        catalogue.find("jobs")
    with pytest.raises(UnknownResource):
        catalogue.of_kind("batch/v1", "Job")
    assert catalogue.of_kind("v1", "Pod").subresource("exec")
    assert "pods" in {r.plural for r in catalogue.in_category("all")}


def test_preferred_takes_each_resource_once_where_the_verbs_are() -> None:
    first, second = (
        builtin("horizontalpodautoscalers", "autoscaling", "v2"),
        builtin("horizontalpodautoscalers", "autoscaling"),
    )
    catalogue = RestMapper((first, second, builtin("bindings")))
    assert catalogue.preferred("list") == [first]


async def test_wait_for_sees_the_change() -> None:
    api = FakeApi()
    client = api.client()
    waiting = asyncio.create_task(
        wait_for(client, CM, "a", "default", lambda cm: cm is not None and cm["data"] == {"x": "2"}, 2)
    )
    await asyncio.sleep(0)
    api.seed("configmaps", "a", "default", data={"x": "1"})
    await client.patch(CM, "a", "default", {"data": {"x": "2"}})
    assert (await waiting)["data"] == {"x": "2"}
    assert await exists(client, CM, "a", "default")
    gone = asyncio.create_task(wait_until_gone(client, CM, "a", "default", 2))
    await asyncio.sleep(0)
    await client.delete(CM, "a", "default")
    await gone
    with pytest.raises(TimeoutError):
        await wait_for(client, CM, "a", "default", lambda cm: cm is not None, 0.01)


async def test_wrappers_change_requests() -> None:
    transport = FakeTransport(lambda call: json_reply(config_map("a")))
    counting = Counting(transport)
    client = Client(DryRun(Impersonating(counting, "bob", "dev")))
    await client.create(CM, config_map("a"))
    await client.get(CM, "a", "default")
    post, get = transport.calls
    assert query_of(post.query)["dryRun"] == "All" and "dryRun" not in get.query
    assert post.headers["Impersonate-User"] == "bob" and post.headers["Impersonate-Group"] == "dev"
    assert counting.requests == {"POST": 1, "GET": 1} and counting.answers == {200: 2}
    with pytest.raises(PermissionError):
        await Client(ReadOnly(transport)).delete(CM, "a", "default")


async def test_namespaced_client_stays_in_its_namespace() -> None:
    api = FakeApi()
    mine = Namespaced(api.client(), "alice")
    await mine.create(CM, {"metadata": {"name": "a"}})
    assert api.find("configmaps", "a", "alice")
    for call in (
        mine.get(CM, "a", "bob"),
        mine.create(CM, config_map("b")),
        mine.list(NAMESPACES),
        mine.apply(CM, config_map("b")),
    ):
        with pytest.raises(PermissionError):
            await call
    await mine.patch(CM, "a", "", {"data": {"x": "1"}})
    assert (await mine.list(CM)).items[0]["data"] == {"x": "1"}
    await mine.delete(CM, "a")
    assert api.names("configmaps", "alice") == []


@pytest.mark.parametrize(
    ("chunks", "lines", "rest"),
    [
        ([b"a\nb\n"], [[b"a", b"b"]], b""),
        ([b"a", b"b", b"\n"], [[], [], [b"ab"]], b""),
        ([b"a\nb", b"c\n\nd"], [[b"a"], [b"bc"]], b"d"),
        ([b"\n\n", b""], [[], []], b""),
    ],
    ids=["whole", "pieces", "across", "empty"],
)
def test_line_splitter(chunks: list[bytes], lines: list[list[bytes]], rest: bytes) -> None:
    splitter = LineSplitter()
    assert [splitter.feed(chunk) for chunk in chunks] == lines
    assert splitter.rest() == rest


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}', Bookmark("9")),
        (
            b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}',
            Bookmark("9", True),
        ),
        (
            b'{"object":{"metadata":{"name":"a","namespace":"n"},"data":[]},"type":"DELETED"}',
            UndecodableObject(("n", "a"), True, "Expected `object | null`, got `array` - at `$.data`"),
        ),
    ],
    ids=["bookmark", "initial-end", "broken"],
)
def test_events_that_are_no_change(line: bytes, wanted: object) -> None:
    assert decode_event(CONFIG_MAPS, line) == wanted


def test_error_events_and_torn_lines_are_raised() -> None:
    with pytest.raises(errors.Expired):
        decode_event(CM, orjson.dumps({"type": "ERROR", "object": errors.Expired("too old").status()}))
    with pytest.raises(Disconnected):
        decode_event(CM, b'{"type":"ADDED","obj')


async def test_in_process_stream_tells_the_server_how_slow_the_reader_is() -> None:
    class Feeding:
        sink = None
        ended = 0

        def opened(self, sink) -> None:
            self.sink = sink

        def closed(self) -> None:
            self.ended += 1

    stream = Feeding()
    transport = InProcessTransport(lambda request: Response(stream=stream), UserInfo("u"))
    client = Client(transport)
    watch = await client.watch(CM)
    line = orjson.dumps({"type": "ADDED", "object": config_map("a", x="y" * 1000)}) + b"\n"
    for _ in range(100):
        stream.sink.write(line)
    assert stream.sink.pending == 100 * len(line)
    draining = asyncio.create_task(stream.sink.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    assert len(await watch.batch()) == 100 and stream.sink.pending == 0
    await draining
    stream.sink.close()
    assert await watch.batch() == [] and stream.ended == 1
    await watch.close()
    assert stream.ended == 1
    await transport.close()
    with pytest.raises(Disconnected):
        await client.get(CM, "a", "default")


async def test_in_process_requests_carry_the_user_and_have_a_time_limit() -> None:
    async def slow(request: Request) -> Response:
        assert request.user == UserInfo("alice", ("dev",)) and request.headers["accept"] == "application/json"
        await asyncio.sleep(5)
        return Response()

    client = Client(InProcessTransport(slow, UserInfo("alice", ("dev",)), timeout=0.01))
    with pytest.raises(ResponseTimeout):
        await client.get(CM, "a", "default")


async def test_http_errors_are_told_apart() -> None:
    client = Client(HttpTransport(ClusterConnection("http://127.0.0.1:1")))
    with pytest.raises(NotSent):
        await client.get(CM, "a", "default")
    await client.close()
    with pytest.raises(NotSent):
        await client.get(CM, "a", "default")


async def test_http_sends_tokens_and_reads_the_file_again_after_a_401(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    seen: list[str] = []

    def handle(request: Request) -> Response:
        seen.append(request.headers.get("authorization", ""))
        if seen[-1] != "Bearer second":
            return Response(401, orjson.dumps(errors.Unauthorized("who are you").status()))
        return Response(200, orjson.dumps(config_map("a")))

    async with serve(handle) as url:
        client = Client(HttpTransport(ClusterConnection(url, token_file=str(token_file))))
        with pytest.raises(errors.Unauthorized):
            await client.get(CM, "a", "default")
        token_file.write_text("second\n")
        assert (await client.get(CM, "a", "default"))["metadata"]["name"] == "a"
        await client.close()
    assert seen[-1] == "Bearer second"


async def test_mutual_tls_with_what_a_kubeconfig_holds(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = pki.self_signed_ca("test-ca", pki.new_key(), now=now)
    server_key, client_key = pki.new_key(), pki.new_key()
    server_cert = pki.issue_server(authority, "server", server_key.public_key(), names=["127.0.0.1"], now=now)
    client_cert = pki.issue_client(authority, "alice", client_key.public_key(), groups=["dev"], now=now)
    ca = pki.certificate_pem(authority.certificate)
    pair = tmp_path / "server.pem"
    pair.write_bytes(pki.certificate_pem(server_cert) + pki.key_pem(server_key))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=ca.decode())
    context.load_cert_chain(pair)
    context.verify_mode = ssl.CERT_REQUIRED
    api = FakeApi()
    api.seed("configmaps", "a", "default")
    async with serve(api.handle, context) as url:
        known = kubeconfig.make(
            "t", url, ca=ca, certificate=pki.certificate_pem(client_cert), key=pki.key_pem(client_key)
        )
        client = Client(HttpTransport(known.resolve()))
        assert (await client.get(CM, "a", "default"))["metadata"]["name"] == "a"
        await client.close()
        for stranger in (kubeconfig.make("t", url, ca=ca), kubeconfig.make("t", url)):
            client = Client(HttpTransport(stranger.resolve()))
            with pytest.raises(TransportError):
                await client.get(CM, "a", "default")
            await client.close()
