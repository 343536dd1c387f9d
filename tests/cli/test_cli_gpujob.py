"""`coterie gpujob` against a real API server without a controller: what is sent, what is shown, what is written to disk."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from coterie.cli.app import CliError
from coterie.cli.commands.gpujob_get import write_files
from coterie.gpujobs import storage
from coterie.gpujobs.files import JobFile, digest, join, read_archive, write_archive
from coterie.gpujobs.types import GPU_JOBS
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport

T = TypeVar("T")


def with_client(live, action: Callable[[Client], Awaitable[T]]) -> T:
    async def converse() -> T:
        connection = kubeconfig.read(live.folder / "live-kubeconfig").resolve()
        client = Client(HttpTransport(connection), namespace=connection.namespace)
        try:
            return await action(client)
        finally:
            await client.close()

    return asyncio.run(converse())


@pytest.fixture
def named(live):
    return "mat-sum"


def test_run_uploads_files_and_says_what_to_do(live, named):
    (live.folder / "src" / "lib").mkdir(parents=True)
    (live.folder / "src" / "lib" / "a b.cu").write_text("kernel")
    done = live(
        "gpujob", "run", named, "--files", "src", "--compile", "lib/a b.cu", "--gpus", "2", "--env", "A=b=c",
        "--artifact", "out/*", "--cluster", "hpc", "--partition", "gpu", "--time", "2m", "--detach",
    )  # fmt: skip
    assert (done.code, done.lines) == (0, [f"gpujob {named} created; `coterie gpujob logs {named} -f` follows it"])
    job = json.loads(live("gpujob", "get", named, "-o", "json").out)
    spec = job["spec"]
    assert spec["compile"] == {"sources": ["lib/a b.cu"], "output": "a b"}
    assert (spec["gpus"], spec["timeLimitSeconds"], spec["env"]) == (2, 120, [{"name": "A", "value": "b=c"}])
    assert spec["slurm"] == {"clusters": ["hpc"], "partition": "gpu"}
    upload = spec["files"][0]["upload"]
    uid, namespace = job["metadata"]["uid"], job["metadata"]["namespace"]
    parts = with_client(live, lambda client: storage.load(client, namespace, uid, "in", upload["parts"]))
    assert read_archive(join(parts, upload["sha256"])) == {"lib/a b.cu": JobFile(b"kernel")}
    listed = live("gpujob", "ls")
    assert listed.lines[1].split()[:2] == [named, "New"]
    assert live("gpujob", "cancel", named, "--no-wait").code == 0
    assert json.loads(live("gpujob", "get", named, "-o", "json").out)["spec"]["cancel"] is True
    early = live("gpujob", "get", named)
    assert (early.code, early.err) == (1, f"Error: gpujob {named}: new; artifacts come at its end\n")


def test_the_seeds_file_with_an_archive(live, named):
    """`cubectl apply -f job.yaml -j dir.tar.gz`: no spec, one top directory, one batch script."""
    (live.folder / "job.yaml").write_text(f"kind: GpuJob\napiVersion: v1\nmetadata: {{name: {named}}}\n")
    with tarfile.open(live.folder / "job.tar.gz", "w:gz") as archive:
        for name in ("matadd/run.slurm", "matadd/add.cu"):
            head = tarfile.TarInfo(name)
            head.size = 3
            archive.addfile(head, io.BytesIO(b"abc"))
    done = live("gpujob", "run", "-f", "job.yaml", "-j", "job.tar.gz", "-d", "-o", "name")
    assert (done.code, done.out) == (0, f"gpujob.coterie.io/{named}\n")
    job = json.loads(live("gpujob", "get", named, "-o", "json").out)
    upload = job["spec"]["files"][0]["upload"]
    meta = job["metadata"]
    parts = with_client(
        live, lambda client: storage.load(client, meta["namespace"], meta["uid"], "in", upload["parts"])
    )
    assert sorted(read_archive(join(parts, upload["sha256"]))) == ["add.cu", "run.slurm"]


def test_get_writes_what_has_the_right_checksum(live, named):
    assert live("gpujob", "run", named, "-d", "--", "true").code == 0
    files = {"out/a.txt": JobFile(b"one"), "run": JobFile(b"#!", executable=True)}
    data = write_archive(files)

    async def finish(client: Client) -> None:
        job = await client.get(GPU_JOBS, named, client.namespace)
        parts = await storage.store(client, job, "out", data)
        listed = [{"path": p, "size": len(f.data), "sha256": digest(f.data)} for p, f in files.items()]
        status = {"phase": "Succeeded", "exitCode": 0, "gpuSeconds": 3, "artifactParts": parts, "artifacts": listed}
        await client.patch_status(
            GPU_JOBS, named, client.namespace, {"status": {**status, "artifactsSha256": digest(data)}}
        )
        await storage.store_output(client, job, {"out": storage.StreamEnd(10, b"end\n")})

    with_client(live, finish)
    done = live("gpujob", "get", named, "--to", "results")
    assert done.code == 0, done.err
    assert (live.folder / "results/out/a.txt").read_bytes() == b"one"
    assert (live.folder / "results/run").stat().st_mode & 0o777 == 0o755
    assert digest(b"one") in done.out
    again = live("gpujob", "get", named, "--to", "results")
    assert again.code == 1 and "exists; take another directory" in again.err
    assert digest(b"one") in live("describe", "gpujob", named).out
    logs = live("gpujob", "logs", named)
    assert (logs.out, logs.err) == ("end\n", "... 6 bytes of out are not kept ...\n")

    async def tamper(client: Client) -> None:
        listed = [{"path": "out/a.txt", "size": 3, "sha256": "0" * 64}]
        await client.patch_status(GPU_JOBS, named, client.namespace, {"status": {"artifacts": listed}})

    with_client(live, tamper)
    wrong = live("gpujob", "get", named, "--to", "other")
    assert wrong.code == 1 and "nothing was written" in wrong.err and not (live.folder / "other").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(CliError, match="leads out"):
        write_files({"sub/a": JobFile(b"x")}, tmp_path / "place", force=True)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--", "true"], "name the job"),
        (["x", "--files", "nothing", "--", "true"], "cannot be read"),
        (["x", "--env", "A", "--", "true"], "write NAME=VALUE"),
        (["x", "-f", "pod.yaml"], "is not a GpuJob"),
        (["x", "-j", "pod.yaml"], "the archive cannot be read"),
    ],
)
def test_mistakes_are_explained(live, words, problem):
    (live.folder / "pod.yaml").write_text("kind: Pod\n")
    done = live("gpujob", "run", *words)
    assert done.code in (1, 2) and problem in done.err
