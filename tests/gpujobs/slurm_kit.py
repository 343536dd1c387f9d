"""A real Slurm for tests: munged, slurmctld, slurmd and sshd in a network namespace of their own, with GPUs that are not there.

    with slurm_machine(tmp_path) as machine:
        cluster = machine.start("one", nodes=1, gpus=2)
        cluster.ssh          what a SlurmCluster has to say to reach it
        cluster.run("squeue")

The fake GPUs are `/dev/null`, `/dev/zero`, ...: Slurm counts them, gives each to one job and sets CUDA_VISIBLE_DEVICES. Two clusters
of one machine have an sshd each, which gives its logins that cluster's SLURM_CONF.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sshd", "sbatch", "ssh", "ssh-keygen", "nsenter", "ip")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_FAKE_GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_FIRST_PORT = 17000


def require_slurm() -> None:
    """Skips the test when this machine cannot run one."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (scripts/get-runtimes installs them)")
    if os.geteuid() != 0:
        pytest.skip("needs root: Slurm's daemons and a network namespace")


@dataclass
class SlurmTestCluster:
    machine: SlurmMachine
    name: str
    home: Path
    port: int
    node: str
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.home / "slurm.conf"

    @property
    def jobs(self) -> Path:
        """Where the jobs' directories are to lie."""
        return self.home / "jobs"

    @property
    def host_key(self) -> str:
        return " ".join((self.home / "host_key.pub").read_text().split()[:2])

    @property
    def client_key(self) -> str:
        return (self.home / "client_key").read_text()

    def job_ids(self) -> list[str]:
        """Of all jobs that Slurm still knows."""
        return self.run("squeue", "-h", "-t", "all", "-o", "%i").split()

    def spec(self, secret: str, host_key: str = "") -> dict[str, object]:
        """Of the SlurmCluster."""
        ssh = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "root",
            "hostKeys": [" ".join(host_key.split()[:2]) or self.host_key],
            "secretName": secret,
        }
        return {"ssh": ssh, "directory": str(self.jobs), "pollSeconds": 1}

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            self.machine.inside(command), env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stderr}")
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": _PATH, "SLURM_CONF": str(self.conf), "HOME": str(self.home), "LC_ALL": "C"}

    def start_daemon(self, name: str) -> None:
        commands = {
            "slurmctld": ("slurmctld", "-D", "-f", str(self.conf)),
            "slurmd": ("slurmd", "-D", "-N", self.node, "-f", str(self.conf)),
            "sshd": (shutil.which("sshd", path=_PATH) or "sshd", "-D", "-e", "-f", str(self.home / "sshd_config")),
        }
        with (self.home / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                self.machine.inside(commands[name]),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop_daemon(self, name: str, *, gently: bool = False) -> None:
        """`gently`: it saves its state; slurmctld writes it some seconds after a change."""
        daemon = self.daemons.pop(name, None)
        if daemon is not None:
            if gently:
                daemon.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()

    def kill_steps(self) -> None:
        """What a lost machine takes with it: the processes that run jobs there."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if (entry / "cmdline").read_bytes().startswith(b"slurmstepd: ") and str(self.conf) in (
                        entry / "environ"
                    ).read_bytes().decode(errors="replace"):
                        os.kill(int(entry.name), signal.SIGKILL)

    def stop_sshd(self) -> None:
        """The machine is cut off: no new connections, and those that are there end."""
        os.kill(self.daemons["sshd"].pid, signal.SIGSTOP)
        self.cut_connections()
        self.stop_daemon("sshd")

    def cut_connections(self) -> None:
        """Every SSH connection ends; sshd forks a process for each, in a session of its own."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    title = (entry / "cmdline").read_bytes()
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    daemon = self.daemons.get("sshd")
                    if daemon is not None and title.startswith(b"sshd: ") and int(parent) == daemon.pid:
                        os.kill(int(entry.name), signal.SIGKILL)

    def wait_idle(self, seconds: float = 30.0) -> None:
        _wait_for(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), seconds, self._logs)

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.home.glob("*.log")))


class SlurmMachine:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.clusters: list[SlurmTestCluster] = []
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self._munged: subprocess.Popen[bytes] | None = None

    @property
    def ssh_program(self) -> tuple[str, ...]:
        """`ssh` as it is to be started to reach the clusters."""
        return self.inside(("ssh",))

    def inside(self, command: Sequence[str]) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command)

    def open(self) -> None:
        own = os.readlink("/proc/self/ns/net")
        _wait_for(lambda: os.readlink(f"/proc/{self._holder.pid}/ns/net") != own, 10, lambda: "no namespace")
        # With lo alone getaddrinfo(AI_ADDRCONFIG), which Slurm uses, resolves nothing.
        for words in ("link set lo up", "link add br0 type bridge", "addr add 10.99.0.1/24 dev br0", "link set br0 up"):
            subprocess.run(self.inside(("ip", *words.split())), check=True, env={"PATH": _PATH})
        munge = self.home / "munge"
        munge.mkdir(mode=0o755)
        key = munge / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.munge_socket = munge / "socket"
        command = (
            "munged", "--foreground", "--force", f"--socket={self.munge_socket}", f"--key-file={key}",
            f"--pid-file={munge / 'pid'}", f"--log-file={munge / 'log'}", f"--seed-file={munge / 'seed'}",
        )  # fmt: skip
        self._munged = subprocess.Popen(
            self.inside(command), env={"PATH": _PATH}, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait_for(self.munge_socket.exists, 10, lambda: (munge / "log").read_text())

    def start(self, name: str, *, gpus: int = 2, cpus: int = 64, min_job_age: int = 300) -> SlurmTestCluster:
        home = self.home / name
        first = _FIRST_PORT + 10 * len(self.clusters)
        for each in ("state", "spool", "jobs"):
            (home / each).mkdir(parents=True)
        cluster = SlurmTestCluster(self, name, home, first, f"{name}-node")
        cluster.conf.write_text(
            _SLURM_CONF.format(
                name=name,
                host=socket.gethostname().split(".")[0],
                home=home,
                munge=self.munge_socket,
                ctld=first + 1,
                slurmd=first + 2,
                node=cluster.node,
                cpus=cpus,
                gpus=gpus,
                age=min_job_age,
            )
        )
        files = ",".join(_FAKE_GPUS[:gpus])
        (home / "gres.conf").write_text(f"NodeName={cluster.node} Name=gpu File={files}\n")
        for key in ("host_key", "client_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", home / key], check=True)
        shutil.copy(home / "client_key.pub", home / "authorized_keys")
        (home / "sshd_config").write_text(_SSHD_CONF.format(home=home, port=first, conf=cluster.conf))
        Path("/run/sshd").mkdir(exist_ok=True)
        for daemon in ("slurmctld", "slurmd", "sshd"):
            cluster.start_daemon(daemon)
        self.clusters.append(cluster)
        return cluster

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.run("scancel", "--user=root", check=False)
            if "sshd" in cluster.daemons:
                cluster.stop_sshd()
            for daemon in list(cluster.daemons):
                cluster.stop_daemon(daemon)
        self._kill_all_inside()
        for process in (self._munged, self._holder):
            if process is not None:
                process.kill()
                process.wait()

    def _kill_all_inside(self) -> None:
        """What jobs left: all that runs in the namespace, and nothing else does."""
        own = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        if own == os.readlink("/proc/self/ns/net"):
            return
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(entry / "ns/net") == own and int(entry.name) != self._holder.pid:
                    os.kill(int(entry.name), signal.SIGKILL)


@contextlib.contextmanager
def slurm_machine(home: Path) -> Iterator[SlurmMachine]:
    require_slurm()
    machine = SlurmMachine(home)
    try:
        machine.open()
        yield machine
    finally:
        machine.close()


def _wait_for(done: object, seconds: float, why: object) -> None:
    assert callable(done) and callable(why)
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise AssertionError(why())
        time.sleep(0.1)


_SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmctldTimeout=10
SlurmdTimeout=6
KillWait=2
MinJobAge={age}
ReturnToService=2
GresTypes=gpu
NodeName={node} NodeAddr=127.0.0.1 NodeHostname={host} CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
_SSHD_CONF = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/host_key
PidFile {home}/sshd.pid
AuthorizedKeysFile {home}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
SetEnv SLURM_CONF={conf}
"""
