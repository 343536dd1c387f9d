"""config.json from a request, and what is said about programs; nothing is started here."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from coterie.kube.agent.runtimes.oci import bundle, shim, tools
from coterie.kube.agent.runtimes.oci.tools import OciTool
from coterie.kube.agent.runtimes.protocol import ContainerSpec, Security
from coterie.kube.agent.runtimes.runp import seccomp

NO_LIMITS = {"cpu": 0, "shares": 0, "memory": 0, "pids": 0, "files": 0, "file_bytes": 0, "pod_memory": 0, "pod_pids": 0}
ALL = (1 << 41) - 1
POWERS = {"namespaces": "root", "users": True, "seccomp": True, "cgroup_memory": True, "cgroup_pids": True}


def spec(handler: str = "runc", **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "argv": ["sh", "-c", "true"], "env": [["A", "b=c"]], "cwd": "/work", "user": None, "group": None, "user_group": 0,
        "groups": [], "limits": dict(NO_LIMITS), "privileged": False, "escalation": False, "capabilities": ["CHOWN", "KILL"],
        "seccomp": True, "tty": False, "read_only_root": False, "root": {"kind": "layers"}, "hostname": "pod",
        "tool": {"handler": handler, "path": "/usr/bin/x", "platform": "ptrace"},
    }  # fmt: skip
    return made | changes


def config(given: dict[str, Any], **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "root": "/image/root", "machine": "x86_64", "capabilities": ALL, "hard_limits": {}, "placed": [], "powers": POWERS
    }  # fmt: skip
    made = bundle.config(given, **facts | changes)
    json.dumps(made)
    return made


def test_a_container_is_confined_as_by_runp() -> None:
    made = config(spec(user=1000, user_group=1000, groups=[7]))
    process = made["process"]
    assert process["args"] == ["sh", "-c", "true"] and process["env"] == ["A=b=c"] and process["cwd"] == "/work"
    assert process["user"] == {"uid": 1000, "gid": 1000, "additionalGids": [7], "umask": 0o022}
    assert process["capabilities"]["bounding"] == ["CAP_CHOWN", "CAP_KILL"] and process["noNewPrivileges"]
    assert {"/proc/kcore", "/proc/keys"} <= set(made["linux"]["maskedPaths"])
    assert "/proc/sys" in made["linux"]["readonlyPaths"] and "seccomp" in made["linux"]
    assert [each["type"] for each in made["linux"]["namespaces"]] == ["mount"], "the others are the shim's"


def test_what_a_privileged_container_gets_and_what_a_process_cannot_give() -> None:
    made = config(spec(privileged=True), capabilities=ALL & ~(1 << 24))
    assert "CAP_SYS_ADMIN" in made["process"]["capabilities"]["effective"]
    assert "CAP_SYS_RESOURCE" not in made["process"]["capabilities"]["effective"], "the supervisor has none"
    assert "seccomp" not in made["linux"] and "maskedPaths" not in made["linux"]
    assert not made["process"]["noNewPrivileges"]


@pytest.mark.parametrize(
    ("changes", "read_only"),
    [({}, False), ({"read_only_root": True}, True), ({"root": {"kind": "host"}}, True)],
    ids=["image", "read-only", "host-environment"],
)
def test_whether_the_root_is_read_only(changes: dict[str, Any], read_only: bool) -> None:
    assert config(spec(**changes))["root"] == {"path": "/image/root", "readonly": read_only}


def test_limits_never_above_those_of_the_process_that_sets_them() -> None:
    wanted = spec(limits=NO_LIMITS | {"files": 50_000, "file_bytes": 1 << 30})
    found = {
        each["type"]: (each["soft"], each["hard"]) for each in bundle.limits(wanted, {"RLIMIT_NOFILE": 20_000}, POWERS)
    }
    assert found == {"RLIMIT_CORE": (0, 0), "RLIMIT_NOFILE": (20_000, 20_000), "RLIMIT_FSIZE": (1 << 30, 1 << 30)}


@pytest.mark.parametrize(
    ("handler", "kinds"),
    [
        ("crun", {"RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_NPROC"}),
        ("runc", {"RLIMIT_CORE", "RLIMIT_NPROC"}),
        ("gvisor", {"RLIMIT_CORE"}),
    ],
)
def test_limits_of_processes_where_there_are_no_control_groups(handler: str, kinds: set[str]) -> None:
    wanted = spec(handler, limits=NO_LIMITS | {"memory": 1 << 26, "pids": 10})
    powers = POWERS | {"cgroup_memory": False, "cgroup_pids": False}
    assert {each["type"] for each in bundle.limits(wanted, {}, powers)} == kinds


def test_gvisor_hears_of_volumes_and_has_no_filter_of_ours() -> None:
    made = config(spec("gvisor"), placed=["/etc/hosts", "/sys/devices/system/cpu", "/data"])
    assert made["hostname"] == "pod" and "seccomp" not in made["linux"]
    assert [(each["destination"], each["source"]) for each in made["mounts"] if each["type"] == "bind"] == [
        ("/etc/hosts", "/image/root/etc/hosts"),
        ("/data", "/image/root/data"),
    ]
    assert {"type": "pid"} in made["linux"]["namespaces"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_runps_refuses(machine: str) -> None:
    rules = bundle.profile(machine)["syscalls"]
    plain = {name for rule in rules if "args" not in rule and rule["errnoRet"] == errno.EPERM for name in rule["names"]}
    assert plain == set(seccomp.refused(machine)) and {"mount", "ptrace", "bpf", "unshare"} <= plain
    assert [rule["errnoRet"] for rule in rules if rule["names"] == ["clone3"]] == [errno.ENOSYS]
    flags = sum(rule["args"][0]["value"] for rule in rules if rule["names"] == ["clone"])
    assert flags == seccomp.NAMESPACE_FLAGS
    families = {
        rule["args"][0]["value"]
        for rule in rules
        if rule["names"] == ["socket"] and rule["args"][0]["op"] == "SCMP_CMP_EQ"
    }
    assert not families & set(seccomp.SOCKET_FAMILIES) and 40 in families, "AF_VSOCK reaches the hypervisor"
    assert "ptrace" not in bundle.profile(machine, trace=True)["syscalls"][0]["names"]


def test_an_ordinary_user_has_one_user_only() -> None:
    made = config(spec(user=1000, groups=[7]), powers=POWERS | {"namespaces": "user"})
    assert (made["process"]["user"]["uid"], made["process"]["user"]["additionalGids"]) == (0, [])


def test_programs_are_told_to_leave_groups_and_networks_alone() -> None:
    assert "--rootless=true" in shim.command(spec("runc"))
    assert "--cgroup-manager=disabled" in shim.command(spec("crun"))
    assert {"--platform=ptrace", "--network=host", "--ignore-cgroups"} <= set(shim.command(spec("gvisor")))


@pytest.mark.parametrize(
    ("version", "platform"),
    [("0.0~20221219.0", "ptrace"), ("20230904.0", "systrap"), ("20250820.0", "systrap"), ("", "ptrace")],
)
def test_the_platform_of_gvisor(version: str, platform: str) -> None:
    assert tools.platform_of(version) == platform


@pytest.mark.parametrize(
    ("tool", "powers", "why"),
    [
        (OciTool("gvisor", "/usr/bin/runsc", "20230904.0"), POWERS, ""),
        (OciTool("gvisor", ""), POWERS, "The program runsc is not installed"),
        (OciTool("runc", "/usr/sbin/runc"), POWERS, "does not run on this machine"),
        (OciTool("crun", "/usr/bin/crun", "1.8"), {"namespaces": ""}, "need namespaces"),
    ],
)
def test_a_handler_says_why_it_is_not_available(tool: OciTool, powers: dict[str, Any], why: str) -> None:
    handler = tools.handler_of(tool, powers)
    assert handler.available == (not why) and why in handler.why and handler.version == tool.version


def test_what_gvisor_refuses_and_runc_does_not() -> None:
    plain = ContainerSpec("a", 0, "i", (), (), (), "", (), None)  # type: ignore[arg-type]
    assert tools.refused("gvisor", plain) is None
    for given in ({"security": Security(privileged=True)}, {"target": "b"}, {"devices": ("/dev/fuse",)}):
        asked = ContainerSpec("a", 0, "i", (), (), (), "", (), None, **given)  # type: ignore[arg-type]
        problem = tools.refused("gvisor", asked)
        assert problem is not None and problem.reason == "CreateContainerConfigError"
        assert tools.refused("runc", asked) is None
