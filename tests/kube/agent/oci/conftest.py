"""One image store and one supervisor for all tests of a process; each test has a runtime, and leaves no pod behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from oci_kit import OciHarness, add_image, require

from coterie.kube.agent.runtimes.runp.settings import RunpSettings


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("oci-images")
    add_image(path)
    return path


@pytest.fixture(scope="session")
def supervised(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Iterator[RunpSettings]:
    root = tmp_path_factory.mktemp("oci")
    settings = RunpSettings(directory=root / "runp", images=images, node="test", hidden=(root,))
    yield settings
    OciHarness(root, settings).sweep()


@pytest.fixture(params=["runc", "crun", "gvisor"])
def handler(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


@pytest.fixture
async def box(tmp_path: Path, handler: str, supervised: RunpSettings) -> AsyncIterator[OciHarness]:
    harness = OciHarness(tmp_path, supervised, handler)
    await harness.runtime.open()
    try:
        yield harness
    finally:
        for pod in harness.runtime.pods():
            await harness.runtime.remove_pod(pod.uid)
        await harness.runtime.close()


@pytest.fixture
async def own_box(tmp_path: Path, handler: str, images: Path) -> AsyncIterator[OciHarness]:
    """With a supervisor of its own, to be killed."""
    async with OciHarness.opened(tmp_path, handler, images=images) as harness:
        yield harness
