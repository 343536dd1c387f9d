"""The two doors of KusciaAPI, with real sockets."""

from __future__ import annotations

from pathlib import Path

from kusciaapi_kit import here

from coterie.kusciaapi.table import OPERATIONS


async def test_a_node_whose_objects_can_be_read_is_ready(tmp_path: Path) -> None:
    async with here(tmp_path) as world:
        assert not (await world.call(OPERATIONS, "healthZ")).data.ready
