"""Traces of calls: each call of an action is a span below the one that called it, through the whole chain and to partners. Pure.

The span of a call has an id that follows from the call, so a repetition is the same span.
"""

from __future__ import annotations

from coterie.base.trace import Span, Value, parse_traceparent, span_id, traceparent
from coterie.functions.messages import CallRecord, Invoke, call_id


def _span_of(invoke: Invoke) -> str:
    return span_id(call_id(invoke.request_uid, invoke.hop, invoke.action))


def child_traceparent(invoke: Invoke) -> str:
    """For the actor and for what it calls next; empty when the call has no trace."""
    parent = parse_traceparent(invoke.traceparent) if invoke.traceparent else None
    return traceparent(parent.trace, _span_of(invoke)) if parent is not None else ""


def call_span(invoke: Invoke, record: CallRecord, now: int) -> Span | None:
    """From its arrival on the bus until `now` (nanoseconds since 1970); None when the call has no trace."""
    parent = parse_traceparent(invoke.traceparent) if invoke.traceparent else None
    if parent is None:
        return None
    attributes: dict[str, Value] = {
        "coterie.action": record.action,
        "coterie.request": invoke.request_uid,
        "coterie.hop": invoke.hop,
        "coterie.cold": record.cold,
        "coterie.run_milliseconds": record.milliseconds,
    }
    begin = record.time * 1_000_000
    error = "the call failed" if record.error else ""
    return Span(parent.trace, _span_of(invoke), parent.span, f"action {record.action}", begin, now, attributes, error)
