"""What somebody on the machine may try at a domain's name server: refused with the right code, bounded, and it goes on.

Whoever is heard at all runs on this machine, which is any pod of any domain here. Nothing in these tests waits for luck:
a server that still answers `web` has survived.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from dns_kit import PATIENCE, Upstream, ask_tcp, ask_udp, listed, packet
from fake_api import FakeApi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.base.tasks import TaskOwner
from coterie.kube.client.informers import Informers
from coterie.kube.network.dns import server as server_module
from coterie.kube.network.dns import wire
from coterie.kube.network.dns.allowed_clients import AllowedClients
from coterie.kube.network.dns.cache import AnswerCache
from coterie.kube.network.dns.model import (
    DnsAnswer,
    DnsQuestion,
    RecordType,
    ResourceRecord,
    ResponseCode,
    address_record,
    name_of,
)
from coterie.kube.network.dns.server import DnsServer
from coterie.kube.network.dns.settings import ForwardSettings, Nameserver, ServerSettings
from coterie.kube.network.dns.zone import Zone
from coterie.kube.network.dns.zone_updater import ZoneUpdater

ZONE = Zone("alice", ("127.0.1.1",), ("127.0.1.1",))
PATIENT = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
END = struct.pack("!HH", 1, 1)
GOOD = ["A 10.0.0.1"]


def api(*ips: str) -> FakeApi:
    """Alice's service, and one of bob's that only the control plane should know."""
    made = FakeApi()
    for domain, name, addresses in (("alice", "web", ips or ("10.0.0.1",)), ("bob", "secret", ("10.6.6.6",))):
        made.seed("services", name, domain, spec={"clusterIP": "None", "ports": [{"name": "http", "port": 80}]})
        subset = {"addresses": [{"ip": ip} for ip in addresses], "ports": [{"name": "http", "port": 80}]}
        made.seed("endpoints", name, domain, subsets=[subset])
    return made


@asynccontextmanager
async def serving(
    seeded: FakeApi | None = None, upstream: Sequence[Nameserver] = (), **more: Any
) -> AsyncIterator[DnsServer]:
    """It is well at the end, whatever happened."""
    informers = Informers((seeded or api()).client())
    forward, clock = more.pop("forward", ForwardSettings(timeout=PATIENCE)), more.pop("clock", SYSTEM_CLOCK)
    chosen = ServerSettings("127.0.0.1", 0, forward=forward, **more)
    server = DnsServer(chosen, ZoneUpdater(ZONE, informers), lambda: upstream, clock)
    async with TaskOwner("test") as owner:
        running = owner.start("dns", server.run())
        owner.start("informers", informers.run())
        async with asyncio.timeout(PATIENCE):
            await server.ready.wait()
        yield server
        if seeded is None:
            assert listed(await ask_udp(server.port, packet("web"))) == GOOD
            (by_tcp,) = await ask_tcp(server.port, packet("web.alice.svc"))
            assert listed(by_tcp) == GOOD
        server.stop()
        await running


def code(answer: bytes) -> int:
    return answer[3] & 15


def a_message(
    *sections: int, flags: int = 0x0100, name: bytes = b"\3web\0", type_: int = RecordType.A, rest: bytes = b""
) -> bytes:
    """`sections`: how many records are claimed: questions, answers, authority, additional."""
    counts = (*sections, *(0,) * (4 - len(sections)))
    return struct.pack("!6H", 7, flags, *counts) + name + struct.pack("!HH", type_, 1) + rest


def a_record(type_: int, data: bytes = b"", name: bytes = b"\0", ttl: int = 0, klass: int = 1) -> bytes:
    return name + struct.pack("!HHIH", type_, klass, ttl, len(data)) + data


SOA = a_record(RecordType.SOA, b"\0\0" + b"\0" * 20)


# ---- what is no question, and what is none that we take ----

REFUSED = {
    "an update": (
        a_message(1, 0, 1, flags=0x2800, type_=RecordType.SOA, rest=a_record(RecordType.A, b"\6\6\6\6")),
        ResponseCode.NOTIMP,
    ),
    "a notice": (a_message(1, 1, flags=0x2400, type_=RecordType.SOA, rest=SOA), ResponseCode.NOTIMP),
    "a status": (a_message(1, flags=0x1000), ResponseCode.NOTIMP),
    "an unknown opcode without a question": (struct.pack("!6H", 7, 0x7800, 0, 0, 0, 0), ResponseCode.NOTIMP),
    "a transfer": (a_message(1, type_=RecordType.AXFR, name=b"\5alice\3svc\0"), ResponseCode.REFUSED),
    "the rest of a transfer": (
        a_message(1, 0, 1, type_=RecordType.IXFR, name=b"\5alice\3svc\0", rest=SOA),
        ResponseCode.REFUSED,
    ),
    "anything": (a_message(1, type_=RecordType.ANY), ResponseCode.REFUSED),
    "anything of a stranger's name": (packet("example.com", RecordType.ANY), ResponseCode.REFUSED),
    "all mail": (packet("example.com", 253), ResponseCode.REFUSED),
    "a key": (packet("example.com", 249), ResponseCode.REFUSED),
    "an option as a question": (packet("example.com", RecordType.OPT), ResponseCode.REFUSED),
    "any class": (packet("web", klass=255), ResponseCode.REFUSED),
    "our version": (packet("version.bind", 16, klass=3), ResponseCode.REFUSED),
    "name servers of others": (packet("example.com", RecordType.NS), ResponseCode.REFUSED),
    "a name that points to itself": (a_message(1, name=b"\xc0\x0c"), ResponseCode.FORMERR),
    "a name that points ahead": (a_message(1, name=b"\3web\xc0\xff"), ResponseCode.FORMERR),
    "a name of one label too long": (a_message(1, name=b"\x40" + b"a" * 64 + b"\0"), ResponseCode.FORMERR),
    "a name of 256 octets": (a_message(1, name=(b"\x3f" + b"a" * 63) * 4 + b"\0"), ResponseCode.FORMERR),
    "a name without end": (a_message(1, name=b"\x3f" + b"a" * 20)[:-4], ResponseCode.FORMERR),
    "no question": (struct.pack("!6H", 7, 0x0100, 0, 0, 0, 0), ResponseCode.FORMERR),
    "two questions": (a_message(2, rest=b"\3web\0" + END), ResponseCode.FORMERR),
    "an answer along with it": (a_message(1, 1, rest=a_record(RecordType.A, b"\6\6\6\6")), ResponseCode.FORMERR),
    "65535 records that are not there": (a_message(1, 0, 0, 65535), ResponseCode.FORMERR),
    "two options": (a_message(1, 0, 0, 2, rest=a_record(RecordType.OPT) * 2), ResponseCode.FORMERR),
    "an option with a name": (
        a_message(1, 0, 0, 1, rest=a_record(RecordType.OPT, name=b"\1a\0")),
        ResponseCode.FORMERR,
    ),
    "an option that is longer than told": (
        a_message(1, 0, 0, 1, rest=a_record(RecordType.OPT) + b"x"),
        ResponseCode.FORMERR,
    ),
    "an option that points to itself": (
        a_message(1, 0, 0, 1, rest=a_record(RecordType.OPT, name=b"\xc0\x15")),
        ResponseCode.FORMERR,
    ),
    "a question of sixty kilobytes": (
        a_message(1, 0, 0, 1, rest=a_record(RecordType.OPT, b"\0" * 60_000)),
        ResponseCode.FORMERR,
    ),
}


@pytest.mark.parametrize(("data", "expected"), REFUSED.values(), ids=list(REFUSED))
async def test_refusals(data: bytes, expected: ResponseCode) -> None:
    """By both ways of asking; never more octets than came."""
    async with serving() as server:
        told = await ask_udp(server.port, data)
        assert (told[:2], code(told), told[2] & 0x80) == (data[:2], expected, 0x80)
        assert len(told) <= len(data)
        if len(data) <= 4096:
            (told,) = await ask_tcp(server.port, data)
            assert code(told) == expected


async def test_an_empty_name_is_nobodys() -> None:
    async with Upstream(lambda _: DnsAnswer(ResponseCode.NXDOMAIN)) as other, serving(None, at(other)) as server:
        assert code(await ask_udp(server.port, a_message(1, name=b"\0"))) == ResponseCode.NXDOMAIN
        assert other.asked == ["."]


def test_a_long_chain_of_pointers_is_not_followed() -> None:
    """Each leads back, as it must; thousands of them behind thousands of names would keep a reader busy for seconds."""
    head = struct.pack("!6H", 1, 0x8100, 1, 2, 0, 0) + b"\0" + END
    chain = b"\0" + b"".join(struct.pack("!H", 0xC000 | place) for place in _places(len(head) + 11, 200))
    text = a_record(16, chain)
    last = len(head) + 11 + len(chain) - 2 - 1
    with pytest.raises(wire.MalformedMessage, match="pointer"):
        wire.read_reply(head + text + a_record(RecordType.A, b"\1\2\3\4", struct.pack("!H", 0xC000 | last + 1)))


def _places(start: int, count: int) -> list[int]:
    """Where the pointers of a chain lead: to the empty name at `start`, then each to the one before it."""
    return [start, *(start + 1 + 2 * index for index in range(count - 1))]


@PATIENT
@given(st.binary(max_size=600), st.sampled_from([0x0100, 0x0000, 0x2800, 0x7900]))
def test_no_bytes_make_a_larger_answer_than_a_question_may_have(junk: bytes, flags: int) -> None:
    data = struct.pack("!6H", 1, flags, 1, 0, 0, 0) + junk
    try:
        query = wire.read_query(data)
    except wire.MalformedMessage:
        error = wire.write_error(data, ResponseCode.FORMERR)
        assert error is not None and len(error) == 12
        return
    assert len(wire.write_answer(query, DnsAnswer(ResponseCode.REFUSED), query.size)) <= len(data) + 11


@pytest.mark.parametrize("edns", [0, 513, 65535])
async def test_answers_are_no_larger_than_networks_carry(edns: int) -> None:
    """However large the asker says its room is: the rest comes by TCP, which nobody can ask for in another's name."""
    many = [f"10.0.{i // 200}.{i % 200 + 1}" for i in range(600)]
    async with serving(api(*many)) as server:
        for type_ in (RecordType.A, RecordType.SRV, RecordType.ANY):
            name = "_http._tcp.web.alice.svc" if type_ == RecordType.SRV else "web.alice.svc"
            told = await ask_udp(server.port, packet(name, type_, edns=edns))
            assert len(told) <= max(512, min(edns, 1232))
            assert len(told) < 120, "an answer that does not fit is left out whole"


# ---- names of other domains ----


async def test_what_exists_in_another_domain_cannot_be_told_from_what_does_not() -> None:
    """Though the control plane's informers know all of them."""
    async with serving() as server:
        for type_ in (
            RecordType.A,
            RecordType.AAAA,
            RecordType.SRV,
            RecordType.CNAME,
            16,
            RecordType.NS,
            RecordType.SOA,
        ):
            for shape in ("{}.bob.svc", "_http._tcp.{}.bob.svc", "10-6-6-6.{}.bob.svc"):
                there = await ask_udp(server.port, packet(shape.format("secret"), type_))
                nowhere = await ask_udp(server.port, packet(shape.format("absent"), type_))
                assert there.replace(b"secret", b"absent") == nowhere, (shape, type_)
                assert b"\x0a\x06\x06\x06" not in there
        for name in ("secret", "secret.svc", "secret.alice.svc", "secret.bob", "bob.svc", "alice.svc", "svc"):
            for type_ in (RecordType.A, RecordType.SRV, RecordType.ANY, RecordType.AXFR):
                assert b"\x0a\x06\x06\x06" not in await ask_udp(server.port, packet(name, type_))


# ---- strangers ----


async def test_strangers_are_told_nothing_and_written_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They choose how often they ask, and so most lines are counted rather than written."""
    async with serving(clock=VirtualClock()) as server:
        monkeypatch.setattr(AllowedClients, "is_allowed", lambda self, address: address != "127.0.0.5")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, socket.socket() as stream:
            sock.setblocking(False)
            sock.bind(("127.0.0.5", 0))
            for _ in range(100):
                sock.sendto(packet("web"), ("127.0.0.1", server.port))
            # Datagrams are handled in order: when a later one is answered, the first were dropped.
            await ask_udp(server.port, packet("web"))
            with pytest.raises(BlockingIOError):
                sock.recv(512)
            stream.setblocking(False)
            stream.bind(("127.0.0.5", 0))
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(stream, ("127.0.0.1", server.port))
                assert await loop.sock_recv(stream, 10) == b""
        lines = [each.getMessage() for each in caplog.records if "not allowed" in each.getMessage()]
        assert len(lines) == 20


# ---- floods ----


async def test_distinct_questions_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One name in thousands of spellings, each kept ready with all its answers."""
    monkeypatch.setattr(server_module, "_REMEMBERED_OCTETS", 1 << 18)
    most = 0
    async with serving(api(*(f"10.0.0.{i}" for i in range(1, 9)))) as server:
        for number in range(400):
            padding = a_record(RecordType.OPT, struct.pack("!HHI", 65001, 1000, number) + b"\0" * 996, klass=1232)
            told = server.quick(a_message(1, 0, 0, 1, rest=padding), allowed=0)
            assert isinstance(told, bytes) and len(listed(told)) == 8
            held = sum(len(key) + sum(map(len, kept)) for key, kept in server._remembered.items())
            most = max(most, held)
            assert held <= 1 << 18
        assert most > 1 << 17, "it does remember"


async def test_unknown_names_wait_in_bounded_number() -> None:
    """A silent upstream and a flood of names: own names are answered meanwhile, and so are those who come by TCP."""
    quick = ForwardSettings(timeout=PATIENCE, in_flight=8)
    async with Upstream(lambda _: None) as silent, serving(None, at(silent), forward=quick) as server:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
            flood.setblocking(False)
            flood.bind(("127.0.0.1", 0))
            for number in range(400):
                flood.sendto(packet(f"name-{number}.example", id_=number), ("127.0.0.1", server.port))
                if number % 40 == 39:  # what the kernel has no room for would prove nothing
                    assert listed(await ask_udp(server.port, packet("web"))) == GOOD
            assert server._owner is not None and len(server._owner) <= 4 * quick.in_flight + 1
            assert server._forwarder is not None and server._forwarder.under_way <= quick.in_flight
            (told,) = await ask_tcp(server.port, packet("late.example"))
            assert code(told) == ResponseCode.SERVFAIL, "try later"
        assert len(silent.asked) <= quick.in_flight


def test_long_answers_do_not_fill_the_cache() -> None:
    """Who owns a domain decides how long its answers are."""
    cache = AnswerCache(64, 60)
    long = DnsAnswer(answers=tuple(ResourceRecord(name_of("x.example"), 16, 60, b"t" * 200) for _ in range(30)))
    for number in range(200):
        cache.put(DnsQuestion(name_of(f"n{number}.example"), 16), long, 0.0)
        assert len(cache) <= 3 and cache.weight <= 64 * 512
    assert cache.get(DnsQuestion(name_of("n199.example"), 16), 1.0) is not None
    for number in range(200):
        cache.put(DnsQuestion(name_of(f"s{number}.example"), RecordType.A), says("192.0.2.1")(None), 0.0)
    assert len(cache) == 64
    for number in range(200):
        assert (cache.get(DnsQuestion(name_of(f"s{number}.example"), RecordType.A), 1000.0)) is None
    assert (len(cache), cache.weight) == (0, 0)
    cache.put(DnsQuestion(name_of("huge.example"), 16), DnsAnswer(answers=long.answers * 100), 0.0)
    assert (len(cache), cache.weight) == (0, 0), "one that is larger than all together is not kept"


# ---- connections that do not end ----


@asynccontextmanager
async def connected(server: DnsServer, *, small: bool = False) -> AsyncIterator[tuple[Any, Any]]:
    """`small`: with next to no room for answers."""
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


SLOW = {
    "nothing": b"",
    "half a length": b"\0",
    "a length": b"\0\x20",
    "half a question": b"\0\x20" + packet("web")[:10],
    "one question, and half of another": (
        len(packet("web")).to_bytes(2, "big") + packet("web") + b"\x0f\xff" + packet("web")
    ),
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=list(SLOW))
async def test_who_sends_half_is_let_go(sent: bytes) -> None:
    async with serving(tcp_idle=0.05) as server, connected(server) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(PATIENCE):
            while await reader.read(1000):
                pass
            while server._connections:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("size", [4097, 65535])
async def test_a_length_that_no_question_has_ends_the_connection(size: int) -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(size.to_bytes(2, "big"))
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""


async def test_a_length_of_nothing_ends_the_connection() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(b"\0\0" * 50)
        async with asyncio.timeout(PATIENCE):
            with_error = await reader.read()
        assert with_error == b""


async def test_those_who_hold_connections_do_not_keep_others_out() -> None:
    """All connections are taken; whoever comes gets the place of the one that was silent for longest."""
    async with (
        serving(tcp_connections=3, tcp_idle=PATIENCE) as server,
        connected(server) as (reader, writer),
        connected(server) as (second, _),
        connected(server) as (third, _),
        asyncio.timeout(PATIENCE),
    ):
        while len(server._connections) < 3:
            await asyncio.sleep(0.005)
        writer.write(len(packet("web")).to_bytes(2, "big") + packet("web"))
        await reader.readexactly(2)
        assert listed((await ask_tcp(server.port, packet("web")))[0]) == GOOD
        assert await second.read() == b"", "it had been silent for longest"
        assert len(server._connections) <= 3
        assert not reader.at_eof() and not third.at_eof()


async def test_who_never_reads_is_not_kept_for_ever() -> None:
    """Answers pile up, and the asker says goodbye without having taken them."""
    many = [f"10.{i // 40000}.{i // 200 % 200}.{i % 200 + 1}" for i in range(3000)]
    question = len(packet("web")).to_bytes(2, "big") + packet("web")
    async with (
        serving(api(*many), tcp_idle=0.2) as server,
        connected(server, small=True) as (_, writer),
    ):
        writer.transport.pause_reading()
        writer.write(question * 400)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            while not server._connections:
                await asyncio.sleep(0.005)
            (held,) = server._connections
            while server._connections:
                await asyncio.sleep(0.005)
        assert held.transport.is_closing() and held.transport.get_write_buffer_size() == 0, "nothing is left of it"


# ---- answers of others ----


def says(*ips: str, ttl: int = 30) -> Callable[[Any], DnsAnswer]:
    name = name_of("example.com")
    return lambda _: DnsAnswer(answers=tuple(address_record(name, ip, ttl) for ip in ips))


def at(*upstreams: Any) -> list[Nameserver]:
    return [Nameserver("127.0.0.1", each.port) for each in upstreams]


async def test_an_answer_from_elsewhere_is_not_even_seen() -> None:
    """With the right number and question, from another address and from another port."""

    class Spoofed(Upstream):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            query = wire.read_query(data)
            false = wire.write_answer(query, says("192.0.2.66")(query), 512)
            for source in (("127.0.0.9", self.port), ("127.0.0.1", 0)):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                    other.bind(source)
                    other.sendto(false, addr)
            super().datagram_received(data, addr)

    async with Spoofed(says("192.0.2.1")) as upstream, serving(None, at(upstream)) as server:
        assert listed(await ask_udp(server.port, packet("example.com"))) == ["A 192.0.2.1"]


WRONG: dict[str, Callable[[wire.Query], wire.Query]] = {
    "number": lambda q: wire.read_query(packet("example.com", id_=q.id ^ 0x8000)),
    "name": lambda q: wire.read_query(packet("example.org", id_=q.id)),
    "type": lambda q: wire.read_query(packet("example.com", RecordType.AAAA, id_=q.id)),
    "class": lambda q: wire.read_query(packet("example.com", klass=3, id_=q.id)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
@pytest.mark.parametrize("by", ["udp", "tcp"])
async def test_an_answer_to_something_else_is_not_believed(wrong: Callable[[wire.Query], wire.Query], by: str) -> None:
    """By UDP the right one may follow; a connection belongs to who is at its other end, so there it is the end."""

    def spoofed(query: wire.Query) -> list[bytes]:
        if by == "tcp" and not asked:
            asked.append(1)
            return [wire.write_answer(query, DnsAnswer(answers=says("192.0.2.1")(query).answers * 40), 512)]  # cut
        false = wire.write_answer(wrong(query), says("192.0.2.66")(query), 512)
        return [false] if by == "tcp" else [false, wire.write_answer(query, says("192.0.2.1")(query), 512)]

    asked: list[int] = []
    once = ForwardSettings(timeout=PATIENCE, rounds=1)
    async with Upstream(spoofed) as upstream, serving(None, at(upstream), forward=once) as server:
        told = await ask_udp(server.port, packet("example.com"))
        assert b"\xc0\x00\x02\x42" not in told
        assert (code(told), listed(told)) == (
            (ResponseCode.SERVFAIL, []) if by == "tcp" else (ResponseCode.NOERROR, ["A 192.0.2.1"])
        )


async def test_an_answer_about_our_names_changes_nothing_here() -> None:
    """What upstream adds for names that are ours goes into no cache of ours."""

    def poisoned(query: wire.Query) -> DnsAnswer:
        ours = [address_record(name_of(each), "192.0.2.66", 60) for each in ("web.alice.svc", "web", "x.bob.svc")]
        return DnsAnswer(
            answers=(*says("192.0.2.1")(query).answers, *ours), authority=(ours[0],), additional=(ours[1],)
        )

    async with Upstream(poisoned) as upstream, serving(None, at(upstream)) as server:
        await ask_udp(server.port, packet("example.com"))
        assert listed(await ask_udp(server.port, packet("web.alice.svc"))) == GOOD
        assert listed(await ask_udp(server.port, packet("x.bob.svc"))) == ["A 127.0.1.1"]
