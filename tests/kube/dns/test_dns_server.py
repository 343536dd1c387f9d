"""The server on real sockets: both ways of asking, who is heard, and what it does with others' names."""

from __future__ import annotations

import asyncio
import ipaddress
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

from coterie.base.tasks import TaskOwner
from coterie.kube.api.types.network import ENDPOINTS, SERVICES
from coterie.kube.client.informers import Informers
from coterie.kube.network.dns import wire
from coterie.kube.network.dns.allowed_clients import AllowedClients
from coterie.kube.network.dns.model import DnsAnswer, RecordType, ResponseCode, address_record, name_of, soa_record
from coterie.kube.network.dns.server import DnsServer
from coterie.kube.network.dns.settings import ForwardSettings, Nameserver, ServerSettings
from coterie.kube.network.dns.zone import Zone
from coterie.kube.network.dns.zone_updater import ZoneUpdater

ZONE = Zone("alice", ("127.0.1.1",), ("127.0.1.1",))


def api_with(*ips: str) -> FakeApi:
    api = FakeApi()
    api.seed("services", "web", "alice", spec={"clusterIP": "None"})
    api.seed("endpoints", "web", "alice", subsets=[{"addresses": [{"ip": ip} for ip in ips]}])
    api.seed("services", "db", "alice", spec={"type": "ExternalName", "externalName": "db.example.com"})
    return api


@asynccontextmanager
async def serving(
    api: FakeApi, upstream: Sequence[Nameserver] = (), forward: ForwardSettings | None = None, own_only: str = ""
) -> AsyncIterator[DnsServer]:
    informers = Informers(api.client())
    keeper = ZoneUpdater(ZONE, informers)
    closed = (ipaddress.ip_network(own_only),) if own_only else ()
    chosen = ServerSettings("127.0.0.1", 0, own_names_only=closed, forward=forward or ForwardSettings(timeout=PATIENCE))
    server = DnsServer(chosen, keeper, lambda: upstream)
    async with TaskOwner("test") as owner:
        running = owner.start("dns", server.run())
        early = await ask_udp(server.port, packet("web.alice.svc"))
        assert wire.read_reply(early).code == ResponseCode.SERVFAIL, "nobody knows yet which names there are"
        owner.start("informers", informers.run())
        async with asyncio.timeout(PATIENCE):
            await server.ready.wait()
        yield server
        server.stop()
        await running


async def test_udp_and_tcp() -> None:
    async with serving(api_with("10.0.0.1", "10.0.0.2")) as server:
        for _ in range(2):  # the second time from memory
            answer = await ask_udp(server.port, packet("WEB.alice.svc", id_=77, edns=4096))
            assert answer[:2] == b"\0\x4d" and sorted(listed(answer)) == ["A 10.0.0.1", "A 10.0.0.2"]
        one, two = await ask_tcp(server.port, packet("web"), packet("web.bob.svc"))
        assert sorted(listed(one)) == ["A 10.0.0.1", "A 10.0.0.2"] and listed(two) == ["A 127.0.1.1"]


async def test_each_asker_of_a_pair_of_types_sees_every_address_first() -> None:
    async with serving(api_with("10.0.0.1", "10.0.0.2")) as server:
        firsts = set()
        for _ in range(4):
            firsts.add(listed(await ask_udp(server.port, packet("web")))[0])
            await ask_udp(server.port, packet("web", RecordType.AAAA))
        assert firsts == {"A 10.0.0.1", "A 10.0.0.2"}


async def test_a_change_is_seen_though_the_answer_was_remembered() -> None:
    api = api_with("10.0.0.1")
    client = api.client()
    async with serving(api) as server:
        assert listed(await ask_udp(server.port, packet("web.svc"))) == ["A 10.0.0.1"]
        body = {"subsets": [{"addresses": [{"ip": "10.0.0.9"}]}]}
        await client.patch(ENDPOINTS, "web", "alice", body)
        await until_told(server, "web.svc", ["A 10.0.0.9"])
        await client.delete(SERVICES, "web", "alice")
        await until_told(server, "web.alice.svc", [])
        assert wire.read_reply(await ask_udp(server.port, packet("web.alice.svc"))).code == ResponseCode.NXDOMAIN


async def until_told(server: DnsServer, name: str, expected: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while listed(await ask_udp(server.port, packet(name))) != expected:
            await asyncio.sleep(0.005)


async def test_long_answers_come_by_tcp() -> None:
    ips = [f"10.0.{i // 200}.{i % 200 + 1}" for i in range(1000)]
    async with serving(api_with(*ips)) as server:
        cut = await ask_udp(server.port, packet("web.alice.svc", edns=1232))
        assert wire.read_reply(cut).truncated and len(cut) <= 1232
        (whole,) = await ask_tcp(server.port, packet("web.alice.svc"))
        assert len(listed(whole)) == 1000


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(packet("web", RecordType.ANY), ResponseCode.REFUSED, id="any"),
        pytest.param(packet("web", flags=0x2800), ResponseCode.NOTIMP, id="update"),
        pytest.param(packet("web")[:-1], ResponseCode.FORMERR, id="cut"),
        pytest.param(packet("web", 16, klass=3), ResponseCode.REFUSED, id="chaos"),
    ],
)
async def test_refusals_are_not_longer_than_the_question(data: bytes, code: ResponseCode) -> None:
    async with serving(api_with("10.0.0.1")) as server:
        answer = await ask_udp(server.port, data)
        assert answer[:2] == data[:2] and answer[3] & 15 == code and len(answer) <= len(data)


async def test_a_later_edns_is_refused_with_its_code() -> None:
    async with serving(api_with("10.0.0.1")) as server:
        data = packet("web") + b"\0" + struct.pack("!HHIH", RecordType.OPT, 1232, 1 << 16, 0)
        data = data[:10] + b"\0\1" + data[12:]
        answer = await ask_udp(server.port, data)
        assert answer[3] & 15 == 0 and answer[-6] == 1, "the higher bits of the code are in the OPT record"


async def test_answers_and_garbage_get_no_answer_or_an_error_and_harm_nothing() -> None:
    async with serving(api_with("10.0.0.1")) as server:

        @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.binary(max_size=200))
        def never_more_than_asked(data: bytes) -> None:
            out = server.quick(data, allowed=0)
            assert not isinstance(out, bytes) or len(out) <= max(len(data), 12) + 100

        never_more_than_asked()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for junk in (b"", b"\0" * 11, b"\xff" * 500, packet("web", flags=0x8100)):
                sock.sendto(junk, ("127.0.0.1", server.port))
        assert listed(await ask_udp(server.port, packet("web"))) == ["A 10.0.0.1"]


async def test_a_connection_that_sends_nonsense_is_closed() -> None:
    async with serving(api_with("10.0.0.1")) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\xff\xff" + b"x" * 100)
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
        (answer,) = await ask_tcp(server.port, packet("web"))
        assert listed(answer) == ["A 10.0.0.1"]


async def test_strangers_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(api_with("10.0.0.1")) as server:
        monkeypatch.setattr(AllowedClients, "is_allowed", lambda self, address: address != "127.0.0.5")
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind(("127.0.0.5", 0))
            await loop.sock_sendto(sock, packet("web"), ("127.0.0.1", server.port))
            # Datagrams are handled in order: when a later one is answered, the first was dropped.
            await ask_udp(server.port, packet("web"))
            with pytest.raises(BlockingIOError):
                sock.recv(512)


@pytest.mark.parametrize(
    ("address", "networks", "heard"),
    [
        pytest.param("127.0.3.4", (), True, id="loopback"),
        pytest.param("::1", (), True, id="loopback-6"),
        pytest.param("::ffff:127.0.0.1", (), True, id="mapped"),
        pytest.param("192.0.2.1", (), False, id="stranger"),
        pytest.param("2001:db8::1", (), False, id="stranger-6"),
        pytest.param("192.0.2.1", ("192.0.2.0/24",), True, id="named-network"),
        pytest.param("198.51.100.1", ("192.0.2.0/24",), False, id="outside-of-it"),
    ],
)
def test_who_is_heard(address: str, networks: Sequence[str], heard: bool) -> None:
    clients = AllowedClients([ipaddress.ip_network(each) for each in networks])
    assert [clients.is_allowed(address), clients.is_allowed(address)] == [heard, heard]


def says(*ips: str, ttl: int = 30) -> Callable[[wire.Query], DnsAnswer]:
    return lambda query: DnsAnswer(answers=tuple(address_record(query.question.name, ip, ttl) for ip in ips))


def at(*upstreams: Any) -> list[Nameserver]:
    return [Nameserver("127.0.0.1", each.port) for each in upstreams]


async def test_other_names_come_from_upstream_and_are_remembered() -> None:
    async with Upstream(says("192.0.2.1")) as other, serving(api_with(), at(other)) as server:
        for _ in range(3):
            assert listed(await ask_udp(server.port, packet("example.com"))) == ["A 192.0.2.1"]
        assert other.asked == ["example.com"]
        (answer,) = await ask_tcp(server.port, packet("Example.COM"))
        assert listed(answer) == ["A 192.0.2.1"] and other.asked == ["example.com"]


async def test_own_names_are_never_asked_elsewhere() -> None:
    async with Upstream(says("192.0.2.1")) as other, serving(api_with(), at(other)) as server:
        for name in ("nobody.alice.svc", "x.bob.svc", "bob.svc", "svc"):
            await ask_udp(server.port, packet(name))
        assert other.asked == []


async def test_external_names_end_in_addresses() -> None:
    async with Upstream(says("192.0.2.5")) as other, serving(api_with(), at(other)) as server:
        answer = await ask_udp(server.port, packet("db.alice.svc"))
        assert listed(answer) == ["CNAME db.example.com", "A 192.0.2.5"]


async def test_some_clients_get_own_names_only() -> None:
    """What is asked upstream leaves the domain: a client that must not speak to anybody outside is not asked for."""
    async with (
        Upstream(says("192.0.2.1")) as other,
        serving(api_with("10.0.0.1"), at(other), own_only="127.0.0.0/8") as server,
    ):
        for name in ("secret.example.com", "db.alice.svc"):
            told = [await ask_udp(server.port, packet(name)), *await ask_tcp(server.port, packet(name))]
            assert [wire.read_reply(each).code for each in told] == [ResponseCode.REFUSED] * 2
        assert listed(await ask_udp(server.port, packet("web.alice.svc"))) == ["A 10.0.0.1"]
        assert other.asked == []


@pytest.mark.parametrize("own_only", ["", "127.0.0.2/32"])
async def test_names_of_addresses_are_not_for_everybody(own_only: str) -> None:
    """A client that could ask for all addresses in turn would learn what runs in the pod network."""
    name = packet("1.0.0.10.in-addr.arpa", RecordType.PTR)
    async with serving(api_with("10.0.0.1"), own_only=own_only) as server:
        for source, refused in (("127.0.0.1", False), ("127.0.0.2", bool(own_only)), ("127.0.0.1", False)):
            reply = wire.read_reply(await ask_udp(server.port, name, source=source))
            assert reply.code == (ResponseCode.REFUSED if refused else ResponseCode.NOERROR)
            assert len(reply.answers) == (0 if refused else 1)


async def test_what_upstream_denies_is_denied() -> None:
    soa = soa_record(name_of("com"), 1, 60)
    async with (
        Upstream(lambda _: DnsAnswer(ResponseCode.NXDOMAIN, authority=(soa,))) as other,
        serving(api_with(), at(other)) as server,
    ):
        for _ in range(2):
            reply = wire.read_reply(await ask_udp(server.port, packet("nothing.com")))
            assert (reply.code, reply.answers, len(reply.authority)) == (ResponseCode.NXDOMAIN, (), 1)
        assert other.asked == ["nothing.com"]


async def test_the_next_server_is_asked_when_one_is_silent_or_unwell() -> None:
    quick = ForwardSettings(timeout=0.2, rest=1000)
    async with (
        Upstream(lambda _: None) as silent,
        Upstream(lambda _: DnsAnswer(ResponseCode.SERVFAIL)) as unwell,
        Upstream(says("192.0.2.1", ttl=0)) as well,
        serving(api_with(), at(silent, unwell, well), quick) as server,
    ):
        for _ in range(2):
            answer: list[str] = []
            async with asyncio.timeout(PATIENCE):
                while not answer:  # a machine that stands still may let the good one time out as well
                    answer = listed(await ask_udp(server.port, packet("example.com")))
            assert answer == ["A 192.0.2.1"]
        assert len(silent.asked) <= len(well.asked), "a silent server is left alone for a while"


async def test_without_servers_there_is_no_answer_but_a_failure() -> None:
    async with serving(api_with()) as server:
        assert wire.read_reply(await ask_udp(server.port, packet("example.com"))).code == ResponseCode.SERVFAIL


async def test_what_upstream_cuts_is_fetched_by_tcp() -> None:
    ips = [f"192.0.2.{i}" for i in range(120)]
    async with Upstream(says(*ips)) as other, serving(api_with(), at(other)) as server:
        (answer,) = await ask_tcp(server.port, packet("many.example"))
        assert len(listed(answer)) == 120 and other.asked == ["many.example"] * 2


async def test_forged_answers_are_not_believed() -> None:
    def forged(query: wire.Query) -> list[bytes]:
        true = says("192.0.2.1")(query)
        other_name = wire.read_query(packet("evil.example", id_=query.id))
        wrong_id = wire.read_query(packet("example.com", id_=query.id ^ 1))
        return [
            wire.write_answer(wrong_id, says("192.0.2.66")(query), 512),
            wire.write_answer(other_name, says("192.0.2.67")(query), 512),
            b"junk",
            wire.write_answer(query, true, 512),
        ]

    async with Upstream(forged) as other, serving(api_with(), at(other)) as server:
        assert listed(await ask_udp(server.port, packet("example.com"))) == ["A 192.0.2.1"]


async def test_one_question_is_asked_once_however_many_want_to_know() -> None:
    release = asyncio.Event()

    class Slow(Upstream):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            async def lazy_import() -> None:
                await release.wait()
                Upstream.datagram_received(self, data, addr)

            self.asked.append("begun")
            tasks.append(asyncio.ensure_future(lazy_import()))

    tasks: list[Any] = []
    async with Slow(says("192.0.2.1")) as other, serving(api_with(), at(other)) as server:
        asking = [asyncio.ensure_future(ask_udp(server.port, packet("example.com", id_=i))) for i in range(5)]
        async with asyncio.timeout(PATIENCE):
            while not other.asked:
                await asyncio.sleep(0.005)
        release.set()
        answers = await asyncio.gather(*asking)
        assert [listed(each) for each in answers] == [["A 192.0.2.1"]] * 5
        assert sorted(int.from_bytes(each[:2], "big") for each in answers) == [0, 1, 2, 3, 4]
        assert other.asked.count("begun") == 1
        await asyncio.gather(*tasks)


async def test_two_servers_that_forward_to_each_other_come_to_an_end() -> None:
    quick = ForwardSettings(timeout=0.3, rounds=1)
    first_upstream: list[Nameserver] = []
    async with serving(api_with(), first_upstream, quick) as first, serving(api_with(), at(first), quick) as second:
        first_upstream += at(second)
        reply = wire.read_reply(await ask_udp(first.port, packet("example.com")))
        assert reply.code == ResponseCode.SERVFAIL


async def test_a_port_that_is_taken_is_known_at_once() -> None:
    async with serving(api_with()) as server:
        keeper = ZoneUpdater(ZONE, Informers(FakeApi().client()))
        with pytest.raises(OSError, match="in use"):
            DnsServer(ServerSettings("127.0.0.1", server.port), keeper, lambda: [])
