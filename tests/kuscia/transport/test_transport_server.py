"""The serving process of the message queue: who is whom, whose tasks, when the node hears that it is needed, its life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kusciaapi_kit import here

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request
from coterie.http.server import Tasks
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.api import labels
from coterie.kuscia.transport import outbound
from coterie.kuscia.transport.calls import CHANNEL
from coterie.kuscia.transport.handing_over import response
from coterie.kuscia.transport.outbound import Outbound, TransportCode, TransportRefused
from coterie.kuscia.transport.parties import TaskParties, parties_in
from coterie.kuscia.transport.process import TransportProcess, allowed
from coterie.kuscia.transport.queues import MessageQueues, QueueKey
from coterie.kuscia.transport.server import TransportServer, problem_response
from coterie.kuscia.transport.settings import QueueLimits, TransportSettings

BEAT = 10.0


async def add_task(client: Client, task: str, *parties: str) -> None:
    """A pod of it and the values of the pod, in alice's namespace."""
    definition = json.dumps({"parties": [{"name": each} for each in parties]})
    values = {"metadata": {"name": f"{task}-values"}, "data": {"TASK_CLUSTER_DEFINE": definition}}
    await client.create(CONFIG_MAPS.as_dynamic, values, "alice")
    marks = {labels.KUSCIA_TASK_ID: task, labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: f"{task}-values"}
    pod = {
        "metadata": {
            "name": f"{task}-0",
            "labels": {labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true"},
            "annotations": marks,
        },
        "spec": {"containers": [{"name": "engine", "image": "engine:1"}]},
    }
    await client.create(PODS.as_dynamic, pod, "alice")


# ---- parties ----


async def test_parties_are_those_of_tasks_with_pods_here(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with here(tmp_path) as world:
        await add_task(world.client, "t1", "alice", "bob")
        made = TaskParties(world.client, "alice", clock)
        assert await made.of("t1") == {"alice", "bob"}
        assert await made.of("t2") == frozenset()
        await add_task(world.client, "t2", "alice", "carol")
        assert await made.of("t2") == frozenset(), "looked for a moment ago"
        await clock.advance(1.5)
        assert await made.of("t2") == {"alice", "carol"}
        await world.client.delete(PODS, "t1-0", "alice")
        await clock.advance(31)
        assert await made.of("t1") == frozenset(), "the task is over"


async def test_an_api_that_is_away_refuses_for_now() -> None:
    class Away(Client):
        async def list(self, *_: Any, **__: Any) -> Any:
            raise TransportError("away")

    transport: Any = None
    with pytest.raises(TransportRefused) as problem:
        await TaskParties(Away(transport), "alice", VirtualClock()).of("t1")
    assert problem.value.code == TransportCode.UNAVAILABLE


@pytest.mark.parametrize("text", ["", "[]", "{", '{"parties": 3}', '{"parties": [{}]}', '{"parties": ["a"]}'])
def test_a_definition_that_cannot_be_read_lists_nobody(text: str) -> None:
    assert parties_in(text) == frozenset()


# ---- who calls, and when the node hears of it ----


async def nobody(_: str) -> frozenset[str]:
    return frozenset()


class Beats:
    def __init__(self) -> None:
        self.count = 0
        self.away = False

    async def __call__(self) -> None:
        if self.away:
            raise TransportError("away")
        self.count += 1


def server(tmp_path: Path, clock: VirtualClock, beats: Beats) -> TransportServer:
    return TransportServer("alice", QueueLimits(), tmp_path, nobody, clock, beats, BEAT)


async def test_the_node_hears_of_it_as_long_as_there_is_a_message(tmp_path: Path) -> None:
    clock, beats = VirtualClock(), Beats()
    made = server(tmp_path, clock, beats)
    running = asyncio.ensure_future(made.run())
    try:
        await clock.advance(5 * BEAT)
        assert beats.count == 0, "nothing there, nobody calls"
        await made.queues.push(QueueKey("t1", "bob", "m"), b"x", 1.0)
        await clock.advance(BEAT)
        await clock.advance(BEAT)
        assert beats.count == 2
        made.queues.release("t1")
        await clock.advance(BEAT)
        assert beats.count == 3, "it remembers that the session was released"
        await clock.advance(QueueLimits().remembered_seconds + 2 * QueueLimits().clean_seconds)
        assert made.queues.unused
        await clock.advance(BEAT)
        before = beats.count
        await clock.advance(5 * BEAT)
        assert beats.count == before
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        made.queues.close()


async def test_no_message_is_taken_in_that_the_node_has_not_heard_of(tmp_path: Path) -> None:
    clock, beats = VirtualClock(), Beats()
    made = server(tmp_path, clock, beats)
    await made._before_push()
    await made._before_push()
    assert beats.count == 1, "it knows already"
    await clock.advance(BEAT)
    beats.away = True
    with pytest.raises(TransportRefused) as problem:
        await made._before_push()
    assert problem.value.code == TransportCode.UNAVAILABLE
    beats.away = False
    made.stopping = True
    with pytest.raises(TransportRefused, match="ends"):
        await made._before_push()


async def test_callers_are_who_the_gateway_says(tmp_path: Path) -> None:
    made = server(tmp_path, VirtualClock(), Beats())
    assert await made._partner(Request("POST", "/")) is None
    partner = await made._partner(Request("POST", "/", headers={"kuscia-source": "bob", "x-ptp-session-id": "t1"}))
    assert partner == ("bob", ""), "no header makes a partner an engine of ours"
    assert await made._engine(Request("POST", "/", headers={"kuscia-source": "alice"})) is None
    assert await made._engine(Request("POST", "/", headers={"x-ptp-session-id": "session_t1.2"})) == ("alice", "t1")


@pytest.mark.parametrize(("status", "code"), [(413, "413"), (400, "400"), (503, "700"), (429, "700"), (500, "500")])
def test_requests_that_reach_no_queue_are_answered_in_the_same_form(status: int, code: str) -> None:
    made = problem_response(HttpProblem(status, "Reason", "why"))
    assert (made.status, made.content_type) == (200, "application/proto")
    assert outbound.decode(bytes(made.body)) == Outbound(b"", f"E0000000{code}", "why")


@pytest.mark.parametrize(
    ("method", "path", "query", "passes"),
    [
        ("GET", "/api/v1/namespaces/alice/pods", "labelSelector=x", True),
        ("GET", "/api/v1/namespaces/alice/configmaps/t1-values", "", True),
        ("GET", "/api/v1/namespaces/alice/pods", "watch=1", False),
        ("GET", "/api/v1/namespaces/bob/pods", "", False),
        ("GET", "/api/v1/namespaces/alice/configmaps", "", False),
        ("GET", "/api/v1/namespaces/alice/secrets/x", "", False),
        ("POST", "/api/v1/namespaces/alice/pods", "", False),
    ],
)
def test_what_the_process_may_read(method: str, path: str, query: str, passes: bool) -> None:
    assert allowed(method, path, query, "alice") is passes


# ---- on sockets ----


@asynccontextmanager
async def serving(tmp_path: Path, limits: QueueLimits) -> AsyncIterator[tuple[TransportServer, dict[str, Path]]]:
    async def parties_of(task: str) -> frozenset[str]:
        return frozenset({"bob", "carol"}) if task in ("t1", "t2") else frozenset()

    made = TransportServer("alice", limits, tmp_path, parties_of, SYSTEM_CLOCK, Beats(), 1000.0)
    places = {name: tmp_path / name for name in ("partners", "engines")}
    await made.serve({name: private_socket(place) for name, place in places.items()})
    try:
        yield made, places
    finally:
        await made.stop()


def raw(action: str, size: int = 0, who: str = "bob", session: str = "t1") -> bytes:
    return (
        f"POST {CHANNEL}{action}?timeout=300 HTTP/1.1\r\nhost: q\r\nkuscia-source: {who}\r\nx-ptp-session-id: {session}\r\n"
        f"x-ptp-topic: m\r\nx-ptp-source-node-id: {who}\r\nx-ptp-target-node-id: bob\r\ncontent-length: {size}\r\n\r\n"
    ).encode()


async def push(places: dict[str, Path], body: bytes, who: str = "bob", session: str = "t1") -> Outbound:
    sent = {"x_ptp_session_id": session, "x_ptp_topic": "m", "x_ptp_source_node_id": who, "kuscia_source": who}
    return await post(places["partners"], "invoke?timeout=1", body, **sent)


async def pop(places: dict[str, Path], who: str = "bob", session: str = "t1") -> Outbound:
    taking = {"x_ptp_session_id": session, "x_ptp_topic": "m", "x_ptp_target_node_id": who}
    return await post(places["engines"], "pop?timeout=20", **taking)


@pytest.mark.parametrize("half", [False, True])
async def test_a_message_is_not_lost_with_an_engine_that_waited_and_left(tmp_path: Path, half: bool) -> None:
    async with serving(tmp_path, QueueLimits()) as (made, places):
        _, gone = await asyncio.open_unix_connection(str(places["engines"]))
        gone.write(raw("pop"))
        await until(lambda: made.metrics.running == 1)
        gone.write_eof() if half else gone.close()
        await until(lambda: made.metrics.running == 0)
        assert await push(places, b"kept") == Outbound()
        assert await pop(places) == Outbound(b"kept")
        gone.close()


@pytest.mark.parametrize("memory", [64 << 20, 10])
async def test_a_large_message_whose_reader_leaves_is_there_again(tmp_path: Path, memory: int) -> None:
    async with serving(tmp_path, QueueLimits(memory=memory, session=1 << 20)) as (made, places):
        body = bytes(range(256)) * 4_000
        assert await push(places, body) == Outbound()
        reader, gone = await asyncio.open_unix_connection(str(places["engines"]))
        gone.write(raw("pop"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d" % (len(body) + 4 + 13) in head, (
            "a tag, three bytes of length, and the code behind it"
        )
        assert made.queues.size == len(body), "it counts until it was read"
        gone.close()
        assert await pop(places) == Outbound(body)
        await until(lambda: made.queues.size == 0)
        assert made.queues.in_memory == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_a_large_message_is_given_back_at_whatever_moment_its_reader_leaves(tmp_path: Path, steps: int) -> None:
    made = MessageQueues(QueueLimits(), VirtualClock(), tmp_path)
    key = QueueKey("t1", "bob", "m")
    await made.push(key, bytes(1 << 20), 1)
    taken = await made.pop(key, 1)
    assert taken is not None
    stream = response(taken, outbound.framing(taken.size), "application/proto", Tasks()).stream
    assert stream is not None
    stream.opened(Reader())
    for _ in range(steps):
        await asyncio.sleep(0)
    stream.closed()
    async with asyncio.timeout(30):
        while await made.peek(key) is None:
            await asyncio.sleep(0)
    made.close()


class Reader:
    """A sink that never has room."""

    pending = 1

    def write(self, chunk: bytes) -> None:
        pass

    async def drain(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        raise AssertionError("it was not read")

    abort = close


async def test_what_waits_for_room_is_bounded_and_leaves_room_for_other_partners(tmp_path: Path) -> None:
    limits = QueueLimits(body=1 << 20, memory=2 << 20, session=1 << 20)  # 4 MiB of bodies, 2 MiB for each partner
    async with serving(tmp_path, limits) as (made, places):
        assert await push(places, bytes(1 << 20)) == Outbound()
        flood = []
        for _ in range(2):
            flood.append(await asyncio.open_unix_connection(str(places["partners"])))
            flood[-1][1].write(raw("invoke", 1 << 20) + bytes(1 << 20))
        await until(lambda: made.metrics.running == 2)
        server = made._servers["partners"]
        assert server.body_bytes == server.body_bytes_of["bob"] == 2 << 20, "they count while they wait"
        refused = await push(places, b"one more")
        assert refused.code == TransportCode.BUFFER_FULL and "holds too many" in refused.message
        flood.append(await asyncio.open_unix_connection(str(places["partners"])))
        flood[-1][1].write(raw("invoke", 1 << 20) + bytes(1 << 18))
        assert await flood[-1][0].readline() == b"HTTP/1.1 200 OK\r\n"
        assert server.body_bytes == server.body_bytes_of["bob"] == 2 << 20, "what is refused is let go of at once"
        assert await push(places, bytes(1 << 20), "carol", "t2") == Outbound(), "another partner is not held up"
        for _, writer in flood:
            writer.close()
        await until(lambda: server.body_bytes == 0 and not server.requests_of and not server.body_bytes_of)
        assert made.metrics.running == 0, "who left does not wait"


async def test_a_body_that_never_ends_and_a_crowd_of_waiting_calls_hold_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.kuscia.transport.server._REQUESTS_OF_ONE", 5)
    limits = QueueLimits(body=1 << 20, memory=2 << 20)
    async with serving(tmp_path, limits) as (made, places):
        crowd = []
        for number in range(5):
            crowd.append(await asyncio.open_unix_connection(str(places["partners"])))
            crowd[-1][1].write(raw("invoke", 1 << 20) + b"x" * number)
            crowd.append(await asyncio.open_unix_connection(str(places["engines"])))
            crowd[-1][1].write(raw("pop"))
        await until(lambda: [each.requests_of for each in made._servers.values()] == [{"bob": 5}, {"t1": 5}])
        for action in (push(places, b"x"), pop(places)):
            refused = await action
            assert refused.code == TransportCode.BUFFER_FULL and "too many requests of one caller" in refused.message
        assert await push(places, b"other", "carol", "t2") == Outbound()
        assert await pop(places, "carol", "t2") == Outbound(b"other")
        for _, writer in crowd:
            writer.close()
        await until(lambda: not any(each.requests_of for each in made._servers.values()))
        assert await push(places, b"again") == Outbound()


# ---- its life ----


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not question():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def asleep(tmp_path: Path, limits: QueueLimits) -> AsyncIterator[tuple[TransportProcess, TransportSettings]]:
    async with here(tmp_path) as world:
        await add_task(world.client, "t1", "alice", "bob")
        run = tmp_path / "run"
        run.mkdir(mode=0o700)
        chosen = TransportSettings("alice", world.here.paths, run / "ptp.sock", run / "ptp-own.sock", limits)
        made = TransportProcess(chosen, run, world.client, SYSTEM_CLOCK, idle=1.0)
        running = asyncio.ensure_future(made.run())
        try:
            await made.ready.wait()
            yield made, chosen
        finally:
            made.stop()
            await running


async def post(path: Path, action: str, body: bytes = b"", **headers: str) -> Outbound:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http,
        http.post(
            f"http://queue{CHANNEL}{action}",
            headers={key.replace("_", "-"): value for key, value in headers.items()},
            data=body,
        ) as answer,
    ):
        assert answer.status == 200
        return outbound.decode(await answer.read())


async def test_it_sleeps_until_somebody_calls_and_ends_when_nothing_is_left(tmp_path: Path) -> None:
    limits = QueueLimits(body=256 << 10, remembered_seconds=0.1, clean_seconds=0.1)
    async with asleep(tmp_path, limits) as (made, chosen):
        assert made.pid is None
        sent = {"x_ptp_session_id": "session_t1", "x_ptp_topic": "m", "x_ptp_source_node_id": "bob"}
        assert await post(chosen.partners, "invoke", b"hello", kuscia_source="bob", **sent) == Outbound()
        first = made.pid
        assert first is not None
        refused = await post(chosen.partners, "invoke", b"hello", kuscia_source="carol", **sent)
        assert refused.code == TransportCode.NOT_AUTHORIZED
        large = await post(chosen.partners, "invoke", bytes((256 << 10) + 1), kuscia_source="bob", **sent)
        assert large.code == TransportCode.TOO_LARGE
        taking = {"x_ptp_session_id": "session_t1", "x_ptp_topic": "m", "x_ptp_target_node_id": "bob"}
        assert await post(chosen.engines, "pop", **taking) == Outbound(b"hello")
        rows = {name: value for family in await made.metrics.families() for name, value in _rows(family)}
        assert rows['coterie_transport_calls_total action="invoke",code="E0000000000"'] == 1
        assert rows["coterie_transport_taken_bytes_total "] == 5
        assert await post(chosen.engines, "release", x_ptp_session_id="session_t1") == Outbound()
        await until(lambda: made.pid is None)


def _rows(family: Any) -> list[tuple[str, float]]:
    return [(f"{family.name} {where}", value) for where, value in family.rows]
