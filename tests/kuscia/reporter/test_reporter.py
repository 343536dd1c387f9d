"""Progress that engines tell: who may, what counts, what is answered, in JSON and in protobuf, over a real port."""

from __future__ import annotations

import asyncio
import json
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.http.messages import Request, UserInfo
from coterie.kube.api.errors import ServiceUnavailable
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASKS
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.reporter.messages import InvalidReport, ReportStatus, encoded, progress_in
from coterie.kuscia.reporter.server import Reporter

TASKS = KUSCIA_TASKS.as_dynamic
PROTOBUF = "application/x-protobuf"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]))
    await server.start()
    made = Client(InProcessTransport(server.handle, UserInfo("admin", ("system:masters",))))
    parties = [{"domainID": name, "appImageRef": "sample"} for name in ("alice", "bob")]
    spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": parties}
    await made.create(TASKS, {"metadata": {"name": "t", "namespace": CROSS_DOMAIN}, "spec": spec})
    yield made
    await made.close()
    await server.stop()
    await store.close()


async def progress(client: Client) -> float:
    return (await client.get(KUSCIA_TASKS, "t", CROSS_DOMAIN)).status.progress


async def tell(
    client: Client, body: bytes, domain: str = "alice", query: str = "task_id=t", kind: str = "application/json"
) -> dict[str, Any]:
    reporter = Reporter(client, "alice", Path("/not/used"))
    headers = {"content-type": kind, **({"kuscia-origin-source": domain} if domain else {})}
    answer = await reporter.handle(Request("POST", "/report/progress", query, headers, body))
    assert answer.status == 200
    return dict(json.loads(answer.body)["status"])


@pytest.mark.parametrize("domain", ["alice", "bob", ""], ids=["initiator", "partner", "this-machine"])
async def test_a_party_reports(client: Client, domain: str) -> None:
    told = await tell(client, b'{"progress": 0.25, "custom_fields": {"a": "b"}, "more": 1}', domain)
    assert (told["code"], told["message"]) == (0, "success")
    assert await progress(client) == 0.25


async def test_progress_never_goes_back(client: Client) -> None:
    for value, expected in ((0.5, "success"), (0.25, "ignored"), (0.5, "ignored"), (1, "success")):
        told = await tell(client, json.dumps({"progress": value}).encode())
        assert told["code"] == 0
        assert told["message"].startswith(expected)
    assert await progress(client) == 1.0


async def test_a_task_that_ended_hears_nothing_more(client: Client) -> None:
    await client.patch_status(TASKS, "t", CROSS_DOMAIN, {"status": {"phase": "Failed"}})
    assert (await tell(client, b'{"progress": 0.5}'))["message"] == "ignored: the task has ended"
    assert await progress(client) == 0.0


@pytest.mark.parametrize(
    ("body", "domain", "query", "told"),
    [
        (b'{"progress": 0.5}', "carol", "task_id=t", 'the domain takes part in no task "t"'),
        (b'{"progress": 0.5}', "alice", "task_id=other", 'the domain takes part in no task "other"'),
        (b'{"progress": 0.5}', "alice", "", "say which task"),
        (b'{"progress": 0.5}', "alice", "task_id=../t", "say which task"),
        (b'{"progress": 0.5}', "alice", "&" * 2000, "parameters"),
        (b'{"progress": 1.5}', "alice", "task_id=t", "between 0 and 1, not 1.5"),
        (b'{"progress": -0.1}', "alice", "task_id=t", "between 0 and 1"),
        (b'{"progress": "half"}', "alice", "task_id=t", "must look like"),
        (b'{"progress": true}', "alice", "task_id=t", "must look like"),
        (b"[1]", "alice", "task_id=t", "must look like"),
        (b"half", "alice", "task_id=t", "not JSON"),
    ],
)
async def test_what_is_refused(client: Client, body: bytes, domain: str, query: str, told: str) -> None:
    answer = await tell(client, body, domain, query)
    assert answer["code"] == 3000
    assert told in answer["message"]
    assert await progress(client) == 0.0


async def test_a_store_that_is_away_is_told() -> None:
    def away(_: object) -> Any:
        raise ServiceUnavailable("not now")

    answer = await tell(Client(FakeTransport(away)), b'{"progress": 0.5}')
    assert answer["code"] == 3001


# The socket.


async def test_over_a_real_socket(client: Client, tmp_path: Path) -> None:
    reporter = Reporter(client, "alice", tmp_path / "reporter.sock")
    running = asyncio.create_task(reporter.run())
    await asyncio.wait_for(reporter.ready.wait(), 30)
    assert stat.S_IMODE(reporter.path.stat().st_mode) == 0o600
    answers = []
    for head in (
        b"POST /report/progress?task_id=t HTTP/1.1\r\nKuscia-Origin-Source: bob\r\nContent-Length: 17\r\n",
        b"GET /healthZ HTTP/1.1\r\n",
        b"GET /report/progress HTTP/1.1\r\n",
        b"POST /other HTTP/1.1\r\nContent-Length: 17\r\n",
    ):
        reader, writer = await asyncio.open_unix_connection(reporter.path)
        body = b'{"progress": 0.5}' if head.startswith(b"POST") else b""
        writer.write(head + b"Host: reporter.master.svc\r\nConnection: close\r\n\r\n" + body)
        answers.append((await asyncio.wait_for(reader.read(), 30)).decode())
        writer.close()
    reporter.stop()
    await asyncio.wait_for(running, 30)
    assert [answer.split(" ")[1] for answer in answers] == ["200", "200", "405", "404"]
    assert '"code":0' in answers[0]
    assert '"ready":true' in answers[1]
    assert await progress(client) == 0.5


# Bodies.


def message(value: float, before: bytes = b"", after: bytes = b"") -> bytes:
    return before + b"\x15" + struct.pack("<f", value) + after


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (message(0.5), 0.5),
        (b"", 0.0),
        (message(0.5, b"\x0a\x03abc", b"\x1a\x08\x0a\x01k\x12\x03xyz"), 0.5),
        (message(0.25, b"\x20\x96\x01", b"\x29" + bytes(8)), 0.25),
    ],
    ids=["plain", "empty", "header-and-fields", "unknown-fields"],
)
def test_protobuf(body: bytes, expected: float) -> None:
    assert progress_in(body, f"{PROTOBUF}; charset=x") == expected


@settings(deadline=None)
@given(st.binary(), st.sampled_from([PROTOBUF, "application/json", ""]))
def test_any_body_is_read_or_refused(body: bytes, kind: str) -> None:
    try:
        assert 0.0 <= progress_in(body, kind) <= 1.0
    except InvalidReport as problem:
        assert str(problem)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (ReportStatus(0, "ok"), b"\x0a\x04\x12\x02ok"),
        (ReportStatus(3000, "no"), b"\x0a\x07\x08\xb8\x17\x12\x02no"),
        (ReportStatus(0, "x" * 200), b"\x0a\xcb\x01\x12\xc8\x01" + b"x" * 200),
    ],
)
def test_answers_in_protobuf(verdict: ReportStatus, expected: bytes) -> None:
    assert encoded(verdict, PROTOBUF) == (expected, PROTOBUF)
