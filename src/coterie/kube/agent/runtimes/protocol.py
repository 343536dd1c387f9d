"""`PodRuntime`: what the agent needs of whatever runs containers.

The agent decides (what to start, restart, stop); a runtime only does what it is told and reports what is. It knows
nothing of the API, of restart policies or of probes. A runtime outlives its agent: containers go on when the agent
is killed, and the next agent finds them, their exit codes and their logs by `pods()`.

    prepare_pod ──> start_container ──(runs, exits)──> ... ──> stop_pod ──> remove_pod

All calls are idempotent: preparing a prepared pod or removing a removed one is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from coterie.base.container_logs import LogOptions


class RuntimeFailure(Exception):
    """The runtime cannot do it. `reason` is what container statuses show, e.g. ErrImageNeverPull."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host that a container sees at `target`."""

    source: Path
    target: str
    """A relative one begins at the container's working directory."""
    read_only: bool = False
    optional: bool = False
    """Whether a runtime that cannot put it there may start the container without."""
    resolved: bool = False
    """The source was checked and has no links in it. Containers may write where it lies: one that is there now is refused."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """What a container, or a pod as a whole, may use; 0 means no limit."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pids: int = 0
    cpu_shares_milli: int = 0
    """Requested CPU: the share under contention. 0: the least share there is."""
    open_files: int = 0
    """Open files of one process (soft limit)."""
    file_bytes: int = 0
    """Size of one file."""


@dataclass(frozen=True, slots=True)
class Security:
    """The security context as far as a runtime can give it."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    read_only_root: bool = False
    privileged: bool = False
    allow_privilege_escalation: bool = False
    seccomp_unconfined: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    """Names as in a pod; `ALL` stands for all of them."""


class PodKind(StrEnum):
    """Whose a pod is, which decides what it may reach."""

    ORDINARY = "ordinary"
    """The domain's own: all pods of the domain."""
    ENGINE = "engine"
    """Of a task of the domain: the other pods of its group."""
    GUEST = "guest"
    """Another domain began it: like an engine, and fewer services of the node."""


@dataclass(frozen=True, slots=True)
class PodNetworkClass:
    """What a pod is on the pod network."""

    kind: PodKind = PodKind.ORDINARY
    group: str = ""
    """Engines of one group (a task) reach each other."""
    host: bool = False
    """It has no network of its own but the machine's (`hostNetwork`)."""


@dataclass(frozen=True, slots=True)
class RemotePod:
    """An engine of another node, as the pod network of this one knows it."""

    address: str
    kind: PodKind
    group: str


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """What all containers of a pod share."""

    uid: str
    namespace: str
    name: str
    hostname: str
    directory: Path
    """The pod's own directory; removed with the pod."""
    hosts: str = ""
    """Content of the pod's /etc/hosts."""
    resolv_conf: str = ""
    """Content of the pod's /etc/resolv.conf."""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""
    """The pod's own address; empty where it shares the machine's network."""
    network: str = "pod"
    """`pod`, or `host` for the machine's network."""
    kind: str = PodKind.ORDINARY
    group: str = ""
    limits: ContainerLimits = ContainerLimits()
    """What all containers together may use: CPU, memory, processes."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    """Of the pod's own network."""
    memory_volumes: tuple[tuple[Path, int], ...] = ()
    """Directories that should lie in memory, with the largest size (0: any), where the agent could not mount them."""
    handler: str = "runp"
    """What runs the pod's containers; one of the runtime's `handlers()`."""
    privileged: bool = False
    """Whether a container of it is privileged."""


@dataclass(frozen=True, slots=True)
class ContainerWarning:
    """Something about a run that people should know while it goes on: an event's reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One run of one container. `attempt` counts its restarts; (pod, name, attempt) identifies the run."""

    name: str
    attempt: int
    image: str
    command: tuple[str, ...]
    """Empty: the image's own entry point."""
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    working_dir: str
    mounts: tuple[Mount, ...]
    log_path: Path
    """CRI-format log file of this run: `<RFC3339Nano> stdout|stderr F|P <line>`."""
    limits: ContainerLimits = ContainerLimits()
    security: Security = Security()
    stdin: bool = False
    stdin_once: bool = False
    """Whether the container's input ends with that of the first who attaches. Otherwise others may come and go on."""
    tty: bool = False
    writable_paths: tuple[str, ...] = ()
    """Paths of the host that the process may write besides its mounts (for runtimes that share the host's files)."""
    target: str = ""
    """A container of the pod whose processes this one sees and may signal; empty: it sees its own only."""
    image_id: str = ""
    """The id that the agent verified. A runtime starts no other image; empty: whichever has the name."""
    devices: tuple[str, ...] = ()
    """Devices of the host that the container was given, such as /dev/nvidia0; it sees no other but the harmless ones."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    name: str
    attempt: int
    image: str
    image_id: str
    pid: int
    """0 when it does not run."""
    started_at: float
    """Seconds since 1970."""
    finished_at: float = 0.0
    """0 while it runs."""
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    """Completed, Error, OOMKilled, ContainerCannotRun, ContainerStatusUnknown."""
    message: str = ""
    log_path: Path | None = None
    warnings: tuple[ContainerWarning, ...] = ()

    @property
    def running(self) -> bool:
        return not self.finished_at


@dataclass(frozen=True, slots=True)
class PodState:
    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerState, ...]
    """The newest runs of each container, older ones as far as they are kept; newest last."""


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """What a container used so far and uses now."""

    cpu_nanoseconds: int
    memory_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class ImageInfo:
    name: str
    """`repository:tag`."""
    id: str
    """`sha256:...`"""
    size: int
    kind: str
    """rootfs or host."""
    digest: str = ""
    """`sha256:...` of what is inside; empty: unknown."""


@dataclass(frozen=True, slots=True)
class RuntimeHandler:
    """A way to run containers, by the name that a RuntimeClass gives as its handler."""

    name: str
    """runp, bubblewrap, runc, crun, gvisor, kata."""
    available: bool
    why: str = ""
    """Why it is not available on this machine and what to do about it: one sentence."""
    version: str = ""


class ExecSession(Protocol):
    """A running exec, or an attachment to a container. Streams end with b""."""

    async def read_stdout(self) -> bytes: ...

    async def read_stderr(self) -> bytes: ...

    async def write_stdin(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    def resize(self, columns: int, rows: int) -> None: ...

    async def wait(self) -> int:
        """The exit code of the command (of the container, for an attachment)."""

    async def close(self) -> None:
        """Let go; an exec that still runs is killed, an attached container is not."""


@runtime_checkable
class ResizingRuntime(Protocol):
    """A runtime that changes limits of containers while they run. Not every one can."""

    def resize_problem(self, pod_uid: str) -> str:
        """Why limits of this pod cannot be changed; empty: they can."""

    async def resize_pod(
        self, pod_uid: str, limits: ContainerLimits, containers: Mapping[str, ContainerLimits], *, final: bool
    ) -> None:
        """Change CPU and memory of the pod as a whole and of running containers, by name. Not `final`: the pod keeps what
        it had where that is more. Raises RuntimeFailure, for example when more memory is used than the new limit."""


class PodAccess(Protocol):
    """What runs, and ways into it: what is served of pods to whoever asks the node."""

    def pods(self) -> Sequence[PodState]:
        """All pods this runtime knows, from memory."""

    def pod(self, pod_uid: str) -> PodState | None: ...

    async def exec(
        self, pod_uid: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool, stderr: bool = True
    ) -> ExecSession: ...

    async def attach(self, pod_uid: str, container: str, *, stdin: bool) -> ExecSession: ...

    async def usage(self, pod_uid: str) -> dict[str, ContainerUsage]:
        """Use of each running container, by name."""

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port inside the pod (port-forward, probes)."""


@runtime_checkable
class LogSource(Protocol):
    """Where the output of containers is not in files of this node."""

    def log(self, pod_uid: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """As `kubectl logs` shows it. Raises ApiError and TransportError."""


class PodRuntime(PodAccess, Protocol):
    @property
    def name(self) -> str:
        """runp, runc, runk, fake."""

    async def open(self) -> None:
        """Find what is running; after this `pods()` tells the truth."""

    async def close(self) -> None:
        """Let go of everything; containers go on."""

    async def prepare_pod(self, sandbox: PodSandbox) -> None: ...

    async def start_container(self, pod_uid: str, spec: ContainerSpec) -> ContainerState:
        """Start a run. Raises RuntimeProblem (ErrImageNeverPull, CreateContainerError, ...)."""

    async def stop_container(self, pod_uid: str, name: str, grace: float) -> None:
        """SIGTERM, and after `grace` seconds SIGKILL, to all its processes; returns when it is gone."""

    async def signal_container(self, pod_uid: str, name: str, number: int) -> None: ...

    async def stop_pod(self, pod_uid: str, grace: float) -> None:
        """Stop all containers of the pod side by side."""

    async def remove_pod(self, pod_uid: str) -> None:
        """Forget a stopped pod: its runs, cgroups and directory. Log files stay."""

    def events(self) -> AsyncIterator[str]:
        """Yields the uid of each pod whose containers changed by themselves, as it happens; never polls."""

    def network_bytes(self, pod_uid: str) -> int | None:
        """Bytes that went through the pod's own network, both ways together; None where it shares the machine's, or
        cannot be read."""

    def writable_directories(self, pod_uid: str) -> Mapping[str, Sequence[Path]]:
        """By container: where what it writes outside of volumes lies on disk."""

    def deleted_files(self, pod_uid: str) -> int:
        """Bytes on disk in files that were deleted and that processes of the pod still hold open. Slow; any thread."""

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        """The address that the pod has, or will have: known before it is prepared, and the same until it is removed.
        Raises RuntimeFailure when there is none left, or the pod cannot have the network it asks for."""

    def pod_ip(self, pod_uid: str) -> str:
        """The address at which the pod's ports are reached; empty before it was assigned."""

    def images(self) -> Sequence[ImageInfo]: ...

    def handlers(self) -> Sequence[RuntimeHandler]:
        """The handlers this runtime knows, also those that this machine lacks; complete after `open()`."""

    def limitations(self) -> Sequence[str]:
        """What this runtime cannot isolate or limit on this machine, one sentence each; logged once and shown."""
