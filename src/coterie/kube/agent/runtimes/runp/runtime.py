"""`RunpRuntime`: the agent's face of RunP. Knows images and pods; leaves processes to the supervisor.

What `pods()` tells is kept in memory: filled by the supervisor's greeting, kept up to date by its events. When the
connection breaks, it is made anew, with a new supervisor if need be, and every pod that changed meanwhile is announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.base.log import logger
from coterie.kube.agent.images.flatten import flatten
from coterie.kube.agent.images.model import HOST, ID_MISMATCH, ImageError, StoredImage
from coterie.kube.agent.images.store import ImageStore, remove_tree
from coterie.kube.agent.runtimes.oci import tools
from coterie.kube.agent.runtimes.pod_events import PodEvents
from coterie.kube.agent.runtimes.pod_files import write_etc_files
from coterie.kube.agent.runtimes.protocol import (
    ContainerLimits,
    ContainerSpec,
    ContainerState,
    ContainerUsage,
    ContainerWarning,
    ExecSession,
    ImageInfo,
    PodNetworkClass,
    PodSandbox,
    PodState,
    RemotePod,
    RuntimeFailure,
    RuntimeHandler,
)
from coterie.kube.agent.runtimes.runp import cgroups, handlers, pod_networks
from coterie.kube.agent.runtimes.runp.client import (
    ConnectionLost,
    SupervisorClient,
    SupervisorRefused,
    SupervisorReply,
    group_of,
)
from coterie.kube.agent.runtimes.runp.holder_monitor import HolderMonitor
from coterie.kube.agent.runtimes.runp.network_access import PodAddresses
from coterie.kube.agent.runtimes.runp.request import links, pod_files, run_files, start_request
from coterie.kube.agent.runtimes.runp.session import FailedSession, PipeReader, PipeWriter, StreamSession
from coterie.kube.agent.runtimes.runp.settings import RunpSettings
from coterie.kube.agent.runtimes.runp.usage import deleted_bytes, network_bytes, processes_of, usage_of
from coterie.kube.network.overlay import cleanup as overlay_cleanup

_log = logger("agent.runp")
_RETRIES = 3
_EXEC_NOT_SET_UP = 128
_ATTACH_LINGER = 0.3
"""Seconds for which an attachment stays after its input has ended."""


_TRIAL = "trial"
_IDLE_AT_START = 5.0
"""Seconds after which a supervisor ends that was only asked what the machine can do."""


class RunpRuntime:
    """Implements `PodRuntime`."""

    name = "runp"

    def __init__(self, settings: RunpSettings) -> None:
        self._settings = settings
        self.store = ImageStore(settings.images)
        self._group = group_of(settings.node, settings.directory)
        self._client = SupervisorClient(settings.directory, self._group, settings.without, self._on_event, self._lost)
        self._powers: dict[str, Any] = {}
        self._addresses = PodAddresses(settings.network.cidr) if settings.network is not None else None
        self._handlers: tuple[RuntimeHandler, ...] = (handlers.RUNP,)
        self._bwrap = ""
        self._tools: list[tools.OciTool] = []
        self._groups: cgroups.Cgroups | None = None
        self._sandboxes: dict[str, PodSandbox] = {}
        self._runs: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
        self._streams: set[PodEvents] = set()
        self._execs: dict[int, asyncio.Future[int]] = {}
        self._ends: dict[tuple[str, str, int], list[asyncio.Future[int]]] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._holder = HolderMonitor(settings.directory, self._replace_holder, self._namespace_changed)
        self._connected: set[str] = set()
        """Pods of another runtime that are on the pod network."""
        self._remote_pods = pod_networks.read_remote(str(settings.directory))
        """Engines of other nodes, as the supervisor knows them."""
        self.on_namespace_change: list[Callable[[], None]] = []
        """Called when the pod network was made anew."""
        self._zygote_problems: dict[str, str] = {}
        """Why containers of an image start without preloaded modules, by image."""
        self._closed = False

    # ----- life

    async def open(self) -> None:
        self._closed = False
        self._settings.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._tools, _ = await asyncio.gather(tools.find(), self._connect())
        await self._find_handlers()
        for sentence in self.limitations():
            _log.warning("Containers are isolated less than they could be", why=sentence)
        if self._settings.network is not None:
            self._holder.start()
        self._end_when_idle(_IDLE_AT_START)

    async def _find_handlers(self) -> None:
        async def attempt(path: str) -> str:
            return str((await self._ask("try-bubblewrap", program=path)).result)

        bubblewrap, self._bwrap = await handlers.bubblewrap(self._powers, attempt)
        self._handlers = (handlers.RUNP, bubblewrap)

    async def close(self) -> None:
        self._closed = True
        await self._holder.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for task in (self._connecting, self._ending):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._leave_supervisor()
        for stream in list(self._streams):
            stream.end()
        self._fail_sessions()

    async def _leave_supervisor(self) -> None:
        """Containers keep the supervisor and the pod network. Without any, nothing is left of either."""
        if not self._sandboxes and not self._connected and self._settings.network is not None:
            if self._client.connected:
                with contextlib.suppress(ConnectionLost):
                    await self._client.ask("quit", release=True)
            else:
                pod_networks.release(str(self._settings.directory))
            overlay_cleanup.clean(self._settings.directory)
        self._client.close()
        self._client.release()

    async def _connect(self) -> None:
        hello = await self._client.connect()
        self._powers = hello["powers"]
        self._groups = cgroups.detect(hello["group"]) if self._powers["cgroup"] else None
        before = {uid: dict(runs) for uid, runs in self._runs.items()}
        self._connected = {pod["uid"] for pod in hello.get("connected", ())}
        self._take_zygotes(hello.get("zygotes", ()))
        for pod in hello.get("connected", ()):
            if self._addresses is not None and pod["address"]:
                self._addresses.take(pod["uid"], pod["address"])
        self._runs = {}
        for pod in hello["pods"]:
            self._sandboxes[pod["uid"]] = _sandbox(pod)
            if self._addresses is not None and pod["address"]:
                self._addresses.take(pod["uid"], pod["address"])
            self._runs[pod["uid"]] = {(run["name"], run["attempt"]): run for run in pod["runs"]}
        self._sandboxes = {uid: self._sandboxes[uid] for uid in self._runs}
        for uid, runs in self._runs.items():
            for run in runs.values():
                self._settle(uid, run)
            if before.get(uid) != runs:
                self._announce(uid)

    # A node without pods does without the supervisor: it is a process of its own with an interpreter of its own.

    def _end_when_idle(self, seconds: float) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._settings.idle_seconds:
            wait = min(seconds, self._settings.idle_seconds)
            self._idle_timer = asyncio.get_running_loop().call_later(wait, self._idle)

    def _idle(self) -> None:
        if not self._closed and not self._sandboxes and self._client.connected:
            self._ending = asyncio.create_task(self._end_supervisor(), name="runp-idle")

    async def _end_supervisor(self) -> None:
        # An order that crosses this one finds the connection lost, and is given again to the next supervisor.
        with contextlib.suppress(ConnectionLost):
            if (await self._client.ask("quit")).result:
                self._client.close()

    async def _awake(self) -> None:
        """There is a supervisor to talk to, or one is being started."""
        if not self._client.connected and not self._closed and (self._connecting is None or self._connecting.done()):
            self._connecting = asyncio.create_task(self._reconnect(), name="runp-connect")
        if self._connecting is not None and not self._connecting.done():
            await asyncio.shield(self._connecting)

    async def _replace_holder(self) -> None:
        """A supervisor gives the pod network another holder; without pods it is not needed for anything else."""
        await self._awake()
        self._end_when_idle(_IDLE_AT_START)

    def _namespace_changed(self) -> None:
        for callback in self.on_namespace_change:
            callback()

    @property
    def pod_mtu(self) -> int:
        """0: the kernel's default."""
        return self._settings.network.mtu if self._settings.network is not None else 0

    async def set_remote_pods(self, pods: Sequence[RemotePod]) -> None:
        """All engines of other nodes. Raises RuntimeFailure."""
        wanted = {pod.address: {"kind": str(pod.kind), "group": pod.group} for pod in pods}
        if wanted != self._remote_pods:
            await self._ask("remote-pods", pods=wanted)
            self._remote_pods = wanted
            self._end_when_idle(_IDLE_AT_START)

    def _lost(self) -> None:
        self._fail_sessions()
        if not self._closed and (self._connecting is None or self._connecting.done()):
            _log.warning("The pod supervisor ended; its containers keep running and a new one adopts them")
            self._connecting = asyncio.create_task(self._reconnect(), name="runp-connect")

    async def _reconnect(self) -> None:
        wait = 0.05
        while not self._closed:
            try:
                await self._connect()
                return
            except (RuntimeFailure, OSError, ConnectionLost) as problem:
                _log.error("Cannot connect to the pod supervisor; trying again", error=problem)
                await asyncio.sleep(wait)
                wait = min(wait * 2, 5.0)

    async def _ask(self, op: str, **fields: Any) -> SupervisorReply:
        """All orders but exec may be given twice, so one whose answer was lost is simply given again."""
        for _ in range(_RETRIES):
            await self._awake()
            try:
                return await self._client.ask(op, **fields)
            except ConnectionLost:
                if self._closed:
                    break
                await asyncio.sleep(0)
        raise RuntimeFailure("RuntimeNotReady", "the process that keeps containers does not answer")

    # ----- pods and containers

    async def prepare_pod(self, sandbox: PodSandbox) -> None:
        write_etc_files(pod_files(sandbox.directory), sandbox)
        if not (await self._ask("prepare", pod=_about(sandbox))).result:
            _log.warning(
                "Memory volumes lie on disk: this user may not mount", pod=f"{sandbox.namespace}/{sandbox.name}"
            )
        self._sandboxes[sandbox.uid] = sandbox
        self._runs.setdefault(sandbox.uid, {})

    async def start_container(self, pod_uid: str, spec: ContainerSpec) -> ContainerState:
        pod = self._sandboxes.get(pod_uid)
        if pod is None:
            raise RuntimeFailure("CreateContainerError", f"pod {pod_uid} is not prepared")
        known = self._runs.get(pod_uid, {}).get((spec.name, spec.attempt))
        if known is not None:
            return _state(known)
        image = pinned_image(self.store, spec, self._settings.node)
        tool = self._tool(pod, spec)
        request = start_request(self._settings, self.store, image, pod, spec, self._powers, self._bwrap, tool)
        try:
            await self._make_files(pod, spec, image, request)
        except OSError as problem:
            raise RuntimeFailure("CreateContainerError", f"{problem.filename}: {problem.strerror}") from problem
        run: dict[str, Any] = (await self._ask("start", spec=request)).result
        newest = self._runs.setdefault(pod_uid, {})
        # The event of its end may have overtaken the answer.
        if not newest.get((spec.name, spec.attempt), run)["finished_at"]:
            newest[(spec.name, spec.attempt)] = run
        else:
            newest.setdefault((spec.name, spec.attempt), run)
        return _state(newest[(spec.name, spec.attempt)])

    def _tool(self, pod: PodSandbox, spec: ContainerSpec) -> dict[str, Any] | None:
        """The OCI runtime that the pod's handler asks for."""
        tool = next((tool for tool in self._tools if tool.handler == pod.handler), None)
        if tool is None:
            return None
        handler = tools.handler_of(tool, self._powers)
        if not handler.available:
            raise RuntimeFailure(
                "RuntimeHandlerMissing", f'the handler "{pod.handler}" is not available on this node: {handler.why}'
            )
        problem = tools.refused(pod.handler, spec)
        if problem is not None:
            raise problem
        return tool.request()

    async def _make_files(
        self, pod: PodSandbox, spec: ContainerSpec, image: StoredImage, request: dict[str, Any]
    ) -> None:
        files = run_files(pod.directory, spec)
        changes_user = request["user"] is not None and os.getuid() == 0 and self._powers["namespaces"] != "user"
        for name, mode in (("work", 0o755), ("tmp", 0o1777), ("home", 0o755), ("upper", 0o755), ("overlay", 0o755)):
            path = files / name
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
            if name in ("work", "home") and changes_user:
                os.chown(path, request["user"], request["user_group"])
        if not self._powers["namespaces"]:
            for name, source in links(spec).items():
                place = files / "work" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.unlink(missing_ok=True)
                place.symlink_to(source)
        if request["root"]["kind"] == "directory":
            layers = [Path(image.directory)] if image.directory else self.store.layer_paths(image)[::-1]
            await asyncio.to_thread(flatten, layers, files / "upper")
        old = [
            path for path in pod_files(pod.directory).glob(f"{spec.name}.*") if path != files and _is_older(path, spec)
        ]
        for path in old:
            await asyncio.to_thread(remove_tree, path)

    async def stop_container(self, pod_uid: str, name: str, grace: float) -> None:
        await self._ask("stop", uid=pod_uid, name=name, grace=grace)

    async def signal_container(self, pod_uid: str, name: str, number: int) -> None:
        await self._ask("signal", uid=pod_uid, name=name, signal=int(number))

    def resize_problem(self, pod_uid: str) -> str:
        return "" if self._groups is not None else "this node has no control groups, so limits cannot be changed"

    async def resize_pod(
        self, pod_uid: str, limits: ContainerLimits, containers: Mapping[str, ContainerLimits], *, final: bool
    ) -> None:
        wanted = {name: _resized(each) for name, each in containers.items()}
        await self._ask("resize", uid=pod_uid, limits=_resized(limits), containers=wanted, final=final)
        sandbox = self._sandboxes.get(pod_uid)
        if final and sandbox is not None:
            self._sandboxes[pod_uid] = replace(sandbox, limits=replace(limits, pids=sandbox.limits.pids))

    async def stop_pod(self, pod_uid: str, grace: float) -> None:
        names = {name for name, _ in self._runs.get(pod_uid, {})}
        await asyncio.gather(*(self.stop_container(pod_uid, name, grace) for name in names))

    async def remove_pod(self, pod_uid: str) -> None:
        sandbox = self._sandboxes.get(pod_uid)
        await self._ask("remove", uid=pod_uid)
        if self._addresses is not None:
            self._addresses.free(pod_uid)
        self._runs.pop(pod_uid, None)
        self._sandboxes.pop(pod_uid, None)
        self._end_when_idle(self._settings.idle_seconds)
        if sandbox is not None and sandbox.directory.exists():
            await asyncio.to_thread(remove_tree, sandbox.directory)

    # ----- what is

    def pods(self) -> Sequence[PodState]:
        return [self._pod_state(uid) for uid in self._runs]

    def pod(self, pod_uid: str) -> PodState | None:
        return self._pod_state(pod_uid) if pod_uid in self._runs else None

    def _pod_state(self, uid: str) -> PodState:
        sandbox = self._sandboxes[uid]
        return PodState(uid, sandbox.namespace, sandbox.name, tuple(_state(run) for run in self._runs[uid].values()))

    def events(self) -> AsyncIterator[str]:
        stream = PodEvents(self._streams.discard)
        self._streams.add(stream)
        return stream

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "exec":
            future = self._execs.pop(event["exec"], None)
            if future is not None and not future.done():
                future.set_result(event["code"])
        elif event["event"] == "zygotes":
            self._take_zygotes(event["zygotes"])
        elif event["event"] == "run":
            uid, run = event["uid"], event["run"]
            runs = self._runs.setdefault(uid, {}) if uid in self._sandboxes else {}
            runs[(run["name"], run["attempt"])] = run
            self._settle(uid, run)
            self._announce(uid)

    def _take_zygotes(self, records: Sequence[dict[str, str]]) -> None:
        problems = {record["image"]: record["problem"] for record in records}
        for image, problem in problems.items():
            if self._zygote_problems.get(image) != problem:
                _log.warning("The modules of an image cannot be preloaded; it starts without", image=image, why=problem)
        self._zygote_problems = problems

    def _announce(self, uid: str) -> None:
        for stream in self._streams:
            stream.put(uid)

    def _settle(self, uid: str, run: dict[str, Any]) -> None:
        """Tell those who are attached to a container that it ended."""
        if run["finished_at"]:
            for future in self._ends.pop((uid, run["name"], run["attempt"]), ()):
                if not future.done():
                    future.set_result(run["exit_code"])

    def _fail_sessions(self) -> None:
        """The supervisor kills the execs of a connection that broke; their code is that of a killed program."""
        for future in self._execs.values():
            if not future.done():
                future.set_result(137)
        self._execs.clear()

    async def usage(self, pod_uid: str) -> dict[str, ContainerUsage]:
        found = {}
        for run in self._runs.get(pod_uid, {}).values():
            if not run["finished_at"]:
                usage = usage_of(self._groups, run, f"{pod_uid}/{run['name']}.{run['attempt']}")
                if usage is not None:
                    found[run["name"]] = usage
        return found

    def network_bytes(self, pod_uid: str) -> int | None:
        for run in self._runs.get(pod_uid, {}).values():
            if not run["finished_at"] and (pid := run["init"] or run["pid"]):
                return network_bytes(pid)
        return None

    def writable_directories(self, pod_uid: str) -> Mapping[str, Sequence[Path]]:
        found: dict[str, list[Path]] = {}
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is None:
            return found
        for name, attempt in self._runs.get(pod_uid, {}):
            found.setdefault(name, []).append(pod_files(sandbox.directory) / f"{name}.{attempt}")
        return found

    def deleted_files(self, pod_uid: str) -> int:
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is None:
            return 0
        runs = [run for run in self._runs.get(pod_uid, {}).values() if not run["finished_at"]]
        pids = {
            pid for run in runs for pid in processes_of(self._groups, run, f"{pod_uid}/{run['name']}.{run['attempt']}")
        }
        return deleted_bytes(pids, sandbox.directory)

    # ----- streams

    async def exec(
        self, pod_uid: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool, stderr: bool = True
    ) -> ExecSession:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._awake()
        asking = self._client.ask(
            "exec", uid=pod_uid, name=container, command=list(command), stdin=stdin, tty=tty, stderr=stderr
        )
        number = self._client.last_number + 1
        self._execs[number] = ended
        try:
            handles = (await asking).handles
        except SupervisorRefused as problem:
            self._execs.pop(number, None)
            if problem.code and problem.code != _EXEC_NOT_SET_UP:
                return FailedSession(problem.code, problem.message, tty=tty)
            raise
        except ConnectionLost as problem:
            self._execs.pop(number, None)
            raise RuntimeFailure("RuntimeNotReady", "the process that keeps containers went away") from problem
        except BaseException:
            self._execs.pop(number, None)
            raise

        async def let_go() -> None:
            if self._client.connected:
                with contextlib.suppress(ConnectionLost):
                    await self._client.ask("exec-kill", **{"exec": number})

        if tty:
            (terminal,) = handles
            return StreamSession(
                stdin=PipeWriter(os.dup(terminal)) if stdin else None,
                stdout=PipeReader(os.dup(terminal)),
                stderr=None,
                terminal=terminal,
                ended=ended,
                let_go=let_go,
            )
        return StreamSession(
            stdin=PipeWriter(handles.pop(0)) if stdin else None,
            stdout=PipeReader(handles.pop(0)),
            stderr=PipeReader(handles.pop(0)) if stderr else None,
            terminal=-1,
            ended=ended,
            let_go=let_go,
        )

    async def attach(self, pod_uid: str, container: str, *, stdin: bool) -> ExecSession:
        answer = await self._ask("attach", uid=pod_uid, name=container, stdin=stdin)
        handles = answer.handles
        key = (pod_uid, container, answer.result["attempt"])
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(key, []).append(ended)
        run = self._runs.get(pod_uid, {}).get((container, answer.result["attempt"]))
        if run is not None:
            self._settle(pod_uid, run)

        async def end_input() -> None:
            if answer.result.get("once", True):
                await self._ask("close-stdin", uid=pod_uid, name=container)
                return
            # The container's input stays open for others; what it says to the last words is still to be heard.
            await asyncio.sleep(_ATTACH_LINGER)
            for source in (stdout, stderr):
                if source is not None:
                    source.close()
            if not ended.done():
                ended.set_result(0)

        async def forget() -> None:
            waiting = self._ends.get(key, [])
            if ended in waiting:
                waiting.remove(ended)

        tty = answer.result["tty"]
        stdout = PipeReader(handles.pop(0)) if handles else None
        stderr = PipeReader(handles.pop(0)) if handles and not tty else None
        entry = handles.pop(0) if handles else -1
        return StreamSession(
            stdin=PipeWriter(os.dup(entry) if tty else entry) if stdin and entry >= 0 else None,
            stdout=stdout,
            stderr=stderr,
            terminal=entry if tty else -1,
            ended=ended,
            end_input=end_input,
            let_go=forget,
        )

    # ----- network

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A server may listen on every address, on the loopback alone or on the pod's address alone."""
        address = self.pod_ip(pod_uid)
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is None or not sandbox.address:
            places = dict.fromkeys(("127.0.0.1", address))
            return await self._first_open([(place, None) for place in places if place not in ("", "0.0.0.0")], port)
        return await self._first_open([("127.0.0.1", pod_uid), (address, pod_uid)], port)

    async def _first_open(
        self, places: list[tuple[str, str | None]], port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        refused: OSError = ConnectionRefusedError(f"nothing listens on port {port}")
        for place, pod in places:
            made = socket.socket() if pod is None else await self._socket_of(pod)
            made.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(made, (place, port))
            except ConnectionRefusedError as problem:
                made.close()
                refused = problem
            except BaseException:
                made.close()
                raise
            else:
                return await asyncio.open_connection(sock=made)
        raise refused

    # Pods of another runtime, which makes their network namespaces.

    @property
    def network_directory(self) -> Path | None:
        """Of the supervisor, which that runtime's network plugin asks; None: pods share the machine's network."""
        return self._settings.directory if self._settings.network is not None else None

    async def expect_pod(self, sandbox: PodSandbox) -> None:
        """Another runtime is about to bring a namespace for this pod. Raises RuntimeFailure."""
        if self._addresses is not None and sandbox.address:
            self._addresses.take(sandbox.uid, sandbox.address)
        await self._ask("expect", pod=_about(sandbox))
        self._connected.add(sandbox.uid)

    async def disconnect_pod(self, pod_uid: str) -> None:
        """That pod is gone from the pod network. Raises RuntimeFailure."""
        if pod_uid in self._connected:
            await self._ask("disconnect", uid=pod_uid)
            self._connected.discard(pod_uid)

    async def dial_connected(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As `dial`, into a pod of another runtime."""
        if pod_uid not in self._connected or self._addresses is None:
            return await self._first_open([("127.0.0.1", None)], port)
        return await self._first_open([("127.0.0.1", pod_uid), (self.pod_ip(pod_uid), pod_uid)], port)

    async def _socket_of(self, pod_uid: str) -> socket.socket:
        """A socket of the pod's network: what it connects to, it connects to from there."""
        try:
            (handle,) = (await self._ask("socket", uid=pod_uid)).handles
        except RuntimeFailure as problem:
            raise ConnectionRefusedError(problem.message) from problem
        return socket.socket(fileno=handle)

    async def trial_sockets(self) -> tuple[socket.socket, socket.socket]:
        """A UDP and a TCP socket of a pod that exists only for them. OSError when there can be none."""
        assert self._addresses is not None, "there is a pod network"
        try:
            address = self._addresses.assign(_TRIAL, engine=False)
            udp, tcp = (await self._ask("trial", address=address)).handles
        except RuntimeFailure as problem:
            raise OSError(problem.message) from problem
        return socket.socket(fileno=udp), socket.socket(fileno=tcp)

    async def end_trial(self) -> None:
        with contextlib.suppress(RuntimeFailure):
            await self._ask("trial-end")
        if self._addresses is not None:
            self._addresses.free(_TRIAL)

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        if self._addresses is None:
            return self._settings.address
        if network.host:
            if not self._settings.allow_host_network:
                raise RuntimeFailure(
                    "HostNetworkForbidden",
                    "hostNetwork is not allowed on this node; set agent.allowHostNetwork: true to trust pods with it",
                )
            if not self._powers.get("host_network"):
                raise RuntimeFailure("HostNetworkForbidden", "hostNetwork needs a node that runs as root")
            return self._settings.address
        return self._addresses.assign(pod_uid, engine=network.kind != "ordinary")

    def pod_ip(self, pod_uid: str) -> str:
        if self._addresses is None:
            return self._settings.address
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is not None and sandbox.network == "host":
            return self._settings.address
        return self._addresses.of(pod_uid)

    def images(self) -> Sequence[ImageInfo]:
        return [
            ImageInfo(image.name, image.id, image.size, image.kind, self.store.content_digest(image))
            for image in self.store.images()
        ]

    def handlers(self) -> Sequence[RuntimeHandler]:
        return (*self._handlers, *tools.handlers(self._tools, self._powers))

    def limitations(self) -> Sequence[str]:
        slow = (
            f"Containers of {image} start without preloaded modules: {problem}."
            for image, problem in self._zygote_problems.items()
        )
        return (*self._powers.get("limitations", ()), *slow)


def pinned_image(store: ImageStore, spec: ContainerSpec, node: str) -> StoredImage:
    """The image of a container; the one that the agent verified, if it did. Raises RuntimeFailure."""
    try:
        image = store.find(spec.image)
    except ImageError as problem:
        raise RuntimeFailure("InvalidImageName", str(problem)) from problem
    if image is None:
        raise RuntimeFailure(
            "ErrImageNeverPull",
            f'image "{spec.image}" is not on node "{node}"; '
            "bring it with `coterie image load` or `coterie image add` on that machine",
        )
    if spec.image_id and image.kind == HOST:
        return replace(image, id=spec.image_id)  # of the code as the agent saw it
    if spec.image_id and image.id != spec.image_id:
        raise RuntimeFailure(ID_MISMATCH, f'image "{spec.image}" was replaced while its container was being started')
    return image


def _about(sandbox: PodSandbox) -> dict[str, Any]:
    return {
        "uid": sandbox.uid,
        "namespace": sandbox.namespace,
        "name": sandbox.name,
        "hostname": sandbox.hostname,
        "directory": str(sandbox.directory),
        "hosts": sandbox.hosts,
        "resolv_conf": sandbox.resolv_conf,
        "labels": sandbox.labels,
        "address": sandbox.address,
        "network": sandbox.network,
        "kind": str(sandbox.kind),
        "group": sandbox.group,
        "sysctls": dict(sandbox.sysctls),
        "handler": sandbox.handler,
        "memory_volumes": [[str(path), size] for path, size in sandbox.memory_volumes],
        "limits": {
            "cpu": sandbox.limits.cpu_milli,
            "shares": sandbox.limits.cpu_shares_milli,
            "memory": sandbox.limits.memory_bytes,
            "pids": sandbox.limits.pids,
        },
    }


def _resized(limits: ContainerLimits) -> dict[str, int]:
    return {"cpu": limits.cpu_milli, "shares": limits.cpu_shares_milli, "memory": limits.memory_bytes}


_SANDBOX_TEXTS = (
    "uid", "namespace", "name", "hostname", "hosts", "resolv_conf", "labels", "address", "network", "kind", "group",
)  # fmt: skip


def _sandbox(about: dict[str, Any]) -> PodSandbox:
    fields = {key: about[key] for key in _SANDBOX_TEXTS}
    limits = about.get("limits") or {"cpu": 0, "memory": 0, "pids": 0, "shares": 0}
    return PodSandbox(
        directory=Path(about["directory"]),
        limits=ContainerLimits(limits["cpu"], limits["memory"], limits["pids"], limits["shares"]),
        sysctls=about.get("sysctls") or {},
        handler=about.get("handler") or "runp",
        memory_volumes=tuple((Path(path), size) for path, size in about.get("memory_volumes") or ()),
        **fields,
    )


def _state(run: dict[str, Any]) -> ContainerState:
    return ContainerState(
        name=run["name"],
        attempt=run["attempt"],
        image=run["image"],
        image_id=run["image_id"],
        pid=run["pid"],
        started_at=run["started_at"],
        finished_at=run["finished_at"],
        exit_code=run["exit_code"],
        signal=run["signal"],
        reason=run["reason"],
        message=run["message"],
        log_path=Path(run["log_path"]),
        warnings=tuple(ContainerWarning(*warning) for warning in run.get("warnings") or ()),
    )


def _is_older(path: Path, spec: ContainerSpec) -> bool:
    attempt = path.name.removeprefix(f"{spec.name}.")
    return attempt.isdigit() and int(attempt) < spec.attempt
