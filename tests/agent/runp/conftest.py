"""The suite that all runtimes share lies one directory up, image archives made by hand one beside."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "images"))

from runp_kit import RunpHarness


@pytest.fixture
async def runp(tmp_path: Path) -> AsyncIterator[RunpHarness]:
    async with RunpHarness.opened(tmp_path) as harness:
        yield harness
