"""Both ends of an encrypted exchange talking to each other, without Envoy: cutting, tampering, refusing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.protobuf_wire import ProtobufError
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.crypt.announcement import SCHEME
from coterie.kuscia.gateway.crypt.exchange import Exchange, ExchangeRefused, RouteEnd, RouteSide
from coterie.kuscia.gateway.crypt.keys import RouteKeys
from coterie.kuscia.gateway.crypt.messages import MessagePart, ProcessingEvent, parse

KEYS = RouteKeys("alice", "bob", ((3, SecretValue("older")), (4, SecretValue("newer"))))
OLDER = RouteKeys("alice", "bob", KEYS.tokens[:1])
OURS = {"kuscia-encrypt-version", "kuscia-encrypt-iv", "x-coterie-encrypt"}
Headers = dict[str, tuple[str, ...]]


# ---- messages as Envoy writes and reads them ----


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        else:
            size = number()
            yield tag >> 3, data[at : at + size]
            at += size


def inside(data: bytes, *path: int) -> bytes:
    for number in path:
        data = dict(fields(data)).get(number, b"")
    return data


@dataclass
class Answer:
    """One ProcessingResponse."""

    kind: int
    content: bytes

    @classmethod
    def read(cls, data: bytes) -> Answer:
        ((kind, content),) = fields(data)
        return cls(kind, content)

    @property
    def set(self) -> Headers:
        options = (inside(value, 1) for number, value in fields(inside(self.content, 1, 2)) if number == 1)
        return {inside(each, 1).decode(): (inside(each, 3).decode(),) for each in options}

    @property
    def removed(self) -> set[str]:
        return {value.decode() for number, value in fields(inside(self.content, 1, 2)) if number == 2}

    @property
    def body(self) -> bytes:
        return inside(self.content, 1, 3, 3, 1)

    @property
    def end(self) -> bool:
        return dict(fields(inside(self.content, 1, 3, 3))).get(2, 0) == 1

    @property
    def status(self) -> int:
        return dict(fields(inside(self.content, 1))).get(1, 0)


@dataclass
class End:
    """An exchange at one gateway, and what it let pass."""

    side: RouteSide
    keys: RouteKeys | None = KEYS
    refused: int = 0
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exchange = Exchange(lambda source, destination: self.keys)

    def react(self, part: MessagePart, **more: Any) -> list[Answer]:
        made = [Answer.read(each) for each in self.exchange.react(ProcessingEvent(part, **more))]
        self.answers += made
        for each in made:
            if each.kind == 7:
                self.refused = each.status
        return made

    def headers(self, part: MessagePart, *, end: bool = False, headers: Headers | None = None) -> Headers:
        """The headers as they go on."""
        given = headers or {}
        name = RouteEnd(self.side, "alice", "bob").name if part is MessagePart.REQUEST_HEADERS else ""
        (answer,) = self.react(part, end=end, headers=given, route=name)
        return {key: value for key, value in given.items() if key not in answer.removed} | answer.set

    def body(self, part: MessagePart, data: bytes, *, end: bool = False) -> bytes:
        made = self.react(part, body=data, end=end)
        if self.refused:
            return b""
        assert [each.end for each in made] == ([False] * (len(made) - 1) + [end] if made else [])
        assert made or not end
        return b"".join(each.body for each in made)


def ends(**keys: RouteKeys | None) -> tuple[End, End]:
    return End(RouteSide.CALL, keys.get("call", KEYS)), End(RouteSide.SERVE, keys.get("serve", KEYS))


def begun(*, end: bool = False, **keys: RouteKeys | None) -> tuple[End, End, Headers]:
    alice, bob = ends(**keys)
    wire = alice.headers(MessagePart.REQUEST_HEADERS, end=end, headers={"accept": ("*/*",)})
    bob.headers(MessagePart.REQUEST_HEADERS, end=end, headers=wire)
    return alice, bob, wire


# ---- what passes ----


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.integers(1, 30))
def test_a_request_and_its_response_pass(pieces: list[bytes], step: int) -> None:
    alice, bob, _ = begun()

    def through(sealing: End, opening: End, part: MessagePart) -> bytes:
        last = len(pieces) - 1
        wire = b"".join(sealing.body(part, each, end=at == last) for at, each in enumerate(pieces))
        cut = [wire[at : at + step] for at in range(0, len(wire), step)]
        return b"".join(opening.body(part, each, end=at == len(cut) - 1) for at, each in enumerate(cut))

    assert through(alice, bob, MessagePart.REQUEST_BODY) == b"".join(pieces)
    wire = bob.headers(MessagePart.RESPONSE_HEADERS, headers={":status": ("200",)})
    assert set(wire) >= OURS
    assert OURS.isdisjoint(alice.headers(MessagePart.RESPONSE_HEADERS, headers=wire))
    assert through(bob, alice, MessagePart.RESPONSE_BODY) == b"".join(pieces)
    assert (alice.refused, bob.refused) == (0, 0)


def test_trailers_come_after_the_end_of_the_body() -> None:
    alice, bob, _ = begun()
    wire = alice.body(MessagePart.REQUEST_BODY, b"data")
    last, passed = alice.react(MessagePart.REQUEST_TRAILERS, end=True)
    assert (last.kind, passed.kind) == (3, 5)
    assert not last.end
    assert bob.body(MessagePart.REQUEST_BODY, wire + last.body) == b"data"
    (passed,) = bob.react(MessagePart.REQUEST_TRAILERS, end=True)
    assert passed.kind == 5


def test_trailers_in_place_of_the_end_are_a_cut_body() -> None:
    alice, bob, _ = begun()
    assert bob.body(MessagePart.REQUEST_BODY, alice.body(MessagePart.REQUEST_BODY, b"data")) == b"data"
    bob.react(MessagePart.REQUEST_TRAILERS, end=True)
    assert bob.refused == 400


def test_a_message_without_body_carries_its_proof() -> None:
    alice, bob, wire = begun(end=True)
    assert wire["x-coterie-encrypt"][0].startswith(f"{SCHEME}; empty=")
    assert not bob.refused
    back = bob.headers(MessagePart.RESPONSE_HEADERS, end=True, headers={":status": ("204",)})
    alice.headers(MessagePart.RESPONSE_HEADERS, end=True, headers=back)
    assert not alice.refused


def test_an_empty_message_may_become_a_body_of_no_bytes_on_the_way() -> None:
    alice, bob = ends()
    wire = alice.headers(MessagePart.REQUEST_HEADERS, end=True)
    bob.headers(MessagePart.REQUEST_HEADERS, headers=wire)
    assert bob.body(MessagePart.REQUEST_BODY, b"", end=True) == b""
    assert not bob.refused


def test_an_older_token_is_accepted_while_tokens_roll() -> None:
    alice, bob, wire = begun(call=OLDER)
    assert wire["kuscia-encrypt-version"] == ("3",)
    assert bob.body(MessagePart.REQUEST_BODY, alice.body(MessagePart.REQUEST_BODY, b"x", end=True), end=True) == b"x"


def test_an_answer_of_our_own_envoy_passes_as_it_is() -> None:
    """It comes before the request came as far as the filter."""
    bob = End(RouteSide.SERVE)
    assert bob.headers(MessagePart.RESPONSE_HEADERS, headers={":status": ("401",)}) == {":status": ("401",)}
    assert bob.body(MessagePart.RESPONSE_BODY, b"who are you", end=True) == b"who are you"


def test_the_length_is_told_to_what_comes_next() -> None:
    alice, bob = ends()
    wire = alice.headers(MessagePart.REQUEST_HEADERS, headers={"content-length": ("4",)})
    assert "; length=4" in wire["x-coterie-encrypt"][0]
    assert bob.headers(MessagePart.REQUEST_HEADERS, headers=wire)["x-coterie-length"] == ("4",)
    assert (
        bob.body(MessagePart.REQUEST_BODY, alice.body(MessagePart.REQUEST_BODY, b"four", end=True), end=True) == b"four"
    )
    assert not bob.refused


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_only_head_is_told_a_length_without_a_body(method: str) -> None:
    alice, bob = ends()
    wire = alice.headers(MessagePart.REQUEST_HEADERS, end=True, headers={":method": (method,)})
    bob.headers(MessagePart.REQUEST_HEADERS, end=True, headers=wire)
    back = bob.headers(MessagePart.RESPONSE_HEADERS, end=True, headers={":status": ("200",), "content-length": ("9",)})
    told = alice.headers(MessagePart.RESPONSE_HEADERS, end=True, headers={**back, "x-coterie-length": ("7",)})
    assert told.get("x-coterie-length") == (("9",) if method == "HEAD" else None)
    assert not alice.refused


# ---- what does not ----


@pytest.mark.parametrize("body", [b"three", b"abc"], ids=["longer", "shorter"])
def test_a_sender_that_lies_about_the_length_is_refused(body: bytes) -> None:
    """Else the rest would be the next request on the connection to the service."""
    alice, bob = ends()
    wire = alice.headers(MessagePart.REQUEST_HEADERS, headers={"content-length": ("4",)})
    bob.headers(MessagePart.REQUEST_HEADERS, headers=wire)
    bob.body(MessagePart.REQUEST_BODY, alice.body(MessagePart.REQUEST_BODY, body, end=True), end=True)
    assert bob.refused == 400
    assert not any(each.body for each in bob.answers if each.kind == 3)


def test_a_length_changed_on_the_way_fits_no_key() -> None:
    alice, bob = ends()
    wire = alice.headers(MessagePart.REQUEST_HEADERS, headers={"content-length": ("4",)})
    wire["x-coterie-encrypt"] = (wire["x-coterie-encrypt"][0].replace("length=4", "length=5"),)
    bob.headers(MessagePart.REQUEST_HEADERS, headers=wire)
    bob.body(MessagePart.REQUEST_BODY, alice.body(MessagePart.REQUEST_BODY, b"four", end=True), end=True)
    assert bob.refused == 400


@pytest.mark.parametrize(
    "headers", [{":status": ("503",)}, {":status": ("200",), "grpc-status": ("14",)}], ids=["503", "gRPC"]
)
def test_a_length_in_clear_is_taken_away(headers: Headers) -> None:
    alice, _, _ = begun()
    passed = alice.headers(MessagePart.RESPONSE_HEADERS, end=True, headers={**headers, "x-coterie-length": ("7",)})
    assert "x-coterie-length" not in passed


SALT = "AAAAAAAAAAAAAAAAAAAAAA=="
BAD_REQUESTS: dict[str, tuple[Headers, int]] = {
    "clear": ({}, 403),
    "Kuscia's": ({"kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": ("AAAAAAAAAAAAAAAA",)}, 400),
    "only a version": ({"kuscia-encrypt-version": ("4",)}, 400),
    "scheme alone": ({"x-coterie-encrypt": (SCHEME,)}, 400),
    "two schemes": ({"x-coterie-encrypt": (SCHEME, SCHEME), "kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": (SALT,)}, 400),
    "two salts": ({"x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": (SALT, SALT)}, 400),
    "unknown scheme": ({"x-coterie-encrypt": ("none",), "kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": (SALT,)}, 400),
    "unknown token": ({"x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("5",), "kuscia-encrypt-iv": (SALT,)}, 400),
    "no number": ({"x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("٤",), "kuscia-encrypt-iv": (SALT,)}, 400),
    "negative": ({"x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("-4",), "kuscia-encrypt-iv": (SALT,)}, 400),
    "short salt": ({"x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": ("AAAA",)}, 400),
    "no base64": ({"x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": ("ä",)}, 400),
    "false proof": ({"x-coterie-encrypt": (f"{SCHEME}; empty={SALT}",), "kuscia-encrypt-version": ("4",), "kuscia-encrypt-iv": (SALT,)}, 400),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "status"), BAD_REQUESTS.values(), ids=list(BAD_REQUESTS))
@pytest.mark.parametrize("end", [True, False], ids=["empty", "with body"])
def test_a_request_that_is_not_encrypted_is_refused(headers: Headers, status: int, end: bool) -> None:
    bob = End(RouteSide.SERVE)
    bob.headers(MessagePart.REQUEST_HEADERS, end=end, headers=headers)
    if not bob.refused:  # only the body can tell
        assert bob.body(MessagePart.REQUEST_BODY, b"plain text that is no chunk", end=True) == b""
    assert bob.refused == status
    assert bob.react(MessagePart.REQUEST_BODY, body=b"more") == []
    assert not any(each.body for each in bob.answers)


BAD_RESPONSES: dict[str, tuple[Headers, bool, int]] = {
    "success": ({":status": ("200",)}, False, 502),
    "empty success": ({":status": ("204",)}, True, 502),
    "not modified": ({":status": ("304",)}, True, 502),
    "gRPC success": ({":status": ("200",), "grpc-status": ("0",)}, True, 502),
    "gRPC failure with body": ({":status": ("200",), "grpc-status": ("14",)}, False, 502),
    "upgrade": ({":status": ("101",)}, False, 502),
    "another token": ({":status": ("200",), "x-coterie-encrypt": (SCHEME,), "kuscia-encrypt-version": ("3",), "kuscia-encrypt-iv": (SALT,)}, False, 502),
    "unknown scheme": ({":status": ("500",), "x-coterie-encrypt": ("none",)}, False, 502),
    "gRPC failure": ({":status": ("200",), "grpc-status": ("14",)}, True, 0),
    "error": ({":status": ("503",)}, True, 0),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "end", "status"), BAD_RESPONSES.values(), ids=list(BAD_RESPONSES))
def test_of_responses_in_clear_only_errors_pass(headers: Headers, end: bool, status: int) -> None:
    alice, _, _ = begun()
    alice.headers(MessagePart.RESPONSE_HEADERS, end=end, headers=headers)
    assert alice.refused == status


@pytest.mark.parametrize("trailers", [False, True], ids=["body", "trailers"])
def test_the_text_of_an_error_in_clear_is_left_out(trailers: bool) -> None:
    alice, _, _ = begun()
    alice.headers(MessagePart.RESPONSE_HEADERS, headers={":status": ("503",)})
    assert alice.react(MessagePart.RESPONSE_BODY, body=b"forged") == []
    if trailers:
        made = alice.react(MessagePart.RESPONSE_TRAILERS, end=True)
        assert [each.kind for each in made] == [4, 6]
    else:
        made = alice.react(MessagePart.RESPONSE_BODY, body=b"forged", end=True)
        assert made[0].end
    assert b"forged" not in made[0].body
    assert made[0].body


def test_a_response_to_another_request_does_not_fit() -> None:
    alice, bob, _ = begun()
    _, other, _ = begun()
    wire = other.headers(MessagePart.RESPONSE_HEADERS, headers={":status": ("200",)})
    alice.headers(MessagePart.RESPONSE_HEADERS, headers=wire)
    assert alice.body(MessagePart.RESPONSE_BODY, other.body(MessagePart.RESPONSE_BODY, b"x", end=True), end=True) == b""
    assert alice.refused == 502
    assert not bob.refused


def test_a_request_sent_back_is_no_response() -> None:
    alice, _, wire = begun()
    sealed = alice.body(MessagePart.REQUEST_BODY, b"x", end=True)
    alice.headers(MessagePart.RESPONSE_HEADERS, headers={":status": ("200",), **wire})
    assert alice.body(MessagePart.RESPONSE_BODY, sealed, end=True) == b""
    assert alice.refused == 502


def test_a_body_cut_to_nothing_is_noticed() -> None:
    alice, bob = ends()
    wire = alice.headers(MessagePart.REQUEST_HEADERS)
    bob.headers(MessagePart.REQUEST_HEADERS, end=True, headers=wire)
    assert bob.refused == 400


@pytest.mark.parametrize("keys", [None, RouteKeys("alice", "bob", ())], ids=["unknown", "no token"])
@pytest.mark.parametrize("side", RouteSide)
def test_without_keys_nothing_passes(side: RouteSide, keys: RouteKeys | None) -> None:
    end = End(side, keys)
    end.headers(MessagePart.REQUEST_HEADERS)
    assert end.refused == 503


@pytest.mark.parametrize("name", ["", "crypt", "crypt/call/alice", "crypt/both/alice/bob", "x/call/alice/bob"])
def test_a_route_that_is_not_ours_is_refused(name: str) -> None:
    with pytest.raises(ExchangeRefused):
        RouteEnd.parse(name)


# ---- reading messages ----


def test_what_envoy_sends_is_read() -> None:
    header = message(1, message(1, b"x-name") + message(3, b"value"))
    value = message(2, message(3, b"crypt/call/alice/bob"))
    struct = message(1, message(1, b"xds.route_name") + value)
    attributes = message(9, message(1, b"envoy.filters.http.ext_proc") + message(2, struct))
    unknown = message(11, b"\x08\x04") + varint(10 << 3) + b"\x00"
    event = parse(message(2, message(1, header) + b"\x18\x01") + attributes + unknown)
    assert event == ProcessingEvent(
        MessagePart.REQUEST_HEADERS, True, headers={"x-name": ("value",)}, route="crypt/call/alice/bob"
    )
    assert parse(message(5, message(1, b"data") + b"\x10\x01")) == ProcessingEvent(
        MessagePart.RESPONSE_BODY, True, b"data"
    )
    assert parse(message(4, b"")) == ProcessingEvent(MessagePart.REQUEST_BODY)
    assert parse(message(7, message(1, header))).part is MessagePart.RESPONSE_TRAILERS


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_rubbish_is_refused_in_order(data: bytes) -> None:
    with contextlib.suppress(ProtobufError):
        parse(data)
