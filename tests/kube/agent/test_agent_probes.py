"""Probes: thresholds as rows, and each way of asking against a real socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.kube.agent.probes.checks import Checker
from coterie.kube.agent.probes.grpc_health import _frame, parse_answer, request
from coterie.kube.agent.probes.prober import ContainerProber, Threshold
from coterie.kube.agent.runtimes.fake import FakeMachine, FakeRuntime

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize(
    ("success", "failure", "answers", "verdicts"),
    [
        (1, 3, "+", [True]),
        (1, 3, "--", [None, None]),
        (1, 3, "---", [None, None, False]),
        (1, 3, "+--+", [True, True, True, True]),
        (1, 3, "+---+", [True, True, True, False, True]),
        (2, 1, "+-++", [None, False, False, True]),
    ],
)
def test_thresholds(success: int, failure: int, answers: str, verdicts: list[bool | None]) -> None:
    threshold = Threshold(success, failure)
    seen = []
    for answer in answers:
        threshold = threshold.after(answer == "+")
        seen.append(threshold.verdict)
    assert seen == verdicts


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def http(status: int, location: str = "") -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        code = 200 if head.startswith("GET /landed") else status
        extra = f"Location: {location}\r\n" if code >= 300 and location else ""
        writer.write(f"HTTP/1.1 {code} X\r\n{extra}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()

    return serve


def grpc(frames: list[bytes]) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        for frame in frames:
            writer.write(frame)
        await writer.drain()
        await reader.read(100_000)

    return serve


def health_answer(state: int) -> list[bytes]:
    body = b"\x08" + bytes((state,))
    data = b"\x00" + struct.pack(">I", len(body)) + body
    return [_frame(4, 0, 0, b""), _frame(6, 0, 0, b"12345678"), _frame(1, 4, 1, b"\x88"), _frame(0, 0, 1, data)]


async def ask(handler: dict[str, Any], timeout: float = 5.0) -> tuple[bool, str]:
    checker = Checker(FakeRuntime(FakeMachine()), SYSTEM_CLOCK)
    return await checker.check(
        "uid", {"name": "main", "ports": [{"name": "web", "containerPort": 1}]}, handler, timeout
    )


@pytest.mark.parametrize(
    ("serve", "well", "seen"),
    [
        pytest.param(http(200), True, "", id="ok"),
        pytest.param(http(404), False, "HTTP probe failed with statuscode: 404", id="not-found"),
        pytest.param(http(302, "/landed"), True, "", id="redirect-here"),
        pytest.param(http(302, "/again"), True, "", id="redirects-without-end-are-still-answers"),
        pytest.param(http(302, "http://elsewhere/"), True, "Probe terminated redirects", id="redirect-elsewhere"),
    ],
)
async def test_http(serve: Serve, well: bool, seen: str) -> None:
    async with served(serve) as port:
        found = await ask({"httpGet": {"port": port, "path": "/healthz"}})
    assert found[0] is well and found[1].startswith(seen)


async def test_tcp_and_a_closed_port() -> None:
    async with served(http(200)) as port:
        assert await ask({"tcpSocket": {"port": port}}) == (True, "")
    well, seen = await ask({"tcpSocket": {"port": port}})
    assert not well and seen


@pytest.mark.parametrize(
    ("frames", "well", "seen"),
    [
        pytest.param(health_answer(1), True, "", id="serving"),
        pytest.param(health_answer(2), False, "NOT_SERVING", id="not-serving"),
        pytest.param([_frame(4, 0, 0, b""), _frame(1, 5, 1, b"\x88")], False, "does not answer", id="unimplemented"),
        pytest.param([_frame(7, 0, 0, b"\0" * 8)], False, "ended the call", id="goaway"),
    ],
)
async def test_grpc(frames: list[bytes], well: bool, seen: str) -> None:
    async with served(grpc(frames)) as port:
        found = await ask({"grpc": {"port": port, "service": "s"}})
    assert found[0] is well and seen in found[1]


def test_grpc_messages() -> None:
    assert request("h:1", "svc").endswith(b"\x00\x00\x00\x00\x05\x0a\x03svc")
    assert (parse_answer(b""), parse_answer(b"\x08\x01")) == (0, 1)


async def test_no_answer_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(silent) as port:
        assert await ask({"httpGet": {"port": port}}, 0.05) == (False, "no answer within 0.05 s")


@pytest.mark.parametrize(
    ("handler", "seen"),
    [
        ({"httpGet": {"port": "absent"}}, "the container has no port 'absent'"),
        ({}, "missing probe handler"),
        ({"exec": {"command": ["x"]}}, "container main does not run"),
    ],
)
async def test_checks_that_cannot_be_made_fail(handler: dict[str, Any], seen: str) -> None:
    assert await ask(handler) == (False, seen)


class ScriptedChecker:
    def __init__(self, answers: dict[str, list[bool]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def check(self, uid: str, container: Any, handler: Any, timeout: float) -> tuple[bool, str]:
        name = handler["name"]
        self.asked.append(name)
        left = self.answers[name]
        return (left.pop(0) if len(left) > 1 else left[0]), "seen"


async def test_startup_comes_before_the_others() -> None:
    clock, changes = VirtualClock(), [0]
    checker = ScriptedChecker({"startup": [False, True], "live": [True, False], "ready": [True]})
    container = {
        "name": "main",
        "startupProbe": {"name": "startup", "periodSeconds": 1, "failureThreshold": 5},
        "livenessProbe": {"name": "live", "periodSeconds": 1, "failureThreshold": 2},
        "readinessProbe": {"name": "ready", "periodSeconds": 1, "initialDelaySeconds": 2},
    }

    def changed() -> None:
        changes[0] += 1

    prober = ContainerProber("u", container, 0, checker, clock, changed, lambda *_: None)  # type: ignore[arg-type]
    prober.start()
    await clock.advance(0.5)
    assert checker.asked == ["startup"] and not prober.result.started and not prober.result.ready
    await clock.advance(1)
    assert prober.result.started and "ready" not in checker.asked
    await clock.advance(2)
    assert prober.result.ready
    await clock.advance(5)
    assert prober.result.failed == "failed liveness probe, will be restarted"
    assert checker.asked.count("startup") == 2
    await prober.close()


@pytest.mark.parametrize(
    ("probe", "answers", "ready_after", "asked"),
    [
        ({"httpGet": {}}, [False, False, True], 0.03, 3),
        ({"tcpSocket": {}, "successThreshold": 2}, [False, True], 10.2, 3),
        ({"httpGet": {}}, [False] * 40, None, 12),
        ({"exec": {}}, [False, True], 10.2, 2),
        ({"httpGet": {}, "initialDelaySeconds": 3}, [False, True], 13.2, 2),
    ],
    ids=["listens-soon", "success-threshold", "slow", "command", "initial-delay"],
)
async def test_readiness_in_the_first_second(
    probe: dict[str, Any], answers: list[bool], ready_after: float | None, asked: int
) -> None:
    """Nobody waits a period for a container that begins to listen a moment after it was started."""
    clock, told = VirtualClock(), []
    checker = ScriptedChecker({"ready": answers})
    container = {"name": "main", "readinessProbe": {"name": "ready", "periodSeconds": 10, **probe}}
    prober = ContainerProber(
        "u",
        container,
        0,
        checker,
        clock,
        lambda: None,
        lambda *event: told.append(event),  # type: ignore[arg-type]
    )
    prober.start()
    for _ in range(200):
        if ready_after is None or clock.monotonic() >= ready_after:
            break
        await clock.advance(min(0.005, ready_after) if ready_after < 1 else 0.2)
    assert prober.result.ready == (ready_after is not None)
    if ready_after is None:
        await clock.advance(1.5)
        assert not prober.result.ready and len(told) == 1, "failures of the first second are no news"
    else:
        assert len(checker.asked) == asked
    await prober.close()


async def test_a_run_that_is_old_is_asked_as_always() -> None:
    clock = VirtualClock()
    checker = ScriptedChecker({"ready": [False, True]})
    container = {"name": "main", "readinessProbe": {"name": "ready", "periodSeconds": 10, "httpGet": {}}}
    prober = ContainerProber("u", container, 0, checker, clock, lambda: None, lambda *_: None, age=60.0)  # type: ignore[arg-type]
    prober.start()
    await clock.advance(5)
    assert checker.asked == ["ready"] and not prober.result.ready
    await clock.advance(6)
    assert prober.result.ready
    await prober.close()
