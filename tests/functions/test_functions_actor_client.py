"""Calls of actors over HTTP: a real actor, and servers that misbehave."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from coterie.functions.dispatcher.actor_client import (
    ActorFailed,
    ActorTimeout,
    ActorUnreachable,
    AnswerTooLarge,
    CallHead,
    HttpActorAnswer,
    HttpActorCaller,
)
from coterie.functions.model import ActorAddress
from coterie.functions.pod_connections import PodConnections

HEAD = CallHead(
    id="id", request="r", action="a", path="/p", params={"n": 3}, content_type="text/plain", headers={}, deadline=0, attempt=0,
    traceparent="",
)  # fmt: skip
CODE = """
import os, time
from serverless import Invoke, Response

def action(req):
    match req.body():
        case "stream":
            return Response(iter(["one", "two", "three"]))
        case "invoke":
            return Invoke("next", params={"n": req.param("n") + 1}, body="passed")
        case "raise":
            raise ValueError("no")
        case "exit":
            os._exit(1)
        case "sleep":
            time.sleep(5)
    return Response(f"{req.param('n')} {req.body()} {req.path()}", 201)
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "action.py").write_text(CODE)
    return folder


@pytest.fixture
def real_actor(code: Path) -> Iterator[ActorAddress]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "COTERIE_ACTION": "a",
        "COTERIE_ACTION_NEXT": "next",
        "COTERIE_ACTOR_TOKEN": "token",
        "COTERIE_ACTOR_HOST": "127.0.0.1",
        "COTERIE_ACTOR_PORT": str(port),
        "COTERIE_ACTOR_CODE": str(code),
    }
    process = subprocess.Popen([sys.executable, "-m", "coterie.engines.actor"], env=environment)
    try:
        yield ActorAddress("a-1", "a", "v1", "127.0.0.1", port, "token")
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def caller() -> AsyncIterator[HttpActorCaller]:
    made = HttpActorCaller(PodConnections().connect)
    try:
        yield made
    finally:
        await made.close()


async def test_a_real_actor(real_actor: ActorAddress) -> None:
    async with caller() as actors:

        async def invoke(body: bytes) -> HttpActorAnswer:
            """Also while it starts, and while it is still busy with a call whose answer is here already."""
            for _ in range(600):
                with suppress(ActorUnreachable):
                    return await actors.invoke(real_actor, HEAD, body, 10)
                await asyncio.sleep(0.05)
            raise AssertionError("the actor takes no calls")

        answer = await invoke(b"hello")
        assert answer.head.response is not None and answer.head.response.status == 201
        assert not answer.streamed and await answer.body(100) == b"3 hello /p"
        answer = await invoke(b"invoke")
        assert answer.head.invoke is not None and answer.head.invoke.params == {"n": 4}
        assert await answer.body(100) == b"passed"
        answer = await invoke(b"raise")
        assert answer.head.response is not None and "ValueError" in answer.head.response.error
        await answer.body(1000)
        answer = await invoke(b"stream")
        assert b"".join([piece async for piece in answer.pieces()]) == b"onetwothree"
        answer = await invoke(b"stream")
        with pytest.raises(AnswerTooLarge):
            await answer.body(5)
        with pytest.raises(ActorFailed):
            await invoke(b"exit")
        for _ in range(100):
            with pytest.raises((ActorUnreachable, ActorFailed)) as problem:
                await actors.invoke(real_actor, HEAD, b"", 10)
            if problem.type is ActorUnreachable:
                break
            await asyncio.sleep(0.02)  # it is still ending
        assert problem.type is ActorUnreachable


@asynccontextmanager
async def server(answer: bytes, *, close: bool = True) -> AsyncIterator[ActorAddress]:
    """Answers every request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if not close:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield ActorAddress("x", "a", "v1", "127.0.0.1", listening.sockets[0].getsockname()[1], "token")
    finally:
        listening.close()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("answer", "problem", "words"),
    [
        (b"", ActorFailed, "closed the connection"),
        (b"garbage\r\n\r\n", ActorFailed, "not HTTP"),
        (http(b"no json\nbody"), ActorFailed, "does not follow the protocol"),
        (http(b"no newline"), ActorFailed, "does not begin with a line"),
        (http(b"x" * 300_000), ActorFailed, "does not begin with a line"),
        (http(b"{}\nbody"), ActorFailed, "`response` or `invoke`"),
        (http(b'{"response": {}, "invoke": {"action": "b"}}\n'), ActorFailed, "`response` or `invoke`"),
        (http(b'{"response": {"status": "200"}}\n'), ActorFailed, "does not follow the protocol"),
        (http(b"why", "500 No"), ActorFailed, "HTTP 500: why"),
        (http(b"busy", "503 Busy"), ActorUnreachable, "takes no calls now: busy"),
    ],
    ids=["silence", "noise", "no-json", "no-line", "long-line", "neither", "both", "type", "500", "503"],
)
async def test_servers_that_misbehave(answer: bytes, problem: type[Exception], words: str) -> None:
    async with caller() as actors, server(answer) as address:
        with pytest.raises(problem, match=words):
            await actors.invoke(address, HEAD, b"", 5)


async def test_time_runs_out_before_and_in_the_midst_of_an_answer() -> None:
    async with caller() as actors:
        async with server(b"", close=False) as address:
            with pytest.raises(ActorTimeout):
                await actors.invoke(address, HEAD, b"", 0.1)
        begun = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"response": {}}\n\r\n3\r\none\r\n'
        async with server(begun, close=False) as address:
            answer = await actors.invoke(address, HEAD, b"", 0.2)
            assert answer.streamed
            with pytest.raises(ActorTimeout):
                await answer.body(100)
        async with server(begun) as address:
            answer = await actors.invoke(address, HEAD, b"", 5)
            with pytest.raises(ActorFailed):
                await answer.body(100)
