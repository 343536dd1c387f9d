"""Spans of calls."""

from __future__ import annotations

from coterie.base.trace import parse_traceparent
from coterie.functions.call_traces import call_span, child_traceparent
from coterie.functions.messages import CallRecord, Invoke

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_chain_is_one_trace_and_each_call_is_below_the_one_that_made_it() -> None:
    first = Invoke(request_uid="r", action="a", return_topic="", traceparent=PARENT)
    second = Invoke(request_uid="r", action="b", return_topic="", hop=1, traceparent=child_traceparent(first))
    one = call_span(first, CallRecord(time=1000, action="a", milliseconds=5.0), 2_000_000_000)
    two = call_span(second, CallRecord(time=1500, action="b", error=True), 2_000_000_000)
    assert one is not None and two is not None
    given = parse_traceparent(PARENT)
    assert given is not None and one.trace == two.trace == given.trace
    assert (one.parent, two.parent) == (given.span, one.span)
    assert (one.begin, one.end, one.error, bool(two.error)) == (1_000_000_000, 2_000_000_000, "", True)


def test_calls_without_a_trace_have_no_span() -> None:
    call = Invoke(request_uid="r", action="a", return_topic="")
    assert child_traceparent(call) == "" and call_span(call, CallRecord(time=0, action="a"), 0) is None
