"""What callers and the code of actions may send to stop the functions of a domain, and what comes of it."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from dispatcher_kit import FakeAnswer, actor, call, config, respond, running
from function_gateway_kit import gateway_world

from coterie.functions.bus.protocol import VALUE_LIMIT
from coterie.functions.dispatcher.actor_client import ActorFailed, CallHead, HttpActorCaller
from coterie.functions.dispatcher.dispatcher import TooManyWaiting
from coterie.functions.dispatcher.result_index import ResultIndex
from coterie.functions.dispatcher.served_action import DispatcherLimits
from coterie.functions.gateway.link_messages import MAX_MESSAGE, TriggerRoute
from coterie.functions.gateway.server import CONNECTIONS
from coterie.functions.messages import MAX_DEPTH, FunctionResponse, Invoke, body_of, is_deep, payload_of
from coterie.functions.model import ActorAddress
from coterie.node.config.document import _MAX_BODY_MB

HEAD = CallHead(
    id="i", request="r", action="a", path="", params={}, content_type="", headers={}, deadline=0, attempt=0, traceparent=""
)  # fmt: skip


@pytest.mark.parametrize(
    "pattern", [b"\x01", b'"', b"\n", b"\\", b"\x00\xff", b'{"a": "b"}\n', bytes(range(32)), "\u00e9".encode()]
)
def test_a_body_is_never_much_larger_on_the_bus(pattern: bytes) -> None:
    """What the bus refuses would be written again and again, and nothing else; what the link refuses would break it again and again."""
    body = pattern * (200_000 // len(pattern))
    text, encoded = payload_of(body)
    for message in (
        FunctionResponse(request_uid="r", payload=text, payload_base64=encoded),
        Invoke(request_uid="r", action="a", return_topic="t", payload=text, payload_base64=encoded),
    ):
        assert len(msgspec.json.encode(message)) < len(body) * 4 / 3 + 200
        assert body_of(message) == body


def test_the_largest_body_fits() -> None:
    assert (_MAX_BODY_MB << 20) * 4 / 3 + (1 << 20) < VALUE_LIMIT < MAX_MESSAGE


async def test_control_characters_do_not_break_the_link() -> None:
    body = b"\x01" * (6 << 20)

    async def echo(head: CallHead, body: bytes) -> FakeAnswer:
        return respond(body)

    routes = [TriggerRoute(path="/echo", action="echo")]
    async with gateway_world({"echo": echo}, [config("echo")], routes, max_body=8 << 20) as world:
        assert (await world.request("POST", "/echo", body)).body == body
        assert world.gateways[0][0].linked


def nested(depth: int) -> bytes:
    return b'{"invoke":{"action":"b","params":{"a":' + b"[" * depth + b"]" * depth + b"}}}"


@pytest.mark.parametrize(
    "line",
    [nested(100_000), nested(2_000), nested(MAX_DEPTH), b'{"invoke":{"action":"\xff"}}', b'{"response":{"status":1e400}}', b"\xff"],
    ids=range(6),
)  # fmt: skip
async def test_an_answer_that_cannot_be_read_is_a_failed_attempt(line: bytes) -> None:
    """Not the end of the process, which would run the call again, and end again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b\n" % (len(line) + 1, line))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    caller = HttpActorCaller()
    try:
        with pytest.raises(ActorFailed):
            await caller.invoke(ActorAddress("p", "a", "v1", "127.0.0.1", port, "t"), HEAD, b"", 5.0)
    finally:
        await caller.close()
        server.close()


def test_depth() -> None:
    value: dict[str, object] = {}
    for _ in range(MAX_DEPTH - 1):
        value = {"a": [value]} if len(value) > 1 else {"a": value}
    assert not is_deep(value)
    assert is_deep({"a": value})
    assert not is_deep({"a": 1, "b": [1, {"c": "x"}]})


async def test_calls_that_wait_are_bounded() -> None:
    go = asyncio.Event()

    async def wait(head: CallHead, body: bytes) -> FakeAnswer:
        await go.wait()
        return respond("ok")

    limits = DispatcherLimits(max_waiting=3, max_waiting_bytes=1000)
    async with running({"a": wait}, [config("a")], limits=limits) as world:
        for number in range(3):
            await world.dispatcher.submit(call("a", f"r{number}"))
        for _ in range(2):
            with pytest.raises(TooManyWaiting):
                await world.dispatcher.submit(call("a", "more"))
        assert (await world.dispatcher.submit(call("a", "r1"))).repeated, "what was accepted is not refused afterwards"
        go.set()
        await world.settle()
        await world.dispatcher.submit(call("a", "later"))
        with pytest.raises(TooManyWaiting):
            await world.dispatcher.submit(call("a", "large", payload="x" * 1001))
        await world.settle()
        assert len(world.answers()) == 4


async def test_dead_letters_are_bounded() -> None:
    async def fail(head: CallHead, body: bytes) -> FakeAnswer:
        raise ActorFailed("it ended")

    limits = DispatcherLimits(max_dead_letters=2, max_dead_letter_bytes=100)
    async with running({"a": fail}, [config("a", retries=0)], limits=limits) as world:
        await world.dispatcher.submit(call("a", "large", payload="x" * 101))
        await world.settle()
        assert [each.status_code for each in world.answers()] == [502]
        assert not await world.dispatcher.dead_letters("a")
        for number in range(4):
            await world.dispatcher.submit(call("a", f"r{number}", payload="x"))
            await world.settle()
        assert {each.request_uid for each in await world.dispatcher.dead_letters("a")} == {"r0", "r1"}
        assert len(world.answers()) == 5, "each was answered"
        assert await world.dispatcher.drop("a", "r0")
        assert not await world.dispatcher.drop("a", "r0")
        await world.dispatcher.submit(call("a", "again", payload="x"))
        await world.settle()
        assert {each.request_uid for each in await world.dispatcher.dead_letters("a")} == {"r1", "again"}


async def test_a_gateway_holds_no_bodies_while_clients_wait() -> None:
    go = asyncio.Event()

    async def wait(head: CallHead, body: bytes) -> FakeAnswer:
        await go.wait()
        return respond(str(len(body)))

    routes = [TriggerRoute(path="/wait", action="wait")]
    async with gateway_world({"wait": wait}, [config("wait", concurrency=9)], routes) as world:
        seen = []
        handler = world.gateways[0][0].http.handler
        world.gateways[0][0].http.handler = lambda request: seen.append(request) or handler(request)  # type: ignore[func-returns-value]
        request = asyncio.ensure_future(world.request("POST", "/wait", b"x" * 100_000))
        while not world.actors.calls:
            await asyncio.sleep(0.01)
        assert [each.body for each in seen] == [b""]
        assert world.gateways[0][0]._calls._bytes == 0
        go.set()
        assert (await request).body == b"100000"


def test_the_address_of_an_actor_hides_its_token() -> None:
    assert "token" not in repr(actor("a")).replace("token=", "")


def test_ids_of_calls_are_for_the_owner_of_the_file_alone(tmp_path: Path) -> None:
    """Whoever has the id of a call can fetch its answer."""
    old = tmp_path / "old.db"
    old.touch(0o644)
    old.chmod(0o644)
    for path in (tmp_path / "results.db", old):
        index = ResultIndex(path)
        index.add_accepted("a", 1)
        index.flush()
        assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob(f"{path.name}*")} == {0o600}
        index.close()


async def test_clients_that_are_slow_or_idle_are_let_go() -> None:
    async def echo(head: CallHead, body: bytes) -> FakeAnswer:
        return respond(body)

    assert CONNECTIONS.max_unknown_per_address < CONNECTIONS.max_connections, "one address cannot take all"
    routes = [TriggerRoute(path="/echo", action="echo")]
    async with gateway_world({"echo": echo}, [config("echo")], routes) as world:
        server = world.gateways[0][0].http
        server.limits = replace(server.limits, header_timeout=0.2, body_timeout=0.2, max_unknown_per_address=3)
        port = server._listeners[0].sockets[0].getsockname()[1]
        request = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
        beginnings = {"nothing": b"", "half a head": request[:20], "half a body": request + b"1"}
        async with asyncio.timeout(30):
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in beginnings]
            for (_, writer), begin in zip(opened, beginnings.values(), strict=True):
                writer.write(begin)
            _, fourth = await asyncio.open_connection("127.0.0.1", port)
            for reader, _ in opened:
                assert b"200" not in await reader.read(), "each ends without an answer, or with a refusal"
            reader, idle = await asyncio.open_connection("127.0.0.1", port)
            idle.write(request + b"12")
            assert (await reader.readline()).split()[1] == b"200"
            assert await reader.read(), "the rest, and then the end: nobody keeps a connection without using it"
        for _, writer in (*opened, (reader, idle), (reader, fourth)):
            writer.close()
