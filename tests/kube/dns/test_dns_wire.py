"""Messages: round trips, limits, and that no bytes whatever do anything but be refused."""

from __future__ import annotations

import contextlib
import struct

import pytest
from dns_kit import packet, shown
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.kube.network.dns import wire
from coterie.kube.network.dns.model import (
    DnsAnswer,
    DnsQuestion,
    RecordType,
    ResourceRecord,
    ResponseCode,
    address_record,
    name_of,
    packed_name,
    soa_record,
    srv_record,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LABELS = st.binary(min_size=1, max_size=20).map(bytes.lower)
NAMES = st.lists(LABELS, max_size=8).map(tuple)
RECORDS = st.builds(
    ResourceRecord,
    NAMES,
    st.sampled_from([RecordType.A, RecordType.AAAA, 16, 257]),
    st.integers(0, 0x7FFFFFFF),
    st.binary(max_size=40),
)


@PATIENT
@given(NAMES, st.integers(0, 65535), st.lists(RECORDS, max_size=6), st.lists(RECORDS, max_size=3))
def test_an_answer_is_read_as_it_was_written(
    name: tuple[bytes, ...], id_: int, answers: list[ResourceRecord], more: list[ResourceRecord]
) -> None:
    query = wire.read_query(wire.write_query(id_, DnsQuestion(name, RecordType.A)))
    assert (query.id, query.question, query.edns) == (id_, DnsQuestion(name, RecordType.A), True)
    reply = wire.read_reply(wire.write_answer(query, DnsAnswer(3, tuple(answers), tuple(more)), wire.TCP_SIZE))
    assert reply == wire.DnsReply(id_, 3, False, DnsQuestion(name, RecordType.A), tuple(answers), tuple(more))


@PATIENT
@given(st.binary(max_size=300))
def test_garbage_is_malformed_or_read(data: bytes) -> None:
    for read in (wire.read_query, wire.read_reply):
        try:
            read(data)
        except wire.MalformedMessage as problem:
            assert str(problem)


@PATIENT
@given(st.data(), st.integers(0, 400))
def test_broken_messages_are_malformed_or_read(data: st.DataObject, at: int) -> None:
    query = wire.read_query(packet("web.alice.svc", edns=1232))
    zone = name_of("svc")
    whole = DnsAnswer(0, (srv_record(name_of("a.b"), 1, name_of("web.alice.svc"), 5),), (soa_record(zone, 1, 5),))
    for good in (packet("web.alice.svc", edns=1232), wire.write_answer(query, whole, 4096)):
        bad = bytearray(good[: data.draw(st.integers(0, len(good)))])
        if bad:
            bad[at % len(bad)] = data.draw(st.integers(0, 255))
        for read in (wire.read_query, wire.read_reply):
            with contextlib.suppress(wire.MalformedMessage):
                read(bytes(bad))


@PATIENT
@given(st.binary(max_size=300))
def test_an_error_is_never_longer_than_what_caused_it(data: bytes) -> None:
    error = wire.write_error(data, ResponseCode.FORMERR)
    assert error is None or len(error) <= len(data)


HEAD = struct.pack("!6H", 1, 0x0100, 1, 0, 0, 0)
END = struct.pack("!HH", 1, 1)
REPLY = struct.pack("!6H", 1, 0x8100, 1, 1, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(HEAD, id="no-question"),
        pytest.param(HEAD + b"\3ab", id="cut-label"),
        pytest.param(HEAD + b"\xc0\x0c" + END, id="pointer-in-a-question"),
        pytest.param(HEAD + b"\x40a\0" + END, id="unknown-kind-of-label"),
        pytest.param(HEAD + (b"\x3f" + b"a" * 63) * 4 + b"\0" + END, id="name-too-long"),
        pytest.param(HEAD + b"\0" + END + b"x", id="bytes-after-the-end"),
        pytest.param(struct.pack("!6H", 1, 0x0100, 2, 0, 0, 0) + (b"\0" + END) * 2, id="two-questions"),
        pytest.param(struct.pack("!6H", 1, 0x8100, 1, 0, 0, 0) + b"\0" + END, id="an-answer"),
        pytest.param(struct.pack("!6H", 1, 0x0100, 1, 0, 0, 65535) + b"\0" + END, id="says-it-has-more"),
    ],
)
def test_no_question(data: bytes) -> None:
    with pytest.raises(wire.MalformedMessage):
        wire.read_query(data)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"\xc0\x11" + struct.pack("!HHIH", 1, 1, 5, 0), id="pointer-to-itself"),
        pytest.param(b"\xc0\xff" + struct.pack("!HHIH", 1, 1, 5, 0), id="pointer-ahead"),
        pytest.param(b"\0" + struct.pack("!HHIH", 1, 1, 5, 400), id="data-that-is-not-there"),
        pytest.param(b"\0" + struct.pack("!HHIH", 5, 1, 5, 4) + b"\1a\0\0", id="name-shorter-than-said"),
        pytest.param(b"\0" + struct.pack("!HHIH", 6, 1, 5, 2) + b"\0\0", id="short-soa"),
    ],
)
def test_no_answer(rest: bytes) -> None:
    with pytest.raises(wire.MalformedMessage):
        wire.read_reply(REPLY + b"\0" + END + rest)


def test_compressed_names_inside_data_are_written_out() -> None:
    question = b"\3www\7example\0" + END
    record = b"\xc0\x0c" + struct.pack("!HHIH", RecordType.CNAME, 1, 60, 4) + b"\1b\xc0\x10"
    reply = wire.read_reply(REPLY + question + record)
    assert reply.answers == (
        ResourceRecord(name_of("www.example"), RecordType.CNAME, 60, packed_name(name_of("b.example"))),
    )


def test_a_ttl_with_the_highest_bit_counts_as_none() -> None:
    record = b"\0" + struct.pack("!HHIH", RecordType.A, 1, 0x80000001, 4) + b"\1\2\3\4"
    assert wire.read_reply(REPLY + b"\0" + END + record).answers[0].ttl == 0


@pytest.mark.parametrize(
    ("edns", "count", "fits"),
    [
        pytest.param(0, 25, True, id="plain-fits"),
        pytest.param(0, 40, False, id="plain-does-not"),
        pytest.param(1232, 70, True, id="edns-fits"),
        pytest.param(65000, 100, False, id="we-never-send-more-than-networks-carry"),
        pytest.param(100, 25, True, id="less-than-512-means-512"),
    ],
)
def test_what_does_not_fit_is_cut_and_says_so(edns: int, count: int, fits: bool) -> None:
    query = wire.read_query(packet("web.alice.svc", edns=edns))
    name = name_of("web.alice.svc")
    whole = DnsAnswer(answers=tuple(address_record(name, f"10.0.0.{i}", 5) for i in range(count)), authoritative=True)
    out = wire.write_answer(query, whole, query.size)
    reply = wire.read_reply(out)
    assert len(out) <= max(512, min(edns, 1232))
    assert (reply.truncated, len(reply.answers)) == ((False, count) if fits else (True, 0))


def test_letters_come_back_as_they_were_sent() -> None:
    data = packet("WeB.aLiCe.SvC")
    query = wire.read_query(data)
    assert query.question.name == name_of("web.alice.svc")
    out = wire.write_answer(query, DnsAnswer(answers=(address_record(query.question.name, "10.0.0.1", 5),)), 512)
    assert data[12:] in out and [shown(each) for each in wire.read_reply(out).answers] == ["A 10.0.0.1"]
    assert len(out) == len(data) + 16, "the record's name is a pointer to the question"
