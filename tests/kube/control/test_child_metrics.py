"""Counters of a child that ends and begins again go on; a child that sleeps is not woken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.base.exposition import Family
from coterie.kube.control import child_metrics
from coterie.kube.control.child_api_listener import private_socket
from coterie.kube.control.child_metrics import ChildMetricsServer, ChildMetricsSource, metrics_socket
from coterie.kuscia.kusciaapi.process import API_SOCKET


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


async def test_a_child_that_hangs_does_not_keep_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_metrics, "_LAST_CALL_SECONDS", 0.01)
    socket = metrics_socket(tmp_path / "child.sock")
    source = ChildMetricsSource("child", socket, lambda: 1)
    listening = private_socket(socket)  # and never accepts
    try:
        await source.keep()
        assert list(await asyncio.wait_for(_nothing(source), 1)) == []
    finally:
        listening.close()


async def _nothing(source: ChildMetricsSource) -> Sequence[Family]:
    try:
        async with asyncio.timeout(0.01):
            return await source.families()
    except TimeoutError:
        return ()


@pytest.mark.parametrize("name", [API_SOCKET, "datamesh.sock"])
def test_the_path_fits_into_a_socket_address(name: str) -> None:
    directory = Path("/" + "d" * 89)
    assert len(str(metrics_socket(directory / name))) <= 107
