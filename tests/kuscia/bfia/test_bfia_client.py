"""What is sent to a partner through the gateway's socket, when it is sent again, and how its answers are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.bfia import client, wire
from coterie.kuscia.bfia.client import BfiaAnswer, BfiaClient, parse_answer
from coterie.kuscia.bfia.wire import JobRequest


class NoPauses:
    """A clock whose pauses are over at once, and remembered."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_700_000_000, UTC)

    def monotonic(self) -> float:
        return sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_headers_retries_and_answers(tmp_path: Path) -> None:
    seen: list[Request] = []
    statuses = [503, 503, 200, 200, 503, 503, 503, 503]

    def handle(request: Request) -> Response:
        seen.append(request)
        status = statuses.pop(0)
        if status != 200:
            return Response(status, b"", headers=[("x-why", "no route")])
        return Response(200, b'{"code":200,"msg":"success","data":{"status":{}}}')

    server = HttpServer(handle)
    await server.serve(private_socket(tmp_path / "s"))
    clock = NoPauses()
    calls = BfiaClient(tmp_path / "s", "alice", "x-why", clock)
    try:
        assert await calls.call("bob", wire.JOB_STOP, JobRequest(job_id="j")) == BfiaAnswer(
            200, "success", {"status": {}}, repeated=True
        )
        assert clock.pauses == [0.2, 0.2]
        sent = seen[-1]
        assert (sent.method, sent.path, json.loads(sent.body)) == (
            "POST",
            "/v1/interconn/schedule/job/stop",
            {"job_id": "j"},
        )
        names = ("host", "x-node-id", "x-timestamp", "content-type")
        assert [sent.headers[name] for name in names] == [
            "interconn-scheduler.bob.svc",
            "alice",
            "1700000000",
            "application/json",
        ]
        found = await calls.call("bob", wire.JOB_STATUS, JobRequest(job_id="a b&c"))
        assert (found.ok, found.repeated, seen[-1].method, seen[-1].params) == (
            True,
            False,
            "GET",
            {"job_id": ["a b&c"]},
        )
        lost = await calls.call("bob", wire.JOB_STOP, JobRequest(job_id="j"))
        assert (lost.code, len(seen)) == (0, 4 + client.RETRIES + 1)
        assert lost.message == "bob cannot be reached: status 503: no route"
    finally:
        await calls.close()
        await server.stop()
    gone = await calls.call("bob", wire.JOB_STOP, JobRequest(job_id="j"))
    assert (gone.ok, gone.refused) == (False, False)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b'{"code":400,"message":"bad"}', 400, "bad"),
        (b'{"code":400,"msg":"no\\u001b[31m","data":null}', 400, "no?[31m"),
        (b'{"code":200,"msg":"","data":{}}', 200, ""),
    ],
)
def test_answers(content: bytes, code: int, message: str) -> None:
    found = parse_answer(content)
    assert (found.code, found.message) == (code, message)


def test_an_answer_that_cannot_be_read_is_no_refusal() -> None:
    whole = b'{"code":200,"msg":"success","data":{"status":{"t":"RUNNING"}}}'
    for cut in range(len(whole)):
        found = parse_answer(whole[:cut])
        assert (found.ok, found.refused) == (False, False)
    for content in (b"[]", b"null", b'{"code":"200"}', b"\xff", b"[" * 100_000):
        assert parse_answer(content).code == wire.FAILED
