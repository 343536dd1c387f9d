"""What is on the bus: calls, answers, records of calls. JSON, with the field names of the seed.

A call (`Invoke`) is a tail call: an action answers by a `FunctionResponse` to the caller, or by an Invoke of another action, which then
answers. `requestUID` stays the same through the chain, `hop` counts. `call_id` is the same for every repetition of one call,
so whoever reads a topic drops what it has seen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

MONITOR_TOPIC = "action-monitor"
RESULTS_TOPIC = "action-results"
"""Answers by requestUID, kept 24 hours: for repeated and asynchronous calls."""
PARTNER_CALLS_TOPIC = "partner-calls"
"""What is known of calls from and to partners."""
MAX_DEPTH = 64
_OUTBOX = "outbox-"
_SMALL_BODY = 64 << 10
_SHORT_ESCAPES = b'"\\\\\b\f\n\r\t'
_LONG_ESCAPES = bytes(each for each in range(0x20) if each not in _SHORT_ESCAPES)


def action_topic(action: str) -> str:
    return f"{action}_TOPIC"


def dead_letter_topic(action: str) -> str:
    return f"{action}_DLQ"


def return_topic(gateway: str) -> str:
    """One for each replica of the gateway."""
    return f"ReturnGateway-{gateway}"


def outbox_topic(partner: str) -> str:
    """Calls and answers to a partner's functions."""
    return f"{_OUTBOX}{partner}"


def is_outbox(topic: str) -> bool:
    return topic.startswith(_OUTBOX)


def is_own_topic(topic: str) -> bool:
    """Of functions themselves; all others are read by Triggers."""
    return (
        topic in (MONITOR_TOPIC, RESULTS_TOPIC, PARTNER_CALLS_TOPIC)
        or topic.startswith((return_topic(""), _OUTBOX))
        or topic.endswith((action_topic(""), dead_letter_topic("")))
    )


class BusMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of what is on the bus. Unknown fields are ignored: an older process reads what a newer one wrote."""


class Invoke(BusMessage, frozen=True, kw_only=True):
    request_uid: str = msgspec.field(name="requestUID")
    action: str
    """`name`, or `partner/name` in an outbox."""
    return_topic: str
    """Empty: nobody waits; the answer is kept as a result only."""
    trigger_path: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    content_type: str = ""
    payload: str = ""
    payload_base64: str = ""
    """Of bodies that are not UTF-8, instead of `payload`."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the HTTP request, a few: no credentials, no cookies."""
    hop: int = 0
    source: str = ""
    """The action that called; empty: a gateway or a trigger."""
    key: str = ""
    """Calls with the same key run one after the other. Empty: requestUID."""
    deadline: int = 0
    """Milliseconds since 1970: after it nobody waits for the answer."""
    attempt: int = 0
    version: str = ""
    """Of the action, chosen when the call was accepted; repetitions keep it."""
    origin: str = ""
    """The partner that sent it; empty: our own."""
    traceparent: str = ""


class FunctionResponse(BusMessage, frozen=True, kw_only=True):
    request_uid: str = msgspec.field(name="requestUID")
    status_code: int = 200
    content_type: str = "text/plain; charset=utf-8"
    payload: str = ""
    payload_base64: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    part: int = 0
    """Of a streamed answer, from 1 on; 0: a whole one."""
    last: bool = True
    action: str = ""
    """Which answered."""


class GivenUpCall(BusMessage, frozen=True, kw_only=True):
    """On `<action>_DLQ`, by `dead_letter_key`. A later record by the same key without content: it was replayed or dropped."""

    invoke: Invoke
    reason: str
    attempts: int
    time: int
    """Milliseconds since 1970."""


class CallRecord(BusMessage, frozen=True, kw_only=True):
    """On `action-monitor`, for each call that an action accepted: what scaling and the pages count."""

    time: int
    """Milliseconds since 1970."""
    action: str
    source: str = ""
    """The action that called, or empty for the gateway."""
    milliseconds: float = 0.0
    error: bool = False
    cold: bool = False


def call_id(request_uid: str, hop: int, action: str) -> str:
    """What the user's code sees as `req.id`: equal for all repetitions of a call, different for all other calls."""
    return hashlib.sha256(f"{request_uid}\n{hop}\n{action}".encode()).hexdigest()[:32]


def dead_letter_key(request_uid: str, hop: int) -> str:
    return f"{request_uid}#{hop}"


def result_key(request_uid: str, origin: str = "") -> str:
    """Under which a result is kept. Partners choose the requestUIDs of their calls, so they must not meet ours."""
    return f"{origin}/{request_uid}" if origin else request_uid


def payload_of(body: bytes) -> tuple[str, str]:
    """`payload` and `payload_base64`: text as it is, other bodies in base64. Of both no message is larger than 4/3 of its body and a bit: text that
    JSON would write with many escapes, up to six bytes for one, counts as another body."""
    if len(body) > _SMALL_BODY and 3 * _bytes_of_escapes(body) > len(body):
        return "", base64.b64encode(body).decode()
    try:
        return body.decode(), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(body).decode()


def payload_size(message: Invoke | FunctionResponse) -> int:
    """Characters of its body, as it is on the bus."""
    return len(message.payload) + len(message.payload_base64)


def _bytes_of_escapes(body: bytes) -> int:
    without_long = body.translate(None, _LONG_ESCAPES)
    return 5 * (len(body) - len(without_long)) + len(without_long) - len(without_long.translate(None, _SHORT_ESCAPES))


def is_deep(params: Mapping[str, Any]) -> bool:
    """Whether parameters are nested more than `MAX_DEPTH` times: whoever reads a message may fail at what was just possible to write."""
    level: list[Any] = [params]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for each in level
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, dict | list)
        ]
        if not level:
            return False
    return True


def body_of(message: Invoke | FunctionResponse) -> bytes:
    """What is not base64 in `payload_base64` counts as empty."""
    if not message.payload_base64:
        return message.payload.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(message.payload_base64)
    except binascii.Error:
        return b""
