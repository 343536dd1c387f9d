"""Tunnels in Kuscia's frames with real Envoys: a partner that fetches calls, one from which we fetch, and both of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from gateway_kit import HOSTS, Domain, echo, make_inputs, route, running, token
from kuscia_peer import frame, messages, reply

from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Request
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.model import DomainService, PollingSockets, RoutePort, SnapshotInputs
from coterie.kuscia.gateway.polling import poller as polling
from coterie.kuscia.gateway.polling import receiver as polled_calls
from coterie.kuscia.gateway.polling.poller import CallPoller, wanted_polls
from coterie.kuscia.gateway.polling.receiver import PollReceiver

pytestmark = pytest.mark.asyncio(loop_scope="module")
FRAMES: dict[str, Any] = {"tunnel": True, "kuscia_wire": frozenset((KusciaWireForm.REVERSE_TUNNEL,))}
SECONDS = 60.0


def sockets(name: str, root: Path) -> PollingSockets:
    run = root / name / "run"
    places = (SocketAddress(str(run / f"{each}.sock"), 0) for each in ("poll", "own", "in"))
    return PollingSockets(*places, SecretValue(f"only-{name}-knows"))


def polled_route(source: str, destination: str, there: SnapshotInputs, me: str) -> Any:
    return replace(route(source, destination, there, me), host="", ports=(), **FRAMES)


async def until(what: str, look: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not await look():
            await asyncio.sleep(0.02)


# ---- Kuscia's sides ----


@dataclass
class KusciaPoller:
    """bob without a public port: fetches calls of one service at alice's, and answers what it is told to."""

    http: aiohttp.ClientSession
    where: str
    service: str = "echo"
    headers: dict[str, str] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.headers = {
            "kuscia-source": "bob", "kuscia-token": token("bob", "alice").reveal(), "kuscia-host": "receiver.alice.svc",
            "kuscia-transit-hash": f"{self.service}.bob.svc",
        } | self.headers  # fmt: skip

    async def run(self) -> None:
        async with self.http.get(
            f"{self.where}/poll?service={self.service}&timeout=300s", headers=self.headers
        ) as stream:
            assert stream.status == 200
            while True:
                size = int.from_bytes(await stream.content.readexactly(4), "big")
                self.calls.append(messages()[0].FromString(await stream.content.readexactly(size)))
                await self.answer(self.calls[-1])

    async def answer(self, call: Any) -> None:
        if call.path == "/silent":
            return
        said = {"x-said": call.path, "content-type": "text/kuscia", "connection": "close"}
        if call.path != "/stream":
            await self.send(call, status_code=201, headers=said, body=call.body[::-1], end_stream=True)
            return
        parts = [
            {"status_code": 200, "headers": said},
            {"body": b"one "},
            {"body": b"two "},
            {"body": b"three", "end_stream": True},
        ]
        for index in (0, 2, 1, 3):  # they overtake each other
            await self.send(call, chunk_data=True, index=index, **parts[index])

    async def send(self, call: Any, **parts: Any) -> int:
        async with self.http.post(
            f"{self.where}/reply?msgid={call.id}", data=reply(**parts), headers=self.headers
        ) as done:
            return done.status


@dataclass
class KusciaReceiver:
    """alice with a public port, from which bob fetches."""

    port: RoutePort = field(init=False)
    streams: dict[str, asyncio.Queue[bytes]] = field(default_factory=dict)
    replies: dict[str, list[Any]] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[KusciaReceiver]:
        app = web.Application(client_max_size=32 << 20)
        app.router.add_get("/poll", self._poll)
        app.router.add_post("/reply", self._reply)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, HOSTS["alice"], 0).start()
        self.port = RoutePort("http", runner.addresses[0][1])
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _poll(self, request: web.Request) -> web.StreamResponse:
        self.hosts.add(request.headers["kuscia-host"])
        assert request.headers["kuscia-token"] == token("bob", "alice").reveal()
        assert request.query["timeout"] == "300s"
        queue = self.streams[request.query["service"]] = asyncio.Queue()  # the newest poll counts
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(await queue.get())

    async def _reply(self, request: web.Request) -> web.Response:
        assert request.headers["content-type"] == "application/x-protobuf"
        self.replies.setdefault(request.query["msgid"], []).append(messages()[1].FromString(await request.read()))
        return web.Response()

    async def call(self, service: str, name: str, **parts: Any) -> list[Any]:
        await until(f"{service} is polled", lambda: _now(service in self.streams))
        given = {"host": f"{service}.bob.svc", "path": "/x", "method": "GET"} | parts
        self.streams[service].put_nowait(frame(id=name, **given))
        await until("it is answered", lambda: _now(any(each.end_stream for each in self.replies.get(name, ()))))
        return sorted(self.replies[name], key=lambda each: each.index)


async def _now(answer: bool) -> bool:
    return answer


# ---- a partner fetches our calls ----


@dataclass
class Receiving:
    alice: Domain
    http: aiohttp.ClientSession
    kuscia: KusciaPoller
    owner: TaskOwner
    receiver: PollReceiver

    async def call(self, path: str, data: bytes = b"", service: str = "echo") -> tuple[int, bytes, dict[str, str]]:
        headers = {"Host": f"{service}.bob.svc"}
        async with self.http.post(f"{self.alice.inside}{path}", data=data, headers=headers) as done:
            return done.status, await done.read(), {key.lower(): value for key, value in done.headers.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Receiving]:
    root = tmp_path_factory.mktemp("kr")
    async with contextlib.AsyncExitStack() as stack:
        alice = make_inputs("alice", root, Protocol.NOTLS)
        alice = replace(
            alice,
            polling=sockets("alice", root),
            routes=(
                polled_route("alice", "bob", alice, "alice"),
                route("bob", "alice", alice, "alice"),
                route("carol", "alice", alice, "alice"),
            ),
        )
        (domain,) = await stack.enter_async_context(running(alice, root=root))
        assert alice.polling is not None
        receiver = PollReceiver("alice", Path(alice.polling.partners.host), Path(alice.polling.calls.host))
        owner = TaskOwner("test")
        owner.start("receiver", receiver.run())
        stack.push_async_callback(owner.close)
        await receiver.ready.wait()
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)))
        kuscia = KusciaPoller(http, f"http://{alice.external}")
        owner.start("poll", kuscia.run(), vital=False)
        yield Receiving(domain, http, kuscia, owner, receiver)


async def test_a_call_becomes_a_frame_and_its_reply_the_answer(receiving: Receiving) -> None:
    status, body, headers = await receiving.call("/a%2Fb?c=%20d", b"stressed")
    assert (status, body, headers["x-said"], headers["content-type"]) == (
        201,
        b"desserts",
        "/a%2Fb?c=%20d",
        "text/kuscia",
    )
    call = receiving.kuscia.calls[-1]
    assert (call.host, call.method, call.body) == ("echo.bob.svc", "POST", b"stressed")
    assert (call.headers["kuscia-source"], call.headers["kuscia-origin-source"]) == ("alice", "alice")
    assert not {"kuscia-token", "x-coterie-path"} & set(call.headers)
    assert token("alice", "bob").reveal() not in str(call)


async def test_an_answer_in_parts_is_put_in_order(receiving: Receiving) -> None:
    status, body, _ = await receiving.call("/stream")
    assert (status, body) == (200, b"one two three")


async def test_many_calls_at_once_get_their_own_answers(receiving: Receiving) -> None:
    answers = await asyncio.gather(*(receiving.call(f"/{n}", b"%03d" % n) for n in range(40)))
    assert [(status, body) for status, body, _ in answers] == [(201, (b"%03d" % n)[::-1]) for n in range(40)]
    assert [headers["x-said"] for _, _, headers in answers] == [f"/{n}" for n in range(40)]


async def test_a_call_waits_for_a_poll(receiving: Receiving) -> None:
    waiting = asyncio.create_task(receiving.call("/early", b"ab", service="late"))
    await asyncio.sleep(0)
    later = KusciaPoller(receiving.http, receiving.kuscia.where, "late")
    receiving.owner.start("late", later.run(), vital=False)
    assert (await waiting)[:2] == (201, b"ba")


async def test_only_the_partner_that_was_asked_replies(receiving: Receiving) -> None:
    waiting = asyncio.create_task(receiving.call("/silent", b"x"))
    kuscia = receiving.kuscia
    await until("it was fetched", lambda: _now(bool(kuscia.calls) and kuscia.calls[-1].path == "/silent"))
    call = kuscia.calls[-1]
    carol = {
        "kuscia-source": "carol",
        "kuscia-token": token("carol", "alice").reveal(),
        "kuscia-host": "receiver.alice.svc",
    }
    async with receiving.http.post(
        f"{kuscia.where}/reply?msgid={call.id}", data=reply(status_code=200, end_stream=True), headers=carol
    ) as refused:
        assert refused.status == 501, "carol has no such tunnel"
    async with receiving.http.get(f"{kuscia.where}/poll?service=echo", headers=carol) as refused:
        assert refused.status == 501
    stranger = {"kuscia-source": "bob", "kuscia-token": "guessed", "kuscia-host": "receiver.alice.svc"}
    async with receiving.http.get(f"{kuscia.where}/poll?service=echo", headers=stranger) as refused:
        assert refused.status == 401
    assert not waiting.done()
    for garbage in (b"\x08", b"\xff" * 9, reply(status_code=200)[:1]):
        async with receiving.http.post(
            f"{kuscia.where}/reply?msgid={call.id}", data=garbage, headers=kuscia.headers
        ) as done:
            assert done.status == 400
    assert await kuscia.send(call, status_code=204, end_stream=True) == 200
    assert (await waiting)[0] == 204


async def test_an_answer_that_nobody_reads_is_cut_off(receiving: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that come before their turn, or after it, are held in bounded size."""
    monkeypatch.setattr(polled_calls, "MOST_UNREAD_BYTES", 1 << 20)
    kuscia, received = receiving.kuscia, receiving.receiver
    for late in (False, True):
        waiting = asyncio.create_task(receiving.call("/silent", b"x"))
        before = len(kuscia.calls)
        await until("it was fetched", lambda before=before: _now(len(kuscia.calls) > before))
        call = kuscia.calls[-1]
        if late:
            await kuscia.send(call, status_code=200, chunk_data=True)
        for index in range(5, 15):
            await kuscia.send(call, body=bytes(300_000), chunk_data=True, index=index)
        if late:
            with pytest.raises(aiohttp.ClientError):
                await waiting
        else:
            assert (await waiting)[0] == 502
        assert not received._of_partner and received._held == 0
    assert (await receiving.call("/again", b"ab"))[:2] == (201, b"ba")


async def test_one_partner_that_fetches_nothing_leaves_room_for_others() -> None:
    receiver = PollReceiver("alice", Path("a"), Path("b"))

    def call(domain: str, size: int = 0) -> asyncio.Task[Any]:
        headers = {"host": f"psi.{domain}.svc"}
        return asyncio.ensure_future(receiver.from_us(Request("POST", "/", "", headers, bytes(size))))

    many = [call("bob") for _ in range(polled_calls.MOST_CALLS // 2)]
    await asyncio.sleep(0)
    assert (await call("bob")).status == 503
    other = call("carol", 10 << 20)
    await asyncio.sleep(0)
    assert len(receiver._calls) == len(many) + 1
    large = [call("dave", 15 << 20) for _ in range(4)]
    await asyncio.sleep(0)
    assert (await call("dave", 15 << 20)).status == 503
    for each in (*many, other, *large):
        each.cancel()
    await asyncio.gather(*many, other, *large, return_exceptions=True)
    assert not receiver._calls and not receiver._waiting and not receiver._of_partner and receiver._held == 0


# ---- we fetch a partner's calls ----


@dataclass
class Fetching:
    bob: Domain
    kuscia: KusciaReceiver
    http: aiohttp.ClientSession


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fetching(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fetching]:
    root = tmp_path_factory.mktemp("kp")
    async with contextlib.AsyncExitStack() as stack:
        kuscia = await stack.enter_async_context(KusciaReceiver().open())
        service = await stack.enter_async_context(echo(HOSTS["bob"]))
        bob = make_inputs("bob", root, Protocol.MTLS)
        back = replace(route("bob", "alice", bob, "bob"), host=HOSTS["alice"], ports=(kuscia.port,))
        bob = replace(
            bob,
            handshake=service,
            polling=sockets("bob", root),
            routes=(polled_route("alice", "bob", bob, "bob"), back, route("carol", "bob", bob, "bob")),
            services=(
                DomainService("echo", (service,), access=frozenset({"alice"})),
                DomainService("apiserver", (service,), access=frozenset({"alice"})),
                DomainService("closed", (service,), access=frozenset({"zed"})),
            ),
        )
        (domain,) = await stack.enter_async_context(running(bob, root=root))
        assert bob.polling is not None
        poller = CallPoller(
            "bob", Path(bob.node_socket.host), Path(bob.polling.entrance.host), bob.polling.secret, lambda: bob
        )
        owner = TaskOwner("test")
        owner.start("poller", poller.run())
        stack.push_async_callback(owner.close)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)))
        assert wanted_polls(bob) == {("alice", each) for each in ("kuscia-handshake", "echo", "apiserver")}
        yield Fetching(domain, kuscia, http)


async def test_a_fetched_call_is_one_of_the_partner(fetching: Fetching) -> None:
    forged = {"kuscia-source": "zed", "kuscia-origin-source": "zed", "kuscia-token": "x", "x-mine": "1", ":path": "/y"}
    (answer,) = await fetching.kuscia.call("echo", "c1", method="POST", path="/a%2Fb?c", headers=forged, body=b"12345")
    assert (answer.status_code, answer.end_stream, answer.chunk_data) == (200, True, False)
    text = answer.body.decode()  # what the service got
    assert '"/a%2Fb?c"' in text and '"size": 5' in text and '"x-mine"' in text
    assert '"alice"' in text and "zed" not in text and "only-bob-knows" not in text
    assert fetching.kuscia.hosts == {"receiver.alice.svc"}


async def test_the_handshake_is_reached_and_what_is_not_opened_is_not(fetching: Fetching) -> None:
    (answer,) = await fetching.kuscia.call("kuscia-handshake", "h1", path="/handshake")
    assert answer.status_code == 200
    assert "closed" not in fetching.kuscia.streams
    for number, host in enumerate(("closed.bob.svc", "echo.carol.svc", "echo", "")):
        (answer,) = await fetching.kuscia.call("echo", f"w{number}", host=host)
        assert answer.status_code == 404
    (answer,) = await fetching.kuscia.call("echo", "m1", method="CONNECT")
    assert answer.status_code == 404


async def test_answers_of_the_api_come_in_parts(fetching: Fetching) -> None:
    head, *parts = await fetching.kuscia.call("apiserver", "a1", path="/api")
    assert (head.status_code, head.chunk_data, head.index, head.body) == (200, True, 0, b"")
    assert [each.index for each in parts] == list(range(1, len(parts) + 1))
    assert all(each.chunk_data for each in parts) and parts[-1].end_stream
    assert b'"/api"' in b"".join(each.body for each in parts)


async def test_the_secret_opens_nothing_from_outside(fetching: Fetching) -> None:
    """It is for calls of this process, through a socket that only it can open; a partner does not learn it."""
    headers = {"kuscia-source": "alice", "kuscia-token": "guessed", "kuscia-host": "echo.bob.svc"}
    inputs = fetching.bob.inputs
    assert inputs.polling is not None
    connector = aiohttp.UnixConnector(inputs.polling.entrance.host)
    async with aiohttp.ClientSession(connector=connector) as inside:
        for name, secret in (("alice", "guessed"), ("carol", "only-bob-knows"), ("zed", "only-bob-knows")):
            sent = headers | {"kuscia-source": name, "kuscia-token": secret}
            async with inside.get("http://gateway/", headers=sent) as refused:
                assert refused.status == 401


@pytest.mark.parametrize("host", ["receiver.alice.svc", "Receiver.ALICE.svc:80"])
async def test_pods_do_not_fetch_in_our_place(fetching: Fetching, host: str) -> None:
    async with fetching.http.get(f"{fetching.bob.inside}/poll?service=echo", headers={"Host": host}) as refused:
        assert refused.status == 403


async def test_a_broken_stream_is_polled_again(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "AGAIN_SECONDS", 0.05)
    await until("it is polled", lambda: _now("echo" in fetching.kuscia.streams))
    before = fetching.kuscia.streams["echo"]
    before.put_nowait(b"\xff\xff\xff\xffgarbage")
    await until("it is polled again", lambda: _now(fetching.kuscia.streams["echo"] is not before))
    (answer,) = await fetching.kuscia.call("echo", "again", body=b"x")
    assert answer.status_code == 200


# ---- both ends ours ----


async def test_two_of_ours_understand_each_other(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(echo(HOSTS["bob"]))
        alice, bob = (make_inputs(name, tmp_path, Protocol.NOTLS) for name in ("alice", "bob"))
        back = route("bob", "alice", alice, "bob")
        alice = replace(
            alice,
            polling=sockets("alice", tmp_path),
            routes=(polled_route("alice", "bob", bob, "alice"), route("bob", "alice", alice, "alice")),
        )
        bob = replace(
            bob,
            external=None,
            polling=sockets("bob", tmp_path),
            routes=(polled_route("alice", "bob", alice, "bob"), back),
            services=(DomainService("echo", (service,), access=frozenset({"alice"})),),
        )
        first, _ = await stack.enter_async_context(running(alice, bob, root=tmp_path))
        assert alice.polling is not None and bob.polling is not None
        owner = TaskOwner("test")
        stack.push_async_callback(owner.close)
        receiver = PollReceiver("alice", Path(alice.polling.partners.host), Path(alice.polling.calls.host))
        owner.start("receiver", receiver.run())
        await receiver.ready.wait()
        entrance = Path(bob.polling.entrance.host)
        poller = CallPoller("bob", Path(bob.node_socket.host), entrance, bob.polling.secret, lambda: bob)
        owner.start("poller", poller.run())
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)))
        body = bytes(3 << 20)
        async with http.post(f"{first.inside}/x", data=BytesIO(body), headers={"Host": "echo.bob.svc"}) as reply_:
            assert reply_.status == 200
            assert (await reply_.json())["size"] == len(body)
