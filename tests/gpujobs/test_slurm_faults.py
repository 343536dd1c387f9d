"""GpuJobs on a real Slurm when something goes wrong, and many at once. Long: `make slurm` runs them (COTERIE_SLURM=1)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from gpujob_world import JOB, NAMESPACE, GpuJobWorld, crash_after_submission, gpujob_world, until
from slurm_kit import SlurmMachine, SlurmTestCluster, slurm_machine

from coterie.gpujobs import storage
from coterie.kube.api.meta import is_true

pytestmark = [
    pytest.mark.skipif(os.environ.get("COTERIE_SLURM") != "1", reason="long; `make slurm` runs it"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmMachine]:
    with slurm_machine(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def first(machine: SlurmMachine) -> SlurmTestCluster:
    """Forgets a job two seconds after its end (MinJobAge)."""
    made = machine.start("one", gpus=4, min_job_age=2)
    made.wait_idle()
    return made


@pytest.fixture(scope="module")
def second(machine: SlurmMachine, first: SlurmTestCluster) -> SlurmTestCluster:
    made = machine.start("two", gpus=4)
    made.wait_idle()
    return made


@pytest.fixture
async def world(
    machine: SlurmMachine, first: SlurmTestCluster, second: SlurmTestCluster, tmp_path: Path
) -> AsyncIterator[GpuJobWorld]:
    async with gpujob_world(tmp_path / "run", machine.ssh_program) as made:
        for cluster in (first, second):
            await made.add_cluster(cluster.name, cluster.spec(f"{cluster.name}-ssh"), cluster.client_key)
        await made.start()
        yield made


ON_ONE, ON_TWO = {"clusters": ["one"]}, {"clusters": ["two"]}


async def test_fifty_jobs_are_spread_over_two_clusters(
    world: GpuJobWorld, first: SlurmTestCluster, second: SlurmTestCluster
) -> None:
    names = [f"many-{n}" for n in range(50)]
    await asyncio.gather(
        *(world.submit(name, files={"n": name}, command=["cat", "n"], gpus=1, artifacts=["n"]) for name in names)
    )
    jobs = [await world.finished(name, 240) for name in names]
    assert [job.status for job in jobs if job.status.phase != "Succeeded"] == []
    assert [job.status.output_tail for job in jobs] == [f"{name}\n" for name in names]
    taken = [job.status.cluster for job in jobs]
    assert min(taken.count("one"), taken.count("two")) >= 15
    ids = {(job.status.cluster, job.status.slurm_job_id) for job in jobs}
    assert len(ids) == 50
    assert [job.status for job in jobs if len(job.status.artifacts or ()) != 1] == []


async def test_an_aged_out_job_is_known_by_its_exit_file(world: GpuJobWorld, first: SlurmTestCluster) -> None:
    await world.submit("old", command=["sh", "-c", "echo out; exit 5"], slurm=ON_ONE)
    await world.until_phase("old", "Waiting", "Running")
    await world.stop()

    async def forgotten() -> bool:
        return not first.job_ids()

    await until(forgotten, 60)
    await world.start()
    job = await world.finished("old", 60)
    assert (job.status.phase, job.status.exit_code, job.status.output_tail) == ("Failed", 5, "out\n")
    assert job.status.completion_time is not None


async def test_a_job_that_nobody_knows_is_lost(world: GpuJobWorld, first: SlurmTestCluster) -> None:
    await world.submit("lost", command=["sleep", "600"], slurm=ON_ONE)
    job = await world.until_phase("lost", "Running")
    await world.stop()
    first.run("scancel", job.status.slurm_job_id)

    async def forgotten() -> bool:
        return not first.job_ids()

    await until(forgotten, 60)
    await world.start()
    ended = await world.finished("lost", 60)
    assert (ended.status.phase, ended.status.reason) == ("Failed", "Lost")


async def test_ssh_that_is_cut_leaves_the_phase_and_the_job(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    await world.submit("cut", command=["sh", "-c", "sleep 8; echo survived"], slurm=ON_TWO)
    await world.until_phase("cut", "Running")
    second.stop_sshd()

    async def unreachable() -> bool:
        return is_true((await world.job("cut")).status.conditions, "Unreachable")

    await until(unreachable, 60)
    assert await world.phase("cut") == "Running"
    second.start_daemon("sshd")
    job = await world.finished("cut", 60)
    assert (job.status.phase, job.status.output_tail) == ("Succeeded", "survived\n")
    assert not is_true(job.status.conditions, "Unreachable")


async def test_a_cut_during_submission_submits_once(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    before = set(second.job_ids())
    for n in range(5):
        await world.submit(f"cut-{n}", files={"n": "x" * 2_000_000}, command=["sleep", "1"], slurm=ON_TWO, gpus=0)
    for _ in range(6):
        await asyncio.sleep(0.4)
        second.cut_connections()
    jobs = [await world.finished(f"cut-{n}", 120) for n in range(5)]
    assert {job.status.phase for job in jobs} == {"Succeeded"}
    assert set(second.job_ids()) - before == {job.status.slurm_job_id for job in jobs}


async def test_crashes_between_submission_and_record(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    before = set(second.job_ids())
    for n in range(3):
        lost = crash_after_submission(world, f"crash-{n}")
        await world.submit(f"crash-{n}", command=["true"], slurm=ON_TWO, gpus=0)

        async def submitted(lost: list[str] = lost) -> bool:
            return bool(lost)

        await until(submitted)
        await world.stop()
        await world.start()
    jobs = [await world.finished(f"crash-{n}") for n in range(3)]
    assert {job.status.phase for job in jobs} == {"Succeeded"}
    assert set(second.job_ids()) - before == {job.status.slurm_job_id for job in jobs}


async def test_slurm_that_does_not_answer_submits_nothing_twice(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    before = set(second.job_ids())
    await world.submit("down", command=["sleep", "3"], slurm=ON_TWO, gpus=0)
    await world.until_phase("down", "Waiting", "Running")
    second.stop_daemon("slurmctld", gently=True)
    await world.submit("later", command=["true"], slurm=ON_TWO, gpus=0)

    async def explained() -> bool:
        status = (await world.job("down")).status
        return any(each.reason == "SlurmUnavailable" and each.status == "True" for each in status.conditions or ())

    await until(explained, 90)
    second.start_daemon("slurmctld")
    jobs = [await world.finished(name, 120) for name in ("down", "later")]
    assert {job.status.phase for job in jobs} == {"Succeeded"}, [job.status for job in jobs]
    assert set(second.job_ids()) - before == {job.status.slurm_job_id for job in jobs}


async def test_a_lost_node_fails_its_job(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    await world.submit("node", command=["sleep", "600"], slurm=ON_TWO)
    await world.until_phase("node", "Running")
    second.stop_daemon("slurmd")
    second.kill_steps()
    job = await world.finished("node", 120)
    assert (job.status.phase, job.status.reason) == ("Failed", "NODE_FAIL")
    second.start_daemon("slurmd")
    second.wait_idle(60)


async def test_limits_and_pending_jobs(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    """Of four GPUs: the fifth waits with a reason; it runs when one is free. A time limit ends a job."""
    for n in range(4):
        await world.submit(f"holds-{n}", command=["sleep", "600"], slurm=ON_TWO)
    for n in range(4):
        await world.until_phase(f"holds-{n}", "Running")
    await world.submit("waits", command=["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], slurm=ON_TWO)

    async def reason() -> bool:
        return (await world.job("waits")).status.reason in ("Resources", "Priority")

    await until(reason)
    assert await world.phase("waits") == "Waiting"
    for n in range(4):
        await world.client.patch(JOB, f"holds-{n}", NAMESPACE, {"spec": {"cancel": True}})
    job = await world.finished("waits", 60)
    assert job.status.output_tail.strip() in "0123"
    refused = await world.submit("refused", command=["true"], slurm={**ON_TWO, "partition": "no-such"})
    ended = await world.finished(refused.metadata.name)
    assert (ended.status.reason, "partition" in ended.status.message) == ("SubmitRefused", True)


async def test_live_output_and_the_seeds_batch_script(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --output=%j.out\necho begun\nsleep 4\necho done >&2\n"
    await world.submit("seed", files={"run.slurm": script, "a.cu": ""}, slurm=ON_TWO)

    async def begun() -> bool:
        job = await world.job("seed")
        streams = await storage.load_output(world.client, NAMESPACE, job.metadata.uid)
        return job.status.phase == "Running" and streams.get("out", storage.StreamEnd()).data == b"begun\n"

    await until(begun)
    job = await world.finished("seed")
    assert (job.status.gpus, job.status.output_tail) == (2, "Errors:\ndone\nOutputs:\nbegun\n")


async def test_the_connection_ends_with_a_killed_control_plane(
    machine: SlurmMachine, second: SlurmTestCluster, tmp_path: Path
) -> None:
    program = f"""
import asyncio, pathlib
from coterie.base.secret import SecretValue
from coterie.gpujobs.shell import SshShell
from coterie.gpujobs.types import SshLogin

async def key():
    return SecretValue({second.client_key!r})

async def main():
    login = SshLogin(host="127.0.0.1", port={second.port}, user="root", host_keys=({second.host_key!r},), secret_name="")
    shell = SshShell(login, key, pathlib.Path({str(tmp_path)!r}), program={machine.ssh_program!r})
    done = await shell.run("echo hello", b"")
    assert done.text == "hello\\n", done
    print(shell._master.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    ssh = int(await child.stdout.readline())
    child.kill()
    await child.wait()

    async def ended() -> bool:
        return not psutil.pid_exists(ssh) or psutil.Process(ssh).status() == psutil.STATUS_ZOMBIE

    await until(ended, 20)


async def test_deleting_while_ssh_is_cut_waits_and_then_cancels(world: GpuJobWorld, second: SlurmTestCluster) -> None:
    await world.submit("gone", command=["sleep", "600"], slurm=ON_TWO)
    job = await world.until_phase("gone", "Running")
    second.stop_sshd()
    await world.client.delete(JOB, "gone", NAMESPACE)

    async def held() -> bool:
        return is_true((await world.job("gone")).status.conditions, "Unreachable")

    await until(held, 60)
    second.start_daemon("sshd")
    await until(lambda: world.gone("gone"), 60)
    assert job.status.slurm_job_id not in second.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()
    assert not (second.jobs / job.metadata.uid).exists()
