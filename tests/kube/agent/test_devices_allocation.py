"""Which devices a pod gets, and how its containers share them."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.agent.devices.allocation import DevicesUnavailable, allocate, needed
from coterie.kube.agent.devices.protocol import AllocatableDevice

GPU = "nvidia.com/gpu"


def container(name: str, count: int = 0, **more: Any) -> dict[str, Any]:
    resources = {"limits": {GPU: str(count)}, "requests": {GPU: str(count)}} if count else {}
    return {"name": name, "resources": resources, **more}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "alice", "name": "p", "uid": "u"},
        "spec": {"containers": list(containers), "initContainers": list(init)},
    }


def gpus(count: int, resource: str = GPU) -> list[AllocatableDevice]:
    return [AllocatableDevice(f"GPU-{i}", resource, i) for i in range(count)]


def given(which: dict[str, Any], devices: list[AllocatableDevice], **more: Any) -> dict[str, tuple[str, ...]]:
    found = allocate(which, devices, more.get("taken", {}), more.get("unhealthy", ()), [GPU])
    return {name: ids[GPU] for name, ids in found.containers.items()}


def test_containers_of_a_pod_do_not_share_a_device() -> None:
    assert given(pod(container("a", 1), container("b"), container("c", 2)), gpus(4)) == {
        "a": ("GPU-0",),
        "c": ("GPU-1", "GPU-2"),
    }


def test_init_containers_use_the_devices_of_the_others() -> None:
    which = pod(container("a", 1), container("b", 1), init=(container("i", 1), container("j", 2)))
    assert needed(which, GPU) == 2
    assert given(which, gpus(2)) == {
        "i": ("GPU-0",),
        "j": ("GPU-0", "GPU-1"),
        "a": ("GPU-0",),
        "b": ("GPU-1",),
    }


def test_a_large_init_container_decides_how_many_the_pod_has() -> None:
    which = pod(container("a", 1), init=(container("i", 3),))
    assert needed(which, GPU) == 3
    assert given(which, gpus(3))["i"] == ("GPU-0", "GPU-1", "GPU-2")


def test_a_sidecar_keeps_its_device() -> None:
    which = pod(
        container("a", 1), init=(container("i", 1), container("s", 1, restartPolicy="Always"), container("j", 2))
    )
    assert needed(which, GPU) == 3
    found = given(which, gpus(3))
    assert found["s"] == ("GPU-0",)
    assert found["j"] == ("GPU-1", "GPU-2")
    assert found["a"] == ("GPU-1",)
    assert found["i"] == ("GPU-0",), "it ended before the sidecar began"


def test_what_others_have_or_is_broken_is_not_given() -> None:
    assert given(pod(container("a", 1)), gpus(3), taken={"GPU-0": "x/y"}, unhealthy={"GPU-1"}) == {"a": ("GPU-2",)}


def test_a_shortage_says_who_has_them() -> None:
    with pytest.raises(DevicesUnavailable) as problem:
        given(pod(container("a", 2)), gpus(3), taken={"GPU-0": "bob/train"}, unhealthy={"GPU-1"})
    assert problem.value.message == ("the pod needs 2 nvidia.com/gpu, 1 of 3 are free: held by bob/train; 1 unhealthy")
    assert not problem.value.final


def test_more_than_the_node_has_is_never_given() -> None:
    with pytest.raises(DevicesUnavailable) as problem:
        given(pod(container("a", 4)), gpus(3))
    assert (problem.value.reason, problem.value.final) == ("OutOfnvidia.com/gpu", True)


def test_partitions_come_from_the_device_with_the_fewest_free() -> None:
    mig = "nvidia.com/mig-1g.18gb"
    devices = [AllocatableDevice(f"{gpu}-{i}", mig, 0, parent=gpu) for gpu in ("A", "B") for i in range(3)]
    one = {"name": "c", "resources": {"limits": {mig: "1"}}}
    found = allocate(pod(one), devices, {"B-0": "x/y"}, (), [mig])
    assert found.ids() == {"B-1"}
