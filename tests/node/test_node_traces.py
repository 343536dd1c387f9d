"""Spans from objects, logs and processes to a file and a collector: what is configured, recorded, sent, lost."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.base.log_rotation import Rotation
from coterie.base.trace import Span, TraceRing, span_id, trace_id
from coterie.kuscia.control.job_spans import ActiveTask
from coterie.kuscia.gateway.access_log_spans import GatewayHops
from coterie.node import config, trace_export
from coterie.node.config import ConfigError
from coterie.node.parts import registry, traces
from coterie.node.parts.traces import AccessLogs, Traces
from coterie.node.trace_export import SpanExporter
from coterie.node.trace_file import TraceFile

TRACE = trace_id("alice", "psi")
SPAN = Span(TRACE, span_id("task", "u"), "", "task psi", 10**18, 10**18 + 5, {"coterie.task": "psi-1"})
AUTONOMY = {"mode": "autonomy", "domainID": "alice"}
LINE = (
    '100.96.0.3 - [2026-01-02T03:04:05.000Z] - psi-1-0-global.bob.svc "POST /x HTTP/1.1" - - {status} - 5 17 20 1 2 3'
    " - - via_upstream -\n"
)
Answer = Callable[[web.Request], web.Response]


def parsed(**given: Any) -> config.NodeSettings:
    return config.parse({**AUTONOMY, "traces": given}, Path("/nowhere"), lowest_port=0)


# Configuration.


def test_traces_are_off_and_there_is_no_part_for_them() -> None:
    settings = config.parse(AUTONOMY, Path("/nowhere"), lowest_port=0)
    assert not settings.traces.enabled
    assert "traces" not in [each.name for each in registry.parts_of(settings)]
    names = [each.name for each in registry.parts_of(parsed(enabled=True))]
    assert names.index("traces") < names.index("agent") < names.index("metrics")


def test_an_endpoint_is_all_that_is_needed() -> None:
    otlp = {"endpoint": "https://collector:4318", "headersFile": "/h", "caFile": "/ca", "timeoutSeconds": 3}
    found = parsed(otlp={**otlp, "certFile": "/c", "keyFile": "/k"}).traces
    assert found.enabled and found.file and found.otlp is not None
    assert found.otlp.endpoint == "https://collector:4318/v1/traces"
    assert (found.otlp.headers_file, found.otlp.ca_file, found.otlp.timeout_seconds) == ("/h", "/ca", 3)
    assert (found.otlp.certificate_file, found.otlp.key_file) == ("/c", "/k")
    own = parsed(enabled=False, otlp={"endpoint": "http://127.0.0.1:4318/own/path"}).traces
    assert own.otlp is not None and own.otlp.endpoint == "http://127.0.0.1:4318/own/path" and not own.enabled


@pytest.mark.parametrize(
    ("otlp", "why"),
    [
        ({"endpoint": "collector:4318"}, "traces.otlp.endpoint: must be such as"),
        ({"endpoint": "https://u:p@collector"}, "traces.otlp.endpoint: must be such as"),
        ({"endpoint": "http://collector", "headersFile": "/h"}, "traces.otlp.endpoint: must be https"),
        ({"endpoint": "https://collector", "certFile": "/c"}, "traces.otlp.certFile: and keyFile belong together"),
        ({"endpoint": "https://collector", "timeoutSeconds": 0}, "traces.otlp.timeoutSeconds"),
        ({"headersFile": "/h"}, "traces.otlp.headersFile: means nothing without"),
    ],
)
def test_what_cannot_be_meant_is_refused(otlp: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parsed(otlp=otlp)


@pytest.mark.parametrize("endpoint", ["https://u:planted@c:4318", "https://c:4318/v1/traces?token=planted"])
def test_a_secret_in_the_endpoint_is_not_repeated(endpoint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(otlp={"endpoint": endpoint})
    assert "planted" not in str(refused.value)


def test_headers_are_secrets(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# of the collector\nAuthorization: Bearer abc:def\n\nx-team: a\n")
    found = trace_export.read_headers(file)
    assert {name: value.reveal() for name, value in found.items()} == {"Authorization": "Bearer abc:def", "x-team": "a"}
    assert "abc" not in repr(found)
    file.write_text("no colon")
    with pytest.raises(ValueError, match="line 1"):
        trace_export.read_headers(file)
    (tmp_path / "h").write_text("bad name: x\r\n")
    with pytest.raises(ValueError, match="line 1"):
        trace_export.read_headers(tmp_path / "h")


# The collector.


class Collector:
    """Takes what OpenTelemetry's own messages can read."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[web.Request] = []
        self.spans: list[str] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        body = await request.json()
        _check(body)
        if self.answers:
            answer = self.answers.pop(0)(request)
            if answer.status != 200 or answer.body:
                return answer
        found = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
        self.spans += [each["name"] for each in found]
        return web.json_response({"partialSuccess": {}})


def _check(body: Any) -> None:
    json_format = pytest.importorskip("google.protobuf.json_format")
    json_format.ParseDict(body, trace_service_pb2.ExportTraceServiceRequest())


@asynccontextmanager
async def collecting(tls: ssl.SSLContext | None = None) -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    collector.port = runner.addresses[0][1]
    try:
        yield collector
    finally:
        await runner.cleanup()


def exporter_of(ring: TraceRing, port: int, scheme: str = "http", **options: Any) -> SpanExporter:
    clock = VirtualClock()
    return SpanExporter(ring, f"{scheme}://127.0.0.1:{port}/v1/traces", {"service.name": "x"}, "1", clock, **options)


def names(ring: TraceRing, first: int, count: int) -> None:
    for number in range(first, first + count):
        ring.record(SPAN._replace(name=str(number)))


async def test_batches_arrive_and_failures_are_tried_again() -> None:
    ring = TraceRing()
    async with collecting() as collector, aiohttp.ClientSession() as session:
        exporter = exporter_of(ring, collector.port)
        names(ring, 0, 700)
        collector.answers = [lambda _: web.Response(status=503, headers={"Retry-After": "7"})]
        assert await exporter.export(session) == 7.0
        assert (exporter.exported, collector.spans) == (0, [])
        assert await exporter.export(session) == trace_export.PERIOD
        assert exporter.exported == 700
        assert collector.spans == [str(number) for number in range(700)]
        assert len(collector.requests) == 3
        assert await exporter.export(session) == trace_export.PERIOD
        assert len(collector.requests) == 3, "nothing is sent when there is nothing new"
    assert ring.dropped == {}


async def test_a_collector_that_is_away_costs_spans_and_nothing_else() -> None:
    ring = TraceRing(100)
    async with collecting() as collector, aiohttp.ClientSession() as session:
        exporter = exporter_of(ring, collector.port)
        port, exporter._endpoint = exporter._endpoint, "http://127.0.0.1:1/v1/traces"
        names(ring, 0, 60)
        first = await exporter.export(session)
        names(ring, 60, 90)
        assert await exporter.export(session) > first > 0
        assert len(ring) == 100 and ring.dropped == {"queue": 50}
        exporter._endpoint = port
        await exporter.export(session)
        assert collector.spans == [str(number) for number in range(50, 150)]
    assert ring.dropped == {"queue": 50} and exporter.exported == 100


async def test_what_is_refused_is_dropped_and_counted() -> None:
    ring = TraceRing()
    async with collecting() as collector, aiohttp.ClientSession() as session:
        exporter = exporter_of(ring, collector.port)
        names(ring, 0, 4)
        collector.answers = [lambda _: web.Response(status=400)]
        await exporter.export(session)
        names(ring, 4, 4)
        collector.answers = [lambda _: web.json_response({"partialSuccess": {"rejectedSpans": "3"}})]
        await exporter.export(session)
        names(ring, 8, 1)
        redirect = web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})
        collector.answers = [lambda _: redirect]
        await exporter.export(session)
    assert ring.dropped == {"refused": 5, "rejected": 3}
    assert exporter.exported == 1


async def test_tls_and_headers(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority, key = pki.self_signed_ca("collectors", pki.new_key(), now=now), pki.new_key()
    shown = pki.issue_server(authority, "collector", key.public_key(), names=("127.0.0.1",), now=now)
    files = {
        "ca": pki.certificate_pem(authority.certificate),
        "crt": pki.certificate_pem(shown),
        "key": pki.key_pem(key),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "headers").write_text("authorization: Bearer t0ps3cret\n")
    headers = trace_export.read_headers(tmp_path / "headers")
    async with collecting(context) as collector:
        for tls, expected in (
            (trace_export.tls_context("", "", ""), []),
            (trace_export.tls_context(str(tmp_path / "ca"), "", ""), ["task psi"]),
        ):
            ring = TraceRing()
            exporter = exporter_of(ring, collector.port, "https", headers=headers, tls=tls)
            ring.record(SPAN)
            running = asyncio.create_task(exporter.run())
            async with asyncio.timeout(10):
                while exporter._backoff.attempts == 0 and exporter.exported == 0:
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert collector.spans == expected
        assert collector.requests[-1].headers["Authorization"] == "Bearer t0ps3cret"


# The file, and the whole part.


def test_the_file_has_a_line_for_each_trace_and_is_moved_aside(tmp_path: Path) -> None:
    ring, path = TraceRing(8), tmp_path / "traces.jsonl"
    file = TraceFile(path, ring, {"service.name": "x"}, "1", Rotation(max_bytes=400, max_files=3))
    assert not file.behind
    ring.record(SPAN)
    ring.record(SPAN._replace(trace=trace_id("bob", "other")))
    ring.record(SPAN._replace(name="second"))
    file.write()
    lines = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in path.read_text().splitlines()]
    assert [[each["name"] for each in line] for line in lines] == [["task psi", "second"], ["task psi"]]
    assert {each["traceId"] for each in lines[0]} == {TRACE} and path.stat().st_mode & 0o777 == 0o600
    names(ring, 0, 20)
    file.write()
    assert (tmp_path / "traces.jsonl.1").exists() and ring.dropped == {"file": 12} and not file.behind


async def test_the_part_records_while_it_runs(tmp_path: Path) -> None:
    ring, clock = TraceRing(), VirtualClock()
    path = tmp_path / "traces.jsonl"
    hops = GatewayHops(ring, "alice")
    logs = AccessLogs(tmp_path, hops, {}, clock)
    file = TraceFile(path, ring, {}, "1", Rotation())
    part = Traces(ring, tmp_path / "t.sock", clock, file=file, access_logs=logs)
    running = asyncio.create_task(part.run())
    await part.ready.wait()
    assert ring.on and (tmp_path / "t.sock").exists()
    ring.record(SPAN)
    await clock.advance(traces.PERIOD)
    async with asyncio.timeout(5):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    ring.record(SPAN._replace(name="the last one"))
    known = {"psi-1": ActiveTask(TRACE, "u-1", "psi", "")}
    hops.read(LINE.format(status=200), known, 0.0, outbound=False)
    part.stop()
    await running
    assert (
        "the last one" in path.read_text()
        and "calls from -" in path.read_text()
        and not ring.on
        and not (tmp_path / "t.sock").exists()
    )
    shown = {family.name: list(family.rows) for family in await part.families()}
    assert shown["coterie_trace_spans_total"] == [("", 3)]


async def test_access_logs_are_followed_over_a_rotation_while_there_are_tasks(tmp_path: Path) -> None:
    line = LINE
    ring, clock, tasks = TraceRing(), VirtualClock(), dict[str, ActiveTask]()
    logs = AccessLogs(tmp_path, GatewayHops(ring, "alice"), tasks, clock)
    log = tmp_path / "internal.log"
    log.write_text(line.format(status=200))
    assert not logs.wanted
    tasks["psi-1"] = ActiveTask(TRACE, "u-1", "psi", "")

    def once() -> None:
        if logs.wanted:
            logs.read()
            logs.record()

    once()
    assert ring.recorded == 0, "what was there before is not read"
    with log.open("a") as file:
        file.write(line.format(status=503) + line.format(status=200)[:30])
    once()
    with log.open("a") as file:
        file.write(line.format(status=200)[30:])
    log.rename(tmp_path / "internal.log.1")
    log.write_text(line.format(status=200))
    once()
    assert [(each.name, each.attributes["coterie.attempts"]) for each in ring.after(0)[0]] == [
        ("connect to psi-1-0-global.bob.svc", 2)
    ]
    del tasks["psi-1"]
    once()
    assert ring.recorded == 1, "Envoy may still have lines of it"
    await clock.advance(20)
    once()
    calls = ring.after(1)[0][0]
    assert calls.name == "calls to psi-1-0-global.bob.svc" and calls.parent == span_id("party", "u-1", "alice")
    assert (calls.attributes["coterie.calls"], calls.attributes["coterie.failed_calls"]) == (3, 1)
    assert not logs.wanted
