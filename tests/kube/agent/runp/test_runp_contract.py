"""An engine's files in real containers, with mounts and on a machine that allows none."""

from __future__ import annotations

from pathlib import Path

import pytest
from runp_kit import RunpHarness

from coterie.kube.agent.runtimes.protocol import Mount, RuntimeFailure

pytestmark = pytest.mark.xdist_group("runp")
DATA = "/home/kuscia/var/storage/data"


def files(root: Path) -> tuple[Mount, ...]:
    """As the agent gives them: below the pod's directory, the certificates relative to the working directory."""
    pod = root / "pods" / "uid-1"
    certificates, rendered, data = pod / "certificates", pod / "rendered" / "task.conf", root / "data"
    for directory in (certificates, rendered.parent, data):
        directory.mkdir(parents=True)
    (certificates / "ca.crt").write_text("the authority\n")
    rendered.write_text("the task\n")
    return (
        Mount(rendered, "/work/kuscia/task.conf"),
        Mount(certificates, "kuscia/certs", read_only=True),
        Mount(data, DATA, optional=True),
    )


@pytest.mark.parametrize("without", [(), ("namespaces", "groups")], ids=["mounts", "no-mounts"])
async def test_an_engine_finds_its_files_in_its_working_directory(tmp_path: Path, without: tuple[str, ...]) -> None:
    async with RunpHarness.opened(tmp_path, without=without) as runp:
        mounts = files(tmp_path)
        said = await runp.output("cat kuscia/task.conf kuscia/certs/ca.crt", mounts=mounts, working_dir="/work")
        assert said == "the task\nthe authority\n"


async def test_an_engine_writes_the_domains_data(runp: RunpHarness, tmp_path: Path) -> None:
    if not runp.powers["namespaces"]:
        pytest.skip("this machine allows no mounts")
    await runp.output(f"echo result > {DATA}/out.csv", mounts=files(tmp_path), working_dir="/work")
    assert (tmp_path / "data" / "out.csv").read_text() == "result\n"


async def test_without_mounts_only_what_may_be_left_out_is(tmp_path: Path) -> None:
    async with RunpHarness.opened(tmp_path, without=("namespaces", "groups")) as runp:
        *_, data = files(tmp_path)
        await runp.output("true", mounts=(data,), working_dir="/work")
        with pytest.raises(RuntimeFailure, match="this machine allows no mounts"):
            await runp.start("true", "other", mounts=(Mount(data.source, data.target),), working_dir="/work")
