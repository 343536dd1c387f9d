"""Port 8090 of a control plane: health and metrics of the controllers."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.control.controller_metrics import ControllerMetrics
from coterie.kuscia.control.job_metrics import JobMetrics, KusciaControllerSource
from coterie.node.parts import controller_health
from coterie.node.parts.controller_health import ControllerHealth


async def test_health_and_metrics() -> None:
    waiting: Any = SimpleNamespace(name="kusciajob", ready=asyncio.Event())
    running = ControllerMetrics()
    sources = [running, KusciaControllerSource(JobMetrics(), running, VirtualClock())]
    made = ControllerHealth(socket.create_server(("127.0.0.1", 0)), [waiting], sources)
    serving = asyncio.create_task(made.run())
    await made.ready.wait()

    async def get(path: str) -> tuple[int, str]:
        async with session.get(f"http://127.0.0.1:{made.port}{path}") as answer:
            return answer.status, await answer.text()

    async with aiohttp.ClientSession() as session:
        assert await get("/healthz") == (503, "not ready: kusciajob\n")
        waiting.ready.set()
        assert await get("/healthz") == (200, "ok")
        status, page = await get("/metrics")
        assert status == 200
        assert "\nkuscia_job_worker_queue_size 0\n" in page
        assert "\n# TYPE kuscia_job_sync_durations_seconds summary\n" in page
        assert (await get("/other"))[0] == 404
    made.stop()
    await serving


@pytest.mark.parametrize(
    ("chosen", "expected"), [("127.0.0.7", "127.0.0.7"), ("10.0.0.5", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")]
)
def test_it_never_listens_for_other_machines(chosen: str, expected: str) -> None:
    assert controller_health._address(chosen) == expected
