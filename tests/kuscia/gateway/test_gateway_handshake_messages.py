"""The handshake's JSON, byte by byte as Kuscia writes and reads it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from coterie.kuscia.gateway.handshake.messages import (
    MAX_BODY,
    HandshakeRequest,
    HandshakeResponse,
    HandshakeStatus,
    HandshakeToken,
    HandshakeTokenConfig,
    MessageFault,
    ProbeAnswer,
    TokenState,
    decode,
    encode,
    moment_of,
    nanoseconds,
    readable,
    refusal,
)

AT = datetime(2026, 1, 8, 2, 23, 20, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            HandshakeRequest(
                domain_id="alice",
                type="RSA",
                token_config=HandshakeTokenConfig(token="dG9r", revision=3, pubhash="aGFzaA=="),
                request_time=nanoseconds(AT),
            ),
            '{"domain_id":"alice","type":"RSA","token_config":{"token":"dG9r","revision":3,"pubhash":"aGFzaA=="},'
            '"request_time":1767839000123456000}',
        ),
        (
            HandshakeRequest(
                domain_id="alice",
                type="RSA",
                token_config=HandshakeTokenConfig(token="dG9r", pubhash="aA=="),
                request_time=1,
            ),
            '{"domain_id":"alice","type":"RSA","token_config":{"token":"dG9r","pubhash":"aA=="},"request_time":1}',
        ),
        (
            HandshakeRequest(domain_id="alice", type="UID", request_time=1),
            '{"domain_id":"alice","type":"UID","request_time":1}',
        ),
        (
            HandshakeResponse(
                status=HandshakeStatus(), token=HandshakeToken(token="dG9r", expiration_time=5, revision=4)
            ),
            '{"status":{},"token":{"token":"dG9r","expiration_time":5,"revision":4}}',
        ),
        (refusal("no"), '{"status":{"code":500,"message":"no"}}'),
        (ProbeAnswer(namespace="bob", state=TokenState.TOKEN_READY), '{"namespace":"bob","state":0}'),
        (ProbeAnswer(namespace="bob", state=TokenState.NO_AUTHENTICATION), '{"namespace":"bob","state":5}'),
    ],
    ids=["rsa", "first revision", "uid", "answer", "refusal", "ready", "no authentication"],
)
def test_messages_on_the_wire(message: object, wire: str) -> None:
    assert encode(message).decode() == wire  # type: ignore[arg-type]
    assert decode(wire.encode(), type(message)) == message


def test_fields_that_are_new_to_us_and_nulls_are_read_over() -> None:
    told = b'{"status":{"code":0,"details":[]},"token":{"token":"x","revision":2,"news":{}},"more":1}'
    assert decode(told, HandshakeResponse).token == HandshakeToken(token="x", revision=2)
    assert decode(b'{"domain_id":"a","token_config":null}', HandshakeRequest).token_config is None


@pytest.mark.parametrize(
    ("body", "type_"),
    [
        (b"", HandshakeRequest),
        (b"[]", HandshakeRequest),
        (b'{"domain_id":7}', HandshakeRequest),
        (b'{"domain_id":"' + b"a" * 64 + b'"}', HandshakeRequest),
        (b'{"request_time":"1767839000123456789"}', HandshakeRequest),
        (b'{"request_time":9223372036854775808}', HandshakeRequest),
        (b'{"token_config":{"token":"' + b"A" * 2049 + b'"}}', HandshakeRequest),
        (b'{"domain_id":"\xff"}', HandshakeRequest),
        (b" " * (MAX_BODY + 1), HandshakeRequest),
        (b'{"token":{"token":"x"}}', HandshakeResponse),
        (b'{"status":{},"token":{"revision":2147483648}}', HandshakeResponse),
        (b'{"status":{},"token":{"revision":-1}}', HandshakeResponse),
    ],
    ids=[
        "nothing", "a list", "number as name", "long name", "time as text", "65 bits", "long token", "no utf-8", "too large",
        "no status", "revision too large", "negative revision",
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_in_words(body: bytes, type_: type) -> None:
    with pytest.raises(MessageFault, match="message"):
        decode(body, type_)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(MessageFault):
        decode(b'{"token_config":' + b"[" * 30_000, HandshakeRequest)


@pytest.mark.parametrize("micro", [0, 1, 123456, 999999])
def test_times_are_exact(micro: int) -> None:
    at = AT.replace(microsecond=micro)
    assert moment_of(nanoseconds(at)) == at
    assert nanoseconds(at + timedelta(microseconds=1)) - nanoseconds(at) == 1000
    assert json.loads(encode(HandshakeRequest(request_time=nanoseconds(at))))["request_time"] == nanoseconds(at)


def test_times_beyond_the_calendar_are_none() -> None:
    assert moment_of(2**63 - 1) is not None
    assert moment_of(10**30) is None


def test_words_of_others_are_made_harmless() -> None:
    assert readable("a\nb\x1b[31m" + "c" * 1000) == "a b [31m" + "c" * (300 - 8)
