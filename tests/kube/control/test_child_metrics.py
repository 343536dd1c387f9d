"""Counters of a child that ends and begins again go on; a child that sleeps is not woken."""

from __future__ import annotations

from pathlib import Path

from coterie.base.exposition import Family
from coterie.kube.control.child_metrics import ChildMetricsServer, ChildMetricsSource, metrics_socket


def families(count: int, size: int) -> list[Family]:
    return [
        Family("calls_total", "Calls.", "counter", [('who="a"', count)]),
        Family("size", "Size.", "gauge", [("", size)]),
        Family("took", "Time.", "summary", [('quantile="0.5"', size), ("_count", count)]),
    ]


async def test_counters_go_on(tmp_path: Path) -> None:
    socket = metrics_socket(tmp_path / "child.sock")
    pid: int | None = None
    source = ChildMetricsSource("child", socket, lambda: pid)

    async def rows() -> dict[str, dict[str, float]]:
        return {family.name: dict(family.rows) for family in await source.families()}

    assert await rows() == {}
    pid = 1
    assert await rows() == {}, "it starts, and does not listen yet"
    async with ChildMetricsServer(socket, lambda: families(3, 10)):
        assert await rows() == {
            "calls_total": {'who="a"': 3},
            "size": {"": 10},
            "took": {'quantile="0.5"': 10, "_count": 3},
        }
        assert await rows() == await rows()
    pid = None
    assert await rows() == {"calls_total": {'who="a"': 3}, "size": {}, "took": {"_count": 3}}
    pid = 2
    async with ChildMetricsServer(socket, lambda: families(4, 20)):
        await source.keep()  # the last look before it is stopped
    pid = None
    assert (await rows())["calls_total"] == {'who="a"': 7}
    assert not socket.exists()
