"""The suite that all runtimes share lies one directory up, image archives made by hand one beside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runp_kit import RunpHarness


@pytest.fixture
async def runp(tmp_path: Path) -> AsyncIterator[RunpHarness]:
    async with RunpHarness.opened(tmp_path) as harness:
        yield harness
