"""`FakeRuntime`: containers that exist only in memory and live by the clock that a test moves.

A `FakeMachine` holds what would be the kernel's: running containers go on while no runtime looks at them, as real ones
do. A second `FakeRuntime` on the same machine therefore finds them again, which is how tests kill and restart an agent.
What a container does is written in a few words of shell (`fake_script`); `scripts` and `problems` let a test give a
container of a certain name another life for each of its runs.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.runtimes.fake_script import (
    EchoStep,
    ExitStep,
    KillStep,
    OomStep,
    PrintStep,
    SleepStep,
    Step,
    TrapStep,
    WriteStep,
    parse,
    parse_script,
)
from coterie.kube.agent.runtimes.protocol import (
    ContainerLimits,
    ContainerSpec,
    ContainerState,
    ContainerUsage,
    ImageInfo,
    PodNetworkClass,
    PodSandbox,
    PodState,
    RuntimeFailure,
    RuntimeHandler,
)

HOST_IMAGE = "coterie/host:latest"
PYTHON_IMAGE = "coterie/python:latest"
ACTOR_IMAGE = "coterie-actor:latest"
_KEPT_RUNS = 2
"""Of each container the newest run and the one before it, for `kubectl logs --previous` and last states."""

ExecAnswer = Callable[[Sequence[str]], tuple[int, bytes, bytes]]


@dataclass(slots=True)
class FakeRun:
    """One run of one container, and the pipes of whoever is attached to it."""

    pod_uid: str
    spec: ContainerSpec
    state: ContainerState
    steps: tuple[Step, ...]
    term_code: int | None = 128 + signal.SIGTERM
    """The exit code SIGTERM leads to; None: it is ignored."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stdin: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    attached: list[FakeSession] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class FakePod:
    sandbox: PodSandbox
    runs: list[FakeRun] = field(default_factory=list)

    def newest(self, name: str) -> FakeRun | None:
        return next((run for run in reversed(self.runs) if run.spec.name == name), None)


class FakeMachine:
    """The part that outlives a runtime. Close it at the end of a test."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.pods: dict[str, FakePod] = {}
        self.images = {name: _image(name) for name in (HOST_IMAGE, PYTHON_IMAGE, ACTOR_IMAGE)}
        self.scripts: dict[str, Sequence[str]] = {}
        """Container name -> what each of its runs does; the last entry goes on for ever."""
        self.problems: dict[str, RuntimeFailure] = {}
        """Container name -> why it cannot be started."""
        self.execs: dict[str, ExecAnswer] = {}
        """Container name -> what an exec in it answers; a shell-like echo when missing."""
        self.ports: dict[int, Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]] = {}
        self.deleted_files: dict[str, int] = {}
        self.usage: dict[str, ContainerUsage] = {}
        """By pod, what each of its containers uses; others use next to nothing."""
        """Pod uid -> bytes in files that were deleted and are still open."""
        self.resize_problem = ""
        """Why limits of running containers cannot be changed."""
        self.resize_failure: RuntimeFailure | None = None
        self.address = "127.0.0.1"
        self.handlers: tuple[RuntimeHandler, ...] = (RuntimeHandler("runp", True, version="fake"),)
        self.started: list[tuple[str, str, int]] = []
        """(pod, container, attempt) of all runs ever started, in order."""
        self.listeners: set[asyncio.Queue[str]] = set()
        self._next_pid = 1000
        self._owner = TaskOwner("fake-machine", grace=1.0)

    async def close(self) -> None:
        await self._owner.close()

    def lose_memory(self) -> None:
        """As after a power cut: nothing runs any more and nothing is known."""
        for pod in self.pods.values():
            for run in pod.runs:
                if run.task is not None:
                    run.task.cancel()
        self.pods.clear()

    def start(self, pod: FakePod, spec: ContainerSpec) -> FakeRun:
        self._next_pid += 1
        image = self.images[spec.image]
        state = ContainerState(
            name=spec.name,
            attempt=spec.attempt,
            image=spec.image,
            image_id=image.id,
            pid=self._next_pid,
            started_at=self.clock.now().timestamp(),
            log_path=spec.log_path,
        )
        script = self.scripts.get(spec.name)
        steps = (
            parse_script(script[min(spec.attempt, len(script) - 1)]) if script else parse([*spec.command, *spec.args])
        )
        run = FakeRun(pod.sandbox.uid, spec, state, steps)
        pod.runs.append(run)
        self._forget_old(pod, spec.name)
        self.started.append((pod.sandbox.name, spec.name, spec.attempt))
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        spec.log_path.touch()
        run.task = self._owner.start(f"{pod.sandbox.name}/{spec.name}/{spec.attempt}", self._play(run), vital=False)
        return run

    def _forget_old(self, pod: FakePod, name: str) -> None:
        for old in [run for run in pod.runs if run.spec.name == name][:-_KEPT_RUNS]:
            pod.runs.remove(old)

    async def _play(self, run: FakeRun) -> None:
        for step in run.steps:
            match step:
                case PrintStep(text, stream):
                    self.output(run, stream, text.encode() + b"\n")
                case WriteStep(path, text):
                    _write_file(run.spec, path, text)
                case SleepStep(seconds):
                    await self.clock.sleep(seconds)
                case ExitStep(code):
                    self.end(run, code)
                    return
                case KillStep(number):
                    self.end(run, 128 + number, number)
                    return
                case TrapStep(code):
                    run.term_code = code
                case OomStep():
                    self.end(run, 137, 9, "OOMKilled")
                    return
                case EchoStep():
                    while data := await run.stdin.get():
                        self.output(run, "stdout", data)
        self.end(run, 0)

    def output(self, run: FakeRun, stream: str, data: bytes) -> None:
        stamp = self.clock.now().isoformat(timespec="microseconds")[:26] + "000Z"
        with run.spec.log_path.open("ab") as log:
            for line in data.splitlines(keepends=True):
                mark = b"F" if line.endswith(b"\n") else b"P"
                log.write(b"%s %s %s %s\n" % (stamp.encode(), stream.encode(), mark, line.rstrip(b"\n")))
        for session in run.attached:
            session.feed(stream, data)

    def end(self, run: FakeRun, code: int, number: int = 0, reason: str = "") -> None:
        if not run.state.running:
            return
        run.state = replace(
            run.state,
            pid=0,
            finished_at=self.clock.now().timestamp(),
            exit_code=code,
            signal=number,
            reason=reason or ("Error" if code else "Completed"),
        )
        run.ended.set()
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()
        for session in run.attached:
            session.finish(code)
        for listener in self.listeners:
            listener.put_nowait(run.pod_uid)

    def signal(self, run: FakeRun, number: int) -> None:
        run.signals.append(number)
        if not run.state.running:
            return
        if number == signal.SIGTERM:
            if run.term_code is not None:
                by_signal = run.term_code == 128 + signal.SIGTERM
                self.end(run, run.term_code, signal.SIGTERM if by_signal else 0)
        elif number in (signal.SIGKILL, signal.SIGINT, signal.SIGQUIT):
            self.end(run, 128 + number, number)


class FakeSession:
    """An exec that answered at once, or an attachment."""

    def __init__(self, run: FakeRun | None = None) -> None:
        self._streams = {"stdout": asyncio.Queue[bytes](), "stderr": asyncio.Queue[bytes]()}
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._run = run
        self.size = (0, 0)

    def feed(self, stream: str, data: bytes) -> None:
        if data:
            self._streams[stream].put_nowait(data)

    def finish(self, code: int) -> None:
        if not self._done.done():
            self._done.set_result(code)
            for queue in self._streams.values():
                queue.put_nowait(b"")

    async def read_stdout(self) -> bytes:
        return await self._read("stdout")

    async def read_stderr(self) -> bytes:
        return await self._read("stderr")

    async def _read(self, stream: str) -> bytes:
        data = await self._streams[stream].get()
        if not data:
            self._streams[stream].put_nowait(b"")  # the end stays the end, however often it is read
        return data

    async def write_stdin(self, data: bytes) -> None:
        if self._run is not None:
            self._run.stdin.put_nowait(data)

    async def close_stdin(self) -> None:
        if self._run is None:
            return
        if self._run.spec.stdin_once:
            self._run.stdin.put_nowait(b"")
        else:
            self.finish(0)

    def resize(self, columns: int, rows: int) -> None:
        self.size = (columns, rows)

    async def wait(self) -> int:
        return await asyncio.shield(self._done)

    async def close(self) -> None:
        if self._run is not None and self in self._run.attached:
            self._run.attached.remove(self)
        self.finish(137)


class FakeRuntime:
    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine
        self._listener: asyncio.Queue[str] = asyncio.Queue()

    @property
    def name(self) -> str:
        return "fake"

    async def open(self) -> None:
        self.machine.listeners.add(self._listener)

    async def close(self) -> None:
        self.machine.listeners.discard(self._listener)

    async def prepare_pod(self, sandbox: PodSandbox) -> None:
        await asyncio.sleep(0)
        sandbox.directory.mkdir(parents=True, exist_ok=True)
        pod = self.machine.pods.get(sandbox.uid)
        if pod is None:
            self.machine.pods[sandbox.uid] = FakePod(sandbox)
        else:
            pod.sandbox = sandbox

    async def start_container(self, pod_uid: str, spec: ContainerSpec) -> ContainerState:
        await asyncio.sleep(0)
        machine = self.machine
        pod = self._pod(pod_uid)
        known = pod.newest(spec.name)
        if known is not None and known.spec.attempt >= spec.attempt:
            return known.state  # the same run asked for twice
        if known is not None and known.state.running:
            raise RuntimeFailure("CreateContainerError", f"container {spec.name} still runs")
        if spec.name in machine.problems:
            raise machine.problems[spec.name]
        if spec.image not in machine.images:
            raise RuntimeFailure("ErrImageNeverPull", f"image {spec.image!r} is not in the local image store")
        return machine.start(pod, spec).state

    async def stop_container(self, pod_uid: str, name: str, grace: float) -> None:
        run = self._running(pod_uid, name)
        if run is None:
            return
        machine = self.machine
        machine.signal(run, signal.SIGTERM)
        if run.state.running:
            ended = asyncio.ensure_future(run.ended.wait())
            timer = asyncio.ensure_future(machine.clock.sleep(grace))
            try:
                await asyncio.wait({ended, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
                timer.cancel()
            machine.signal(run, signal.SIGKILL)
        await run.ended.wait()

    async def signal_container(self, pod_uid: str, name: str, number: int) -> None:
        run = self._running(pod_uid, name)
        if run is not None:
            self.machine.signal(run, number)

    def resize_problem(self, pod_uid: str) -> str:
        return self.machine.resize_problem

    async def resize_pod(
        self, pod_uid: str, limits: ContainerLimits, containers: Mapping[str, ContainerLimits], *, final: bool
    ) -> None:
        await asyncio.sleep(0)
        pod = self._pod(pod_uid)
        if self.machine.resize_failure is not None:
            raise self.machine.resize_failure
        for name, wanted in containers.items():
            run = self._running(pod_uid, name)
            if run is not None:
                run.spec = replace(run.spec, limits=wanted)
        if final:
            pod.sandbox = replace(pod.sandbox, limits=limits)

    async def stop_pod(self, pod_uid: str, grace: float) -> None:
        pod = self.machine.pods.get(pod_uid)
        if pod is not None:
            names = [run.spec.name for run in pod.runs if run.state.running]
            await asyncio.gather(*(self.stop_container(pod_uid, name, grace) for name in names))

    async def remove_pod(self, pod_uid: str) -> None:
        pod = self.machine.pods.get(pod_uid)
        if pod is None:
            return
        await self.stop_pod(pod_uid, 0)
        self.machine.pods.pop(pod_uid, None)
        shutil.rmtree(pod.sandbox.directory, ignore_errors=True)

    def pods(self) -> Sequence[PodState]:
        return [_state(pod) for pod in self.machine.pods.values()]

    def pod(self, pod_uid: str) -> PodState | None:
        pod = self.machine.pods.get(pod_uid)
        return None if pod is None else _state(pod)

    async def events(self) -> AsyncIterator[str]:
        while True:
            yield await self._listener.get()

    async def exec(
        self, pod_uid: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool, stderr: bool = True
    ) -> FakeSession:
        await asyncio.sleep(0)
        run = self._running(pod_uid, container)
        if run is None:
            raise RuntimeFailure("ContainerNotRunning", f"container {container} does not run")
        answer = self.machine.execs.get(container)
        session = FakeSession()
        code, out, error = answer(command) if answer is not None else _answered(parse(command))
        session.feed("stdout", out)
        session.feed("stderr", error)
        session.finish(code)
        return session

    async def attach(self, pod_uid: str, container: str, *, stdin: bool) -> FakeSession:
        await asyncio.sleep(0)
        run = self._running(pod_uid, container)
        if run is None:
            raise RuntimeFailure("ContainerNotRunning", f"container {container} does not run")
        session = FakeSession(run)
        run.attached.append(session)
        return session

    def network_bytes(self, pod_uid: str) -> int | None:
        return None

    async def usage(self, pod_uid: str) -> dict[str, ContainerUsage]:
        pod = self.machine.pods.get(pod_uid)
        now = self.machine.clock.now().timestamp()
        return {
            run.spec.name: self.machine.usage.get(pod_uid)
            or ContainerUsage(int((now - run.state.started_at) * 1e7), 1 << 20, 1)
            for run in (pod.runs if pod is not None else ())
            if run.state.running
        }

    def writable_directories(self, pod_uid: str) -> Mapping[str, Sequence[Path]]:
        pod = self.machine.pods.get(pod_uid)
        return {run.spec.name: (pod.sandbox.directory / "fake" / run.spec.name,) for run in pod.runs} if pod else {}

    def deleted_files(self, pod_uid: str) -> int:
        return self.machine.deleted_files.get(pod_uid, 0)

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.machine.address, port)

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        return self.machine.address

    def pod_ip(self, pod_uid: str) -> str:
        return self.machine.address

    def images(self) -> Sequence[ImageInfo]:
        return list(self.machine.images.values())

    def handlers(self) -> Sequence[RuntimeHandler]:
        return self.machine.handlers

    def limitations(self) -> Sequence[str]:
        return ("the fake runtime runs nothing at all",)

    def _pod(self, uid: str) -> FakePod:
        pod = self.machine.pods.get(uid)
        if pod is None:
            raise RuntimeFailure("CreateContainerError", f"pod {uid} was not prepared")
        return pod

    def _running(self, pod_uid: str, name: str) -> FakeRun | None:
        pod = self.machine.pods.get(pod_uid)
        run = pod.newest(name) if pod is not None else None
        return run if run is not None and run.state.running else None


def _state(pod: FakePod) -> PodState:
    sandbox = pod.sandbox
    return PodState(sandbox.uid, sandbox.namespace, sandbox.name, tuple(run.state for run in pod.runs))


def _image(name: str) -> ImageInfo:
    return ImageInfo(name, "sha256:" + name.encode().hex().ljust(64, "0")[:64], 0, "host")


def _answered(steps: Sequence[Step]) -> tuple[int, bytes, bytes]:
    """What a finite script prints and exits with."""
    streams: Mapping[str, list[str]] = {"stdout": [], "stderr": []}
    for step in steps:
        if isinstance(step, PrintStep):
            streams[step.stream].append(step.text + "\n")
        elif isinstance(step, ExitStep):
            return step.code, "".join(streams["stdout"]).encode(), "".join(streams["stderr"]).encode()
    return 0, "".join(streams["stdout"]).encode(), "".join(streams["stderr"]).encode()


def _write_file(spec: ContainerSpec, path: str, text: str) -> None:
    for mount in spec.mounts:
        if path == mount.target or path.startswith(mount.target.rstrip("/") + "/"):
            target = mount.source / Path(path).relative_to(mount.target) if path != mount.target else mount.source
            target.write_text(text + "\n")
            return
