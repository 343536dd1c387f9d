"""What two domains send each other: calls and replies, as JSON over HTTP.

    POST http://coterie-functions.<partner>.svc/functions/v1/hops       a call; 202: it is on the partner's bus
    POST http://coterie-functions.<partner>.svc/functions/v1/replies    its answer; 202: it is on the caller's bus

Every other status comes with a sentence (`HopRefusal`). Who sends is what the receiver's own gateway says (`CALLER_HEADER`), never what a message
says. A requestUID on the wire names one call between two domains: it is a digest, and opens no result of the sender. Times are durations, because
clocks of two organisations differ. Whatever a partner sends is checked here for its size and shape before anything else looks at it.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, TypeVar

import msgspec

from coterie.functions.messages import MAX_DEPTH, BusMessage, FunctionResponse, Invoke, is_deep
from coterie.kuscia.gateway.names import ORIGIN

CALLER_HEADER = ORIGIN
"""Set by our own gateway to the domain that it authenticated; what a caller claims is checked there against its key."""
MAX_HOPS = 16
"""Steps of a chain that came through a partner. A chain that comes back and back ends there."""
MAX_MESSAGE = 32 << 20
"""Bytes of one message. Bodies of calls have the limit of the grant, which is at most 11 MiB."""
OVERHEAD = 256 << 10
"""Bytes of a message besides its body."""
LONGEST_WAIT = 24 * 3600.0
"""Seconds for which a call may wait for its answer."""
REPLY_HEADERS = 64

_ACTION = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_BAD_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MAX_PARAMS, _MAX_PARAM_BYTES = 256, 128 << 10
_MAX_HEADER_BYTES = 16 << 10
_LONGEST_PATH, _LONGEST_TYPE, _LONGEST_KEY = 2048, 256, 256
_PRIVATE_HEADERS = ("kuscia-", "x-coterie-", "x-envoy-")
T = TypeVar("T", bound=BusMessage)
_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})


class HopCall(BusMessage, frozen=True, kw_only=True):
    request_uid: str = msgspec.field(name="requestUID")
    hop: int
    action: str
    trigger_path: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    content_type: str = ""
    payload: str = ""
    payload_base64: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    key: str = ""
    wait_milliseconds: int = 0
    """For which the caller still waits; 0: it does not say."""
    calls_per_minute: int = 0
    """How many the sender expects: a hint, so that actors start in time."""
    traceparent: str = ""


class HopReply(BusMessage, frozen=True, kw_only=True):
    """A whole answer: between domains none is streamed."""

    request_uid: str = msgspec.field(name="requestUID")
    hop: int
    status_code: int = 200
    content_type: str = ""
    payload: str = ""
    payload_base64: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class HopRefusal(BusMessage, frozen=True, kw_only=True):
    """The body of every answer but 202."""

    refused: str
    """A sentence."""


class BadMessage(Exception):
    """A message that a partner sent is not one; the sentence names the field and repeats nothing of it."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


# Sending.


def call_of(invoke: Invoke, uid: str, wait_milliseconds: int, calls_per_minute: int) -> HopCall:
    """`invoke`: as it is in an outbox."""
    return HopCall(
        request_uid=uid,
        hop=invoke.hop,
        action=invoke.action.rpartition("/")[2],
        trigger_path=invoke.trigger_path,
        params=invoke.params,
        content_type=invoke.content_type,
        payload=invoke.payload,
        payload_base64=invoke.payload_base64,
        headers=forwarded_headers(invoke.headers),
        key=invoke.key[:_LONGEST_KEY],
        wait_milliseconds=wait_milliseconds,
        calls_per_minute=calls_per_minute,
        traceparent=invoke.traceparent,
    )


def reply_of(response: FunctionResponse, uid: str, hop: int) -> HopReply:
    return HopReply(
        request_uid=uid,
        hop=hop,
        status_code=response.status_code,
        content_type=response.content_type,
        payload=response.payload,
        payload_base64=response.payload_base64,
        headers=forwarded_headers(response.headers),
    )


def forwarded_headers(headers: dict[str, str]) -> dict[str, str]:
    """Without credentials and without those that only gateways set."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _CREDENTIALS and not name.lower().startswith(_PRIVATE_HEADERS)
    }


# Receiving.


def decode_call(body: bytes) -> HopCall:
    """Raises BadMessage."""
    call = _decoded(body, HopCall)
    if not _ID.fullmatch(call.request_uid):
        raise BadMessage("requestUID has 1 to 64 letters, digits, - and _")
    if not 0 <= call.hop <= 10_000:
        raise BadMessage("hop is a small number")
    if call.hop > MAX_HOPS:
        raise BadMessage(f"the chain has more than {MAX_HOPS} steps", 409)
    if not _ACTION.fullmatch(call.action):
        raise BadMessage("action is no name of an action")
    if is_deep(call.params):
        raise BadMessage(f"params is nested more than {MAX_DEPTH} times")
    if len(call.params) > _MAX_PARAMS or len(msgspec.json.encode(call.params)) > _MAX_PARAM_BYTES:
        raise BadMessage(f"params has more than {_MAX_PARAMS} entries or {_MAX_PARAM_BYTES >> 10} KiB", 413)
    for name, text, longest in (
        ("triggerPath", call.trigger_path, _LONGEST_PATH),
        ("contentType", call.content_type, _LONGEST_TYPE),
        ("key", call.key, _LONGEST_KEY),
    ):
        if len(text) > longest or _BAD_IN_VALUE.search(text):
            raise BadMessage(f"{name} has at most {longest} characters and no control characters")
    _check_headers(call.headers)
    _check_payload(call.payload, call.payload_base64)
    good_trace = _TRACEPARENT.fullmatch(call.traceparent)
    return msgspec.structs.replace(
        call,
        headers=forwarded_headers(call.headers),
        traceparent=call.traceparent if good_trace else "",
        wait_milliseconds=max(0, min(call.wait_milliseconds, int(LONGEST_WAIT * 1000))),
        calls_per_minute=max(0, min(call.calls_per_minute, 1_000_000)),
    )


def decode_reply(body: bytes) -> HopReply:
    """Raises BadMessage."""
    reply = _decoded(body, HopReply)
    if not _ID.fullmatch(reply.request_uid):
        raise BadMessage("requestUID has 1 to 64 letters, digits, - and _")
    if not 200 <= reply.status_code <= 599:
        raise BadMessage("statusCode is between 200 and 599")
    if len(reply.content_type) > _LONGEST_TYPE or _BAD_IN_VALUE.search(reply.content_type):
        raise BadMessage(f"contentType has at most {_LONGEST_TYPE} characters and no control characters")
    _check_headers(reply.headers)
    _check_payload(reply.payload, reply.payload_base64)
    return msgspec.structs.replace(reply, headers=forwarded_headers(reply.headers))


def body_size(message: HopCall | HopReply | Invoke | FunctionResponse) -> int:
    return len(message.payload.encode()) + len(message.payload_base64) * 3 // 4


def refusal_sentence(body: bytes) -> str:
    """Of an answer that is ours; empty: a gateway on the way answered."""
    try:
        found = msgspec.json.decode(body, type=HopRefusal).refused
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return "".join(each for each in found[:500] if each.isprintable())


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as problem:
        # Names of our own fields, never what was sent.
        field = str(problem).rpartition("`$.")[2].rstrip("`") if "`$." in str(problem) else ""
        known = field if field.isascii() and len(field) < 40 else ""
        raise BadMessage(f"the message has a wrong or missing field {known}".rstrip()) from problem
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadMessage("the message is not JSON") from problem


def _check_headers(headers: dict[str, str]) -> None:
    size = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > REPLY_HEADERS or size > _MAX_HEADER_BYTES:
        raise BadMessage(f"there are more than {REPLY_HEADERS} headers or {_MAX_HEADER_BYTES >> 10} KiB of them", 413)
    if any(not _HEADER_NAME.fullmatch(name) or _BAD_IN_VALUE.search(value) for name, value in headers.items()):
        raise BadMessage("a header has a name or value that HTTP does not allow")


def _check_payload(text: str, encoded: str) -> None:
    if text and encoded:
        raise BadMessage("payload and payloadBase64 exclude each other")
    if encoded:
        try:
            base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as problem:
            raise BadMessage("payloadBase64 is not base64") from problem
