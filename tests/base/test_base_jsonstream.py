"""Objects without separators, whatever the pieces are in which they come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.base import json_stream
from coterie.base.json_stream import Objects


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_objects_are_cut_out_wherever_pieces_end(size: int) -> None:
    given: list[Any] = [{"a": {"b": "}{"}}, {}, {"ü": ["\\", '"', "\U0001f600"]}, {"c": 1}]
    text = "\n ".join(json.dumps(each, ensure_ascii=False) for each in given).encode() + b"\n"
    reader, found = Objects(), list[Any]()
    for start in range(0, len(text), size):
        found += reader.feed(text[start : start + size])
    assert found == given


def test_an_object_is_given_with_its_last_byte() -> None:
    reader = Objects()
    assert [list(reader.feed(each)) for each in (b'{"a":"}', b'"', b"}{", b"}")] == [[], [], [{"a": "}"}], [{}]]


@pytest.mark.parametrize("wrong", [b" <html>", b"[1]", b"\xff{}"])
def test_what_is_no_object_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        list(Objects().feed(wrong))


def test_what_comes_before_it_is_given() -> None:
    pieces = Objects().feed(b'{"a":1}<html>')
    assert next(pieces) == {"a": 1}
    with pytest.raises(ValueError, match="not an object"):
        next(pieces)


def test_what_never_becomes_an_object_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "LARGEST", 100)
    reader = Objects()
    with pytest.raises(ValueError, match="too large"):
        for _ in range(100):
            assert list(reader.feed(b'{"a":')) == []


def test_a_large_object_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, looks = Objects(), list[int]()

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> Any:
            looks.append(idx)
            return super().raw_decode(s, idx)

    monkeypatch.setattr(reader, "_reader", Counting())
    for chunk in (b'{"log":"', *[b"x" * 1000] * 50, b'"}'):
        found = list(reader.feed(chunk))
    assert (len(found[0]["log"]), len(looks)) == (50_000, 1)
