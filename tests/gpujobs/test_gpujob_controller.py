"""The controller without Slurm: pods, files that come late, who may send a job where."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gpujob_world import CLUSTER, JOB, NAMESPACE, GpuJobWorld, gpujob_world, until

from coterie.gpujobs import storage
from coterie.gpujobs.domain_data import data_fault, read_domain_data
from coterie.gpujobs.files import InvalidFiles, JobFile, digest, join, read_archive, split, write_archive
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import Forbidden, Invalid
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES, SECRETS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.types.data import DOMAIN_DATAS

POD = PODS.as_dynamic
_RBAC = "rbac.authorization.k8s.io"
ROLE_BINDING = Kind.dynamic(builtin("rolebindings", _RBAC))
ROLE = Kind.dynamic(builtin("roles", _RBAC))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[GpuJobWorld]:
    async with gpujob_world(tmp_path / "run") as made:
        await made.start()
        yield made


async def the_pod(world: GpuJobWorld) -> Object:
    async def there() -> bool:
        return bool((await world.client.list(POD, NAMESPACE)).items)

    await until(there)
    (pod,) = (await world.client.list(POD, NAMESPACE)).items
    return pod


async def report(world: GpuJobWorld, pod: Object, phase: str, **states: Object) -> None:
    statuses = [
        {"name": name, "state": state, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
        for name, state in states.items()
    ]
    body = {"status": {"phase": phase, "containerStatuses": statuses}}
    await world.client.patch_status(POD, pod["metadata"]["name"], NAMESPACE, body)


TIMES = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:10Z"}


async def test_a_job_with_an_image_is_a_pod(world: GpuJobWorld) -> None:
    made = write_archive({"./out.txt".removeprefix("./"): JobFile(b"result")})

    async def log(pod: Any, container: str, limit: int | None) -> bytes:
        return b"printed\n" if container == "job" else base64.encodebytes(made)

    assert world.reconciler is not None
    world.reconciler._pod_log = log  # type: ignore[method-assign]
    job = await world.submit(
        "sum", files={"a.cu": "x"}, image="cuda", command=["./a"], gpus=2, artifacts=["out.txt"], env=[{"name": "A"}]
    )
    pod = await the_pod(world)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    secret = await world.client.get(SECRETS, storage.part_name(job.metadata.uid, "files", 0), NAMESPACE)
    assert read_archive(base64.b64decode((secret.data or {})["data"])) == {"a.cu": JobFile(b"x")}
    await report(world, pod, "Running", job={"running": {"startedAt": TIMES["startedAt"]}}, artifacts={"running": {}})
    await world.until_phase("sum", "Running")
    ended = {"terminated": {"exitCode": 0, **TIMES}}
    await report(world, pod, "Succeeded", job=ended, artifacts=ended)
    job = await world.finished("sum")
    assert (job.status.phase, job.status.gpu_seconds, job.status.output_tail) == ("Succeeded", 20, "printed\n")
    assert [(each.path, each.sha256) for each in job.status.artifacts or ()] == [("out.txt", digest(b"result"))]
    parts = await storage.load(world.client, NAMESPACE, job.metadata.uid, "out", job.status.artifact_parts or 0)
    assert read_archive(join(parts or (), job.status.artifacts_sha256)) == {"out.txt": JobFile(b"result")}
    assert len((await world.client.list(POD, NAMESPACE)).items) == 1


async def test_cancelling_a_pod_deletes_it(world: GpuJobWorld) -> None:
    await world.submit("long", image="cuda", command=["sleep", "9"])
    await the_pod(world)
    await world.client.patch(JOB, "long", NAMESPACE, {"spec": {"cancel": True}})
    job = await world.finished("long")
    assert (job.status.phase, job.status.reason) == ("Failed", "Cancelled")

    async def deleted() -> bool:
        pods = (await world.client.list(POD, NAMESPACE)).items
        return all(pod["metadata"].get("deletionTimestamp") for pod in pods)

    await until(deleted)


async def test_a_pod_that_vanishes_is_not_made_again(world: GpuJobWorld) -> None:
    await world.submit("once", image="cuda", command=["true"])
    pod = await the_pod(world)
    await world.until_phase("once", "Waiting")
    await world.client.delete(POD, pod["metadata"]["name"], NAMESPACE, grace=0)
    job = await world.finished("once")
    assert (job.status.reason, (await world.client.list(POD, NAMESPACE)).items) == ("PodLost", [])


async def test_a_job_waits_for_its_files(world: GpuJobWorld) -> None:
    """As the seed posts it: first the object, then the file."""
    await world.client.create(JOB, {"metadata": {"name": "seed", "namespace": NAMESPACE}})
    job = await world.until_phase("seed", "Creating")
    assert job.status.message == "waiting for a spec and files"
    data = write_archive({"run.sh": JobFile(b"true")})
    source = {"upload": {"parts": len(split(data)), "sha256": digest(data)}}
    config = {"configMap": {"name": "late"}, "path": "etc"}
    spec = {"image": "cuda", "command": ["true"], "files": [source, config]}
    await world.client.patch(JOB, "seed", NAMESPACE, {"spec": spec})

    async def says(text: str) -> bool:
        return (await world.job("seed")).status.message == text

    await until(lambda: says("waiting for the upload of 1 part(s)"))
    await storage.store(world.client, job, "in", data)
    await until(lambda: says("waiting for the ConfigMap late"))
    body = {"metadata": {"name": "late", "namespace": NAMESPACE}, "data": {"a": "1"}, "binaryData": {"b": "Mg=="}}
    await world.client.create(CONFIG_MAPS.as_dynamic, body)
    await the_pod(world)
    secret = await world.client.get(SECRETS, storage.part_name(job.metadata.uid, "files", 0), NAMESPACE)
    files = read_archive(base64.b64decode((secret.data or {})["data"]))
    assert {path: file.data for path, file in files.items()} == {"etc/a": b"1", "etc/b": b"2", "run.sh": b"true"}


async def test_an_upload_with_another_checksum_fails(world: GpuJobWorld) -> None:
    spec = {"command": ["true"], "image": "x", "files": [{"upload": {"parts": 1, "sha256": "0" * 64}}]}
    await world.client.create(JOB, {"metadata": {"name": "wrong", "namespace": NAMESPACE}, "spec": spec})
    await storage.store(world.client, await world.job("wrong"), "in", b"something else")
    job = await world.finished("wrong")
    assert (job.status.reason, "sha256" in job.status.message) == ("InvalidFiles", True)


async def test_a_slurm_job_without_a_cluster_says_so(world: GpuJobWorld) -> None:
    await world.submit("nowhere", command=["true"])

    async def explained() -> bool:
        return (await world.job("nowhere")).status.message == "the namespace has no SlurmCluster"

    await until(explained)
    spec = {"local": True}
    await world.client.create(CLUSTER, {"metadata": {"name": "here", "namespace": NAMESPACE}, "spec": spec})

    async def refused() -> bool:
        return "controllers.localSlurmUser" in (await world.job("nowhere")).status.message

    await until(refused)


@pytest.mark.parametrize(
    "spec",
    [
        {"backend": "Pod", "command": ["true"]},
        {"script": "a", "command": ["true"]},
        {"files": [{}]},
        {"files": [{"configMap": {"name": "a"}, "domainData": {"name": "b"}}]},
        {"env": [{"name": "A B"}]},
        {"slurm": {"partition": "x --uid=0"}},
        {"gpus": -1},
        {"files": [{"upload": {"parts": 1000, "sha256": "0" * 64}}]},
    ],
)
async def test_what_the_schema_refuses(world: GpuJobWorld, spec: Object) -> None:
    with pytest.raises(Invalid):
        await world.client.create(JOB, {"metadata": {"name": "x", "namespace": NAMESPACE}, "spec": spec})


@pytest.mark.parametrize(
    "ssh",
    [
        {"host": "-oProxyCommand=x", "user": "a"},
        {"host": "h", "user": "-l"},
        {"host": "h", "user": "a", "hostKeys": []},
        {"host": "h", "user": "a", "hostKeys": ["ssh-ed25519 AAAA\n@cert-authority * ssh-ed25519 BBBB"]},
    ],
)
async def test_what_a_cluster_cannot_be(world: GpuJobWorld, ssh: Object) -> None:
    whole = {"hostKeys": ["ssh-ed25519 AAAA"], "secretName": "s", **ssh}
    with pytest.raises(Invalid):
        await world.client.create(CLUSTER, {"metadata": {"name": "c", "namespace": NAMESPACE}, "spec": {"ssh": whole}})


async def bind(world: GpuJobWorld, user: str, role: Object, namespace: str = NAMESPACE) -> None:
    binding = {
        "metadata": {"name": user, "namespace": namespace},
        "roleRef": {"apiGroup": _RBAC, **role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": _RBAC}],
    }
    await world.client.create(ROLE_BINDING, binding)


async def test_who_may_send_a_job_to_which_cluster(world: GpuJobWorld) -> None:
    rules = [
        {"apiGroups": ["coterie.io"], "resources": ["gpujobs"], "verbs": ["create", "update", "patch", "get"]},
        {"apiGroups": ["coterie.io"], "resources": ["slurmclusters"], "verbs": ["use"], "resourceNames": ["small"]},
    ]
    await world.client.create(ROLE, {"metadata": {"name": "small", "namespace": NAMESPACE}, "rules": rules})
    await bind(world, "mallory", {"kind": "Role", "name": "small"})
    await bind(world, "eve", {"kind": "ClusterRole", "name": "edit"})
    await world.client.create(NAMESPACES.as_dynamic, {"metadata": {"name": "bob"}})
    mallory, eve = (world.client_for(UserInfo(name, ("system:authenticated",))) for name in ("mallory", "eve"))

    def body(name: str, **spec: Any) -> Object:
        return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"command": ["true"], **spec}}

    await mallory.create(JOB, body("fits", slurm={"clusters": ["small"]}))
    await mallory.create(JOB, body("pod", image="x"))
    for spec in ({}, {"slurm": {"clusters": ["big"]}}, {"slurm": {"clusters": ["small", "big"]}}):
        with pytest.raises(Forbidden, match='cannot use resource "slurmclusters"'):
            await mallory.create(JOB, body("no", **spec))
    with pytest.raises(Forbidden):
        await mallory.patch(JOB, "fits", NAMESPACE, {"spec": {"slurm": {"clusters": ["big"]}}})
    with pytest.raises(Forbidden, match="domaindatas"):
        await mallory.create(JOB, body("data", image="x", files=[{"domainData": {"name": "t"}}]))
    await eve.create(JOB, body("any"))
    with pytest.raises(Forbidden):
        await eve.create(CLUSTER, {"metadata": {"name": "c", "namespace": NAMESPACE}, "spec": {"local": True}})
    with pytest.raises(Forbidden):
        await eve.create(JOB, {**body("other"), "metadata": {"name": "other", "namespace": "bob"}})


# Data of the domain.


def a_table(uri: str = "t.csv", **spec: str) -> Object:
    whole = {"author": NAMESPACE, "name": "t", "type": "table", "dataSource": "default-data-source", "relativeURI": uri}
    return {"metadata": {"name": "t", "namespace": NAMESPACE}, "spec": {**whole, **spec}}


async def test_a_file_of_the_domains_own_table(world: GpuJobWorld, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/t.csv").write_bytes(b"id\n1\n")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "data/link.csv").symlink_to(tmp_path / "secret")
    await world.client.create(DOMAIN_DATAS.as_dynamic, a_table())
    found = await read_domain_data(world.client, NAMESPACE, tmp_path / "data", NAMESPACE, "t")
    assert found == ("t.csv", b"id\n1\n")
    for uri in ("../secret", "link.csv", "missing.csv"):
        await world.client.patch(DOMAIN_DATAS.as_dynamic, "t", NAMESPACE, {"spec": {"relativeURI": uri}})
        with pytest.raises(InvalidFiles):
            await read_domain_data(world.client, NAMESPACE, tmp_path / "data", NAMESPACE, "t")
    with pytest.raises(InvalidFiles, match="does not lie on"):
        await read_domain_data(world.client, "hq", tmp_path / "data", NAMESPACE, "t")


def test_data_that_is_not_the_domains_alone() -> None:
    table = DOMAIN_DATAS.decode(DOMAIN_DATAS.as_dynamic.encode(a_table()))
    assert data_fault(table, NAMESPACE, {NAMESPACE}) == ""
    assert "made for bob" in data_fault(table, NAMESPACE, {"bob"})
    assert "belongs to" in data_fault(table, "bob", set())
    other = DOMAIN_DATAS.decode(DOMAIN_DATAS.as_dynamic.encode(a_table(dataSource="s3")))
    assert "only files of" in data_fault(other, NAMESPACE, set())
