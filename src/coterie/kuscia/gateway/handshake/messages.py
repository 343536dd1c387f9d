"""What the handshake says on the wire: plain JSON in Kuscia's words. Pure.

    POST <prefix>/handshake    {"domain_id", "type", "token_config": {"token", "revision", "pubhash"}, "request_time"}
                          ->   {"status": {}, "token": {"token", "expiration_time", "revision"}}
    GET  <prefix>/handshake -> {"namespace": "bob", "state": 0}

Times are integers, nanoseconds since 1970. Zero values are left out, but the object `status` is always there, and the
answer to a probe is written whole. Refusals are HTTP 200 with `status.code` 500; only unreadable JSON is HTTP 400.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec

UID, RSA = "UID", "RSA"
REFUSED = 500
MAX_BODY = 64 * 1024
"""Bytes of a request or an answer; a registration with its certificate request is far below it, too."""
MAX_REVISION = 2**31 - 1
"""Kuscia reads it into 32 bits."""
_MAX_MESSAGE = 300
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=63)]
_Cipher = Annotated[str, msgspec.Meta(max_length=2048)]
"""Base64 of one RSA block; 8,192 bits make 1,368 letters."""

T = TypeVar("T")


class HandshakeFault(Exception):
    """The handshake cannot go on; the message says why in words for the other side.

    HandshakeFault
    ├── MessageFault     what came is no message of this protocol
    ├── Refused          the request is understood, and we (or they) say no
    └── crypto.NotDecrypted
    """


class MessageFault(HandshakeFault):
    pass


class HandshakeRefused(HandshakeFault):
    pass


class TokenState(IntEnum):
    """What the probed side knows of the token that was asked about."""

    TOKEN_READY = 0
    DOMAIN_INVALID = 1
    REVISION_INVALID = 2
    TOKEN_NOT_READY = 3
    TOKEN_NOT_FOUND = 4
    NO_AUTHENTICATION = 5
    INTERNAL_ERROR = 6
    NETWORK_UNREACHABLE = 7


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class HandshakeTokenConfig(_Message, frozen=True, kw_only=True):
    token: _Cipher = ""
    revision: _Int64 = 0
    pubhash: Annotated[str, msgspec.Meta(max_length=128)] = ""


class HandshakeRequest(_Message, frozen=True, kw_only=True):
    domain_id: _Name = ""
    type: Annotated[str, msgspec.Meta(max_length=16)] = ""
    token_config: HandshakeTokenConfig | None = None
    request_time: _Int64 = 0


class HandshakeStatus(_Message, frozen=True, kw_only=True):
    code: int = 0
    message: str = ""


class HandshakeToken(_Message, frozen=True, kw_only=True):
    token: _Cipher = ""
    expiration_time: _Int64 = 0
    revision: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] = 0


class HandshakeResponse(_Message, frozen=True, kw_only=True):
    status: HandshakeStatus
    token: HandshakeToken | None = None


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = ""
    state: int = 0


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message)


def decode(body: bytes, type_: type[T]) -> T:
    if len(body) > MAX_BODY:
        raise MessageFault(f"the message has more than {MAX_BODY} bytes")
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageFault(f"not a message of the handshake: {readable(str(error))}") from error


def refusal(message: str) -> HandshakeResponse:
    return HandshakeResponse(status=HandshakeStatus(code=REFUSED, message=message))


def readable(text: str) -> str:
    """Words of somebody else, fit for a log line or an event."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_MESSAGE]).strip()


def nanoseconds(moment: datetime) -> int:
    """Exact: a float of this size has steps of 256 ns."""
    passed = moment - _EPOCH
    return ((passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1000


def moment_of(ns: int) -> datetime | None:
    """None for times that no calendar has."""
    try:
        return _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError:
        return None
