"""What a node says of itself: pure functions over facts, and facts from files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kube.agent.node.capacity import allocatable, capacity
from coterie.kube.agent.node.conditions import conditions, readings
from coterie.kube.agent.node.description import (
    NameTaken,
    NodeRuntime,
    check_name,
    new_node,
    stale_labels,
    static_status,
    wanted_taints,
)
from coterie.kube.agent.node.facts import MachineFacts, MachineUsage, measure_machine, measure_usage
from coterie.kube.agent.plugin import NodeAdditions
from coterie.kube.agent.runtimes.protocol import RuntimeHandler
from coterie.kube.agent.settings import (
    GIB,
    MIB,
    AgentSettings,
    CapacitySettings,
    NodeObjectSettings,
    PodSettings,
    PressureSettings,
)
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.meta import Object
from coterie.kuscia.engine.certificates import DomainAuthority, EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import TAINT, EnginePlugin, EngineSettings
from coterie.kuscia.engine.templates.config_store import NoConfigStore

FACTS = MachineFacts(
    cpus=4, cpu_quota_milli=0, memory_total=8 * GIB, memory_limit=0, disk_total=100 * GIB, nic_mbit=0,
    machine_id="m1", system_uuid="s1", boot_id="b1", kernel="6.1", os_image="Linux", architecture="amd64",
)  # fmt: skip
USAGE = MachineUsage(1 * GIB, 8 * GIB, 100 * GIB, 50 * GIB, 1_000_000, 500_000, 100, 4_000_000)
RUNTIME = NodeRuntime(
    "runp",
    (RuntimeHandler("runp", True, version="1"), RuntimeHandler("kata", False, why="there is no /dev/kvm")),
    ("Landlock is not used.",),
)
SETTINGS = AgentSettings("node-1", DomainPaths(Path("/nowhere")))


@pytest.mark.parametrize(
    ("facts", "wanted", "name", "value"),
    [
        pytest.param(FACTS, CapacitySettings(), "cpu", "4", id="all-processors"),
        pytest.param(replace(FACTS, cpu_quota_milli=1500), CapacitySettings(), "cpu", "1500m", id="cpu-quota"),
        pytest.param(replace(FACTS, cpu_quota_milli=99000), CapacitySettings(), "cpu", "4", id="quota-beyond-machine"),
        pytest.param(FACTS, CapacitySettings(cpu="2"), "cpu", "2", id="cpu-configured"),
        pytest.param(FACTS, CapacitySettings(), "memory", "8Gi", id="all-memory"),
        pytest.param(replace(FACTS, memory_limit=GIB), CapacitySettings(), "memory", "1Gi", id="memory-limit"),
        pytest.param(FACTS, CapacitySettings(), "pods", "500", id="pods"),
        pytest.param(FACTS, CapacitySettings(), "storage", "100Gi", id="disk"),
        pytest.param(FACTS, CapacitySettings(ephemeral_storage="5Gi"), "ephemeral-storage", "5Gi", id="ephemeral"),
    ],
)
def test_capacity(facts: MachineFacts, wanted: CapacitySettings, name: str, value: str) -> None:
    assert capacity(facts, wanted)[name] == value


@pytest.mark.parametrize(
    ("wanted", "name", "value"),
    [
        pytest.param(CapacitySettings(), "cpu", "4", id="half-a-core-is-not-taken"),
        pytest.param(CapacitySettings(reserved_cpu="1"), "cpu", "3", id="more-is"),
        pytest.param(CapacitySettings(), "memory", f"{8 * 1024 - 500}Mi", id="memory"),
        pytest.param(CapacitySettings(reserved_memory="9Gi"), "memory", "0", id="never-below-zero"),
        pytest.param(CapacitySettings(), "pods", "500", id="pods"),
    ],
)
def test_allocatable(wanted: CapacitySettings, name: str, value: str) -> None:
    assert allocatable(capacity(FACTS, wanted), wanted)[name] == value


@pytest.mark.parametrize(
    ("usage", "pressing"),
    [
        pytest.param(USAGE, set(), id="plenty"),
        pytest.param(replace(USAGE, memory_used=8 * GIB - 90 * MIB), {"MemoryPressure"}, id="memory"),
        pytest.param(replace(USAGE, disk_free=2 * GIB), {"DiskPressure"}, id="disk"),
        pytest.param(replace(USAGE, disk_free=4 * GIB, disk_total=1000 * GIB), set(), id="full-but-enough-left"),
        pytest.param(replace(USAGE, inodes_free=10_000), {"DiskPressure"}, id="inodes"),
        pytest.param(replace(USAGE, disk_free=50 * MIB), {"DiskPressure", "OutOfDisk"}, id="out-of-disk"),
        pytest.param(replace(USAGE, pids=3_900_000), {"PIDPressure"}, id="pids"),
    ],
)
def test_pressure(usage: MachineUsage, pressing: set[str]) -> None:
    found = {reading.type: reading.status for reading in readings(usage, PressureSettings())}
    assert (found.pop("Ready"), found.pop("PodsFenced")) == ("True", "True")
    assert {kind for kind, status in found.items() if status == "True"} == pressing


def test_a_runtime_that_does_not_work_makes_the_node_unready() -> None:
    ready = readings(USAGE, PressureSettings(), runtime_problem="no rights")[-1]
    assert (ready.type, ready.status, ready.message) == ("Ready", "False", "no rights")


def test_transition_times() -> None:
    first = conditions(readings(USAGE, PressureSettings()), [], "t1")
    second = conditions(readings(replace(USAGE, pids=3_900_000), PressureSettings()), first, "t2")
    times = {c["type"]: (c["lastHeartbeatTime"], c["lastTransitionTime"]) for c in second}
    assert times["Ready"] == ("t2", "t1") and times["PIDPressure"] == ("t2", "t2")


def additions(facts: MachineFacts = FACTS, **settings: Any) -> NodeAdditions:
    paths = DomainPaths(Path("/nowhere"))
    plugin = EnginePlugin(
        EngineSettings("alice", **settings),
        EngineCertificateIssuer(DomainAuthority(paths), "alice", SYSTEM_CLOCK),
        NoConfigStore(),
    )
    return plugin.node(facts, "runp")


ADDITIONS = additions()


@pytest.mark.parametrize(
    ("facts", "settings", "capacity_is", "allocatable_is"),
    [
        (FACTS, {}, "1k", "990"),
        (replace(FACTS, nic_mbit=2500), {}, "2500", "2490"),
        (replace(FACTS, nic_mbit=2500), {"bandwidth_mbit": 50}, "50", "40"),
    ],
    ids=["default", "network-card", "configured"],
)
def test_bandwidth_of_the_node(
    facts: MachineFacts, settings: dict[str, int], capacity_is: str, allocatable_is: str
) -> None:
    added = additions(facts, **settings)
    offered = capacity(facts, CapacitySettings(), added)
    assert offered["kuscia.io/bandwidth"] == capacity_is
    assert allocatable(offered, CapacitySettings(), added)["kuscia.io/bandwidth"] == allocatable_is


def node(domain: str = "alice", machine: str = "m1", ready: str = "True") -> Object:
    return {
        "metadata": {"labels": {"kuscia.secretflow/namespace": domain}},
        "status": {"nodeInfo": {"machineID": machine}, "conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("other", "forever"),
    [
        pytest.param(node(), None, id="ours"),
        pytest.param(node(machine="m2", ready="False"), None, id="a-dead-machines"),
        pytest.param(node(machine="m2", ready="Unknown"), None, id="a-lost-machines"),
        pytest.param(node(machine="m2"), False, id="a-living-machines"),
        pytest.param(node(domain="bob"), True, id="another-domains"),
        pytest.param({"metadata": {}}, None, id="made-by-hand"),
    ],
)
def test_who_may_use_a_name(other: Object, forever: bool | None) -> None:
    if forever is None:
        check_name(other, SETTINGS, FACTS, ADDITIONS)
        return
    with pytest.raises(NameTaken) as taken:
        check_name(other, SETTINGS, FACTS, ADDITIONS)
    assert taken.value.forever is forever


OTHER: Object = {"key": "dedicated", "value": "v1", "effect": "NoSchedule"}


def test_labels_and_taint_can_be_set() -> None:
    made = new_node(SETTINGS, FACTS, ADDITIONS, RUNTIME)
    assert "taints" not in made["spec"] and COTERIE_POD_NAMESPACE not in made["metadata"]["labels"]
    settings = replace(SETTINGS, node=NodeObjectSettings(labels={"zone": "z"}), pods=PodSettings(namespace="a"))
    made = new_node(settings, FACTS, additions(taint=True), RUNTIME)
    assert made["metadata"]["labels"]["zone"] == "z" and made["spec"]["taints"] == [TAINT]
    assert made["metadata"]["labels"][COTERIE_POD_NAMESPACE] == "a"


def test_a_node_says_which_runtime_handlers_it_has() -> None:
    made = new_node(SETTINGS, FACTS, ADDITIONS, RUNTIME)["metadata"]
    found = {key: value for key, value in made["labels"].items() if key.startswith("coterie.io/runtime.")}
    assert found == {"coterie.io/runtime.runp": "true"}
    about = json.loads(made["annotations"]["coterie.io/runtime"])
    assert [each["name"] for each in about["handlers"]] == ["runp", "kata"]
    assert about["handlers"][1]["why"] == "there is no /dev/kvm" and about["limitations"] == ["Landlock is not used."]
    assert static_status(SETTINGS, FACTS, RUNTIME)["runtimeHandlers"] == [{"name": "runp"}]
    known = {**made["labels"], "coterie.io/runtime.kata": "true", "zone": "z"}
    assert stale_labels(known, made["labels"]) == {"coterie.io/runtime.kata": None}


@pytest.mark.parametrize(
    ("before", "taint", "after"),
    [
        ([], False, None),
        ([], True, [TAINT]),
        ([TAINT], True, None),
        ([TAINT], False, []),
        ([OTHER, TAINT], False, [OTHER]),
        ([OTHER], False, None),
        ([OTHER], True, [OTHER, TAINT]),
        ([{**TAINT, "value": "v2"}], False, None),
        ([{**TAINT, "value": "v2"}], True, None),
        ([{**TAINT, "effect": "NoExecute"}], False, None),
        ([{**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}], False, []),
    ],
)
def test_only_our_taint_follows_the_setting(before: list[Object], taint: bool, after: list[Object] | None) -> None:
    assert wanted_taints({"spec": {"taints": before}}, additions(taint=taint)) == after


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:        1000 kB\nMemAvailable:     400 kB\n"


def test_facts_of_a_cgroup_v2_machine(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/memory.max": "512000\n",
            "sys/fs/cgroup/memory.current": "300000\n",
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 100000\n",
            "proc/meminfo": MEMINFO,
            "proc/loadavg": "0.1 0.2 0.3 2/345 999\n",
            "proc/sys/kernel/pid_max": "4096\n",
            "sys/class/net/eth0/speed": "-1\n",
            "sys/class/net/ens1/speed": "10000\n",
            "etc/machine-id": "abc\n",
            "etc/os-release": 'NAME=x\nPRETTY_NAME="Some Linux 1"\n',
        },
    )
    facts = measure_machine(tmp_path, root)
    assert (facts.cpu_quota_milli, facts.memory_limit, facts.memory_total) == (1500, 512000, 1024000)
    assert (facts.nic_mbit, facts.machine_id, facts.os_image) == (10000, "abc", "Some Linux 1")
    usage = measure_usage(tmp_path, root)
    assert (usage.memory_used, usage.memory_total, usage.pids, usage.pids_limit) == (200000, 512000, 345, 4096)
    assert usage.disk_total >= usage.disk_free > 0


def test_facts_of_a_cgroup_v1_machine_without_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "proc/meminfo": MEMINFO,
        },
    )
    facts = measure_machine(tmp_path, root, machine_id="told")
    assert (facts.cpu_quota_milli, facts.memory_limit, facts.nic_mbit, facts.machine_id) == (0, 0, 0, "told")
    assert measure_usage(tmp_path, root).memory_used == 600 * 1024
