"""A server on a bad day: a full disk, a clock that jumps, clients that vanish, and an end while everybody is listening."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.base.paths import DomainPaths
from coterie.base.pki import new_key
from coterie.http.messages import Request, Response, UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.apiserver.auth.authn import user_from_certificate
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.transport import TransportRequest
from coterie.kube.control.leader import LeaderElection
from coterie.kube.store import MemoryStore
from coterie.node import api_identity

pytestmark = pytest.mark.xdist_group("faults")

ADMIN = UserInfo("root", ("system:masters", "system:authenticated"))
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
JSON = {"content-type": "application/json"}


def configmap(name: str, size: int = 10) -> bytes:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"filler": "x" * size}}
    return json.dumps(obj).encode()


# -- a full disk ------------------------------------------------------------------------------------------------


@contextmanager
def _file_size_limit(server: FaultServer) -> Iterator[None]:
    """The kernel lets no file of the process grow: what a quota does, and needs no rights to arrange."""
    assert server.process is not None
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    wal = Path(f"{server.database}-wal").stat().st_size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (wal, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def _ballast(server: FaultServer) -> Iterator[None]:
    """A small file system, filled to its last byte."""
    ballast = server.root / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def _small_file_system(where: Path) -> Iterator[None]:
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(where)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine does not let the test mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@contextmanager
def _ordinary_folder(where: Path) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("place", "fill"),
    [
        pytest.param(_ordinary_folder, _file_size_limit, id="file-size-limit"),
        pytest.param(_small_file_system, _ballast, id="full-file-system"),
    ],
)
@pytest.mark.timeout(120)
async def test_a_full_disk_stops_writes_only_and_only_while_it_is_full(
    tmp_path: Path, place: Callable[[Path], Any], fill: Callable[[FaultServer], Any]
) -> None:
    with place(tmp_path / "disk"):
        server = FaultServer(tmp_path / "disk", files=tmp_path / "beside")
        await server.start()
        client = server.client()
        try:
            written = [await _write(client, f"before-{n}") for n in range(3)]
            with fill(server):
                refused = await _until_refused(client)
                assert refused["reason"] == "ServiceUnavailable"
                assert "did not reach the disk" in refused["message"]
                listed = await _names(client)
                assert set(written) <= listed
                ready = await client.transport.send(TransportRequest("GET", "/readyz"))
                assert ready.status == 200
            # No restart: as soon as there is room, the next write goes through.
            assert await _write(client, "after") == "after"
            assert await _names(client) == listed | {"after"}
        finally:
            await client.close()
            server.kill()
        # What was refused did not come back, what was acknowledged did.
        await server.start()
        again = server.client()
        try:
            assert await _names(again) == listed | {"after"}
        finally:
            await again.close()
            server.kill()


async def _write(client: Client, name: str, size: int = 10) -> str:
    reply = await client.transport.send(TransportRequest("POST", CONFIGMAPS, "", JSON, configmap(name, size)))
    assert reply.status == 201, reply.body
    return str(json.loads(reply.body)["metadata"]["name"])


async def _until_refused(client: Client) -> Any:
    for number in range(400):
        call = TransportRequest("POST", CONFIGMAPS, "", JSON, configmap(f"filling-{number}", 20_000))
        reply = await client.transport.send(call)
        if reply.status != 201:
            assert reply.status == 503, reply.body
            assert reply.headers["retry-after"]
            return json.loads(reply.body)
    raise AssertionError("the disk was never full")


async def _names(client: Client) -> set[str]:
    reply = await client.transport.send(TransportRequest("GET", CONFIGMAPS))
    assert reply.status == 200
    return {item["metadata"]["name"] for item in json.loads(reply.body)["items"]} - {"kube-root-ca.crt"}


# -- a clock that jumps -----------------------------------------------------------------------------------------


class JumpingClock(VirtualClock):
    """Its time of day can be set; the monotonic clock goes on as it must."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


@asynccontextmanager
async def _served(clock: JumpingClock, **settings: Any) -> AsyncIterator[ApiServer]:
    store = MemoryStore(clock=clock)
    await store.open()
    server = ApiServer(store, Settings(**settings), clock)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        await store.close()


async def _ok(answer: Awaitable[Response]) -> Any:
    response = await answer
    assert response.status < 300, response.body
    return json.loads(response.body)


async def _token(server: ApiServer) -> str:
    path = "/api/v1/namespaces/default/serviceaccounts/worker/token"
    answer = await _ok(server.call(Request("POST", path, "", JSON, b"{}", user=ADMIN)))
    return str(answer["status"]["token"])


def _asks(server: ApiServer, token: str) -> Awaitable[Response]:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    return server.call(Request("POST", path, "", {**JSON, "authorization": f"Bearer {token}"}, b"{}"))


async def test_tokens_survive_a_clock_that_is_set_back() -> None:
    clock = JumpingClock()
    async with _served(clock, signer=TokenSigner(new_key("ec"))) as server:
        account = b'{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"worker"}}'
        await _ok(server.call(Request("POST", "/api/v1/namespaces/default/serviceaccounts", "", JSON, account, user=ADMIN)))  # fmt: skip
        known, fresh = await _token(server), await _token(server)
        await _ok(_asks(server, known))
        clock.shift -= timedelta(seconds=45)
        # One is remembered from before, the other is looked at for the first time: "not valid before" lies ahead.
        for token in (known, fresh):
            who = await _ok(_asks(server, token))
            assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:worker"
        clock.shift -= timedelta(hours=5)
        await _ok(_asks(server, await _token(server)))
        # Going back must not make anything live for ever: once time has passed again, the first ones are over.
        clock.shift += timedelta(hours=9)
        await clock.advance(600)
        assert (await _asks(server, fresh)).status == 401


async def test_events_end_by_the_time_that_passed_not_by_the_time_of_day() -> None:
    clock = JumpingClock()
    async with _served(clock, event_ttl=100.0, compact_every=50.0) as server:
        about = {"kind": "ConfigMap", "namespace": "default", "name": "c"}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": about}
        path = "/api/v1/namespaces/default/events"
        await _ok(server.call(Request("POST", path, "", JSON, json.dumps(event).encode(), user=ADMIN)))

        async def count() -> int:
            return len((await _ok(server.call(Request("GET", path, user=ADMIN))))["items"])

        clock.shift -= timedelta(days=3)
        await clock.advance(90)
        assert await count() == 1
        clock.shift += timedelta(days=9)
        await clock.advance(5)
        assert await count() == 1
        await clock.advance(100)
        assert await count() == 0


async def test_a_leader_leads_on_when_the_clock_is_set_back() -> None:
    clock = JumpingClock()
    async with _served(clock) as server:
        client = Client(InProcessTransport(server.handle, ADMIN), clock=clock)
        first = LeaderElection(client, "lead", "default", "first", clock=clock)
        second = LeaderElection(client, "lead", "default", "second", clock=clock)
        await first.acquire()
        holding = asyncio.ensure_future(first.hold())
        waiting = asyncio.ensure_future(second.acquire())
        try:
            for jump in (timedelta(hours=-2), timedelta(seconds=-30), timedelta(days=2)):
                clock.shift += jump
                for _ in range(15):
                    await clock.advance(2.0)
                assert first.leading.is_set()
                assert not second.leading.is_set()
        finally:
            holding.cancel()
            waiting.cancel()
            await asyncio.gather(holding, waiting, return_exceptions=True)


# -- clients that vanish ----------------------------------------------------------------------------------------


@dataclass
class Running:
    api: ApiServer
    http: HttpServer
    port: int
    tls: ssl.SSLContext

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)

    async def long_running(self) -> str:
        page = await self.api.call(Request("GET", "/metrics", user=ADMIN))
        lines = page.body.decode().splitlines()
        return next(line for line in lines if line.startswith('apiserver_longrunning_requests{verb="watch"}'))

    def left_behind(self) -> tuple[int, int, int]:
        return self.http.connections, len(self.http.tasks), self.http.body_bytes


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    keys = api_identity.ensure(paths, ("127.0.0.1",), SYSTEM_CLOCK)
    store = MemoryStore()
    await store.open()
    api = ApiServer(store, Settings())
    await api.start()
    for number in range(40):
        body = configmap(f"big-{number}", 100_000)
        await _ok(api.call(Request("POST", CONFIGMAPS, "", JSON, body, user=ADMIN)))
    http = HttpServer(api.handle, user_of=user_from_certificate, problem_response=status_response)
    _, port = await http.listen("127.0.0.1", 0, keys.server_tls())
    tls = ssl.create_default_context(cafile=str(keys.ca_file))
    tls.load_cert_chain(*keys.pair("admin"))
    yield Running(api, http, port, tls)
    await http.stop()
    await api.stop()
    await store.close()


async def _cut_watch(server: Running) -> None:
    reader, writer = await server.connect()
    writer.write(f"GET {CONFIGMAPS}?watch=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readexactly(5000)
    assert (await server.long_running()).endswith(" 1")
    writer.transport.abort()


async def _cut_list(server: Running) -> None:
    reader, writer = await server.connect()
    writer.write(f"GET {CONFIGMAPS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readexactly(5000)
    writer.transport.abort()


async def _cut_body(server: Running) -> None:
    _, writer = await server.connect()
    head = f"POST {CONFIGMAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n"
    writer.write(head.encode() + b"{" * 30_000)
    await _until(lambda: server.http.body_bytes > 0)
    writer.transport.abort()


async def _cut_write(server: Running) -> None:
    """The request is complete; its client does not wait for the answer."""
    _, writer = await server.connect()
    body = configmap("unloved")
    head = f"PUT {CONFIGMAPS}/big-0 HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await asyncio.sleep(0)
    writer.transport.abort()


async def _cut_head(server: Running) -> None:
    _, writer = await server.connect()
    writer.write(b"GET /api/v1/names")
    await writer.drain()
    writer.transport.abort()


async def _cut_handshake(server: Running) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x16\x03\x01\x02\x00\x01")
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize(
    "cut", [_cut_watch, _cut_list, _cut_body, _cut_write, _cut_head, _cut_handshake], ids=lambda cut: cut.__name__[5:]
)
async def test_a_connection_that_is_cut_leaves_nothing_behind(
    running: Running, cut: Callable[[Running], Awaitable[None]]
) -> None:
    tasks = len(asyncio.all_tasks())
    for _ in range(5):
        await cut(running)
        await _until(lambda: running.left_behind() == (0, 0, 0))
    await _until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert (await running.long_running()).endswith(" 0")
    assert not any(collection.watchers for collection in running.api.state.collections())


async def _until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if true():
            return
        await asyncio.sleep(0.01)
    assert true()


# -- an end while everybody listens -----------------------------------------------------------------------------


@pytest.mark.parametrize("watchers", [1, 40])
async def test_sigterm_ends_open_streams_cleanly_and_soon(tmp_path: Path, watchers: int) -> None:
    server = FaultServer(tmp_path)
    await server.start()
    tls = server.tls()
    streams = [await asyncio.open_connection("127.0.0.1", server.port, ssl=tls) for _ in range(watchers)]
    try:
        for number, (reader, writer) in enumerate(streams):
            how = ("", "&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")[number % 2]
            writer.write(f"GET {CONFIGMAPS}?watch=true{how} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b" 200 " in await reader.readline()
        ended = asyncio.gather(*(reader.read() for reader, _ in streams))
        status, seconds = await asyncio.to_thread(server.terminate)
        rest = await asyncio.wait_for(ended, 5.0)
    finally:
        for _, writer in streams:
            writer.close()
        server.kill()
    assert status == 0, server.log()
    assert seconds < 2.0
    assert all(text.endswith(b"0\r\n\r\n") for text in rest), "a stream was cut instead of ended"
    assert "Traceback" not in server.log()
