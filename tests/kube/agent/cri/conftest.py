from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cri_kit import CriHarness, containerd

from coterie.kube.agent.runtimes.cri.settings import CriSettings


@pytest.fixture(scope="session")
def daemon_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CriSettings]:
    with containerd(tmp_path_factory.mktemp("cri")) as settings:
        yield settings


@pytest.fixture
async def cri(tmp_path: Path, daemon_settings: CriSettings) -> AsyncIterator[CriHarness]:
    async with CriHarness.opened(tmp_path, daemon_settings) as harness:
        yield harness
