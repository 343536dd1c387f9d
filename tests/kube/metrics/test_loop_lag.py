from __future__ import annotations

import asyncio

from coterie.kube.metrics.loop_lag import LoopLagSource


async def rows_of(source: LoopLagSource) -> dict[str, dict[str, float]]:
    return {family.name: dict(family.rows) for family in await source.families()}


async def test_delays_are_measured_while_somebody_scrapes() -> None:
    source, loop = LoopLagSource(), asyncio.get_running_loop()
    assert source._timer is None, "nothing is measured before the first scrape"
    assert (await rows_of(source))["coterie_loop_lag_seconds"]["_count"] == 0
    assert source._timer is not None
    source._timer.cancel()
    source._tick(loop, loop.time() - 0.07)
    found = await rows_of(source)
    assert found["coterie_loop_lag_seconds"]['_bucket le="0.05"'] == 0
    assert found["coterie_loop_lag_seconds"]['_bucket le="+Inf"'] == 1
    assert found["coterie_loop_lag_max_seconds"][""] >= 0.07
    assert (await rows_of(source))["coterie_loop_lag_max_seconds"][""] == 0, "since the last scrape"
    source._until = 0.0
    source._timer.cancel()
    source._tick(loop, loop.time())
    assert source._timer is None, "nobody scrapes any more"
    source.stop()
