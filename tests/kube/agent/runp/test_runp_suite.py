"""RunP passes the suite that all runtimes pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runp_kit import RunpHarness
from runtime_suite import RuntimeSuite

from coterie.kube.agent.runtimes.protocol import Mount, RuntimeFailure


class TestRunpRuntime(RuntimeSuite):
    @pytest.fixture
    def harness(self, runp: RunpHarness) -> RunpHarness:
        return runp


class TestWithoutIsolation(RuntimeSuite):
    """A machine that allows next to nothing: no namespaces and no control groups."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[RunpHarness]:
        async with RunpHarness.opened(tmp_path, without=("namespaces", "groups")) as harness:
            assert not harness.powers["namespaces"] and not harness.powers["cgroup"]
            assert len(harness.runtime.limitations()) >= 2
            yield harness

    async def test_mounts_are_seen(self, harness: RunpHarness) -> None:
        """Below the working directory by links; elsewhere they are refused."""
        (harness.root / "shared").mkdir()
        mount = Mount(harness.root / "shared", "/pod/deep/volume")
        await harness.start("echo written > deep/volume/file", mounts=(mount, Mount(harness.root, "/dev/log")))
        assert (await harness.ended()).exit_code == 0
        assert (harness.root / "shared/file").read_text() == "written\n"
        with pytest.raises(RuntimeFailure, match="allows no mounts"):
            await harness.start("true", "other", mounts=(Mount(harness.root, "/somewhere"),))

    async def test_the_agents_files_are_out_of_reach(self, harness: RunpHarness) -> None:
        if not harness.powers["landlock"]:
            pytest.skip("no Landlock")
        assert "refused" in await harness.output(f"cat {harness.settings.directory}/shepherd.lock || echo refused")
        assert "refused" in await harness.output("touch /var/tmp/coterie-was-here || echo refused")
        assert "refused" in await harness.output(f"kill -9 {harness.shepherd} || echo refused")
