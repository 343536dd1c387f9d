"""Sessions and queues: order, waiting, limits, files, expiry, release."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.protobuf_wire import ProtobufError
from coterie.http.messages import Request
from coterie.kuscia.transport import outbound
from coterie.kuscia.transport.calls import TransportCaller, TransportCalls, wait_seconds
from coterie.kuscia.transport.metrics import TransportMetrics
from coterie.kuscia.transport.outbound import Outbound, TransportCode, TransportRefused
from coterie.kuscia.transport.queues import MessageQueues, QueueKey, task_of_session
from coterie.kuscia.transport.settings import QueueLimits

KEY = QueueKey("session_t1", "bob", "topic")
SMALL = QueueLimits(body=1000, session=100, total=250, memory=150, sessions=4, queues_of_session=3)


_made: list[MessageQueues] = []


@pytest.fixture(autouse=True)
def closed_after_the_test() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


async def pop(made: MessageQueues, key: QueueKey, seconds: float) -> bytes | None:
    taken = await made.pop(key, seconds)
    return await taken.read() if taken is not None else None


async def peek(made: MessageQueues, key: QueueKey) -> bytes | None:
    taken = await made.peek(key)
    return await taken.read() if taken is not None else None


def queues(tmp_path: Path, limits: QueueLimits = SMALL) -> tuple[MessageQueues, VirtualClock]:
    clock = VirtualClock()
    _made.append(MessageQueues(limits, clock, tmp_path))
    return _made[-1], clock


async def test_messages_of_a_topic_come_in_order_and_once(tmp_path: Path) -> None:
    made, _ = queues(tmp_path)
    for number in range(5):
        await made.push(KEY, b"%d" % number, 1)
        await made.push(KEY._replace(topic="other"), b"x", 1)
    assert [await pop(made, KEY, 1) for _ in range(3)] == [b"0", b"1", b"2"]
    assert [await peek(made, KEY), await peek(made, KEY), await peek(made, KEY)] == [b"3", b"4", None]
    assert made.size == made.in_memory == 5
    made.close()
    assert made.size == made.in_memory == made.sessions == 0


async def test_who_waits_gets_the_next_message_and_nothing_after_its_time(tmp_path: Path) -> None:
    made, clock = queues(tmp_path)
    first, second = (asyncio.ensure_future(pop(made, KEY, seconds)) for seconds in (5, 50))
    await clock.advance(6)
    assert await first is None
    await made.push(KEY, b"late", 1)
    assert await second == b"late"
    assert await peek(made, KEY) is None and made.size == 0


async def test_a_message_for_somebody_who_left_is_for_the_next(tmp_path: Path) -> None:
    made, clock = queues(tmp_path)
    gone = asyncio.ensure_future(pop(made, KEY, 50))
    await clock.advance(1)
    await made.push(KEY, b"kept", 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await pop(made, KEY, 1) == b"kept"


async def test_a_full_session_waits_for_room_and_then_refuses(tmp_path: Path) -> None:
    made, clock = queues(tmp_path)
    await made.push(KEY, b"a" * 90, 1)
    waiting = asyncio.ensure_future(made.push(KEY, b"b" * 20, 30))
    await clock.advance(10)
    assert not waiting.done()
    assert await pop(made, KEY, 1) == b"a" * 90
    await waiting
    refused = asyncio.ensure_future(made.push(KEY, b"c" * 90, 30))
    await clock.advance(31)
    with pytest.raises(TransportRefused, match="nobody took the 20 bytes") as problem:
        await refused
    assert problem.value.code == TransportCode.BUFFER_FULL
    with pytest.raises(TransportRefused, match="at most 1000 bytes") as problem:
        await made.push(KEY, b"d" * 1001, 1)
    assert problem.value.code == TransportCode.TOO_LARGE
    assert made.size == 20


async def test_small_messages_do_not_wait_behind_large_ones(tmp_path: Path) -> None:
    """An engine may need the small one before it takes what fills the session."""
    made, clock = queues(tmp_path)
    other = KEY._replace(node="carol")
    await made.push(KEY, b"a" * 60, 1)
    large = [asyncio.ensure_future(made.push(KEY, each * 60, 300)) for each in (b"b", b"c")]
    await clock.advance(1)
    await made.push(other, b"d" * 40, 1)
    small = asyncio.ensure_future(made.push(other, b"e" * 30, 300))
    await clock.advance(1)
    assert not small.done()
    assert await pop(made, other, 1) == b"d" * 40
    await small
    assert await pop(made, KEY, 1) == b"a" * 60
    await large[0]
    assert not large[1].done() and made.size == 90
    made.release(KEY.session)
    with pytest.raises(TransportRefused, match="was released"):
        await large[1]
    assert made.size == made.messages == 0


async def test_room_that_another_task_leaves_is_for_who_waits(tmp_path: Path) -> None:
    made, clock = queues(tmp_path, QueueLimits(session=100, total=150, memory=150))
    await made.push(KEY, b"a" * 90, 1)
    other = QueueKey("t2", "bob", "topic")
    waiting = [asyncio.ensure_future(made.push(other, each * 70, 300)) for each in (b"b", b"c")]
    await clock.advance(1)
    assert not any(each.done() for each in waiting)
    waiting[0].cancel()
    made.release(KEY.session)
    await waiting[1]
    assert await pop(made, other, 1) == b"c" * 70 and made.size == made.messages == 0
    # One who leaves at the moment at which there is room leaves it to the next.
    await made.push(other, b"a" * 90, 1)
    waiting = [asyncio.ensure_future(made.push(other, each * 70, 300)) for each in (b"b", b"c")]
    await clock.advance(1)
    taken = await made.peek(other)
    assert taken is not None
    taken.finish()
    waiting[0].cancel()
    await waiting[1]
    assert made.size == 70


async def test_one_message_larger_than_a_session_is_taken(tmp_path: Path) -> None:
    made, _ = queues(tmp_path)
    await made.push(KEY, b"a" * 200, 1)
    assert made.in_memory == 0 and await pop(made, KEY, 1) == b"a" * 200


async def test_what_does_not_fit_into_memory_goes_into_files_in_order(tmp_path: Path) -> None:
    limits = QueueLimits(session=10 << 20, total=50 << 20, memory=1 << 20)
    made, _ = queues(tmp_path, limits)
    bodies = [bytes([number]) * (300_000 if number % 2 else 90_000) for number in range(20)]
    for body in bodies:
        await made.push(KEY, body, 1)
    assert made.in_memory <= 1 << 20 < made.size == sum(map(len, bodies))
    assert not os.listdir(tmp_path), "files without names: nothing is left after a crash"
    assert [await pop(made, KEY, 1) for _ in bodies] == bodies
    assert made.size == made.in_memory == 0
    for body in bodies:
        await made.push(KEY, body, 1)
    made.release(KEY.session)
    assert made.size == made.in_memory == 0


async def test_a_full_disk_refuses_and_keeps_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = queues(tmp_path, QueueLimits(memory=10))
    await made.push(KEY, b"memory", 1)
    await made.push(KEY, b"on disk", 1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.kuscia.transport.queues.os.pwrite", full)
    with pytest.raises(TransportRefused, match="No space left on device"):
        await made.push(KEY, b"too much", 1)
    monkeypatch.undo()
    assert [await pop(made, KEY, 1), await pop(made, KEY, 1), await peek(made, KEY)] == [b"memory", b"on disk", None]
    assert made.size == 0


async def test_a_released_session_is_refused_for_a_while(tmp_path: Path) -> None:
    made, clock = queues(tmp_path)
    await made.push(KEY, b"a", 1)
    waiting = asyncio.ensure_future(pop(made, KEY._replace(topic="none"), 50))
    await clock.advance(1)
    made.release(KEY.session, "bob", "topic")
    assert made.sessions == 1 and made.size == 0
    made.release(KEY.session)
    with pytest.raises(TransportRefused, match="was released") as problem:
        await waiting
    assert problem.value.code == TransportCode.SESSION_RELEASED
    with pytest.raises(TransportRefused, match="was released"):
        await made.push(KEY, b"a", 1)
    await clock.advance(1801)
    await made.push(KEY, b"a", 1)


async def test_sessions_that_nobody_uses_end(tmp_path: Path) -> None:
    made, clock = queues(tmp_path)
    cleaner = asyncio.ensure_future(made.clean())
    await made.push(KEY, b"a", 1)
    waiting = asyncio.ensure_future(pop(made, QueueKey("session_t2", "bob", "topic"), 5000))
    await clock.advance(1300)
    assert made.sessions == 1 and made.size == 0, "the one in which somebody waits stays"
    await clock.advance(5000)
    assert await waiting is None
    cleaner.cancel()


async def test_sessions_and_topics_are_bounded(tmp_path: Path) -> None:
    made, _ = queues(tmp_path)
    for number in range(4):
        await made.push(QueueKey(f"s{number}", "bob", "t"), b"", 1)
    with pytest.raises(TransportRefused, match="4 sessions already"):
        await made.push(QueueKey("s4", "bob", "t"), b"", 1)
    for number in range(2):
        await made.push(QueueKey("s0", "bob", f"t{number}"), b"", 1)
    with pytest.raises(TransportRefused, match="3 topics already"):
        await made.push(QueueKey("s0", "bob", "t9"), b"", 1)


async def test_a_topic_without_messages_is_none(tmp_path: Path) -> None:
    made, clock = queues(tmp_path)
    for number in range(50):
        key = KEY._replace(topic=f"t{number}")
        assert await peek(made, key) is None
        waiting = asyncio.ensure_future(pop(made, key, 1))
        await clock.advance(2)
        assert await waiting is None
        await made.push(key, b"x", 1)
        assert await pop(made, key, 1) == b"x"
    assert made.sessions == 1 and made.size == 0


async def test_one_task_leaves_room_for_others(tmp_path: Path) -> None:
    """However it names its sessions and topics."""
    limits = QueueLimits(session=1000, total=8000, sessions=40, queues=40, messages=80, messages_of_session=12)
    made, clock = queues(tmp_path, limits)
    for number in range(10):
        await made.push(QueueKey(f"t1.{number}", "bob", "m"), b"", 1)
    with pytest.raises(TransportRefused, match=r"the task of session session_t1[.]x has 10 sessions") as problem:
        await made.push(QueueKey("session_t1.x", "bob", "m"), b"", 1)
    assert problem.value.code == TransportCode.BUFFER_FULL
    with pytest.raises(TransportRefused, match="has 10 topics"):
        await made.push(QueueKey("t1.0", "bob", "n"), b"", 1)
    await made.push(QueueKey("t2", "bob", "m"), b"", 1)
    made.release("t2")
    for _ in range(10):
        await made.push(QueueKey("t1.1", "bob", "m"), b"", 1)
    many = asyncio.ensure_future(made.push(QueueKey("t1.2", "bob", "m"), b"", 9))
    await clock.advance(10)
    with pytest.raises(TransportRefused):  # the 21st message of 80 / 4
        await many
    for number in range(10):
        made.release(f"t1.{number}")
    assert made.messages == 0
    for session in ("t3", "t3.1"):
        await made.push(QueueKey(session, "bob", "m"), bytes(900), 1)
    full = asyncio.ensure_future(made.push(QueueKey("t3.2", "bob", "m"), bytes(900), 9))
    await clock.advance(10)
    with pytest.raises(TransportRefused):
        await full
    await made.push(QueueKey("t4", "bob", "m"), bytes(900), 1)


async def test_it_is_remembered_of_so_many_sessions_that_they_were_released(tmp_path: Path) -> None:
    made, clock = queues(tmp_path, QueueLimits(sessions=40))
    made.release("t2")
    for number in range(1000):
        made.release(f"t1.{number}")
    with pytest.raises(TransportRefused, match="was released"):
        await made.push(QueueKey("t1.999", "bob", "m"), b"", 1)
    with pytest.raises(TransportRefused, match="was released"):  # another task's are not forgotten for them
        await made.push(QueueKey("t2", "bob", "m"), b"", 1)
    assert sum(len(task.released) for task in made._tasks.values()) == 11
    await clock.advance(2000)
    made.expire()
    assert made.unused


# ---- messages on their way ----

BIG = 400_000
ROOMY = QueueLimits(session=10 << 20, total=50 << 20, memory=1_000_000)


async def test_a_message_counts_until_it_was_handed_over(tmp_path: Path) -> None:
    made, _ = queues(tmp_path)
    await made.push(KEY, b"a" * 90, 1)
    taken = await made.pop(KEY, 1)
    assert taken is not None and made.size == made.in_memory == 90 and await peek(made, KEY) is None
    taken.give_back()
    taken.give_back()
    taken = await made.peek(KEY)
    assert taken is not None and await taken.read() == b"a" * 90
    taken.give_back()
    assert made.size == made.in_memory == made.messages == 0, "given back after all was handed over: it is gone"


@pytest.mark.parametrize("memory", [1_000_000, 10])
async def test_what_comes_back_is_the_oldest_and_for_who_waits(tmp_path: Path, memory: int) -> None:
    made, clock = queues(tmp_path, QueueLimits(memory=memory))
    for body in (b"1" * BIG, b"2" * BIG):
        await made.push(KEY, body, 1)
    first = await made.pop(KEY, 1)
    assert first is not None and await first.piece(5, 3) == b"111"
    first.give_back()
    assert await pop(made, KEY, 1) == b"1" * BIG
    second = await made.pop(KEY, 1)
    waiting = asyncio.ensure_future(pop(made, KEY, 50))
    await clock.advance(1)
    assert second is not None
    second.give_back()
    assert await waiting == b"2" * BIG
    third = None
    await made.push(KEY, b"3" * BIG, 1)
    third = await made.pop(KEY, 1)
    made.release(KEY.session)
    assert third is not None and await third.piece(0, 3) == b"333", "who reads it may read on"
    third.give_back()
    assert made.size == made.in_memory == made.messages == 0


@pytest.mark.parametrize("released", [False, True])
async def test_nothing_is_counted_of_a_message_that_could_not_be_stored_in_time(
    tmp_path: Path, released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender left, or the session was released, while the file was being written."""
    made, _ = queues(tmp_path, QueueLimits(memory=10))
    writes, may_end = threading.Event(), threading.Event()
    write = os.pwrite

    def slow(*arguments: Any) -> int:
        writes.set()
        may_end.wait(30)
        return write(*arguments)

    monkeypatch.setattr("coterie.kuscia.transport.queues.os.pwrite", slow)
    pushing = asyncio.ensure_future(made.push(KEY, b"a" * BIG, 1))
    await asyncio.to_thread(writes.wait, 30)
    if released:
        made.release(KEY.session)
    else:
        pushing.cancel()
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises((asyncio.CancelledError, TransportRefused)):
        await pushing
    assert made.size == made.in_memory == made.messages == 0
    if not released:
        await made.push(KEY, b"b" * BIG, 1)
        assert await pop(made, KEY, 1) == b"b" * BIG


async def test_the_disk_gets_its_room_back_message_by_message(tmp_path: Path) -> None:
    made, _ = queues(tmp_path, QueueLimits(memory=10))
    await made.push(KEY, b"stays", 1)
    await made.push(KEY._replace(topic="first"), b"first in the file", 1)
    for _ in range(100):
        await made.push(KEY._replace(topic="m"), b"x" * 100_000, 1)
        assert len(await pop(made, KEY._replace(topic="m"), 1) or b"") == 100_000
    file = made._sessions[KEY.session].file
    assert file is not None
    assert os.fstat(file._file.fileno()).st_blocks * 512 < 1 << 20, "10 MB went through it"
    assert await pop(made, KEY._replace(topic="first"), 1) == b"first in the file"


async def test_messages_go_in_and_out_at_random(tmp_path: Path) -> None:
    """In memory and in files, cut off and given back: each comes once, in order, and nothing is left of the counts."""
    made, _ = queues(tmp_path, QueueLimits(memory=300_000))
    choose = random.Random(22)
    topics = [KEY._replace(topic=str(number)) for number in range(3)]
    sent, got = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
    for _ in range(400):
        key = choose.choice(topics)
        if choose.random() < 0.5 and made.size < 20 << 20:
            await made.push(key, b"%08d" % sent[key] * choose.choice((1, 1000, 40_000)), 1)
            sent[key] += 1
            continue
        taken = await made.peek(key)
        if taken is None:
            assert got[key] == sent[key]
        elif choose.random() < 0.3:
            await taken.piece(0, min(8, taken.size))
            taken.give_back()
        else:
            assert (await taken.read())[:8] == b"%08d" % got[key]
            got[key] += 1
    for key in topics:
        while (body := await peek(made, key)) is not None:
            assert body[:8] == b"%08d" % got[key]
            got[key] += 1
    assert got == sent and made.size == made.in_memory == made.messages == 0


# ---- calls ----


async def recognise(request: Request) -> TransportCaller | None:
    domain = request.headers.get("domain", "")
    return TransportCaller(domain, request.headers.get("task", "")) if domain else None


async def parties_of(task: str) -> frozenset[str]:
    return frozenset({"alice", "bob"}) if task == "t1" else frozenset()


async def call(calls: TransportCalls, action: str, body: bytes = b"", query: str = "", **headers: str) -> Outbound:
    named = {
        f"x-ptp-{name.replace('_', '-')}": value for name, value in headers.items() if name not in ("domain", "task")
    }
    who = {name: headers[name] for name in ("domain", "task") if name in headers}
    request = Request("POST", f"/v1/interconn/chan/{action}", query, {**named, **who}, body)
    response = await calls.handle(request)
    assert (response.status, response.content_type) == (200, "application/proto")
    return outbound.decode(bytes(response.body))


async def test_calls(tmp_path: Path) -> None:
    made, _ = queues(tmp_path)
    calls = TransportCalls(made, recognise, parties_of, TransportMetrics())
    of = {"session_id": "session_t1", "topic": "m"}
    pushed = await call(calls, "invoke", b"from bob", domain="bob", source_node_id="bob", **of)
    assert pushed == Outbound()
    engine = {"domain": "alice", "task": "t1"}
    assert await call(calls, "pop", target_node_id="bob", **engine, **of) == Outbound(b"from bob")
    assert await call(calls, "peek", target_node_id="bob", **engine, **of) == Outbound()
    assert await call(calls, "release", **engine, session_id="session_t1") == Outbound()
    assert (await call(calls, "pop", target_node_id="bob", **engine, **of)).code == TransportCode.SESSION_RELEASED
    assert (await calls.handle(Request("POST", "/v1/interconn/chan/pop"))).status == 401


@pytest.mark.parametrize(
    ("action", "headers", "code", "why"),
    [
        ("invoke", {"domain": "bob", "source_node_id": "carol"}, 403, "bob cannot send messages of carol"),
        ("invoke", {"domain": "carol", "source_node_id": "carol"}, 403, "takes part in here"),
        ("invoke", {"domain": "bob", "source_node_id": "bob", "session_id": "session_t2"}, 403, "takes part in here"),
        ("pop", {"domain": "bob", "target_node_id": "alice"}, 403, "engines of this domain"),
        ("release", {"domain": "bob"}, 403, "engines of this domain"),
        ("pop", {"domain": "alice", "task": "t2", "target_node_id": "bob"}, 403, "takes part in here"),
        ("pop", {"domain": "alice", "task": "t1"}, 400, "x-ptp-target-node-id is needed"),
        ("pop", {"domain": "alice", "task": "t1", "target_node_id": "bob", "topic": ""}, 400, "x-ptp-topic is needed"),
        ("invoke", {"domain": "bob", "source_node_id": "bob", "session_id": "t1,t2"}, 400, "no comma"),
        ("take", {"domain": "alice", "task": "t1"}, 400, "there is nothing at"),
        ("invoke", {"domain": "bob", "source_node_id": "bob", "topic": "t" * 600}, 400, "at most 512 characters"),
    ],
)
async def test_refusals(tmp_path: Path, action: str, headers: dict[str, str], code: int, why: str) -> None:
    made, _ = queues(tmp_path)
    calls = TransportCalls(made, recognise, parties_of, TransportMetrics())
    answer = await call(calls, action, **{"session_id": "session_t1", "topic": "m", **headers})
    assert answer.code == f"E0000000{code}" and why in answer.message
    assert made.sessions == 0, "who is refused leaves nothing"


async def test_a_time_that_is_none(tmp_path: Path) -> None:
    made, _ = queues(tmp_path)
    calls = TransportCalls(made, recognise, parties_of, TransportMetrics())
    who = {"domain": "alice", "task": "t1", "target_node_id": "bob", "session_id": "t1", "topic": "m"}
    assert "number of seconds" in (await call(calls, "pop", query="timeout=soon", **who)).message


@pytest.mark.parametrize(
    ("query", "seconds"),
    [("", 120), ("timeout=", 120), ("timeout=0", 1), ("timeout=7", 7), ("timeout=300", 300), ("timeout=9999999", 300)],
)
def test_how_long_is_waited(query: str, seconds: int) -> None:
    assert wait_seconds(Request("POST", "/v1/interconn/chan/pop", query)) == seconds


def test_the_limits_are_kuscias() -> None:
    limits = QueueLimits()
    assert (limits.body, limits.session, limits.total) == (128 << 20, 60 << 20, 16 << 30)
    assert (limits.idle_seconds, limits.remembered_seconds, limits.clean_seconds) == (600, 1800, 120)


async def test_a_message_that_cannot_be_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = queues(tmp_path, QueueLimits(memory=0))
    calls = TransportCalls(made, recognise, parties_of, TransportMetrics())
    await made.push(QueueKey("t1", "bob", "m"), b"kept", 1)

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("coterie.kuscia.transport.queues.os.pread", broken)
    engine = {"domain": "alice", "task": "t1", "target_node_id": "bob", "session_id": "t1", "topic": "m"}
    answer = await call(calls, "pop", **engine)
    assert answer.code == TransportCode.SERVER_ERROR and "Input/output error" in answer.message
    monkeypatch.undo()
    assert await call(calls, "pop", **engine) == Outbound(b"kept")


@pytest.mark.parametrize(
    ("session", "task"), [("t1", "t1"), ("session_t1", "t1"), ("session_t1.2", "t1"), ("t1.a.b", "t1"), ("", "")]
)
def test_sessions_of_tasks(session: str, task: str) -> None:
    assert task_of_session(session) == task


def test_answers_cut_at_every_byte_are_read_or_refused() -> None:
    body = outbound.encode(Outbound(b"payload", TransportCode.BAD_REQUEST, "why"))
    assert outbound.decode(body) == Outbound(b"payload", TransportCode.BAD_REQUEST, "why")
    for end in range(len(body)):
        try:
            outbound.decode(body[:end])
        except ProtobufError:
            continue
    with pytest.raises(ProtobufError):
        outbound.decode(b"\x08\x01")
