"""Which limits a pod gets, when it has used too much disk, and what the agent does about it."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import EVENTS, NODES, World, container, phase, pod, status_named, world
from image_kit import entry, oci, tar

from coterie.kube.agent.images import archive
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.images.sources import PullSettings
from coterie.kube.agent.images.store import ImageStore, remove_tree
from coterie.kube.agent.node.facts import MachineUsage
from coterie.kube.agent.node.pressure import met
from coterie.kube.agent.pods.containers import container_spec, remove_old_logs
from coterie.kube.agent.pods.disk_usage import MOST_LEVELS, DiskUsage, Pace, TreeMeter
from coterie.kube.agent.pods.limits import (
    LimitDefaults,
    StorageLimits,
    container_limits,
    pod_limits,
    resolve,
    storage_limits,
)
from coterie.kube.agent.pods.storage import (
    EvictionCandidate,
    Measurement,
    PodStorage,
    due,
    exceeded,
    room,
    to_evict,
    written_since,
)
from coterie.kube.agent.runtimes.protocol import ContainerLimits, ContainerWarning, Mount
from coterie.kube.agent.settings import PodDefaults, PodSettings, PressureSettings, StorageSettings
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import termination_message
from coterie.kube.api.types.pods import ContainerStatus, Pod, PodStatus

MIB, GIB = 1 << 20, 1 << 30
DEFAULTS = LimitDefaults(pids=100, open_files=1000, memory=8 * GIB, ephemeral_storage=GIB)
RULES = StorageSettings()


def limited(name: str = "main", requests: dict[str, str] | None = None, **limits: str) -> Object:
    found = {key.replace("_", "-"): value for key, value in limits.items()}
    return container(name=name, resources={"limits": found, "requests": requests or {}})


# Which limits.


@pytest.mark.parametrize(
    ("given", "allocatable", "expected"),
    [
        (
            PodDefaults(),
            {"memory": "22Gi", "ephemeral-storage": "100Gi"},
            LimitDefaults(4096, 65536, 22 * GIB, 20 * GIB),
        ),
        (PodDefaults(), {"ephemeral-storage": "10Gi"}, LimitDefaults(4096, 65536, 0, 5 * GIB)),
        (
            PodDefaults(pids=7, open_files=8, memory="1Gi", ephemeral_storage="2Gi"),
            {"memory": "22Gi"},
            LimitDefaults(7, 8, GIB, 2 * GIB),
        ),
    ],
)
def test_defaults_follow_the_node(given: PodDefaults, allocatable: dict[str, str], expected: LimitDefaults) -> None:
    assert resolve(given, allocatable) == expected


def test_a_container_keeps_its_own_limits() -> None:
    main = limited(cpu="500m", memory="64Mi", requests={"cpu": "100m"})
    assert container_limits(pod("p", main), main, DEFAULTS) == ContainerLimits(500, 64 * MIB, 100, 100, 1000, GIB)


def test_a_container_without_limits_gets_the_defaults() -> None:
    plain = container()
    assert container_limits(pod("p", plain), plain, DEFAULTS) == ContainerLimits(0, 0, 100, 0, 1000, GIB)


@pytest.mark.parametrize(
    ("containers", "spec", "expected"),
    [
        ([container()], {}, ContainerLimits(0, 8 * GIB, 100, 0)),
        ([limited("a", memory="1Gi"), container(name="b")], {}, ContainerLimits(0, 8 * GIB, 100, 0)),
        (
            [limited("a", memory="1Gi", cpu="1"), limited("b", memory="2Gi", cpu="500m")],
            {},
            ContainerLimits(1500, 3 * GIB, 100, 1500),
        ),
        (
            [limited("a", memory="1Gi")],
            {"initContainers": [limited("i", memory="3Gi")]},
            ContainerLimits(0, 3 * GIB, 100, 0),
        ),
        (
            [limited("a", memory="1Gi")],
            {"initContainers": [{**limited("s", memory="3Gi"), "restartPolicy": "Always"}]},
            ContainerLimits(0, 4 * GIB, 100, 0),
        ),
        ([limited("a", memory="16Gi"), container(name="b")], {}, ContainerLimits(0, 16 * GIB, 100, 0)),
    ],
)
def test_a_pod_as_a_whole(containers: list[Object], spec: dict[str, Any], expected: ContainerLimits) -> None:
    assert pod_limits(pod("p", *containers, **spec), DEFAULTS) == expected


def test_the_overhead_of_a_runtime_class_is_added() -> None:
    overhead = {"overhead": {"memory": "48Mi", "cpu": "250m"}}
    found = pod_limits(pod("p", limited(cpu="1", memory="64Mi", requests={"cpu": "500m"}), **overhead), DEFAULTS)
    assert (found.cpu_milli, found.memory_bytes, found.cpu_shares_milli) == (1250, 112 * MIB, 750)
    found = pod_limits(pod("p", container(), **overhead), DEFAULTS)
    assert (found.cpu_milli, found.memory_bytes) == (0, 8 * GIB), "what has no limit gets none by it"


def test_storage_limits() -> None:
    volumes = [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}, {"name": "w", "emptyDir": {}}]
    both = pod("p", limited("a", ephemeral_storage="1Gi"), limited("b", ephemeral_storage="2Gi"), volumes=volumes)
    assert storage_limits(both, DEFAULTS) == StorageLimits(3 * GIB, False, {"a": GIB, "b": 2 * GIB}, {"v": 10 * MIB})
    one = pod("p", limited("a", ephemeral_storage="2Gi"), container(name="b"))
    assert storage_limits(one, DEFAULTS) == StorageLimits(2 * GIB, True, {"a": 2 * GIB})


@pytest.mark.parametrize(
    ("mount", "bound"),
    [("own", GIB), ("outside-read-only", GIB), ("outside", 0)],
)
def test_results_outside_of_the_pod_may_be_of_any_size(tmp_path: Path, mount: str, bound: int) -> None:
    own = tmp_path / "pods/uid"
    source = own / "volumes/v" if mount == "own" else tmp_path / "data"
    mounts = (Mount(source, "/data", read_only=mount == "outside-read-only"),)
    plain = container()
    spec = container_spec(pod("p", plain), plain, 0, {}, mounts, tmp_path, own, PodSettings(), DEFAULTS)
    assert spec.limits.file_bytes == bound


# How much is used.


def test_what_a_tree_uses(tmp_path: Path) -> None:
    inside = tmp_path / "pod"
    inside.mkdir()
    (inside / "a").write_bytes(b"x" * MIB)
    os.link(inside / "a", inside / "same")
    (tmp_path / "big").write_bytes(b"x" * 2 * MIB)
    (inside / "link").symlink_to(tmp_path / "big")
    (inside / "up").symlink_to(tmp_path)
    (inside / "deep/er").mkdir(parents=True)
    (inside / "deep/er/b").write_bytes(b"x" * MIB)
    with (inside / "sparse").open("wb") as file:
        file.truncate(GIB)
    found = TreeMeter(Pace()).measure(inside)
    assert 2 * MIB <= found.bytes < 3 * MIB and found.inodes == 8 and not found.too_deep
    assert TreeMeter(Pace()).measure(tmp_path / "nowhere") == DiskUsage()


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    top = tmp_path / "pod"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    yield top
    subprocess.run(["rm", "-rf", top], check=True)  # pytest cannot


def test_a_tree_that_is_too_deep_is_said_and_can_be_removed(deep: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    found = TreeMeter(Pace()).measure(deep)
    assert found.too_deep and found.inodes == MOST_LEVELS + 1
    assert "200 levels" in exceeded(StorageLimits(), PodStorage(other=found))
    remove_tree(deep)
    assert not deep.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def used(containers: dict[str, int] | None = None, volumes: dict[str, int] | None = None, other: int = 0) -> PodStorage:
    return PodStorage(
        {name: DiskUsage(amount, 1) for name, amount in (containers or {}).items()},
        {name: DiskUsage(amount, 1) for name, amount in (volumes or {}).items()},
        DiskUsage(other, 1),
    )


@pytest.mark.parametrize(
    ("limits", "found", "expected"),
    [
        (StorageLimits(GIB), used({"a": GIB}), ""),
        (StorageLimits(), used({"a": 1 << 50}), ""),
        (
            StorageLimits(GIB),
            used({"a": GIB // 2}, {"v": GIB // 2}, 1),
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
        ),
        (
            StorageLimits(GIB, is_default=True),
            used({"a": GIB + 1}),
            "Pod ephemeral local storage usage exceeds the node's default limit 1Gi.",
        ),
        (
            StorageLimits(GIB, False, {"a": MIB}),
            used({"a": MIB + 1}),
            'Container a exceeded its local ephemeral storage limit "1Mi".',
        ),
        (
            StorageLimits(GIB, volumes={"v": 10 * MIB}),
            used(volumes={"v": 11 * MIB}),
            'Usage of EmptyDir volume "v" exceeds the limit "10Mi".',
        ),
    ],
)
def test_who_used_too_much(limits: StorageLimits, found: PodStorage, expected: str) -> None:
    assert exceeded(limits, found) == expected


def test_when_files_are_counted() -> None:
    limits = StorageLimits(100 * MIB)
    last = Measurement(used({"a": 20 * MIB}), at=1000.0, took=0.1, written=500)
    assert room(limits, last.storage) == 80 * MIB
    assert due(limits, None, 0.0, 0, RULES)
    assert not due(limits, last, 1002.0, 500 + 39 * MIB, RULES)
    assert due(limits, last, 1002.0, 500 + 40 * MIB, RULES), "the disk filled by half of its room"
    assert due(limits, last, 1030.0, 500, RULES), "once in a while"
    slow = replace(last, took=20.0)
    assert not due(limits, slow, 1100.0, 1 << 60, RULES), "counting must not take more than a tenth of the time"
    assert due(limits, slow, 1200.0, 500, RULES)


def disk(free: int, total: int = 100 * GIB, inodes_free: int = 900, inodes: int = 1000) -> MachineUsage:
    return MachineUsage(0, GIB, total, free, inodes, inodes_free, 1, 100)


def test_space_that_is_freed_hides_no_growth() -> None:
    assert written_since(None, disk(5)) == 0
    assert written_since(disk(9), disk(5)) == 4
    assert written_since(disk(5), disk(9)) == 0


def candidate(uid: str, amount: int, requests: int = 0, priority: int = 0, inodes: int = 1) -> EvictionCandidate:
    storage = PodStorage({"main": DiskUsage(amount, inodes)})
    return EvictionCandidate(uid, StorageLimits(requests=requests), storage, priority)


@pytest.mark.parametrize(
    ("candidates", "usage", "expected"),
    [
        ([candidate("a", GIB)], disk(50 * GIB), None),
        ([candidate("a", GIB), candidate("b", 2 * GIB)], disk(GIB), "b"),
        ([candidate("a", GIB), candidate("b", 2 * GIB, requests=4 * GIB)], disk(GIB), "a"),
        ([candidate("a", GIB), candidate("b", 2 * GIB, priority=5)], disk(GIB), "a"),
        ([candidate("a", MIB)], disk(GIB), None),
        ([candidate("a", GIB), candidate("b", 0, inodes=20_000)], disk(50 * GIB, inodes_free=10), "b"),
    ],
)
def test_who_goes_first_under_pressure(
    candidates: list[EvictionCandidate], usage: MachineUsage, expected: str | None
) -> None:
    acting = met(usage, PressureSettings())
    found = to_evict(candidates, acting[0], RULES) if acting else None
    assert (found[0] if found else None) == expected


def test_the_message_under_pressure() -> None:
    found = to_evict([candidate("a", 5 * GIB)], met(disk(2 * GIB), PressureSettings())[0], RULES)
    assert found is not None
    assert found[1] == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 3Gi, available: 2Gi. The pod was using 5Gi, "
        "request is 0, has larger consumption of ephemeral-storage."
    )


def test_old_logs_of_a_container_that_restarts_are_removed(tmp_path: Path) -> None:
    for name in ("0.log", "0.log.1", "1.log", "2.log", "3.log", "notes"):
        (tmp_path / name).touch()
    remove_old_logs(tmp_path, 4, kept=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.log", "3.log", "notes"]


# What the agent does.


async def filled(here: World, name: str, amount: int) -> Path:
    """Let a running pod have written so much."""
    found = await here.pod_until(name, phase("Running"))
    directory = here.settings.pods_directory / found["metadata"]["uid"] / "fake/main"
    directory.mkdir(parents=True)
    (directory / "file").write_bytes(b"x" * amount)
    return directory


async def test_who_fills_the_disk_is_evicted_and_others_stay(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.with_pods(defaults=PodDefaults(ephemeral_storage="1Mi"))
        await here.start_agent()
        for name in ("bad", "good"):
            await here.create(pod(name, container("trap '' TERM; sleep inf"), policy="Never"))
        await filled(here, "good", 100 << 10)
        directory = await filled(here, "bad", 2 * MIB)
        ended = await here.pod_until("bad", phase("Failed"), seconds=90)
        message = "Pod ephemeral local storage usage exceeds the node's default limit 1Mi."
        assert (ended["status"]["reason"], ended["status"]["message"]) == ("Evicted", message)
        assert ("Evicted", message) in await here.events("bad")
        assert phase("Running")(await here.pod("good"))
        await here.until(lambda: not directory.exists())


async def test_a_limit_of_its_own_and_deleted_files_count(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.start_agent()
        await here.create(pod("bad", limited(ephemeral_storage="1Mi"), policy="Never"))
        found = await here.pod_until("bad", phase("Running"))
        here.machine.deleted_files[found["metadata"]["uid"]] = 2 * MIB
        ended = await here.pod_until("bad", phase("Failed"), seconds=90)
        assert ended["status"]["message"].endswith("exceeds the total limit of containers 1Mi.")


async def test_disk_pressure_evicts_the_largest_and_refuses_new_pods(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        pressure = PressureSettings(transition_seconds=5)
        here.settings = replace(here.settings, storage=StorageSettings(evict_bytes=MIB), pressure=pressure)
        await here.start_agent()
        for name in ("small", "large"):
            await here.create(pod(name, policy="Never"))
        await filled(here, "small", 2 * MIB)
        await filled(here, "large", 3 * MIB)
        assert here.agent is not None
        full = disk(GIB)
        here.agent.storage.measure = lambda: full
        here.agent.node._measure = lambda: full
        ended = await here.pod_until("large", phase("Failed"), seconds=30)
        assert ended["status"]["message"].startswith("The node was low on resource: ephemeral-storage.")
        await here.create(pod("new", policy="Never"))
        refused = await here.pod_until("new", phase("Failed"))
        assert (refused["status"]["reason"], refused["status"]["message"]) == (
            "Evicted",
            "The node had condition: [DiskPressure].",
        )
        conditions = (await here.user.get(NODES, "node-1"))["status"]["conditions"]
        assert {each["type"]: each["status"] for each in conditions}["DiskPressure"] == "True"
        here.agent.storage.measure = lambda: disk(50 * GIB)
        await here.until(lambda: here.agent is not None and not here.agent.pods.pressures)
        await here.create(pod("later", policy="Never"))
        await here.pod_until("later", phase("Running"))
        assert phase("Running")(await here.pod("small"))


async def test_a_warning_of_the_runtime_is_an_event(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.start_agent()
        await here.create(pod("bomb", policy="Never"))
        found = await here.pod_until("bomb", phase("Running"))
        uid = found["metadata"]["uid"]
        run = here.machine.pods[uid].runs[-1]
        warning = ContainerWarning("PidsLimitReached", "Container main reached its limit of 4096 processes")
        run.state = replace(run.state, warnings=(warning,), message=warning.message)
        for listener in here.machine.listeners:
            listener.put_nowait(uid)
        await here.settle(3)
        assert (warning.reason, warning.message) in await here.events("bomb")
        here.machine.end(run, 1)
        ended = await here.pod_until("bomb", phase("Failed"))
        assert status_named(ended)["state"]["terminated"]["message"] == warning.message


def test_whoever_asks_why_the_pod_failed_hears_of_the_eviction() -> None:
    """A task repeats this sentence."""
    ended = {"terminated": {"exitCode": 137, "reason": "Error", "message": "last words"}}
    statuses = [ContainerStatus(name="main", state=ended)]
    status = PodStatus(phase="Failed", reason="Evicted", message="disk is full", container_statuses=statuses)
    assert termination_message(Pod(status=status)) == ("Evicted: disk is full", "last words")
    status = PodStatus(phase="Failed", container_statuses=statuses)
    assert termination_message(Pod(status=status)) == ("container main exited with 137 (Error)", "last words")


async def test_disk_pressure_takes_unused_images_before_pods(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        store = ImageStore(tmp_path / "images")
        here.images = NodeImages(store, PullSettings(), here.clock)
        for name in ("used:1", "unused:1"):
            (image,) = archive.load(store, io.BytesIO(oci([tar([entry(name[:-2], b"x")])], name)))
            store.save(replace(image, manifest="sha256:" + "a" * 64))
            os.utime(store.directory / "used" / image.id[7:], (1, 1))
        here.settings = replace(here.settings, storage=StorageSettings(evict_bytes=MIB))
        await here.start_agent()
        await here.create(pod("large", policy="Never"))
        await here.create(pod("waits", container(image="used:1"), policy="Always"))
        await filled(here, "large", 3 * MIB)
        assert here.agent is not None
        here.agent.storage.measure = here.agent.node._measure = lambda: disk(GIB)
        await here.until(lambda: store.find("unused:1") is None)
        assert store.find("used:1") is not None and phase("Running")(await here.pod("large"))
        here.agent.storage.measure = here.agent.node._measure = lambda: disk(50 * GIB)
        await here.settle(30)
        assert phase("Running")(await here.pod("large"))
        removed = [
            event for event in (await here.user.list(EVENTS, "default")).items if event["reason"] == "ImageRemoved"
        ]
        assert [event["involvedObject"]["kind"] for event in removed] == ["Node"]
