"""The parts of RunP on their own: groups of version 2 on a made-up tree, filters, messages, logs, requests."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from coterie.kube.agent.images.model import HOST, StoredImage
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.runtimes.protocol import ContainerSpec, PodSandbox, RuntimeFailure
from coterie.kube.agent.runtimes.runp import cgroups, landlock, logs, resize, seccomp, wire
from coterie.kube.agent.runtimes.runp.request import start_request
from coterie.kube.agent.runtimes.runp.settings import RunpSettings

MOUNTS_V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


class TestGroups:
    def test_mounts_are_understood(self):
        v1, v2 = cgroups.mounts(MOUNTS_V1)
        assert v1 == {
            "cpu": "/sys/fs/cgroup/cpu,cpuacct",
            "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
            "memory": "/sys/fs/cgroup/memory",
        }
        assert v2 == "/sys/fs/cgroup/unified"

    @pytest.fixture
    def tree(self, tmp_path, monkeypatch):
        """Files as a kernel would show them in each group that is made."""
        made = os.makedirs

        def make(path, *args, **kwargs):
            made(path, *args, **kwargs)
            for at in (Path(path), Path(path).parent):
                if at.is_relative_to(tmp_path):
                    for name in (
                        "cgroup.subtree_control",
                        "cgroup.procs",
                        "cpu.max",
                        "cpu.weight",
                        "memory.max",
                        "memory.swap.max",
                        "memory.oom.group",
                        "pids.max",
                        "cgroup.kill",
                    ):
                        (at / name).touch()
                    (at / "cgroup.controllers").write_text("cpu memory pids")

        make(tmp_path, exist_ok=True)
        (tmp_path / "cgroup.subtree_control").touch()
        monkeypatch.setattr(os, "makedirs", make)
        return tmp_path

    def test_version_2(self, tree):
        groups = cgroups.CgroupV2(str(tree), "coterie/n")
        groups.missing = []  # a made-up file does not gather the words that are written to it
        groups.create("pod/c.0", 1500, 500, 64 << 20, 10)
        at = tree / "coterie/n/pod/c.0"
        files = {
            name: (at / name).read_text()
            for name in ("cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max")
        }
        assert files == {
            "cpu.max": "150000 100000",
            "cpu.weight": "20",
            "memory.max": "67108864",
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "pids.max": "10",
        }
        groups.kill("pod/c.0")
        assert (at / "cgroup.kill").read_text() == "1"
        (at / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
        (at / "memory.current").write_text("1000\n")
        (at / "memory.stat").write_text("anon 5\ninactive_file 400\n")
        (at / "cpu.stat").write_text("usage_usec 7\nuser_usec 1\n")
        (at / "pids.current").write_text("4\n")
        assert groups.out_of_memory("pod/c.0") == 3
        assert not groups.memory_limit_reached("pod/c.0"), "it was the pod's limit"
        (at / "memory.events").write_text("low 0\nmax 5\noom 2\noom_kill 3\n")
        assert groups.memory_limit_reached("pod/c.0")
        (at / "pids.events").write_text("max 4\n")
        handle = groups.watch_pids("pod/c.0")
        assert cgroups.refused_forks(handle) == 4
        os.close(handle)
        assert groups.exists("pod") and not groups.exists("other") and groups.watch_pids("other") == -1
        assert groups.usage("pod/c.0") == (7000, 600, 4)
        assert groups.usage("pod/gone") is None

    def test_a_pod_as_a_whole_in_version_2(self, tree):
        groups = cgroups.CgroupV2(str(tree), "coterie/n")
        groups.missing = []
        groups.create("pod", 0, 0, 64 << 20, 10)
        at = tree / "coterie/n/pod"
        files = {name: (at / name).read_text() for name in ("cpu.weight", "memory.max", "pids.max", "memory.oom.group")}
        assert files == {"cpu.weight": "1", "memory.max": "67108864", "pids.max": "10", "memory.oom.group": ""}

    def test_what_killed_a_container_is_told_apart_in_version_2(self, tree):
        """By its own limit, by that of its pod, by the node, or not for memory at all."""
        groups = cgroups.CgroupV2(str(tree), "coterie/n")
        groups.missing = []
        groups.create("pod/c.0", 0, 0, 64 << 20, 0)
        events = tree / "coterie/n/pod/c.0/memory.events"
        for text, kills, own in (
            ("max 0\noom 0\noom_kill 0\noom_group_kill 0\n", 0, False),
            ("max 12\noom 1\noom_kill 2\noom_group_kill 1\n", 2, True),
            ("max 0\noom 0\noom_kill 1\n", 1, False),
            ("max 7\noom 0\noom_kill 0\n", 0, True),
        ):
            events.write_text(text)
            assert (groups.out_of_memory("pod/c.0"), groups.memory_limit_reached("pod/c.0")) == (kills, own)
        events.unlink()
        assert (groups.out_of_memory("pod/c.0"), groups.memory_limit_reached("pod/c.0")) == (0, False)

    @pytest.mark.parametrize("counted", [True, False])
    def test_swap_does_not_get_around_a_limit_in_version_1(self, tmp_path, counted):
        at = tmp_path / "memory/coterie/n/pod"
        at.mkdir(parents=True)
        files = ["memory.limit_in_bytes", "memory.swappiness", *(["memory.memsw.limit_in_bytes"] if counted else [])]
        for name in files:
            (at / name).touch()
        groups = cgroups.CgroupV1({"memory": str(tmp_path / "memory")}, "coterie/n")
        assert groups.missing == ["cpu", "pids"]
        groups.create("pod", 500, 0, 64 << 20, 10)
        found = {name: (at / name).read_text() for name in files}
        limit = str(64 << 20)
        swap = (
            {"memory.memsw.limit_in_bytes": limit, "memory.swappiness": ""} if counted else {"memory.swappiness": "0"}
        )
        assert found == {"memory.limit_in_bytes": limit, **swap}
        (at / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        (at / "memory.max_usage_in_bytes").write_text(limit)
        assert groups.out_of_memory("pod") == 2 and groups.memory_limit_reached("pod")

    def test_limits_change(self, tree):
        groups = cgroups.CgroupV2(str(tree), "coterie/n")
        groups.missing = []
        groups.create("pod", 500, 500, 64 << 20, 10)
        at = tree / "coterie/n/pod"
        groups.update("pod", 2000, 1000, 128 << 20)
        names = ("cpu.max", "cpu.weight", "memory.max", "pids.max")
        assert [(at / name).read_text() for name in names] == ["200000 100000", "39", str(128 << 20), "10"]
        groups.update("pod", 0, 0, 0)
        # Made-up files keep the end of what was longer.
        assert [(at / name).read_text()[:3] for name in names] == ["max", "19", "max", "10"]

    @pytest.mark.parametrize(
        ("one", "other", "loose"),
        [
            ((500, 500, 64), (1000, 250, 32), (1000, 500, 64)),
            ((0, 500, 64), (1000, 1000, 0), (0, 1000, 0)),  # no limit on one side is no limit
        ],
    )
    def test_between_two_sizes(self, one, other, loose):
        both = (dict(zip(resize.KEYS, each, strict=True)) for each in (one, other))
        assert tuple(resize.looser(*both).values()) == loose

    @pytest.mark.parametrize(
        ("milli", "shares", "weight"), [(1, 2, 1), (1000, 1024, 39), (2000, 2048, 79), (10**9, 1024 * 10**6, 10000)]
    )
    def test_shares_and_weights(self, milli, shares, weight):
        assert (cgroups.shares_of(milli), cgroups.weight_of(milli)) == (shares, weight)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_decides_as_meant(machine):
    """The program run by a BPF machine of a dozen lines."""
    code = seccomp.program(machine)
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    architecture, clone, new_socket, calls = seccomp._TABLES[machine]

    def decide(number: int, argument: int = 0, arch: int = architecture) -> int:
        data = {0: number, 4: arch, 16: argument}
        at = accumulator = 0
        while True:
            kind, yes, no, value = steps[at]
            at += 1
            if kind == 0x20:
                accumulator = data[value]
            elif kind == 0x06:
                return value
            else:
                met = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[kind]
                at += yes if met else no

    allow, refuse = 0x7FFF0000, 0x00050001
    assert all(decide(number) == refuse for number in calls.values())
    assert decide(clone) == allow and decide(clone, 0x10000000) == refuse and decide(clone, 0x11) == allow
    assert decide(435) == 0x00050000 | 38
    assert decide(0, arch=1) == refuse and decide(0x40000000) == refuse
    families = {family for family in range(64) if decide(new_socket, family) == allow}
    assert families == {1, 2, 10, 16, 17}  # Unix, IPv4, IPv6, netlink, packet
    assert decide(new_socket, 40) == 0x00050000 | 97  # vsock: EAFNOSUPPORT
    special = {*calls.values(), new_socket, 435}
    assert all(decide(number) == allow for number in range(470) if number not in special)


def test_everything_beside_what_is_hidden(tmp_path):
    for name in ("a/b/secret", "a/b/open", "a/c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/b/link").symlink_to(tmp_path / "a/b")
    found = landlock.beside([str(tmp_path / "a/b/secret")], str(tmp_path))
    assert sorted(found) == [str(tmp_path / "a/b/open"), str(tmp_path / "a/c")]
    assert landlock.beside([], "/x") == ["/x"] and landlock.beside(["/x"], "/x") == []


class TestWire:
    def test_messages_in_pieces_keep_their_handles(self):
        here, there = socket.socketpair()
        reading, writing = os.pipe()
        first, second = wire.encode({"id": 1, "fds": 1}), wire.encode({"id": 2, "name": "\udcff ü"})
        socket.send_fds(here, [first[:3]], [reading])
        here.sendall(first[3:] + second[:5])
        here.sendall(second[5:])
        here.close()
        inbox, found = wire.Inbox(), []
        while True:
            data, handles, _, _ = socket.recv_fds(there, 7, 8)
            if not data:
                break
            found += inbox.feed(data, list(handles))
        assert [message["id"] for message, _ in found] == [1, 2] and found[1][0]["name"] == "\udcff ü"
        os.write(writing, b"x")
        assert os.read(found[0][1][0], 1) == b"x"
        for handle in (reading, writing, found[0][1][0]):
            os.close(handle)
        there.close()

    def test_too_long_is_refused(self):
        with pytest.raises(wire.WireError):
            wire.Inbox().feed(struct.pack(">I", 1 << 30), [])


class TestLogs:
    def test_stamp_is_rfc_3339_with_nanoseconds(self):
        text = logs.stamp(b"stdout", b"F").decode()
        day, stream, tag, _ = text.split(" ")
        assert len(day) == 30 and day.endswith("Z") and (stream, tag) == ("stdout", "F")

    def test_old_files_go_by_count(self, tmp_path):
        path = tmp_path / "deep" / "log"
        file = logs.LogFile(str(path), 100, 2)
        stream = logs.LogStream("stdout", file)
        for i in range(20):
            stream.feed(b"line %d\n" % i)
        file.close()
        assert sorted(p.name for p in path.parent.iterdir()) == ["log", "log.1"]
        assert path.read_text().splitlines()[-1].endswith("F line 19")

    def test_a_log_that_cannot_be_written_is_counted(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        path = tmp_path / "file" / "log"
        file = logs.LogFile(str(path), 0, 1)
        stream = logs.LogStream("stderr", file)
        stream.feed(b"a\nb\nc\nd")
        assert file.dropped == 3
        (tmp_path / "file").unlink()
        stream.end()
        file.close()
        first, last = path.read_text().splitlines()
        assert "3 lines were lost here: " in first and last.endswith("stderr P d")


class TestRequest:
    POWERS = {"namespaces": "", "overlay": False}  # noqa: RUF012

    def request(self, tmp_path, image, powers=POWERS, **changes):
        fields = {
            "name": "c",
            "attempt": 0,
            "image": "i",
            "command": (),
            "args": (),
            "env": (),
            "working_dir": "",
            "mounts": (),
            "log_path": Path("/l"),
        }
        spec = ContainerSpec(**{**fields, **changes})
        settings = RunpSettings(tmp_path, tmp_path, "n")
        pod = PodSandbox("u", "ns", "p", "host", tmp_path)
        return start_request(settings, ImageStore(tmp_path), image, pod, spec, powers)

    def test_nothing_to_run_is_told(self, tmp_path):
        with pytest.raises(RuntimeFailure) as problem:
            self.request(tmp_path, StoredImage("i:latest", "", HOST))
        assert problem.value.reason == "CreateContainerConfigError"

    def test_own_file_systems_need_namespaces(self, tmp_path):
        with pytest.raises(RuntimeFailure, match="namespaces"):
            self.request(tmp_path, StoredImage("i:latest", "", "rootfs", entrypoint=("x",)))

    def test_layers_are_named_top_first(self, tmp_path):
        image = StoredImage("i:latest", "sha256:i", "rootfs", entrypoint=("x",), layers=("sha256:low", "sha256:high"))
        root = self.request(tmp_path, image, {"namespaces": "user", "overlay": True})["root"]
        assert root["lowers"] == ["high/fs", "low/fs"] and root["userxattr"] is True

    def test_environment_wins_in_order(self, tmp_path):
        image = StoredImage("i:latest", "", HOST, entrypoint=("x",), env=(("PATH", "/image"), ("A", "image")))
        env = dict(self.request(tmp_path, image, env=(("A", "pod"),))["env"])
        assert (env["PATH"], env["A"], env["HOSTNAME"]) == ("/image", "pod", "host")
