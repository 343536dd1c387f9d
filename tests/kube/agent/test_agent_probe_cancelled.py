"""A probe whose caller is cancelled in the very moment in which it fails leaves no complaint behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

from coterie.base.clock import VirtualClock
from coterie.kube.agent.probes.checks import Checker


async def test_nobody_misses_what_nobody_asked_for() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await failing

    checks = Checker(cast("Any", None), VirtualClock())
    caller = asyncio.create_task(checks.within(10.0, work()))
    for _ in range(3):
        await asyncio.sleep(0)
    failing.set_exception(OSError("gone"))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    del caller  # it holds the frame in which the probe is named
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
