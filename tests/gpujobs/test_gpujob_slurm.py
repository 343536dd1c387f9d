"""GpuJobs on a real Slurm, reached over SSH: what must hold at each change. `make slurm` runs the long ones."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gpujob_world import (
    CLUSTER,
    JOB,
    NAMESPACE,
    GpuJobWorld,
    crash_after_submission,
    gpujob_world,
    record_phases,
    until,
)
from slurm_kit import SlurmMachine, SlurmTestCluster, slurm_machine

from coterie.gpujobs import storage
from coterie.gpujobs.files import digest, join, read_archive


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmMachine]:
    with slurm_machine(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(machine: SlurmMachine) -> SlurmTestCluster:
    made = machine.start("one")
    made.wait_idle()
    return made


@pytest.fixture
async def world(machine: SlurmMachine, cluster: SlurmTestCluster, tmp_path: Path) -> AsyncIterator[GpuJobWorld]:
    async with gpujob_world(tmp_path / "run", machine.ssh_program) as made:
        await made.add_cluster("one", cluster.spec("one-ssh"), cluster.client_key)
        await made.start()
        yield made


HOSTILE = 'it\'s; touch injected $(touch injected) `touch injected`\n&& "quoted" | touch injected'


async def test_c78_files_go_out_and_results_come_back(world: GpuJobWorld, cluster: SlurmTestCluster) -> None:
    """Phase, output, exit code, artifacts and GPU seconds come back; words of the user are data. A crash of the control plane
    between submission and record submits nothing twice. Cancel and delete end the Slurm job."""
    before = set(cluster.job_ids())
    seen: dict[str, list[str]] = {}
    recording = asyncio.ensure_future(record_phases(world, seen))
    submitted = crash_after_submission(world, "once")
    await world.submit(
        "sum",
        files={
            "data/in put.txt": "1 2 3\n",
            "run me.sh": 'cat "data/in put.txt"; printf "%s" "$1$WORD" > "out put.txt"; ls > list.txt\n',
        },
        command=["sh", "run me.sh"],
        args=[HOSTILE],
        env=[{"name": "WORD", "value": HOSTILE}],
        artifacts=["out put.txt", "list.txt", "$(touch injected)*"],
    )
    await world.submit("once", command=["echo", "ran"], gpus=0)

    async def crashed() -> bool:
        return bool(submitted)

    await until(crashed)
    await world.stop()
    await world.start()
    await world.submit("bad", command=["sh", "-c", "echo on stderr >&2; sleep 1.1; exit 7"], gpus=2)
    await world.submit("long", command=["sh", "-c", "echo begun; sleep 600"], gpus=0)
    await world.submit("longer", command=["sleep", "600"], gpus=0)

    job = await world.finished("sum")
    left = {path.name for path in world.settings.directory.rglob("*")}
    assert "socket" in left and "key" not in left  # the private key is there during the login only
    assert (job.status.phase, job.status.exit_code, job.status.cluster) == ("Succeeded", 0, "one"), job.status
    assert job.status.output_tail == "1 2 3\n"
    packed = await storage.load(world.client, NAMESPACE, job.metadata.uid, "out", job.status.artifact_parts or 0)
    files = read_archive(join(packed or (), job.status.artifacts_sha256))
    assert files["out put.txt"].data.decode() == HOSTILE + HOSTILE
    assert files["list.txt"].data.decode().split("\n") == ["data", "list.txt", "out put.txt", "run me.sh", ""]
    listed = {each.path: each.sha256 for each in job.status.artifacts or ()}
    assert listed == {path: digest(file.data) for path, file in files.items()}

    once = await world.finished("once")
    assert (once.status.phase, once.status.output_tail) == ("Succeeded", "ran\n")
    assert submitted == [once.status.slurm_job_id]

    bad = await world.finished("bad")
    assert (bad.status.phase, bad.status.reason, bad.status.exit_code) == ("Failed", "FAILED", 7)
    assert bad.status.output_tail == "Errors:\non stderr\n"
    assert bad.status.gpu_seconds is not None and bad.status.gpu_seconds >= 2

    await world.until_phase("long", "Running")
    longer = await world.until_phase("longer", "Running")
    await world.client.patch(JOB, "long", NAMESPACE, {"spec": {"cancel": True}})
    await world.client.delete(JOB, "longer", NAMESPACE)
    long = await world.finished("long")
    assert (long.status.phase, long.status.reason, long.status.slurm_state) == ("Failed", "Cancelled", "CANCELLED")
    assert "begun" in long.status.output_tail
    await until(lambda: world.gone("longer"))
    assert not (cluster.jobs / longer.metadata.uid).exists()
    assert cluster.run("squeue", "-h", "-t", "RUNNING,PENDING") == ""
    assert len(set(cluster.job_ids()) - before) == 5
    recording.cancel()
    assert seen["long"] == ["Created", "Submitting", "Waiting", "Running", "Failed"]
    order = ["Creating", "Created", "Submitting", "Waiting", "Running", "Succeeded"]
    assert seen["sum"] == [phase for phase in order if phase in seen["sum"]]


async def test_slurm_of_this_machine(
    world: GpuJobWorld, machine: SlurmMachine, cluster: SlurmTestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    await world.stop()
    world.settings = dataclasses.replace(world.settings, local_user="root", local_program=machine.inside(("sh",)))
    await world.start()
    body = {"metadata": {"name": "here", "namespace": NAMESPACE}}
    spec = {"local": True, "directory": str(cluster.jobs), "pollSeconds": 1}
    await world.client.create(CLUSTER, {**body, "spec": spec})
    await world.submit("local", files={"a": "text"}, command=["cat", "a"], slurm={"clusters": ["here"]})
    job = await world.finished("local")
    assert (job.status.phase, job.status.cluster, job.status.output_tail) == ("Succeeded", "here", "text\n")


async def test_a_wrong_host_key_is_not_talked_to(world: GpuJobWorld, cluster: SlurmTestCluster) -> None:
    spec = cluster.spec("two-ssh", host_key=(cluster.home / "client_key.pub").read_text())
    await world.add_cluster("two", spec, cluster.client_key)
    await world.submit("nowhere", command=["true"], slurm={"clusters": ["two"]})

    async def explained() -> bool:
        return "Host key verification failed" in (await world.job("nowhere")).status.message

    await until(explained)
    assert await world.phase("nowhere") == "Created"
