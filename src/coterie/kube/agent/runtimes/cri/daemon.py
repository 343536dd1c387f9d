"""The node's own containerd: found, configured, started, watched, ended.

    <directory>/containerd.json     the process: its pid, with when it started, so that no other is taken for it

It is a process of its own that outlives the agent: it writes the logs of containers. What runs in containers outlives it too,
under one shim for each pod. Two domains of one machine have a containerd each; neither shares anything with one that the machine
has for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import coterie
from coterie.base.files import private_directory, write_atomic
from coterie.base.log import logger
from coterie.kube.agent.runtimes.cri import cni_plugin
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.protocol import RuntimeFailure, RuntimeHandler
from coterie.kube.agent.runtimes.runp import processes

_log = logger("agent.cri")
RUNC, KATA = "runc", "kata"
SNAPSHOTTER = "overlayfs"
PAUSE_IMAGE = "coterie.invalid/pause:1"
PROGRAM_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/kata/bin")
_READY_SECONDS = 30.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02
_OLDEST = (1, 6)


@dataclass(frozen=True, slots=True)
class ContainerPrograms:
    """Where they are; empty: not there."""

    containerd: str = ""
    version: str = ""
    runc: str = ""
    shim: str = ""
    kata: str = ""
    kvm: bool = False
    root: bool = True
    """Whether this process is root."""


def find_programs() -> ContainerPrograms:
    path = ":".join(dict.fromkeys((*os.environ.get("PATH", os.defpath).split(":"), *PROGRAM_PLACES)))

    def which(name: str) -> str:
        return shutil.which(name, path=path) or ""

    containerd, root = which("containerd"), os.getuid() == 0
    return ContainerPrograms(
        containerd=containerd,
        version=_version(containerd) if containerd and root else "",
        runc=which("runc"),
        shim=which("containerd-shim-runc-v2"),
        kata=which("containerd-shim-kata-v2"),
        kvm=os.path.exists("/dev/kvm"),
        root=root,
    )


def _version(program: str) -> str:
    """`containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1` -> `1.6.20`."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stdout.split()
    return words[2].removeprefix("v").partition("~")[0].partition("+")[0] if len(words) > 2 else ""


def handlers(programs: ContainerPrograms) -> tuple[RuntimeHandler, ...]:
    """What pods can be run by with these programs."""
    common = _missing(programs)
    runc = common or _needs(programs.runc, "runc") or _needs(programs.shim, "containerd-shim-runc-v2")
    kata = common or _needs(programs.kata, "containerd-shim-kata-v2")
    if not kata and not programs.kvm:
        kata = "this machine has no /dev/kvm; enable virtualization, or take a RuntimeClass that needs none"
    return tuple(
        RuntimeHandler(name, not why, why, "" if why else f"containerd {programs.version}")
        for name, why in ((RUNC, runc), (KATA, kata))
    )


def _missing(programs: ContainerPrograms) -> str:
    if not programs.root:
        return "containerd needs root; run the node as root, or take a runtime that needs none"
    if not programs.containerd:
        return _needs("", "containerd")
    if not programs.version or _number(programs.version) < _OLDEST:
        return f"containerd {programs.version or 'of unknown version'} is too old; install 1.6 or later"
    return ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])


def _needs(found: str, name: str) -> str:
    return "" if found else f"{name} is not installed on this machine; install it and restart the node"


def config_text(settings: CriSettings, programs: ContainerPrograms) -> str:
    """containerd's configuration (version 2, which 1.6 to 2.x read)."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    kata = (
        f'[{cri}.containerd.runtimes.{KATA}]\n  runtime_type = "io.containerd.kata.v2"\n'
        "  privileged_without_host_devices = true\n"
        if programs.kata
        else ""
    )
    directory = settings.directory
    return f"""# Written by Coterie at every start of containerd.
version = 2
root = {_quoted(settings.root)}
state = {_quoted(settings.state)}
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = {_quoted(settings.socket)}
[debug]
  level = "warn"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = {_word(not os.path.isdir("/sys/kernel/security/apparmor"))}
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  ignore_image_defined_volumes = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [{cri}.cni]
    bin_dir = {_quoted(directory / "cni/bin")}
    conf_dir = {_quoted(directory / "cni/conf")}
[{cri}.containerd]
  snapshotter = "{SNAPSHOTTER}"
  default_runtime_name = "{RUNC}"
[{cri}.containerd.runtimes.{RUNC}]
  runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.{RUNC}.options]
  BinaryName = {_quoted(programs.runc)}
  Root = {_quoted(settings.state / "runc")}
{kata}"""


def _quoted(value: Path | str) -> str:
    return json.dumps(str(value))


def _word(value: bool) -> str:
    return "true" if value else "false"


class ContainerdDaemon:
    def __init__(self, settings: CriSettings, programs: ContainerPrograms, supervisor: Path | None) -> None:
        """`supervisor`: directory of the pod supervisor, which has the pod network; None: there is none."""
        self._settings = settings
        self._programs = programs
        self._supervisor = supervisor
        self._record = settings.directory / "containerd.json"

    @property
    def pid(self) -> int:
        """0: it does not run."""
        try:
            known = json.loads(self._record.read_text())
            pid = int(known["pid"])
            if known["boot"] == processes.boot_id() and processes.start_ticks(pid) == known["ticks"] and _lives(pid):
                return pid
        except (OSError, ValueError, KeyError):
            return 0
        return 0

    async def ensure(self) -> bool:
        """See that it runs and can be reached; True when it was started now. Raises RuntimeFailure."""
        if self.pid and self._reachable():
            return False
        if not self.pid:
            await asyncio.to_thread(self._start)
        await self._ready()
        return True

    def _start(self) -> None:
        settings = self._settings
        try:
            private_directory(settings.directory)
            for path in (settings.root, settings.state, settings.socket.parent):
                private_directory(path)
            self._write_plugin()
            write_atomic(settings.directory / "config.toml", config_text(settings, self._programs))
            settings.log_file.parent.mkdir(parents=True, exist_ok=True)
            settings.socket.unlink(missing_ok=True)
            done = subprocess.run(
                (
                    *(sys.executable, "-S", "-m", "coterie.kube.agent.runtimes.cri.launch"),
                    *(settings.group, str(settings.log_file)),
                    *(self._programs.containerd, "--config", str(settings.directory / "config.toml")),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(self._programs),
                cwd="/",
                check=True,
            )
            pid = int(done.stdout)
            found = {"pid": pid, "ticks": processes.start_ticks(pid), "boot": processes.boot_id()}
            write_atomic(self._record, json.dumps(found))
        except (OSError, subprocess.CalledProcessError) as problem:
            raise RuntimeFailure("RuntimeNotReady", f"containerd cannot be started: {problem}") from problem

    def _write_plugin(self) -> None:
        programs, configs = self._settings.directory / "cni/bin", self._settings.directory / "cni/conf"
        for path in (programs, configs):
            path.mkdir(parents=True, exist_ok=True)
        script = (
            "#!/bin/sh\n"
            f"export PYTHONPATH={shlex.quote(str(Path(coterie.__file__).parents[1]))}\n"
            f"exec {shlex.quote(sys.executable)} -S -m {cni_plugin.__name__}\n"
        )
        for name in (cni_plugin.NAME, "loopback"):
            write_atomic(programs / name, script, mode=0o700)
        config = {
            "cniVersion": "0.4.0",
            "name": cni_plugin.NAME,
            "plugins": [{"type": cni_plugin.NAME, "supervisor": str(self._supervisor or "")}],
        }
        write_atomic(configs / "10-coterie.conflist", json.dumps(config))

    def _reachable(self) -> bool:
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.connect(str(self._settings.socket))
        except OSError:
            return False
        finally:
            probe.close()
        return True

    async def _ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not self._reachable():
                    if not self.pid:
                        raise RuntimeFailure(
                            "RuntimeNotReady", f"containerd ended at once; see {self._settings.log_file}"
                        )
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as problem:
            raise RuntimeFailure(
                "RuntimeNotReady", f"containerd does not answer; see {self._settings.log_file}"
            ) from problem

    async def ended(self) -> None:
        """Returns when it does not run any more."""
        pid = self.pid
        if not pid:
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)

    async def stop(self) -> None:
        """End it. Containers that run go on without their logs, so it is for when there are none."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            pid = self.pid
            if not pid:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended(), _STOP_SECONDS)
        self._record.unlink(missing_ok=True)
        _log.info("Ended containerd: no pod needs it")


def _lives(pid: int) -> bool:
    """A process that has ended but was not reaped yet counts as gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _environment(programs: ContainerPrograms) -> dict[str, str]:
    found = (programs.containerd, programs.runc, programs.shim, programs.kata)
    places = dict.fromkeys((*(os.path.dirname(each) for each in found if each), *PROGRAM_PLACES))
    return {"PYTHONPATH": str(Path(coterie.__file__).parents[1]), "PATH": ":".join(places), "LANG": "C.UTF-8"}
