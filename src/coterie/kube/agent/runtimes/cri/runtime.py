"""`CriRuntime`: pods on a containerd of the node's own, by CRI v1.

    prepare_pod      the pod network expects the pod ──> RunPodSandbox ──> containerd's network plugin (ours) connects it
    start_container  image from our store ──> CreateContainer, StartContainer
    events           containerd's event stream says that a task ended ──> ContainerStatus says how

What `pods()` tells is kept in memory: read from containerd when it is connected to, kept up to date by its events. containerd
runs while there are pods; it and the containers outlive the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from coterie.base.files import private_directory, write_atomic
from coterie.base.log import logger
from coterie.kube.agent.images.store import ImageStore, remove_tree
from coterie.kube.agent.runtimes.cri import container_init, daemon, messages, pod_config
from coterie.kube.agent.runtimes.cri.connection import ContainerdCallFailed, ContainerdConnection
from coterie.kube.agent.runtimes.cri.image_import import ImageImport, upper_directory
from coterie.kube.agent.runtimes.cri.log_rotation import rotate
from coterie.kube.agent.runtimes.cri.messages import Message
from coterie.kube.agent.runtimes.cri.sessions import Attachment, NotExecuted, TaskExec
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.cri.staged_volumes import StagedVolumes
from coterie.kube.agent.runtimes.pod_events import PodEvents
from coterie.kube.agent.runtimes.pod_files import write_etc_files
from coterie.kube.agent.runtimes.protocol import (
    ContainerLimits,
    ContainerSpec,
    ContainerState,
    ContainerUsage,
    ExecSession,
    ImageInfo,
    PodNetworkClass,
    PodSandbox,
    PodState,
    RuntimeFailure,
    RuntimeHandler,
)
from coterie.kube.agent.runtimes.runp import cgroups, pause, resize
from coterie.kube.agent.runtimes.runp.runtime import pinned_image
from coterie.kube.agent.runtimes.runp.session import FailedSession
from coterie.kube.agent.runtimes.runp.usage import deleted_bytes

_log = logger("agent.cri")
KEPT_RUNS = 5
_TRIES = 3
_INIT_SECONDS, _EXIT_SECONDS = 30.0, 10.0
_POLL_SECONDS = 0.01
_LATE_SYNC_SECONDS = 1.0
_LOG_CHECK_SECONDS = 10.0
_EXITS = 'topic=="/tasks/exit"'
_SIGTERM = 15
_GROUP_TRIES, _LISTENING_TRIES = 50, 50


class ConnectedNetwork(Protocol):
    """The pod network as another runtime has it: `RunpRuntime`."""

    @property
    def network_directory(self) -> Path | None: ...

    async def expect_pod(self, sandbox: PodSandbox) -> None: ...

    async def disconnect_pod(self, pod_uid: str) -> None: ...

    async def dial_connected(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str: ...

    def pod_ip(self, pod_uid: str) -> str: ...


@dataclass(slots=True)
class CriRun:
    """One run of one container, as containerd has it."""

    id: str
    state: ContainerState
    tty: bool = False
    stdin_once: bool = True
    writable: Path | None = None
    """Where it writes over its image."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class CriRuntime:
    """Implements `PodRuntime`."""

    name = "runc"

    def __init__(
        self,
        settings: CriSettings,
        network: ConnectedNetwork,
        programs: daemon.ContainerPrograms | None = None,
    ) -> None:
        self._settings = settings
        self._network = network
        self.store = ImageStore(settings.images)
        self._programs = programs
        self._handlers: tuple[RuntimeHandler, ...] = ()
        self._daemon = daemon.ContainerdDaemon(settings, programs or daemon.ContainerPrograms(), None)
        self._volumes = StagedVolumes(settings.state / "volumes")
        self._connection: ContainerdConnection | None = None
        self._images: ImageImport | None = None
        self._connecting = asyncio.Lock()
        self._groups: cgroups.Cgroups | None = None
        self._sandboxes: dict[str, PodSandbox] = {}
        self._ready: dict[str, str] = {}
        """By pod: containerd's id of its sandbox that is ready."""
        self._attempts: dict[str, int] = {}
        """By pod: the number of its next sandbox."""
        self._runs: dict[str, dict[tuple[str, int], CriRun]] = {}
        self._starting: set[str] = set()
        self._early_exits: set[str] = set()
        """Containers that ended before their start was answered."""
        self._streams: set[PodEvents] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ending = False

    # ----- life

    async def open(self) -> None:
        self._closed = False
        programs = self._programs
        if programs is None:
            programs = await asyncio.to_thread(daemon.find_programs)
        self._handlers = daemon.handlers(programs)
        self._daemon = daemon.ContainerdDaemon(self._settings, programs, self._network.network_directory)
        if not any(handler.available for handler in self._handlers):
            return
        self._groups = cgroups.detect(self._settings.group)
        private_directory(self._settings.directory)
        self._volumes.clear()
        self._load_records()
        for sandbox in self._sandboxes.values():
            if self._has_own_network(sandbox):
                await self._network.expect_pod(sandbox)
        if self._sandboxes or self._daemon.pid:
            try:
                await self._connected()
            except RuntimeFailure as problem:
                # Its pods are shown without containers, and every order for one tries again.
                _log.error("containerd cannot be used", error=problem)
        self._end_when_idle()

    async def close(self) -> None:
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        tasks = [*self._tasks, *([self._watcher] if self._watcher is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watcher = None
        await self._disconnect()
        if not self._sandboxes and self._settings.idle_seconds:
            await self.end_daemon()
        for stream in list(self._streams):
            stream.end()

    def _load_records(self) -> None:
        for path in self._settings.records.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                sandbox = pod_config.sandbox_of(json.loads(path.read_text()))
                self._sandboxes[sandbox.uid] = sandbox
                self._runs.setdefault(sandbox.uid, {})

    def _end_when_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._settings.idle_seconds:
            self._idle_timer = asyncio.get_running_loop().call_later(self._settings.idle_seconds, self._idle)

    def _idle(self) -> None:
        if not self._sandboxes and not self._closed:
            self._spawn(self._end_idle(), "cri-idle")

    async def _end_idle(self) -> None:
        async with self._connecting:
            if not self._sandboxes:
                await self.end_daemon()

    async def end_daemon(self) -> None:
        """End containerd, whatever it has."""
        self._ending = True
        try:
            await self._disconnect()
            if self._daemon.pid:
                await self._daemon.stop()
        finally:
            self._ending = False

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ----- the connection

    async def _connected(self) -> ContainerdConnection:
        """Raises RuntimeFailure."""
        if self._connection is not None:
            return self._connection
        async with self._connecting:
            if self._connection is None:
                await self._daemon.ensure()
                connection = ContainerdConnection(self._settings.socket)
                try:
                    await self._await_initialised(connection)
                    images = ImageImport(self.store, connection)
                    await images.ensure_pause(_pause_program())
                    await self._sync(connection, first=True)
                except BaseException:
                    await connection.close()
                    raise
                self._connection, self._images = connection, images
                if self._watcher is None or self._watcher.done():
                    self._watcher = asyncio.create_task(self._watch(), name="cri-watch")
        return self._connection

    async def _await_initialised(self, connection: ContainerdConnection) -> None:
        """containerd answers before its CRI part has read what there is."""
        try:
            async with asyncio.timeout(_INIT_SECONDS):
                while True:
                    try:
                        await connection.call("ListPodSandbox")
                        return
                    except ContainerdCallFailed as problem:
                        error = problem
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise RuntimeFailure("RuntimeNotReady", f"containerd does not serve CRI: {error.message}") from error

    async def _disconnect(self) -> None:
        connection, self._connection, self._images = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _call(self, method: str, message: Message | None = None) -> Message:
        """Every order may be given twice, so one whose answer was lost is given again. Raises RuntimeFailure."""
        for _ in range(_TRIES - 1):
            connection = await self._connected()
            try:
                return await connection.call(method, message)
            except ContainerdCallFailed as problem:
                if not problem.lost or self._closed:
                    raise
            if self._connection is connection:
                await self._disconnect()
        return await (await self._connected()).call(method, message)

    async def _watch(self) -> None:
        """Follow containerd's events, through its restarts."""
        wait = 0.05
        while not self._closed:
            try:
                connection = await self._connected()
                # What ends between the listing and the subscription has no event for us.
                self._spawn(self._late_sync(connection), "cri-late-sync")
                self._spawn(self._check_logs(connection), "cri-logs")
                async for envelope in connection.events(_EXITS):
                    wait = 0.05
                    self._on_exit(messages.decode("TaskExit", envelope.get("event", {}).get("value", b"")))
                await self._disconnect()
            except RuntimeFailure as problem:
                if self._closed:
                    return
                await self._disconnect()
                if not self._sandboxes or self._ending:
                    return  # containerd was ended; the next pod starts it again
                _log.warning("The connection to containerd broke; its containers keep running", error=problem)
            await asyncio.sleep(wait)
            wait = min(wait * 2, 5.0)

    async def _late_sync(self, connection: ContainerdConnection) -> None:
        await asyncio.sleep(_LATE_SYNC_SECONDS)
        with contextlib.suppress(ContainerdCallFailed):
            await self._sync(connection, first=False)

    async def _check_logs(self, connection: ContainerdConnection) -> None:
        settings = self._settings
        while settings.log_bytes and self._connection in (connection, None):
            for run in [run for runs in self._runs.values() for run in runs.values() if run.state.running]:
                path = run.state.log_path
                if path is not None and rotate(path, settings.log_bytes, settings.log_files):
                    with contextlib.suppress(ContainerdCallFailed):
                        await connection.call("ReopenContainerLog", {"container_id": run.id})
            await asyncio.sleep(_LOG_CHECK_SECONDS)

    # ----- what containerd has

    async def _sync(self, connection: ContainerdConnection, *, first: bool) -> None:
        """Read all pods and runs; announce what changed. `first`: nothing is under way. Raises ContainerdCallFailed."""
        sandboxes = (await connection.call("ListPodSandbox")).get("items", [])
        containers = (await connection.call("ListContainers")).get("containers", [])
        for sandbox in sandboxes:
            uid, metadata = sandbox.get("labels", {}).get(pod_config.POD_UID, ""), sandbox.get("metadata", {})
            if uid not in self._sandboxes:
                if first:  # of a pod whose preparation or removal an earlier agent did not finish
                    await self._remove_sandbox(connection, sandbox["id"])
                continue
            self._attempts[uid] = max(self._attempts.get(uid, 0), metadata.get("attempt", 0) + 1)
            if sandbox.get("state", messages.SANDBOX_READY) == messages.SANDBOX_READY:
                self._ready[uid] = sandbox["id"]
            elif self._ready.get(uid) == sandbox["id"]:
                del self._ready[uid]
        containers.sort(key=lambda container: container.get("created_at", 0))
        for container in containers:
            uid = container.get("labels", {}).get(pod_config.POD_UID, "")
            if uid not in self._sandboxes:
                continue
            if container.get("state", messages.CREATED) == messages.CREATED:
                if first:
                    with contextlib.suppress(ContainerdCallFailed):  # it was never started
                        await connection.call("RemoveContainer", {"container_id": container["id"]})
            else:
                await self._read(connection, uid, container["id"])

    async def _remove_sandbox(self, connection: ContainerdConnection, sandbox: str) -> None:
        with contextlib.suppress(ContainerdCallFailed):
            await connection.call("StopPodSandbox", {"pod_sandbox_id": sandbox})
            await connection.call("RemovePodSandbox", {"pod_sandbox_id": sandbox})

    async def _read(self, connection: ContainerdConnection, uid: str, container: str) -> CriRun | None:
        """What containerd says about a run now; None when it has no such run. Raises ContainerdCallFailed."""
        try:
            status = (await connection.call("ContainerStatus", {"container_id": container}))["status"]
        except ContainerdCallFailed as problem:
            if problem.missing:
                return None
            raise
        pid, known = 0, self._run(uid, container)
        if status.get("state") == messages.RUNNING:
            pid = known.state.pid if known is not None else 0
            if not pid:
                with contextlib.suppress(ContainerdCallFailed):
                    answer = await connection.call("tasks.v1.Tasks/Get", {"container_id": container})
                    pid = answer.get("process", {}).get("pid", 0)
        state = pod_config.state_of(status, pid)
        if known is None:
            known = CriRun(container, state, pod_config.is_tty(status), pod_config.closes_stdin(status))
            with contextlib.suppress(ContainerdCallFailed, KeyError, IndexError):
                key = {"snapshotter": daemon.SNAPSHOTTER, "key": container}
                mounts = (await connection.call("snapshots.v1.Snapshots/Mounts", key))["mounts"]
                known.writable = upper_directory(mounts)
            self._runs.setdefault(uid, {})[(state.name, state.attempt)] = known
            self._announce(uid)
        elif known.state != state:
            known.state = state
            self._announce(uid)
        if not state.running:
            known.over.set()
            self._early_exits.discard(container)
        elif container in self._early_exits:
            self._early_exits.discard(container)
            self._spawn(self._until_exited(uid, container), "cri-exit")
        return known

    def _run(self, uid: str, container: str) -> CriRun | None:
        return next((run for run in self._runs.get(uid, {}).values() if run.id == container), None)

    def _on_exit(self, event: Message) -> None:
        container = event.get("container_id", "")
        if event.get("id", container) != container:
            return  # of an exec
        for uid in self._runs:
            if self._run(uid, container) is not None:
                self._spawn(self._until_exited(uid, container), "cri-exit")
                return
        if container in self._starting:
            self._early_exits.add(container)
        for uid, sandbox in list(self._ready.items()):
            if sandbox == container:
                self._spawn(self._sandbox_ended(uid), "cri-sandbox")

    async def _sandbox_ended(self, uid: str) -> None:
        """Without it the pod's containers have lost what they share: they end, and start again in a new one."""
        self._ready.pop(uid, None)
        _log.warning("The sandbox of a pod ended; its containers are stopped", pod=uid)
        with contextlib.suppress(RuntimeFailure):
            await self.stop_pod(uid, 0)

    async def _until_exited(self, uid: str, container: str) -> None:
        """containerd publishes the end of a task before its CRI part has written down how it ended."""
        with contextlib.suppress(TimeoutError, RuntimeFailure):
            async with asyncio.timeout(_EXIT_SECONDS):
                while True:
                    run = await self._read(await self._connected(), uid, container)
                    if run is None or not run.state.running:
                        return
                    await asyncio.sleep(_POLL_SECONDS)

    def _announce(self, uid: str) -> None:
        for stream in self._streams:
            stream.put(uid)

    # ----- pods and containers

    async def prepare_pod(self, sandbox: PodSandbox) -> None:
        write_etc_files(pod_config.pod_files(sandbox.directory), sandbox)
        private_directory(self._settings.records)
        await self._connected()
        self._remember(sandbox)
        self._runs.setdefault(sandbox.uid, {})
        if sandbox.uid not in self._ready:
            await self._run_sandbox(sandbox)

    def _remember(self, sandbox: PodSandbox) -> None:
        write_atomic(self._record(sandbox.uid), json.dumps(pod_config.record_of(sandbox)), durable=False)
        self._sandboxes[sandbox.uid] = sandbox

    def _record(self, uid: str) -> Path:
        return self._settings.records / f"{uid}.json"

    async def _run_sandbox(self, sandbox: PodSandbox) -> None:
        uid = sandbox.uid
        if self._has_own_network(sandbox):
            await self._network.expect_pod(sandbox)
        self._limit(sandbox)
        attempt = self._attempts.get(uid, 0)
        config = self._sandbox_config(sandbox, attempt)
        try:
            answer = await self._call("RunPodSandbox", {"config": config, "runtime_handler": sandbox.handler})
        except ContainerdCallFailed as problem:
            if uid in self._ready:
                return  # it was made, and the answer was lost with the connection
            raise RuntimeFailure("FailedCreatePodSandBox", problem.message) from problem
        self._attempts[uid] = attempt + 1
        self._ready[uid] = answer["pod_sandbox_id"]

    def _sandbox_config(self, sandbox: PodSandbox, attempt: int) -> Message:
        group = self._groups.path(sandbox.uid) if self._groups is not None else ""
        return pod_config.sandbox_config(sandbox, attempt, group, own_network=self._has_own_network(sandbox))

    def _has_own_network(self, sandbox: PodSandbox) -> bool:
        return bool(sandbox.address) and sandbox.network != "host" and self._network.network_directory is not None

    def _limit(self, sandbox: PodSandbox) -> None:
        """The pod as a whole. Limits of a pod that is there already are not moved under its containers."""
        if self._groups is None or self._groups.exists(sandbox.uid):
            return
        limits = sandbox.limits
        try:
            self._groups.create(
                sandbox.uid, limits.cpu_milli, limits.cpu_shares_milli, limits.memory_bytes, limits.pids
            )
        except OSError as problem:
            raise RuntimeFailure("FailedCreatePodSandBox", f"the pod's control group: {problem}") from problem

    async def start_container(self, pod_uid: str, spec: ContainerSpec) -> ContainerState:
        pod = self._sandboxes.get(pod_uid)
        if pod is None:
            raise RuntimeFailure("CreateContainerError", f"pod {pod_uid} is not prepared")
        await self._connected()
        known = self._runs.get(pod_uid, {}).get((spec.name, spec.attempt))
        if known is not None:
            return known.state
        image = pinned_image(self.store, spec, self._settings.node)
        assert self._images is not None
        reference = await self._images.ensure(image)
        if pod_uid not in self._ready:
            await self._run_sandbox(pod)  # after a reboot, or when somebody killed it
        init = self._init_program() if pod.handler != daemon.KATA else None
        context = pod_config.RunContext(reference, init, self._target_id(pod_uid, spec.target))
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._volumes.staged(spec, self._daemon.pid) as staged:
            answer = await self._call(
                "CreateContainer",
                {
                    "pod_sandbox_id": self._ready[pod_uid],
                    "config": pod_config.container_config(image, pod, staged, context),
                    "sandbox_config": self._sandbox_config(pod, self._attempts[pod_uid] - 1),
                },
            )
            run = await self._start(pod_uid, answer["container_id"], spec)
        self._spawn(self._forget_old(pod_uid, spec.name), "cri-forget")
        return run.state

    async def _start(self, pod_uid: str, container: str, spec: ContainerSpec) -> CriRun:
        limits = spec.limits
        self._starting.add(container)
        try:
            if self._groups is not None:
                # Made before runc does, for it is not told the limit of processes.
                self._groups.create(
                    f"{pod_uid}/{container}",
                    limits.cpu_milli,
                    limits.cpu_shares_milli,
                    limits.memory_bytes,
                    limits.pids,
                )
            await self._call("StartContainer", {"container_id": container})
            run = await self._read(await self._connected(), pod_uid, container)
        except (RuntimeFailure, OSError) as problem:
            with contextlib.suppress(RuntimeFailure):
                await self._call("RemoveContainer", {"container_id": container})
            if isinstance(problem, OSError):
                raise RuntimeFailure("CreateContainerError", f"the container's control group: {problem}") from problem
            raise
        finally:
            self._starting.discard(container)
        if run is None:
            raise RuntimeFailure("CreateContainerError", "containerd lost the container")
        return run

    def _init_program(self) -> Path | None:
        content = container_init.program()
        if not content:
            return None
        path = self._settings.directory / "init"
        if not path.exists() or path.read_bytes() != content:
            write_atomic(path, content, mode=0o755)
        return path

    def _target_id(self, pod_uid: str, name: str) -> str:
        if not name:
            return ""
        run = self._newest(pod_uid, name)
        if run is None or not run.state.running:
            raise RuntimeFailure("CreateContainerError", f'the target container "{name}" does not run')
        return run.id

    def _newest(self, pod_uid: str, name: str) -> CriRun | None:
        found = [run for (container, _), run in self._runs.get(pod_uid, {}).items() if container == name]
        return found[-1] if found else None

    async def _forget_old(self, pod_uid: str, name: str) -> None:
        runs = self._runs.get(pod_uid, {})
        ended = [key for key, run in runs.items() if key[0] == name and not run.state.running]
        for key in ended[:-KEPT_RUNS]:
            with contextlib.suppress(RuntimeFailure):
                await self._call("RemoveContainer", {"container_id": runs.pop(key).id})

    async def stop_container(self, pod_uid: str, name: str, grace: float) -> None:
        run = self._newest(pod_uid, name)
        if run is None or not run.state.running:
            return
        if grace > 0:
            await self._until_listening(run)
            with contextlib.suppress(ContainerdCallFailed):  # it may be gone
                await self._call("tasks.v1.Tasks/Kill", {"container_id": run.id, "signal": _SIGTERM})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.over.wait(), grace)
        if not run.over.is_set():
            try:
                await self._call("StopContainer", {"container_id": run.id})
            except ContainerdCallFailed as problem:
                if not problem.missing:
                    raise
            await self._until_exited(pod_uid, run.id)
            if run.state.running:
                raise RuntimeFailure("RuntimeNotReady", f"containerd does not stop container {name}")

    async def _until_listening(self, run: CriRun) -> None:
        """A signal that comes before process 1 expects it would be lost: the program was started just now."""
        for _ in range(_LISTENING_TRIES):
            if container_init.is_listening(run.state.pid) or not run.state.running:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def signal_container(self, pod_uid: str, name: str, number: int) -> None:
        run = self._newest(pod_uid, name)
        if run is not None and run.state.running:
            await self._until_listening(run)
            with contextlib.suppress(ContainerdCallFailed):
                await self._call("tasks.v1.Tasks/Kill", {"container_id": run.id, "signal": int(number)})

    def resize_problem(self, pod_uid: str) -> str:
        return "" if self._groups is not None else "this node has no control groups, so limits cannot be changed"

    async def resize_pod(
        self, pod_uid: str, limits: ContainerLimits, containers: Mapping[str, ContainerLimits], *, final: bool
    ) -> None:
        sandbox, groups = self._sandboxes.get(pod_uid), self._groups
        if sandbox is None or groups is None:
            raise RuntimeFailure("ResizeError", "there is no such pod" if groups else "there are no control groups")
        wanted = [
            (f"{pod_uid}/{run.id}", f"Container {name}", containers[name])
            for name, run in self._running(pod_uid).items()
            if name in containers
        ]
        loose = _looser(sandbox.limits, limits)
        _set_limits(groups, pod_uid, loose)
        self._remember(replace(sandbox, limits=loose))
        for group, what, each in wanted:
            _refuse_small_memory(groups, group, what, each)
        for group, _, each in wanted:
            _set_limits(groups, group, each)
        if final:
            _refuse_small_memory(groups, pod_uid, "The pod", limits)
            _set_limits(groups, pod_uid, limits)
            self._remember(replace(sandbox, limits=replace(limits, pids=sandbox.limits.pids)))

    async def stop_pod(self, pod_uid: str, grace: float) -> None:
        names = {name for name, _ in self._runs.get(pod_uid, {})}
        await asyncio.gather(*(self.stop_container(pod_uid, name, grace) for name in names))

    async def remove_pod(self, pod_uid: str) -> None:
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is None:
            return
        await self.stop_pod(pod_uid, 0)
        listed = (await self._call("ListPodSandbox")).get("items", [])
        for each in listed:
            if each.get("labels", {}).get(pod_config.POD_UID) == pod_uid:
                self._ready.pop(pod_uid, None)
                for method in ("StopPodSandbox", "RemovePodSandbox"):
                    await self._call(method, {"pod_sandbox_id": each["id"]})
        await self._network.disconnect_pod(pod_uid)
        self._record(pod_uid).unlink(missing_ok=True)
        self._sandboxes.pop(pod_uid)
        self._runs.pop(pod_uid, None)
        self._ready.pop(pod_uid, None)
        self._attempts.pop(pod_uid, None)
        await self._remove_group(pod_uid)
        if self._images is not None:
            await self._images.collect()
        self._end_when_idle()
        if sandbox.directory.exists():
            await asyncio.to_thread(remove_tree, sandbox.directory)

    async def _remove_group(self, pod_uid: str) -> None:
        """The kernel takes a moment to let go of a process that has ended."""
        for _ in range(_GROUP_TRIES):
            if self._groups is None or self._groups.remove(pod_uid):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def stop_sandboxes(self) -> None:
        """For a node that is being shut down: nothing of its pods runs or is mounted; what ended stays known."""
        while self._ready:
            _, sandbox = self._ready.popitem()
            with contextlib.suppress(ContainerdCallFailed):
                await self._call("StopPodSandbox", {"pod_sandbox_id": sandbox})

    # ----- what is

    def pods(self) -> Sequence[PodState]:
        return [self._pod_state(uid) for uid in self._sandboxes]

    def pod(self, pod_uid: str) -> PodState | None:
        return self._pod_state(pod_uid) if pod_uid in self._sandboxes else None

    def _pod_state(self, uid: str) -> PodState:
        sandbox = self._sandboxes[uid]
        states = tuple(run.state for run in self._runs.get(uid, {}).values())
        return PodState(uid, sandbox.namespace, sandbox.name, states)

    def events(self) -> AsyncIterator[str]:
        stream = PodEvents(self._streams.discard)
        self._streams.add(stream)
        return stream

    def _running(self, pod_uid: str) -> dict[str, CriRun]:
        return {run.state.name: run for run in self._runs.get(pod_uid, {}).values() if run.state.running}

    async def usage(self, pod_uid: str) -> dict[str, ContainerUsage]:
        found = {}
        for name, run in self._running(pod_uid).items():
            read = self._groups.usage(f"{pod_uid}/{run.id}") if self._groups is not None else None
            usage = ContainerUsage(*read) if read is not None else await self._stats(run)
            if usage is not None:
                found[name] = usage
        return found

    async def _stats(self, run: CriRun) -> ContainerUsage | None:
        """Where its control group cannot be read: a virtual machine, for example."""
        try:
            stats = (await self._call("ContainerStats", {"container_id": run.id})).get("stats", {})
        except ContainerdCallFailed:
            return None
        cpu = stats.get("cpu", {}).get("usage_core_nano_seconds", {}).get("value", 0)
        memory = stats.get("memory", {}).get("working_set_bytes", {}).get("value", 0)
        return ContainerUsage(cpu, memory, 1)

    def network_bytes(self, pod_uid: str) -> int | None:
        return None

    def writable_directories(self, pod_uid: str) -> Mapping[str, Sequence[Path]]:
        found: dict[str, list[Path]] = {}
        for (name, _), run in self._runs.get(pod_uid, {}).items():
            if run.writable is not None:
                found.setdefault(name, []).append(run.writable)
        return found

    def deleted_files(self, pod_uid: str) -> int:
        if self._groups is None:
            return 0
        groups = self._groups
        pids = {pid for run in self._running(pod_uid).values() for pid in groups.processes(f"{pod_uid}/{run.id}")}
        return deleted_bytes(pids, self._settings.root)

    # ----- streams

    async def exec(
        self, pod_uid: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool, stderr: bool = True
    ) -> ExecSession:
        run = self._must_run(pod_uid, container)
        answer = await self._call("containers.v1.Containers/Get", {"id": run.id})
        process = json.loads(answer["container"]["spec"]["value"])["process"]
        process |= {"args": list(command), "terminal": tty}
        process.pop("consoleSize", None)
        if tty and not any(entry.startswith("TERM=") for entry in process.get("env", ())):
            process["env"] = [*process.get("env", ()), "TERM=xterm"]
        try:
            return await TaskExec.start(
                await self._connected(),
                self._settings.directory / "exec",
                run.id,
                process,
                stdin=stdin,
                stderr=stderr,
            )
        except NotExecuted as problem:
            return FailedSession(problem.code, str(problem), tty=tty)

    async def attach(self, pod_uid: str, container: str, *, stdin: bool) -> ExecSession:
        run = self._must_run(pod_uid, container)
        request = {"container_id": run.id, "stdin": stdin, "tty": run.tty, "stdout": True, "stderr": not run.tty}
        url = (await self._call("Attach", request))["url"]
        ended = asyncio.create_task(self._exit_code(run), name="cri-attached")
        try:
            return await Attachment.open(url, ended, stdin=stdin, tty=run.tty, stdin_once=run.stdin_once)
        except BaseException:
            ended.cancel()
            raise

    async def _exit_code(self, run: CriRun) -> int:
        await run.over.wait()
        return run.state.exit_code

    def _must_run(self, pod_uid: str, container: str) -> CriRun:
        run = self._newest(pod_uid, container)
        if run is None or not run.state.running:
            raise RuntimeFailure("ContainerNotRunning", f"container {container} is not running")
        return run

    # ----- network

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self._network.dial_connected(pod_uid, port)

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        return self._network.assign_address(pod_uid, network)

    def pod_ip(self, pod_uid: str) -> str:
        return self._network.pod_ip(pod_uid)

    # ----- what it can

    def images(self) -> Sequence[ImageInfo]:
        return [
            ImageInfo(image.name, image.id, image.size, image.kind, self.store.content_digest(image))
            for image in self.store.images()
        ]

    def handlers(self) -> Sequence[RuntimeHandler]:
        return self._handlers

    def limitations(self) -> Sequence[str]:
        if not self._settings.default or not any(handler.available for handler in self._handlers):
            return ()
        return (
            "Containers on containerd have no user namespace of their own: root in a container is root of the machine, "
            "with few capabilities and a filter for system calls.",
        )


def _looser(one: ContainerLimits, other: ContainerLimits) -> ContainerLimits:
    """What satisfies both."""
    had, wanted = (
        {"cpu": each.cpu_milli, "shares": each.cpu_shares_milli, "memory": each.memory_bytes} for each in (one, other)
    )
    found = resize.looser(had, wanted)
    return ContainerLimits(found["cpu"], found["memory"], one.pids, found["shares"])


def _set_limits(groups: cgroups.Cgroups, group: str, limits: ContainerLimits) -> None:
    try:
        groups.update(group, limits.cpu_milli, limits.cpu_shares_milli, limits.memory_bytes)
    except OSError as problem:
        raise RuntimeFailure("ResizeError", f"the control group: {problem}") from problem


def _refuse_small_memory(groups: cgroups.Cgroups, group: str, what: str, limits: ContainerLimits) -> None:
    if problem := resize.memory_problem(groups, group, what, limits.memory_bytes):
        raise RuntimeFailure("ResizeError", problem)


def _pause_program() -> bytes:
    handle = pause.program()
    if handle < 0:
        raise RuntimeFailure("RuntimeNotReady", f"there is no pause program for {os.uname().machine}")
    try:
        return os.pread(handle, 4096, 0)
    finally:
        os.close(handle)
