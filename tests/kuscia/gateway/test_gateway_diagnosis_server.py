"""What a partner cannot do at the diagnostic endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coterie.base.clock import VirtualClock
from coterie.base.rate_limited_log import RateLimit
from coterie.kube.client.requests import path
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.job import AppImage
from coterie.kuscia.gateway.diagnosis import messages
from coterie.kuscia.gateway.diagnosis.grpc_echo import EchoCall
from coterie.kuscia.gateway.diagnosis.limits import DiagnosticBudgets, DiagnosticLimits
from coterie.kuscia.gateway.diagnosis.link_probe import PartnerLinkProbe
from coterie.kuscia.gateway.diagnosis.messages import (
    FactsRequest,
    LinkReport,
    MockRequest,
    PartyFacts,
    ProbePlan,
    decode_mock,
    mock_head,
)
from coterie.kuscia.gateway.diagnosis.party_facts import PartyFactsSource
from coterie.kuscia.gateway.diagnosis.server import DiagnosticServer

pytestmark = pytest.mark.asyncio
FEW = DiagnosticLimits(
    body_bytes=100_000,
    response_bytes=50_000,
    calls=RateLimit(10, 1),
    bytes=RateLimit(300_000, 1),
    at_once=2,
    probes=RateLimit(2, 0.1),
)


class Endpoint:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.measured: list[tuple[str, ProbePlan, str]] = []
        self.asked: list[FactsRequest] = []
        self.release = asyncio.Event()

    async def facts(self, asked: FactsRequest) -> PartyFacts:
        self.asked.append(asked)
        return PartyFacts("v")

    async def measure(self, destination: str, plan: ProbePlan, number: str) -> LinkReport | None:
        self.measured.append((destination, plan, number))
        await self.release.wait()
        return LinkReport(reached=True)

    async def open(
        self, head: str, *headers: str, source: str = "alice"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        lines = [f"{head} HTTP/1.1", "Host: x", *([f"Kuscia-Source: {source}"] if source else []), *headers]
        writer.write("\r\n".join((*lines, "", "")).encode())
        return reader, writer

    async def call(self, method: str, path: str, body: bytes = b"", source: str = "alice") -> tuple[int, bytes]:
        reader, writer = await self.open(f"{method} {path}", f"Content-Length: {len(body)}", source=source)
        with contextlib.suppress(ConnectionError):
            writer.write(body)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


@contextlib.asynccontextmanager
async def endpoint(root: Path, limits: DiagnosticLimits = FEW) -> AsyncIterator[Endpoint]:
    made = Endpoint(root / "d.sock")
    server = DiagnosticServer("bob", made.path, root / "g.sock", made.facts, made.measure, limits=limits)
    task = asyncio.create_task(server.run())
    await server.ready.wait()
    try:
        yield made
    finally:
        server.stop()
        await asyncio.wait_for(task, 10)


async def test_who_is_no_partner_is_refused(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        assert (await bob.call("GET", messages.HELLO, source="bob"))[0] == 403
        assert (await bob.call("GET", messages.HELLO, source=""))[0] == 403
        assert (await bob.call("GET", messages.HELLO, source="../x"))[0] == 403
        assert (await bob.call("GET", "/etc/passwd"))[0] == 404
        assert (await bob.call("GET", messages.HELLO))[0] == 200
        assert (await bob.call("GET", f"/behind/a/proxy{messages.HELLO}"))[0] == 200


async def test_each_partner_has_a_rate_of_its_own(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        statuses = [(await bob.call("GET", messages.HEALTHY))[0] for _ in range(14)]
        assert statuses[:10] == [200] * 10
        assert 429 in statuses
        assert (await bob.call("GET", messages.HEALTHY, source="carol"))[0] == 200


async def test_bodies_and_bytes_are_bounded(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        assert (await bob.call("POST", messages.UPLOAD, bytes(90_000)))[0] == 200
        assert (await bob.call("POST", messages.UPLOAD, bytes(200_000)))[0] == 400
        # 300,000 bytes are all there is.
        assert (await bob.call("POST", messages.UPLOAD, bytes(99_000)))[0] == 429
        status, body = await bob.call("POST", messages.MOCK, MockRequest(size=40_000).encode())
        assert (status, len(body) < 100) in ((200, True), (429, True))


async def test_answers_are_bounded(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        status, body = await bob.call("POST", messages.MOCK, MockRequest(size=1 << 40).encode())
        assert status == 200
        assert 50_000 <= len(body) < 50_100
        status, body = await bob.call("POST", messages.MOCK, MockRequest(1 << 40, 0, True, 1 << 30, 0).encode())
        assert status == 200
        assert len(body) < 130_000


async def test_calls_at_once_are_bounded_and_end_with_their_caller(tmp_path: Path) -> None:
    held = MockRequest(duration=3_600_000).encode()
    async with endpoint(tmp_path) as bob:
        callers = []
        for _ in range(2):
            _, writer = await bob.open(f"POST {messages.MOCK}", f"Content-Length: {len(held)}")
            writer.write(held)
            callers.append(writer)
        while (await bob.call("GET", messages.HEALTHY))[0] != 429:
            await asyncio.sleep(0.01)
        for writer in callers:
            writer.transport.abort()
        async with asyncio.timeout(20):
            while (await bob.call("GET", messages.HEALTHY))[0] != 200:
                await asyncio.sleep(0.1)


async def test_we_measure_links_to_the_caller_only_and_rarely(tmp_path: Path) -> None:
    huge = messages.ReverseRequest(ProbePlan(True, True, 1 << 40, 1 << 40, 1e9))
    pair = messages.PairRequest("carol", "a" * 32)
    async with endpoint(tmp_path) as bob:
        bob.release.set()
        status, body = await bob.call("POST", messages.REVERSE, msgspec.json.encode(huge))
        assert status == 200
        assert b'"reached":true' in body
        destination, plan, number = bob.measured[0]
        assert (destination, number) == ("alice", "")
        assert (plan.body_bytes, plan.bandwidth_bytes, plan.idle_seconds) == (16 << 20, 16 << 20, 600)
        assert (await bob.call("POST", messages.PAIR, msgspec.json.encode(pair)))[0] == 200
        assert bob.measured[1][0::2] == ("carol", "a" * 32)
        assert (await bob.call("POST", messages.REVERSE, b"{}"))[0] == 429
        wrong = [
            b"{",
            b'{"destination": "bob", "number": "%s"}' % (b"a" * 32),
            b'{"destination": "a b", "number": "%s"}' % (b"a" * 32),
            b'{"destination": "carol", "number": "1"}',
        ]
        for each in wrong:
            assert (await bob.call("POST", messages.PAIR, each))[0] == 400
        assert len(bob.measured) == 2


async def test_a_measurement_that_takes_long_keeps_the_call_alive(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        reader, writer = await bob.open(f"POST {messages.REVERSE}", "Content-Length: 2")
        writer.write(b"{}")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n") == b"1\r\n"  # a blank
        bob.release.set()
        assert b'"reached":true' in await reader.read()
        writer.close()


async def test_facts_are_asked_for_by_name(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        asked = FactsRequest(tuple(f"image-{number}" for number in range(100)), -1, 5)
        assert (await bob.call("POST", messages.FACTS, msgspec.json.encode(asked)))[0] == 200
        assert len(bob.asked[0].app_images) == messages.MOST_NAMES
        assert (bob.asked[0].cpu_milli, bob.asked[0].memory) == (0, 5)


async def test_chunked_bodies_are_counted(tmp_path: Path) -> None:
    async with endpoint(tmp_path) as bob:
        reader, writer = await bob.open(f"POST {messages.UPLOAD}", "Transfer-Encoding: chunked")
        writer.write(b"5\r\nabcde\r\n3;x=y\r\nabc\r\n0\r\n\r\n")
        assert b'"bytes":8' in await reader.read()
        writer.close()


async def test_budgets_come_back_with_time() -> None:
    clock = VirtualClock()
    budgets = DiagnosticBudgets(clock, FEW)
    for _ in range(10):
        budget = budgets.begin_call("alice")
        assert budget is not None
        budgets.end_call(budget)
    assert budgets.begin_call("alice") is None
    await clock.advance(1)
    assert budgets.begin_call("alice") is not None


async def test_kuscias_messages() -> None:
    """The bytes that Kuscia's own client sends, and reads."""
    asked = MockRequest(1024, 50, True, 512, 7)
    assert asked.encode(b"x" * 3) == bytes.fromhex("08800810321801208004280732037878 78".replace(" ", ""))
    assert decode_mock(asked.encode(bytes(10_000))[:40]) == asked
    assert mock_head(300) == bytes.fromhex("0a0308c80112ac02")


async def test_many_small_chunks_cost_as_much_as_large_ones(tmp_path: Path) -> None:
    """One byte each and no pause between them would keep the node's only thread busy for half a minute."""
    async with endpoint(tmp_path) as bob:
        status, body = await bob.call("POST", messages.MOCK, MockRequest(1 << 40, 0, True, 1, 0).encode())
        assert status == 200
        assert 0 < body.count(b"1\r\n\0\r\n") < 100


async def test_a_question_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    async with endpoint(tmp_path, replace(FEW, stream_seconds=0.2)) as bob:
        for path in (messages.FACTS, messages.REVERSE, messages.ANNOUNCE, messages.PAIR):
            reader, writer = await bob.open(f"POST {path}", "Content-Length: 10")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


async def test_empty_grpc_messages_are_not_answered_without_end() -> None:
    call = EchoCall(allowed=True)
    answered = 0
    with pytest.raises(ValueError, match="too long"):
        for _ in range(10_000):
            answered += len(call(memoryview(b"")))
    assert 0 < answered < 1000


async def test_a_partner_does_not_steer_who_measures_it(tmp_path: Path) -> None:
    """Neither redirects nor compressed answers nor cookies."""
    heads: list[bytes] = []
    bomb = gzip.compress(bytes(16 << 20))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if len(heads) == 1:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n" % len(bomb))
        writer.write(b"Connection: close\r\n\r\n" + (bomb if len(heads) > 1 else b""))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with (
        await asyncio.start_unix_server(answer, tmp_path / "g") as server,
        PartnerLinkProbe(tmp_path / "g", "alice", "bob") as probe,
    ):
        assert (await probe.call("GET", messages.HELLO)).status == 302
        assert len(heads) == 1
        packed = await probe.call("GET", messages.HELLO)
        assert packed.body == bomb
        assert b"cookie" not in heads[1].lower()
        server.close()


async def test_facts_name_no_registry_and_read_nothing_else() -> None:
    asked: list[str] = []

    class Objects:
        async def get(self, kind: Any, name: str) -> AppImage:
            asked.append(path(kind.resource, "", name))
            image = {"name": "registry.internal:5000/team/psi", "tag": "1.0", "id": "sha256:a"}
            spec = {"image": image, "deployTemplates": []}
            return msgspec.convert({"metadata": {"name": name}, "spec": spec}, AppImage)

        async def list(self, *_: Any, **__: Any) -> Any:
            raise TransportError("away")

    names = ("psi", "", "../../../api/v1/secrets", "a/b")
    facts = PartyFactsSource(Objects(), "bob", "v").facts  # type: ignore[arg-type]
    found = await facts(FactsRequest(names).bounded())
    assert [(each.name, each.image) for each in found.engines] == [("psi", "psi:1.0")]
    assert len(asked) == 1
    assert found.fits is None
