"""Trace ids, the ring, OTLP in JSON (checked with OpenTelemetry's own messages), spans of child processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from coterie.base import otlp, trace, trace_socket
from coterie.base.trace import Span, TraceParent, TraceRing, parse_traceparent, span_id, trace_id, traceparent

TRACE = trace_id("alice", "psi")
SPAN = Span(
    TRACE,
    span_id("task", "u-1"),
    span_id("job", "u-0"),
    "task psi",
    1_700_000_000_123_456_789,
    1_700_000_001_000_000_000,
    {"coterie.task": "psi-1", "calls": 2**40, "share": 0.5, "own": True},
    "engine failed",
    [TraceParent("ab" * 16, "cd" * 8)],
)


def test_the_trace_id_follows_from_initiator_and_job() -> None:
    assert trace_id("alice", "psi") == hashlib.sha256(b"coterie-trace/alice/psi").hexdigest()[:32]
    assert len({trace_id("alice", "psi"), trace_id("bob", "psi"), trace_id("alice", "psi2")}) == 3
    assert parse_traceparent(traceparent(TRACE, SPAN.span)) == TraceParent(TRACE, SPAN.span)
    assert len({trace.new_span_id() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN.span}-01",
        f"00-{'0' * 32}-{SPAN.span}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN.span}-01",
        f"00-{TRACE}-{SPAN.span}-01-more",
        f"00-{TRACE}-{SPAN.span}",
    ],
)
def test_a_traceparent_that_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_traceparent_of_a_later_version_is_read() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN.span}-01-more") == TraceParent(TRACE, SPAN.span)


def test_readers_of_the_ring_learn_what_they_lost() -> None:
    ring = TraceRing(4)
    for number in range(3):
        ring.record(SPAN._replace(name=str(number)))
    found, lost, at = ring.after(0, 2)
    assert ([each.name for each in found], lost, at) == (["0", "1"], 0, 2)
    for number in range(3, 9):
        ring.record(SPAN._replace(name=str(number)))
    found, lost, at = ring.after(at)
    assert ([each.name for each in found], lost, at) == (["5", "6", "7", "8"], 3, 9)
    assert ring.after(at) == ([], 0, 9)
    assert (ring.recorded, len(ring)) == (9, 4)


def test_what_is_recorded_is_bounded() -> None:
    large = SPAN._replace(
        name="n" * 9999,
        attributes={f"key{number}": "v" * 9999 for number in range(99)},
        links=[TraceParent("ab" * 16, "cd" * 8)] * 99,
        end=0,
    )
    found = trace.bounded(large)
    assert len(found.name) == 512 and len(found.attributes) == 32 and len(found.links) == 8
    assert all(len(str(each)) == 512 for each in found.attributes.values())
    assert found.end == found.begin


def test_nothing_is_recorded_when_off(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = TraceRing()
    with trace.recorded(TraceParent(TRACE, SPAN.span), "work", {}, ring):
        pass
    assert len(ring) == 0
    ring.on = True
    with pytest.raises(ValueError, match="no"), trace.recorded(TraceParent(TRACE, SPAN.span), "work", {"a": 1}, ring):
        raise ValueError("no")
    (found,) = ring.after(0)[0]
    assert (found.parent, found.error, found.attributes) == (SPAN.span, "no", {"a": 1})
    with trace.recorded(None, "of nothing", {}, ring):
        pass
    assert len(ring) == 1


def test_otlp_json_is_what_opentelemetry_reads() -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    line = otlp.encode(otlp.export_request([SPAN, SPAN._replace(error="", parent="", links=())], {"a": "b"}, "1.2"))
    assert b"\n" not in line
    # The protocol writes ids in hexadecimal where protobuf's own JSON has base64: of these lengths both can be read.
    document = json.loads(line)
    for each in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        assert (len(each["traceId"]), len(each["spanId"])) == (32, 16)
    request = json_format.ParseDict(document, service.ExportTraceServiceRequest())
    (resource,) = request.resource_spans
    assert [(each.key, each.value.string_value) for each in resource.resource.attributes] == [("a", "b")]
    first, second = resource.scope_spans[0].spans
    assert (first.name, first.start_time_unix_nano, first.end_time_unix_nano) == (SPAN.name, SPAN.begin, SPAN.end)
    assert (first.status.code, first.status.message, second.status.code) == (2, "engine failed", 0)
    assert (len(first.links), second.parent_span_id) == (1, b"")
    values = {each.key: each.value for each in first.attributes}
    assert (values["calls"].int_value, values["share"].double_value, values["own"].bool_value) == (2**40, 0.5, True)


async def test_spans_of_a_child_arrive_in_the_nodes_ring(tmp_path: Path) -> None:
    path, ring = tmp_path / "t.sock", TraceRing()
    child = trace_socket.forward_from(trace_socket.environment(path))
    assert child.on and isinstance(child, trace_socket.ForwardingRing)
    child.record(SPAN)  # nobody is there yet
    assert child.dropped == {"node": 1}
    receiver = trace_socket.SpanReceiver(path, ring)
    receiver.start()
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        child.record(SPAN)
        child._socket.sendto(b'["not", "a span"]', str(path))
        child._socket.sendto(b"\xff", str(path))
        async with asyncio.timeout(5):
            while ring.recorded < 1 or sum(ring.dropped.values()) < 2:
                await asyncio.sleep(0)
        (found,) = ring.after(0)[0]
        assert found._replace(links=list(found.links)) == SPAN
        assert ring.dropped == {"unreadable": 2}
    finally:
        receiver.close()
        child.close()
    assert not path.exists()


async def test_a_child_never_waits_for_its_node(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    receiver = trace_socket.SpanReceiver(path, TraceRing())
    child = trace_socket.ForwardingRing(str(path))
    try:
        for _ in range(5000):  # nobody reads
            child.record(SPAN)
        assert child.recorded == 5000 and child.dropped["node"] > 0
    finally:
        receiver.close()
        child.close()


def test_without_the_variable_a_child_records_nothing() -> None:
    assert trace_socket.environment(None) == {}
    assert trace_socket.forward_from({}) is trace.RING
    assert not trace.RING.on
