"""What a call leads to, as entries for the bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from coterie.base.log import logger
from coterie.functions.bus.protocol import Entry
from coterie.functions.call_traces import child_traceparent
from coterie.functions.dispatcher.actor_client import NextCall, ResponseHead
from coterie.functions.dispatcher.lane import PendingCall
from coterie.functions.dispatcher.versions import pick_version
from coterie.functions.messages import (
    MONITOR_TOPIC,
    RESULTS_TOPIC,
    CallRecord,
    FunctionResponse,
    GivenUpCall,
    Invoke,
    action_topic,
    dead_letter_key,
    dead_letter_topic,
    outbox_topic,
    payload_of,
    result_key,
)
from coterie.functions.model import ActionConfig

MAX_HOPS = 64
encode = msgspec.json.Encoder().encode
_PLAIN = "text/plain; charset=utf-8"
_FOR_PARTNERS = {404: "the action is not there", 504: "the action did not answer in time"}

log = logger("functions.dispatcher")


def plain_name(action: str) -> str:
    """Of the action whose calls for a partner run apart."""
    return action.partition(".")[0]


def problem_response(invoke: Invoke, status: int, message: str) -> FunctionResponse:
    """A partner learns that it failed, not why: reasons name actions, tables and pods of ours. They are in the log and in dead letters."""
    if invoke.origin:
        log.warning("A partner's call failed", partner=invoke.origin, action=invoke.action, status=status, why=message)
        message = _FOR_PARTNERS.get(status, "the action failed")
    return FunctionResponse(
        request_uid=invoke.request_uid,
        status_code=status,
        content_type=_PLAIN,
        payload=message + "\n",
        action=plain_name(invoke.action),
    )


def user_response(invoke: Invoke, head: ResponseHead, body: bytes) -> FunctionResponse:
    if not 200 <= head.status <= 599:
        return problem_response(invoke, 500, f"action {plain_name(invoke.action)} answered the status {head.status}")
    if head.error and invoke.origin:
        return problem_response(invoke, head.status, head.error)
    payload, payload_base64 = payload_of(body)
    return FunctionResponse(
        request_uid=invoke.request_uid,
        status_code=head.status,
        content_type=head.content_type,
        headers=head.headers,
        payload=payload,
        payload_base64=payload_base64,
        action=plain_name(invoke.action),
    )


def result_entry(response: FunctionResponse, origin: str) -> Entry:
    return Entry(RESULTS_TOPIC, result_key(response.request_uid, origin), encode(response))


def answer_entries(invoke: Invoke, response: FunctionResponse) -> list[Entry]:
    """To whoever waits, and into the table of results."""
    result = result_entry(response, invoke.origin)
    if not invoke.return_topic:
        return [result]
    return [Entry(invoke.return_topic, invoke.request_uid, result.value), result]


def refused_target(config: ActionConfig, call: NextCall, hop: int) -> str:
    """Why an action may not call this; empty: it may."""
    name = plain_name(config.name)
    if call.action not in config.next:
        return f"action {name} is not allowed to call {call.action[:80]!r}: it is not in its `next`"
    if hop + 1 > MAX_HOPS:
        return f"action {name} would be the call number {hop + 1} of one request"
    return ""


def next_invoke(invoke: Invoke, call: NextCall, body: bytes, configs: Mapping[str, ActionConfig]) -> Invoke:
    payload, payload_base64 = payload_of(body)
    target = configs.get(call.action)
    return Invoke(
        request_uid=invoke.request_uid,
        action=call.action,
        return_topic=invoke.return_topic,
        trigger_path=call.path or invoke.trigger_path,
        params=call.params,
        content_type=call.content_type,
        payload=payload,
        payload_base64=payload_base64,
        headers=invoke.headers,
        hop=invoke.hop + 1,
        source=plain_name(invoke.action),
        key=invoke.key,
        deadline=invoke.deadline,
        version=pick_version(invoke.request_uid, target.traffic) if target is not None else "",
        origin=invoke.origin,
        traceparent=child_traceparent(invoke),
    )


def invoke_entry(invoke: Invoke) -> Entry:
    partner, slash, _ = invoke.action.partition("/")
    topic = outbox_topic(partner) if slash else action_topic(invoke.action)
    return Entry(topic, invoke.key or invoke.request_uid, encode(invoke))


def record_entry(call: PendingCall, action: str, milliseconds: float, error: bool) -> tuple[CallRecord, Entry]:
    record = CallRecord(
        time=call.arrived,
        action=action,
        source=call.invoke.source,
        milliseconds=round(milliseconds, 3),
        error=error,
        cold=call.cold,
    )
    return record, Entry(MONITOR_TOPIC, action, encode(record))


def dead_letter_entry(action: str, given_up: GivenUpCall) -> Entry:
    key = dead_letter_key(given_up.invoke.request_uid, given_up.invoke.hop)
    return Entry(dead_letter_topic(action), key, encode(given_up))


def partners(targets: Sequence[str] | frozenset[str]) -> set[str]:
    return {target.partition("/")[0] for target in targets if "/" in target}
