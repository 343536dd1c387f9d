"""Claims of pods as directories of the node: local-path volumes, static ones, and what becomes of the files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NODES, PODS, World, container, is_ready, pod, world

from coterie.kube.api.meta import Object
from coterie.kube.api.types.storage import CLAIMS, VOLUMES

PV, PVC = VOLUMES.as_dynamic, CLAIMS.as_dynamic


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start_agent()
        yield made


async def make_bound(
    here: World, name: str = "data", *, node: str = "node-1", reclaim: str = "Delete", local: bool = True, **spec: Any
) -> Object:
    """A claim and its volume, as the binder leaves them."""
    mode = {"volumeMode": spec["volumeMode"]} if "volumeMode" in spec else {}
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, **mode}
    claim = await here.user.create(PVC, {"metadata": {"name": name, "namespace": "alice"}, "spec": asked})
    reference = {"namespace": "alice", "name": name, "uid": claim["metadata"]["uid"]}
    source = spec.pop("source", {"local": {"path": "/shown/only"}})
    meta: Object = {"name": f"pvc-{name}"}
    if local:
        meta["annotations"] = {
            "pv.kubernetes.io/provisioned-by": "coterie.io/local-path",
            "volume.kubernetes.io/selected-node": node,
        }
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    body: Object = {
        "metadata": meta,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Mi"},
            "claimRef": reference,
            "persistentVolumeReclaimPolicy": reclaim,
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            **source,
            **spec,
        },
    }
    made = await here.user.create(PV, body)
    await here.user.patch(PVC, name, "alice", {"spec": {"volumeName": made["metadata"]["name"]}})
    await here.user.patch_status(PVC, name, "alice", {"status": {"phase": "Bound"}})
    return made


def user(name: str, script: str = "sleep inf", claim: str = "data", read_only: bool = False, **mount: Any) -> Object:
    source = {"claimName": claim, **({"readOnly": True} if read_only else {})}
    main = container(script, volumeMounts=[{"name": "v", "mountPath": "/data", **mount}])
    return pod(name, main, volumes=[{"name": "v", "persistentVolumeClaim": source}])


def volumes(here: World) -> Path:
    return here.root / "alice/var/volumes"


async def drop(here: World, name: str = "pvc-data") -> None:
    await here.user.patch(PV, name, "", {"metadata": {"finalizers": None}})
    await here.user.delete(PV, name)


async def becomes(here: World, question: Callable[[], bool]) -> None:
    """Files are removed by a thread: also real time has to pass."""
    for _ in range(200):
        if question():
            return
        await here.clock.advance(0.1)
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to this")


async def failed_mount(here: World, name: str) -> str:
    for _ in range(200):
        found = [message for reason, message in await here.events(name) if reason == "FailedMount"]
        if found:
            return found[0]
        await here.clock.advance(0.1)
    raise AssertionError("no FailedMount")


async def test_the_node_says_where_its_volumes_lie(here: World) -> None:
    node = await here.user.get(NODES, "node-1")
    assert node["metadata"]["annotations"]["coterie.io/local-path-directory"] == str(volumes(here))


async def test_files_outlive_pods_and_go_with_the_volume(here: World) -> None:
    await make_bound(here)
    await here.create(user("first"))
    await here.pod_until("first", is_ready)
    directory = volumes(here) / "pvc-data"
    assert directory.stat().st_mode & 0o777 == 0o777
    assert volumes(here).stat().st_mode & 0o777 == 0o700
    (directory / "kept").write_text("yes")
    await here.user.delete(PODS, "first", "alice")
    await here.gone("first")
    await here.create(user("second"))
    await here.pod_until("second", is_ready)
    assert (directory / "kept").read_text() == "yes"
    await here.user.delete(PODS, "second", "alice")
    await here.gone("second")
    await drop(here)
    await becomes(here, lambda: list(volumes(here).iterdir()) == [])


async def test_a_volume_that_is_retained_keeps_its_files(here: World) -> None:
    await make_bound(here, reclaim="Delete")
    await here.create(user("first"))
    await here.pod_until("first", is_ready)
    await here.user.patch(PV, "pvc-data", "", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await here.settle(1)
    await drop(here)
    await becomes(here, lambda: not (volumes(here) / "pvc-data.json").exists())
    assert (volumes(here) / "pvc-data").is_dir()


async def test_a_volume_that_was_deleted_while_no_agent_ran(here: World) -> None:
    await make_bound(here)
    await make_bound(here, "other")
    await here.create(user("first"))
    await here.create(user("next", claim="other"))
    await here.pod_until("first", is_ready)
    await here.pod_until("next", is_ready)
    await here.stop_agent()
    await drop(here)
    await here.start_agent()
    await becomes(here, lambda: not (volumes(here) / "pvc-data").exists())
    await becomes(here, lambda: [p.name for p in volumes(here).glob("*.json")] == ["pvc-other.json"])
    assert (volumes(here) / "pvc-other").is_dir()


async def test_a_pod_waits_until_its_claim_is_bound(here: World) -> None:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    await here.create(user("early"))
    assert await failed_mount(here, "early") == 'persistentvolumeclaim "data" not found'
    await here.user.create(PVC, {"metadata": {"name": "unbound", "namespace": "alice"}, "spec": asked})
    await here.create(user("late", claim="unbound"))
    assert await failed_mount(here, "late") == 'persistentvolumeclaim "unbound" is not bound'
    await make_bound(here)
    await here.pod_until("early", is_ready)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"node": "node-2"}, "volume pvc-data is on node node-2, not on this one"),
        ({"volumeMode": "Block"}, 'persistentvolumeclaim "data" has volumeMode Block, which this node cannot mount'),
        ({"local": False, "source": {"local": {"path": "/etc"}}}, "hostPath /etc is not below a directory"),
        ({"local": False, "source": {"hostPath": {"path": "/etc"}}}, "hostPath /etc is not below a directory"),
        ({"local": False, "source": {"nfs": {"server": "s", "path": "/p"}}}, "only local and hostPath volumes"),
    ],
)
async def test_volumes_that_this_node_cannot_mount(here: World, fields: Any, why: str) -> None:
    await make_bound(here, **fields)
    await here.create(user("p"))
    assert why in await failed_mount(here, "p")
    assert not volumes(here).exists() or not list(volumes(here).glob("pvc-*"))


async def test_a_volume_of_another_claim_is_not_mounted(here: World) -> None:
    await make_bound(here)
    await here.user.patch(PV, "pvc-data", "", {"spec": {"claimRef": {"uid": "another"}}})
    await here.create(user("p"))
    assert "is not bound to persistentvolumeclaim" in await failed_mount(here, "p")


async def test_static_volumes_below_an_allowed_directory(here: World) -> None:
    place = here.root / "host" / "disk"
    place.mkdir(parents=True)
    await make_bound(here, local=False, source={"local": {"path": str(place)}}, reclaim="Retain")
    await here.create(user("p", "write /data/out hello", subPath="inside"))
    await here.pod_until("p", is_ready)
    assert (place / "inside").is_dir()
    (mount,) = mounts(here)
    assert (mount.source, mount.target, mount.read_only) == (place / "inside", "/data", False)


async def test_a_claim_can_be_mounted_read_only(here: World) -> None:
    await make_bound(here)
    await here.create(user("p", read_only=True))
    await here.pod_until("p", is_ready)
    (mount,) = mounts(here)
    assert mount.read_only


def mounts(here: World) -> list[Any]:
    runs = [run for found in here.machine.pods.values() for run in found.runs]
    return [mount for run in runs for mount in run.spec.mounts if mount.target == "/data"]
