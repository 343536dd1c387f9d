"""The page as Prometheus' own programs read it: promtool, a Prometheus that scrapes it, node_exporter beside it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_kit import check_page, check_rules, needs_prometheus, running_prometheus

from coterie.base.clock import SystemClock
from coterie.base.exposition import Family
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
        yield port.port
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
    awkward = Fixed(Family("coterie_x", "Help.", "gauge", [('name="a\\"b\\\\c\\nd"', 1794780001.25)]))
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
        assert (await prometheus.metadata())["node_cpu_seconds_total"] == "counter"
