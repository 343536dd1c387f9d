"""The page as Prometheus' own programs read it: promtool, a Prometheus that scrapes it, node_exporter beside it."""

from __future__ import annotations

import asyncio
import math
import socket
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_kit import (
    ALLOWED,
    TOTAL_ON_GAUGE,
    check_page,
    check_rules,
    needs_node_exporter,
    needs_prometheus,
    running_node_exporter,
    running_prometheus,
    scraped,
)

from coterie.base.clock import SystemClock
from coterie.base.exposition import Family, labels
from coterie.base.secret import SecretValue
from coterie.kube.metrics.endpoint import ScrapeAccess
from coterie.kube.metrics.machine import MachineSource
from coterie.kube.metrics.sources import MetricsPage, MetricsSource
from coterie.node.parts.metrics import MetricsPort

pytestmark = needs_prometheus


@asynccontextmanager
async def served(*sources: MetricsSource, access: ScrapeAccess | None = None) -> AsyncIterator[int]:
    """The port of a page of these sources."""
    bound = socket.create_server(("127.0.0.1", 0))
    port = MetricsPort(bound, sources, (), access or ScrapeAccess(), SystemClock())
    running = asyncio.create_task(port.run())
    await port.ready.wait()
    try:
        yield int(bound.getsockname()[1])
    finally:
        port.stop()
        await running


class Fixed:
    def __init__(self, *families: Family) -> None:
        self.name = "fixed"
        self._families = families

    async def families(self) -> Sequence[Family]:
        return self._families


async def test_promtool_reads_the_page() -> None:
    check_page(await MetricsPage([MachineSource()]).text())


def test_promtool_refuses_a_family_that_occurs_twice() -> None:
    """As pages do that are glued together; `merged` makes one family of them."""
    once = "# HELP a Help.\n# TYPE a gauge\na 1\n"
    with pytest.raises(AssertionError, match="second HELP line"):
        check_page(once + once)


def test_style_is_an_exact_list() -> None:
    with pytest.raises(AssertionError, match="coterie_things: counter metrics should have"):
        check_page("# HELP coterie_things Help.\n# TYPE coterie_things counter\ncoterie_things 1\n")


def test_rules_are_checked(tmp_path: Path) -> None:
    rules = "groups: [{name: a, rules: [{alert: Down, expr: up == 0}]}]"
    check_rules(rules, tmp_path)
    with pytest.raises(AssertionError, match="parse"):
        check_rules(rules.replace("== 0", "== =="), tmp_path)


async def test_prometheus_scrapes_the_page(tmp_path: Path) -> None:
    """It asks for OpenMetrics, and gets the series of the other format."""
    awkward = Fixed(
        Family("coterie_x", 'With "quotes",\n\\ and lines.', "gauge", [('name="a\\"b\\\\c\\nd"', 1794780001.25)]),
        Family("ss_retrans", "Without its suffix.", "counter", [(labels(remote_domain="bob"), 3)]),
        Family("coterie_y", "A gauge.", "gauge", [("", 1)]),
        Family("coterie_y_total", "A counter of the same name.", "counter", [("", 2)]),
        Family("coterie_members_total", "A gauge.", "gauge", [("", 4)]),
        Family(
            "coterie_wait_seconds",
            "A histogram.",
            "histogram",
            [('_bucket le="1"', 1), ('_bucket le="+Inf"', 2), ("_sum", 3.5), ("_count", 2)],
        ),
        Family(
            "coterie_work_seconds",
            "A summary.",
            "summary",
            [('quantile="0.5"', math.nan), ("_sum", 1.5), ("_count", 1)],
        ),
    )
    token = tmp_path / "token"
    token.write_text("s3cret")
    access = ScrapeAccess(token=SecretValue("s3cret"))
    async with (
        served(MachineSource(), awkward, access=access) as port,
        running_prometheus(tmp_path, [f"127.0.0.1:{port}"], token_file=token) as prometheus,
    ):
        await prometheus.wait_for_scrape()
        found = await prometheus.query("coterie_x")
        assert [(row["name"], value) for row, value in found] == [('a"b\\c\nd', 1794780001.25)]
        assert await prometheus.query("node_memory_MemTotal_bytes > 0")
        for expression, value in (
            ("ss_retrans", 3),
            ("coterie_y", 1),
            ("coterie_y_total", 2),
            ("coterie_members_total", 4),
            ('coterie_wait_seconds_bucket{le="1"}', 1),
            ("coterie_wait_seconds_count", 2),
            ("coterie_work_seconds_sum", 1.5),
        ):
            assert [found for _, found in await prometheus.query(expression)] == [value], expression
        types = await prometheus.metadata()
        assert types["node_cpu_seconds"] == types["node_network_receive_bytes"] == "counter", "OpenMetrics' name"
        assert types["ss_retrans"] == types["coterie_y_total"] == types["node_netstat_Tcp_CurrEstab"] == "unknown"
        assert (types["coterie_wait_seconds"], types["coterie_work_seconds"]) == ("histogram", "summary")
        check_page(await MetricsPage([awkward]).text(), {**ALLOWED, "coterie_members_total": [TOTAL_ON_GAUGE]})


STEADY = "node_memory_MemTotal_bytes node_boot_time_seconds node_filesystem_size_bytes node_filesystem_files node_filefd_maximum"
GROWING = (
    "node_cpu_seconds_total node_disk_io_time_seconds_total node_disk_read_bytes_total node_disk_read_time_seconds_total"
    " node_disk_written_bytes_total node_disk_write_time_seconds_total node_disk_reads_completed_total"
    " node_disk_writes_completed_total node_disk_io_time_weighted_seconds_total node_network_receive_bytes_total"
    " node_network_receive_packets_total node_network_transmit_bytes_total node_network_transmit_packets_total"
    " node_netstat_Tcp_ActiveOpens node_netstat_Tcp_PassiveOpens"
)
MOVING = (
    "node_memory_MemAvailable_bytes node_memory_MemFree_bytes node_memory_Buffers_bytes node_memory_Cached_bytes node_disk_io_now"
    " node_filesystem_avail_bytes node_filesystem_free_bytes node_filesystem_files_free node_load1 node_load5 node_load15"
    " node_netstat_Tcp_CurrEstab node_sockstat_TCP_tw node_sockstat_TCP_alloc node_sockstat_TCP_inuse node_filefd_allocated"
)
SLACK = 0.02
"""Of clock ticks, which the two round differently; and what this machine's time of idle processors may go back."""


@needs_node_exporter
async def test_the_machine_is_seen_as_node_exporter_sees_it(tmp_path: Path) -> None:
    """Names, types, labels and values of all that Kuscia promises, with node_exporter's word of before and after."""
    async with running_node_exporter(tmp_path) as url:
        before = scraped(await fetched(url))
        ours = scraped(await MetricsPage([MachineSource()]).text())
        after = scraped(await fetched(url))
    for name in (*STEADY.split(), *GROWING.split(), *MOVING.split()):
        if name.startswith(("node_disk", "node_filesystem")) and name not in before:
            continue  # a machine without
        assert ours[name].kind == before[name].kind, name
        theirs = before[name].rows.keys() | after[name].rows.keys()
        if name.startswith("node_filesystem"):
            assert ours[name].rows.keys() <= theirs, f"{name}: mounts of one disk are listed once"
        else:
            always = {each for each in before[name].rows.keys() & after[name].rows.keys() if not is_zram(each)}
            assert always <= ours[name].rows.keys() <= theirs, name
        for where, value in ours[name].rows.items():
            first, last = before[name].rows.get(where), after[name].rows.get(where)
            if first is None or last is None:
                continue
            if name in STEADY.split():
                assert value == first, name
            elif name in GROWING.split():
                assert first - SLACK <= value <= last + SLACK, (name, where)


def is_zram(labels: frozenset[tuple[str, str]]) -> bool:
    """Memory, not a disk: later versions than Debian's leave it out as we do."""
    return dict(labels).get("device", "").startswith(("zram", "mmcblk"))


async def fetched(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)
