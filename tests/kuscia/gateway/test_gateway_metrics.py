"""Sources of metrics of a gateway, from texts and objects: garbage from Envoy, connections that come and go, routes and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import netns_kit
import pytest
from gateway_kit import certificates, make_inputs, pem, route

from coterie.base import pki
from coterie.kube.metrics.sources import MetricsPage, SourceFailed
from coterie.kube.network.pods.sock_diag import TcpConnection
from coterie.kuscia.api.types.domain import DomainRoute
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.admin import Admin
from coterie.kuscia.gateway.metrics import envoy_source, route_source, socket_source
from coterie.kuscia.gateway.metrics.envoy_source import AnswerRefused, EnvoyPageParser, EnvoyStatsSource, RouteRows
from coterie.kuscia.gateway.metrics.socket_totals import SocketTotals
from coterie.kuscia.gateway.model import Route, RoutePort, SnapshotInputs

LIVE = "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n"
TOTAL = "# TYPE envoy_cluster_upstream_cx_total counter\n"


def inputs(tmp_path: Path, *routes: Route) -> SnapshotInputs:
    return replace(make_inputs("alice", tmp_path, Protocol.MTLS), routes=routes)


# ---- Envoy's answer ----


def test_only_listed_families_are_taken() -> None:
    text = LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="alice-to-bob-http"} 2\n'
    text += "# TYPE envoy_secret counter\nenvoy_secret{} 1\n# TYPE envoy_cluster_upstream_cx_active counter\nx\n"
    assert EnvoyPageParser().rows(text) == {
        "envoy_server_live": {"": 1},
        "envoy_cluster_upstream_cx_total": {'envoy_cluster_name="alice-to-bob-http"': 2},
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "\0" * 100,
        TOTAL,
        LIVE + TOTAL + "envoy_cluster_upstream_cx_total 2\n",
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="a"} -1\n',
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="a"} ²\n',
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="a"} 1 2\n',
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="a\\"b"} 1\n',
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="a",} 1\n',
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{envoy_cluster_name="a" 1\n',
        LIVE + TOTAL + 'envoy_server_live{envoy_cluster_name="a"} 1\n',
        LIVE + TOTAL + 'envoy_cluster_upstream_cx_total{a="} 1\n# HELP x',
    ],
)
def test_what_would_break_the_page_is_refused(text: str) -> None:
    with pytest.raises(AnswerRefused):
        EnvoyPageParser().rows(text)


def test_counters_of_routes_begin_with_zero(tmp_path: Path) -> None:
    two = (RoutePort("http", 1080, tls=True), RoutePort("grpc", 1081, grpc=True, tls=True))
    known = envoy_source.route_clusters(inputs(tmp_path, Route("alice", "bob", host="10.0.0.2", ports=two)))
    assert known == {"bob": ("alice-to-bob-http", "alice-to-bob-grpc")}
    text = (
        LIVE
        + '# TYPE envoy_cluster_upstream_cx_tx_bytes_total counter\nenvoy_cluster_upstream_cx_tx_bytes_total{envoy_cluster_name="alice-to-bob-grpc"} 7\n'
    )
    found = {
        family.name: dict(family.rows)
        for family in envoy_source.families_of(EnvoyPageParser().rows(text), RouteRows(known, "alice"))
    }
    assert found["envoy_cluster_upstream_cx_connect_fail"] == {
        'envoy_cluster_name="alice-to-bob-http"': 0,
        'envoy_cluster_name="alice-to-bob-grpc"': 0,
    }
    assert found["coterie_route_sent_bytes_total"] == {'source="alice",destination="bob"': 7}
    assert found["coterie_route_received_bytes_total"] == {'source="alice",destination="bob"': 0}


def test_relayed_routes_have_no_counters_of_their_own(tmp_path: Path) -> None:
    via = Route("alice", "joe", via="bob", hop_by_hop=True)
    assert envoy_source.route_clusters(inputs(tmp_path, via)) == {}
    assert envoy_source.route_clusters(inputs(tmp_path, replace(via, hop_by_hop=False))) == {
        "joe": ("alice-to-joe-transit",)
    }


@contextlib.asynccontextmanager
async def fake_envoy(path: Path, answer: Callable[[asyncio.StreamWriter], None] | None) -> AsyncIterator[Admin]:
    """`answer` None: it accepts and never says anything."""
    opened: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            answer(writer)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

    server = await asyncio.start_unix_server(handle, path)
    admin = Admin(path)
    try:
        yield admin
    finally:
        await admin.close()
        server.close()
        for writer in opened:
            writer.close()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (None, "no answer within"),
        (b"garbage\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "envoy_server_live"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n# TYPE envoy_server_live", "Broken"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 40000000\r\n\r\n" + bytes(17 << 20), "more than 16777216 bytes"),
    ],
    ids=["silent", "not http", "error", "another page", "cut off", "endless"],
)
async def test_an_envoy_that_answers_badly_does_not_break_the_page(
    tmp_path: Path, sent: bytes | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(writer: asyncio.StreamWriter) -> None:
        assert sent is not None
        writer.write(sent)

    async with fake_envoy(tmp_path / "admin.sock", answer if sent is not None else None) as admin:
        source = EnvoyStatsSource(admin, "alice", lambda: None)
        page = MetricsPage([source], deadline=0.05 if sent is None else 10)
        assert 'coterie_source_up{source="envoy"} 0' in (await page.text()).splitlines()
        if sent is not None:
            with pytest.raises(SourceFailed, match=why):
                await source.families()


async def test_no_envoy(tmp_path: Path) -> None:
    with pytest.raises(SourceFailed):
        await EnvoyStatsSource(Admin(tmp_path / "none.sock"), "alice", lambda: None).families()


# ---- connections ----

BOB, CAROL = ("10.0.0.2", 1080), ("10.0.0.2", 2080)


def connection(cookie: int, retransmits: int = 0, remote: tuple[str, int] = BOB, rtt: float = 0.01) -> TcpConnection:
    return TcpConnection(bytes([cookie]), cookie, remote, rtt, retransmits, 0, 0)


def sums(totals: SocketTotals) -> dict[str, tuple[int, int]]:
    return {name: (each.connections, each.retransmits) for name, each in totals.partners.items()}


def test_totals_stay_when_connections_close() -> None:
    """Kuscia shows differences between two looks, also of the round-trip time."""
    totals = SocketTotals()
    of = {BOB: ["bob"]}
    totals.update(["bob"], of, [connection(1, 3, rtt=0.01), connection(2, 0, rtt=0.03)])
    assert sums(totals) == {"bob": (2, 3)}
    assert totals.partners["bob"].rtt == pytest.approx(0.02)
    totals.update(["bob"], of, [connection(1, 5)])
    assert sums(totals) == {"bob": (2, 5)}
    totals.update(["bob"], of, [])
    assert sums(totals) == {"bob": (2, 5)}
    assert totals.partners["bob"].rtt is None
    found = {family.name: dict(family.rows) for family in totals.families("alice")}
    assert found["ss_rtt"] == {}
    assert found["ss_retran_rate"] == {'type="ss",remote_domain="bob",aggregation_function="rate"': 2.5}
    totals.update(["bob"], of, [connection(3, 1)])
    assert sums(totals) == {"bob": (3, 6)}


def test_partners_at_one_address_are_told_apart_by_port() -> None:
    """Kuscia looks at the address only."""
    totals = SocketTotals()
    totals.update(["bob", "carol"], {BOB: ["bob"], CAROL: ["carol"]}, [connection(1, 2), connection(2, 7, CAROL)])
    assert sums(totals) == {"bob": (1, 2), "carol": (1, 7)}


def test_partners_that_are_gone_are_forgotten() -> None:
    totals = SocketTotals()
    totals.update(["bob"], {BOB: ["bob"]}, [connection(1, 2)])
    totals.update([], {}, [connection(1, 3)])
    assert sums(totals) == {}


def test_endpoints_of_routes(tmp_path: Path) -> None:
    port = (RoutePort("http", 1080, tls=True),)
    given = inputs(
        tmp_path,
        Route("alice", "bob", host="10.0.0.2", ports=port),
        Route("alice", "carol", host="carol.example", ports=port),
        Route("alice", "dave", host="10.0.0.2", ports=port),
        Route("alice", "erin", via="bob"),
        Route("alice", "frank", tunnel=True),
        Route("bob", "alice", host="10.0.0.9", ports=port),
    )
    fixed, named = socket_source.endpoints_of(given)
    assert fixed == {BOB: ["bob", "dave"]}
    assert named == {"alice-to-carol-http": "carol"}
    page = (
        "alice-to-carol-http::observability_name::alice-to-carol-http\n"
        "alice-to-carol-http::10.0.0.3:1080::cx_active::1\nalice-to-carol-http::[fd00::3]:1080::cx_active::0\n"
        "alice-to-carol-http::10.0.0.3:1080::hostname::carol.example:1080\nother::10.0.0.4:1::cx_active::1\n"
    )
    assert socket_source.resolved(fixed, named, page) == {
        **fixed,
        ("10.0.0.3", 1080): ["carol"],
        ("fd00::3", 1080): ["carol"],
    }


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_lists_connections_of_a_process(family: socket.AddressFamily, host: str) -> None:
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with server, socket.create_connection(server.getsockname()[:2]) as client, server.accept()[0] as accepted:
        client.sendall(b"x" * 1000)
        accepted.recv(1000)
        accepted.sendall(b"y" * 500)
        client.recv(500)
        where = (host, server.getsockname()[1])
        found = socket_source.connections_of(os.getpid(), {where: ["bob"]})
        assert [each.remote for each in found] == [where], "the accepting end leads to another port"
        assert (found[0].received, found[0].retransmits) == (500, 0)
        assert 0 < found[0].rtt < 60
        assert socket_source.connections_of(os.getppid(), {where: ["bob"]}) == []


LOSS = """
import os, socket, subprocess, time
from coterie.kuscia.gateway.metrics.socket_source import connections_of
def ip(words):
    subprocess.run(["ip", *words.split()], check=True)
ip("link set lo up")
ip("addr add 10.7.0.2/32 dev lo")
server = socket.create_server(("10.7.0.2", 5000))
client = socket.create_connection(("10.7.0.2", 5000), source_address=("127.0.0.1", 0))
accepted, _ = server.accept()
client.sendall(b"x")
accepted.recv(1)
def retransmits():
    (found,) = connections_of(os.getpid(), {("10.7.0.2", 5000): ["bob"]})
    return found.retransmits
print(retransmits())
# Packets still leave for it, and nobody takes them.
ip("addr del 10.7.0.2/32 dev lo")
ip("route add 10.7.0.2/32 dev lo")
client.sendall(b"y")
end = time.monotonic() + 20
while retransmits() < 2 and time.monotonic() < end:
    time.sleep(0.05)
print(retransmits() >= 2)
"""


@netns_kit.needs_root
@pytest.mark.skipif(shutil.which("ip") is None, reason="no program `ip` here")
def test_lost_packets_are_seen_as_retransmits() -> None:
    done = subprocess.run(["unshare", "-n", sys.executable, "-c", LOSS], capture_output=True, text=True, timeout=40)
    assert done.stdout.split() == ["0", "True"], done.stderr


async def test_without_a_gateway_there_are_no_connections(tmp_path: Path) -> None:
    async def owner() -> int | None:
        return None

    source = socket_source.RouteSocketsSource(Admin(tmp_path / "x"), "alice", lambda: None, owner)
    with pytest.raises(SourceFailed, match="does not run"):
        await source.families()


# ---- routes and certificates ----


def domain_route(source: str, destination: str, **status: object) -> DomainRoute:
    spec = {"source": source, "destination": destination, "authenticationType": "Token"}
    whole = {"isDestinationAuthorized": True, "isDestinationUnreachable": False, **status}
    return msgspec.convert({"metadata": {"name": "r"}, "spec": spec, "status": whole}, DomainRoute)


READY = {"tokens": [{"token": "s3cret", "isReady": True, "revision": 2, "expirationTime": "2026-12-01T00:00:00Z"}]}


@pytest.mark.parametrize(
    ("status", "up"),
    [
        ({"tokenStatus": READY}, 1),
        ({"tokenStatus": READY, "isDestinationUnreachable": True}, 0),
        ({"tokenStatus": READY, "isDestinationAuthorized": False}, 0),
        ({}, 0),
    ],
)
def test_routes_that_work(status: dict[str, object], up: int) -> None:
    found = {
        each.name: each.rows for each in route_source.route_families([domain_route("alice", "bob", **status)], "alice")
    }
    assert found["coterie_route_up"] == [('source="alice",destination="bob"', up)]


def test_tokens_of_both_directions_expire() -> None:
    routes = [domain_route("alice", "bob", tokenStatus=READY), domain_route("bob", "alice", tokenStatus=READY)]
    found = {each.name: each.rows for each in route_source.route_families(routes, "alice")}
    ends = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert found["coterie_token_expiry_timestamp_seconds"] == [
        ('source="alice",destination="bob"', ends),
        ('source="bob",destination="alice"', ends),
    ]
    assert len(found["coterie_route_up"]) == 1, "whether it works is known to its source"


async def test_certificates_by_use(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    old, new = (
        pki.certificate_pem(
            pki.self_signed_ca("bob", pki.new_key("ec"), now=now, life=timedelta(days=days)).certificate
        ).decode()
        for days in (1, 10)
    )
    bob = make_inputs("bob", tmp_path, Protocol.MTLS)
    given = inputs(tmp_path, replace(route("alice", "bob", bob, "alice"), certificates=(new, old)))
    broken = tmp_path / "broken.crt"
    broken.write_bytes(b"\xff\xfe")
    files = {"domain": certificates() / "alice.crt", "ca": tmp_path / "missing.crt", "external": broken}
    source = route_source.RouteSource("alice", lambda: [], lambda: given, files)
    rows = dict((await source.families())[-1].rows)
    own = pki.load_certificate(pem("alice").encode()).not_valid_after_utc.timestamp()
    assert rows == {
        'name="domain"': own,
        'name="partner/bob"': pytest.approx((now + timedelta(days=10)).timestamp(), abs=2),
    }
