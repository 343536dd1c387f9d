"""What a real gateway's page says: Envoy's statistics by Kuscia's names, connections by the kernel, routes and certificates."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gateway_kit import Pair, pair
from prometheus_kit import check_page, needs_prometheus, running_prometheus

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.exposition import Family
from coterie.kube.metrics.endpoint import ScrapeAccess
from coterie.kube.metrics.sources import MetricsPage
from coterie.kuscia.gateway.metrics.envoy_families import FAMILIES
from coterie.kuscia.gateway.metrics.envoy_source import EnvoyStatsSource
from coterie.kuscia.gateway.metrics.socket_source import RouteSocketsSource
from coterie.node.parts.metrics import MetricsPort

pytestmark = pytest.mark.asyncio(loop_scope="module")
CLUSTER = 'envoy_cluster_name="alice-to-bob-http"'
PROMISED = (
    "upstream_cx_rx_bytes_total upstream_cx_tx_bytes_total upstream_cx_total upstream_rq_total upstream_cx_connect_fail"
    " upstream_cx_connect_timeout upstream_rq_timeout health_check_attempt health_check_failure membership_total membership_healthy"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def domains(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with pair(tmp_path_factory.mktemp("gw")) as made:
        yield made


def envoy_source(domains: Pair) -> EnvoyStatsSource:
    return EnvoyStatsSource(domains.alice.envoy.admin, "alice", lambda: domains.alice.inputs)


def socket_source(domains: Pair) -> RouteSocketsSource:
    async def owner() -> int | None:
        return domains.alice.envoy.pid

    return RouteSocketsSource(domains.alice.envoy.admin, "alice", lambda: domains.alice.inputs, owner)


def rows(families: list[Family]) -> dict[str, dict[str, float]]:
    return {family.name: dict(family.rows) for family in families}


async def test_each_promised_name_is_there_before_the_first_request(domains: Pair) -> None:
    found = rows(list(await envoy_source(domains).families()))
    for name in PROMISED.split():
        assert CLUSTER in found[f"envoy_cluster_{name}"], name
    assert found["envoy_cluster_membership_healthy"][CLUSTER] == 1
    assert found["envoy_cluster_upstream_rq_total"][CLUSTER] == 0


async def test_requests_and_bytes_are_counted(domains: Pair) -> None:
    source = envoy_source(domains)
    before = rows(list(await source.families()))
    status, _, _ = await domains.call("echo.bob.svc", "/a", data=b"x" * 100_000)
    assert status == 200
    after = rows(list(await source.families()))

    def grown(family: str, where: str) -> float:
        return after[family][where] - before.get(family, {}).get(where, 0)

    assert grown("envoy_cluster_upstream_rq_total", CLUSTER) == 1
    assert 100_000 < grown("envoy_cluster_upstream_cx_tx_bytes_total", CLUSTER) < 110_000
    answers = 'envoy_response_code_class="2",envoy_http_conn_manager_prefix="internal"'
    assert grown("envoy_http_downstream_rq_xx", answers) == 1
    assert grown("envoy_http_downstream_rq_total", 'envoy_http_conn_manager_prefix="internal"') == 1
    route = 'source="alice",destination="bob"'
    assert grown("coterie_route_sent_bytes_total", route) == grown("envoy_cluster_upstream_cx_tx_bytes_total", CLUSTER)
    assert after["coterie_route_received_bytes_total"][route] > 0


async def test_envoy_makes_nothing_that_is_not_listed(domains: Pair) -> None:
    """No histograms, nothing of clusters of services but the number of their addresses."""
    await domains.call("echo.bob.svc", "/")
    stats = await domains.bob.envoy.admin.ask("/stats")
    names = [line.partition(":")[0] for line in stats.splitlines()]
    assert not [each for each in names if each.endswith(("_rq_time", "_length_ms", "_connect_ms", "_body_size"))]
    services = [each for each in names if each.startswith("cluster.") and "-to-" not in each]
    assert services
    assert all(each.endswith((".membership_total", ".membership_healthy")) for each in services), services
    assert len(names) < 400
    page = await envoy_source(domains).families()
    assert {family.name for family in page} <= {
        *FAMILIES,
        "coterie_route_sent_bytes_total",
        "coterie_route_received_bytes_total",
    }


async def test_sockets_of_the_gateway_only(domains: Pair) -> None:
    await domains.call("echo.bob.svc", "/")
    bob = domains.bob.inputs.external
    assert bob is not None
    reader, writer = await asyncio.open_connection(bob.host, bob.port)  # not the gateway's
    found = rows(list(await socket_source(domains).families()))
    writer.close()
    del reader

    def labels(function: str) -> str:
        return f'type="ss",remote_domain="bob",aggregation_function="{function}"'

    active = rows(list(await envoy_source(domains).families()))["envoy_cluster_upstream_cx_active"][CLUSTER]
    assert found["ss_total_connections"][labels("sum")] == active > 0
    assert 0 < found["ss_rtt"][labels("avg")] < 1000
    assert found["ss_retrans"][labels("sum")] >= 0
    assert found["ss_retran_rate"][labels("rate")] >= 0
    route = 'source="alice",destination="bob"'
    assert found["coterie_route_rtt_seconds"][route] * 1000 == found["ss_rtt"][labels("avg")]
    assert found["coterie_route_retransmits_total"][route] >= 0


@needs_prometheus
async def test_promtool_reads_the_gateways_page(domains: Pair) -> None:
    await domains.call("echo.bob.svc", "/")
    check_page(await MetricsPage([envoy_source(domains), socket_source(domains)]).text())


@needs_prometheus
async def test_prometheus_scrapes_the_gateways_page(domains: Pair, tmp_path: Path) -> None:
    """As OpenMetrics: the promised counters without `_total` are there by their names."""
    await domains.call("echo.bob.svc", "/")
    bound = socket.create_server(("127.0.0.1", 0))
    port = MetricsPort(bound, [envoy_source(domains)], [socket_source(domains)], ScrapeAccess(), SYSTEM_CLOCK)
    running = asyncio.create_task(port.run())
    await port.ready.wait()
    try:
        async with running_prometheus(tmp_path, [f"127.0.0.1:{bound.getsockname()[1]}"]) as prometheus:
            await prometheus.wait_for_scrape(2)
            for name in PROMISED.split():
                found = await prometheus.query(f'envoy_cluster_{name}{{envoy_cluster_name=~".+-to-.+-http"}}')
                assert [row["envoy_cluster_name"] for row, _ in found] == ["alice-to-bob-http"], name
            for name in ("ss_rtt", "ss_retrans", "ss_total_connections", "ss_retran_rate"):
                found = await prometheus.query(f'{name}{{type="ss", remote_domain="bob"}}')
                assert len(found) == 1, name
            assert await prometheus.query("increase(envoy_cluster_upstream_rq_timeout[1m]) >= 0")
    finally:
        port.stop()
        await running
