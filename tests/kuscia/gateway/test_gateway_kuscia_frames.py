"""Frames of Kuscia's reverse tunnels against the protobuf library, and what is no frame."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from kuscia_peer import frame, messages, reply

from coterie.kuscia.gateway.polling.frames import (
    MAX_FRAME,
    AnswerFrame,
    CallFrame,
    FrameReader,
    PollFault,
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
)
from coterie.kuscia.gateway.polling.passed_headers import answer_headers, call_headers

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=10)
CALL = {"id": "7", "host": "psi.bob.svc", "path": "/a?b", "method": "POST", "headers": {"x": "y"}, "body": b"data"}


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT, TEXT, TEXT, st.dictionaries(NAMES, TEXT, max_size=4), st.binary(max_size=40))
def test_calls_are_read_and_written_as_the_library_does(
    name: str, host: str, path: str, method: str, headers: dict[str, str], body: bytes
) -> None:
    made = CallFrame(name, host, path, method, headers, body)
    theirs = frame(id=name, host=host, path=path, method=method, headers=headers, body=body)
    assert FrameReader().feed(theirs) == [made]
    read = messages()[0].FromString(encode_call(made)[4:])
    assert (read.id, read.host, read.path, read.method, dict(read.headers), read.body) == (
        name, host, path, method, headers, body,
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([0, 200, 404, 599]),
    st.dictionaries(NAMES, TEXT, max_size=4),
    st.binary(max_size=40),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_answers_are_read_and_written_as_the_library_does(
    status: int, headers: dict[str, str], body: bytes, end: bool, chunk: bool, index: int
) -> None:
    parts = {
        "status_code": status,
        "headers": headers,
        "body": body,
        "end_stream": end,
        "chunk_data": chunk,
        "index": index,
    }
    made = AnswerFrame(status, headers, body, end, chunk, index)
    assert decode_answer(reply(**parts)) == made
    assert messages()[1].FromString(encode_answer(made)) == messages()[1](**parts)


def test_a_stream_may_be_cut_anywhere() -> None:
    stream = frame(**CALL) + frame(id="8") + frame(**CALL)
    for at in range(len(stream) + 1):
        reader = FrameReader()
        found = [*reader.feed(stream[:at]), *reader.feed(stream[at:])]
        assert [each.id for each in found] == ["7", "8", "7"], at
    reader = FrameReader()
    assert [each.id for byte in stream for each in reader.feed(bytes([byte]))] == ["7", "8", "7"]


def test_what_is_cut_off_is_no_call() -> None:
    whole = frame(**CALL)
    for at in range(len(whole)):
        assert FrameReader().feed(whole[:at]) == []


@pytest.mark.parametrize("which", [0, 1], ids=["calls", "answers"])
def test_a_message_cut_at_any_byte_is_refused_where_the_library_refuses_it(which: int) -> None:
    answer = {"status_code": 404, "headers": {"a": "b", "c": ""}, "body": b"x" * 200, "end_stream": True, "index": 300}
    whole = reply(**answer) if which else frame(**CALL | {"body": b"x" * 200})[4:]
    read = decode_answer if which else decode_call
    refused = 0
    for at in range(len(whole) + 1):
        try:
            theirs = messages()[which].FromString(whole[:at])
        except DecodeError:
            refused += 1
            with pytest.raises(PollFault):
                read(whole[:at])
        else:
            mine = read(whole[:at])
            assert (dict(mine.headers), mine.body) == (dict(theirs.headers), theirs.body)
    assert refused > 200


@pytest.mark.parametrize("read", [decode_call, decode_answer])
def test_garbage_is_refused_and_nothing_else_happens(read: object) -> None:
    assert callable(read)
    chance = random.Random(7)
    good = [frame(**CALL)[4:], reply(status_code=200, headers={"a": "b"}, body=b"x", index=3)]
    for number in range(3000):
        data = bytearray(good[number % 2])
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for wrong in (bytes(data), bytes(data[: chance.randrange(len(data))]), chance.randbytes(20)):
            try:
                read(wrong)
            except PollFault:
                continue


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(PollFault, match="a frame of"):
        FrameReader().feed((MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(PollFault, match="16 MiB"):
        encode_call(CallFrame("1", "h", "/", "POST", body=bytes(MAX_FRAME)))
    with pytest.raises(PollFault, match="headers"):
        decode_call(frame(headers={str(number): "" for number in range(300)})[4:])
    with pytest.raises(PollFault, match="status"):
        decode_answer(reply(status_code=100))


def test_tokens_and_names_do_not_travel_in_frames() -> None:
    given_headers = {
        "kuscia-token": "secret", "x-coterie-peer-key": "k", "kuscia-source": "alice", "kuscia-origin-source": "alice",
        "kuscia-token-revision": "3", "host": "x", "connection": "close", "content-length": "3", ":path": "/", "accept": "*/*",
        "bad\nname": "x", "bad-value": "a\r\nb",
    }  # fmt: skip
    out = call_headers(given_headers, to_partner=True)
    assert out == {
        "kuscia-source": "alice", "kuscia-origin-source": "alice", "kuscia-token-revision": "3", "accept": "*/*",
    }  # fmt: skip
    assert call_headers(given_headers, to_partner=False) == {"kuscia-token-revision": "3", "accept": "*/*"}
    assert answer_headers({":status": "200", "transfer-encoding": "chunked", "kuscia-error-message": "x"}) == {
        "kuscia-error-message": "x"
    }
