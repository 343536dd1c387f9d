"""Whose disk the embedded bus is on, where a control plane has several members."""

from __future__ import annotations

import pytest
from workload_world import EVENT, world

from coterie.functions.bus_member import BUS_LEASE, BUS_NAMESPACE, REASON, BusMember
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.coordination import LEASES


async def test_a_member_that_takes_over_says_where_calls_wait() -> None:
    async with world() as w:

        async def told() -> list[str]:
            return [e["message"] for e in await w.list(EVENT, "default") if e["reason"] == REASON]

        with pytest.raises(NotFound):
            await w.client.get(LEASES, BUS_LEASE, BUS_NAMESPACE)
        first, second = (BusMember(w.client, name, "default", w.clock) for name in ("a", "b"))
        await first.take()
        await first.take()  # it leads again
        assert await told() == []
        await second.take()
        assert (await w.client.get(LEASES, BUS_LEASE, BUS_NAMESPACE)).spec.holder_identity == "b"
        (message,) = await told()
        assert "member a had accepted" in message and "functions.bus to Kafka" in message
        await second.take()
        assert len(await told()) == 1
