"""WebSocket, both roles: what one side sends the other receives, and every violation is refused with its code."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.http import websocket
from coterie.http.errors import ProtocolError
from coterie.http.websocket import (
    CLIENT_MESSAGE_LIMIT,
    FrameDecoder,
    WebSocket,
    accept_key,
    deflate_answer,
    encode_frame,
)

MASK = b"\x01\x02\x03\x04"


class Wire:
    """A connection that plays chunks and records what was written."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.written = bytearray()

    async def read(self) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None: ...


def from_client(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    return encode_frame(opcode, payload, MASK, final=final)


async def received(socket: WebSocket) -> list[bytes]:
    found = []
    while (message := await socket.receive()) is not None:
        found.append(message)
    return found


def test_the_key_of_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
@pytest.mark.parametrize("client", [True, False], ids=["client", "server"])
async def test_what_one_role_sends_the_other_receives(size: int, client: bool) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = Wire()
    WebSocket(sent, client=client).send(payload)
    assert (payload[-50:] in sent.written) == (not client or not payload), "only a client masks"
    wire = Wire(*(bytes(sent.written[at : at + 65521]) for at in range(0, len(sent.written), 65521)))
    assert await received(WebSocket(wire, client=not client)) == [payload]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.integers(1, 40))
async def test_fragments_in_any_chunks(parts: list[bytes], step: int) -> None:
    data = b"".join(
        from_client(2 if i == 0 else 0, part, final=i == len(parts) - 1) + from_client(10, b"pong between fragments")
        for i, part in enumerate(parts)
    )
    wire = Wire(*(data[at : at + step] for at in range(0, len(data), step)))
    assert await received(WebSocket(wire)) == [b"".join(parts)]


async def test_ping_is_answered_and_close_is_echoed_once() -> None:
    wire = Wire(from_client(9, b"hi") + from_client(8, b"\x03\xe9bye"))
    socket = WebSocket(wire)
    assert await socket.receive() is None
    socket.close()
    socket.send(b"too late")
    assert bytes(wire.written) == encode_frame(10, b"hi") + encode_frame(8, b"\x03\xe9")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (encode_frame(2, b"unmasked"), 1002),
        (b"\xc2\x80" + MASK, 1002),
        (from_client(3), 1002),
        (from_client(11), 1002),
        (from_client(0, b"continuation first"), 1002),
        (from_client(2, b"a", final=False) + from_client(2, b"b"), 1002),
        (from_client(9, final=False), 1002),
        (b"\x89\xfe\x00\x7e" + MASK + bytes(126), 1002),
        (from_client(8, b"\x03"), 1002),
        (b"\x82\xff" + (websocket.CLIENT_MESSAGE_LIMIT + 1).to_bytes(8, "big"), 1009),
        (b"\x82\xff" + b"\xff" * 8, 1009),
    ],
    ids=["unmasked", "reserved bit", "opcode 3", "opcode 11", "continuation", "no continuation", "fragmented ping",
         "long ping", "half a code", "too large", "huge"],
)  # fmt: skip
async def test_violations_are_refused_with_their_code(frame: bytes, code: int) -> None:
    wire = Wire(frame)
    with pytest.raises(ProtocolError):
        await received(WebSocket(wire))
    assert bytes(wire.written) == encode_frame(8, code.to_bytes(2, "big"))


async def test_a_server_that_masks_is_refused() -> None:
    with pytest.raises(ProtocolError, match="must not mask"):
        await received(WebSocket(Wire(from_client(2, b"x")), client=True))


async def test_fragments_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLIENT_MESSAGE_LIMIT", 1000)
    endless = Wire(from_client(2, bytes(400), final=False), *[from_client(0, bytes(400), final=False)] * 5)
    with pytest.raises(ProtocolError, match="message is too large"):
        await received(WebSocket(endless))
    assert len(endless.chunks) == 3, "it stops reading at the limit"


@pytest.mark.parametrize("cut", [1, 3, 7])
async def test_an_end_inside_a_frame_is_an_error(cut: int) -> None:
    with pytest.raises(ProtocolError, match="inside a frame"):
        await received(WebSocket(Wire(from_client(2, b"hello")[:cut])))
    with pytest.raises(ProtocolError, match="inside a message"):
        await received(WebSocket(Wire(from_client(2, b"a", final=False))))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
async def test_garbage_is_messages_an_end_or_an_error(chunks: list[bytes], client: bool) -> None:
    try:
        await received(WebSocket(Wire(*(chunk for chunk in chunks if chunk)), client=client))
    except ProtocolError as problem:
        assert str(problem)


def test_the_decoder_keeps_what_follows_a_frame() -> None:
    decoder = FrameDecoder(masked=False, limit=100)
    decoder.feed(encode_frame(1, b"one") + encode_frame(2, b"two")[:3])
    first = decoder.next_frame()
    assert first is not None and first.payload == b"one" and decoder.next_frame() is None and not decoder.empty


class _Loop:
    """What one side writes is what the other reads."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def read(self) -> bytes:
        data, self.data = self.data, b""
        return data

    async def drain(self) -> None: ...


async def test_compressed_messages_pass_both_ways() -> None:
    rows = b'{"name":"job","phase":"Running"}' * 1000
    for client in (True, False):
        wire = _Loop()
        WebSocket(wire, client=client, deflate=True).send_text(rows)
        assert len(wire.data) < len(rows) / 50
        assert await WebSocket(wire, client=not client, deflate=True).receive() == rows
        WebSocket(wire, client=client, deflate=True).send_text(b"short")
        assert b"short" in wire.data or client
        assert await WebSocket(wire, client=not client, deflate=True).receive() == b"short"


async def test_a_message_that_unpacks_to_too_much_is_refused() -> None:
    for payload in (b"\0" * (CLIENT_MESSAGE_LIMIT + 1), b""):
        wire = _Loop()
        bomb = zlib.compress(payload, 9, wbits=-15) if payload else b"\xff\xff\xff"
        wire.write(encode_frame(1, bomb, b"abcd", compressed=True))
        with pytest.raises(ProtocolError):
            await WebSocket(wire, deflate=True).receive()
    wire = _Loop()
    wire.write(encode_frame(1, b"x", b"abcd", compressed=True))
    with pytest.raises(ProtocolError):
        await WebSocket(wire).receive()  # nobody agreed on it


def test_what_is_answered_to_an_offer_of_compression() -> None:
    assert "no_context_takeover" in deflate_answer("permessage-deflate; client_max_window_bits")
    assert deflate_answer("x-other, permessage-deflate; server_max_window_bits=8") == ""
    assert deflate_answer("") == ""
