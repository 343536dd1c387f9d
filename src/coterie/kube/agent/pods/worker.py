"""The worker of one pod: looks, decides, acts, reports. It never waits itself.

    sync():   observe the runtime ─> View ─> decide ─> begin operations ─> View ─> status

What takes time runs as a named task and wakes the worker when it ends, so a pod with a slow hook or a stubborn container
is still looked at whenever something about it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Literal

from coterie.base.backoff import Backoff, Policy
from coterie.base.log import logger
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.pods import history as histories
from coterie.kube.agent.pods import operations, pod_model, resize, security_context
from coterie.kube.agent.pods.containers import termination_message
from coterie.kube.agent.pods.decide import (
    EVICTED,
    Action,
    FailPod,
    FinishPod,
    KillContainer,
    PodPlan,
    PreparePod,
    RefreshVolumes,
    ReleasePod,
    ReportBackoff,
    ResizePod,
    StartContainer,
    StopContainer,
    decide,
)
from coterie.kube.agent.pods.downward import ConfigProblem
from coterie.kube.agent.pods.history import Ending, PodFailure, PodHistory, StartProblem
from coterie.kube.agent.pods.pod_view import (
    NEVER,
    ContainerOperation,
    PodView,
    Probed,
    exit_code,
    runs_of,
    winding_down,
    with_lost_runs,
)
from coterie.kube.agent.pods.status import PodLocation, status_of
from coterie.kube.agent.pods.worker_context import WorkerContext
from coterie.kube.agent.probes.prober import ContainerProber
from coterie.kube.agent.runtimes.protocol import ContainerState, ContainerWarning, ResizingRuntime, RuntimeFailure
from coterie.kube.agent.volumes.tokens import PodTokens
from coterie.kube.agent.volumes.volumes import PodVolumes
from coterie.kube.api import quantity
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client.transport import TransportError

log = logger("agent.pods")
_SETUP_RETRY = Policy(first=0.5, factor=2.0, limit=120.0, jitter=0.0)
_FINISH_RETRY = Policy(first=0.2, factor=2.0, limit=30.0, jitter=0.2)
_REMEMBERED_RUNS = 256
_BROKEN = "internal error of the agent; see its log"
_BROKEN_PAUSE = 5.0


class PodWorker:
    def __init__(self, pod: Object, tools: WorkerContext, *, removed: bool = False) -> None:
        self.pod = pod
        self.uid = pod_model.uid_of(pod)
        self._tools = tools
        self._rules = tools.settings.pods
        self._log = log.bind(pod=str(pod_model.key_of(pod)), uid=self.uid)
        directory = tools.directory(self.uid)
        self._volumes = PodVolumes(
            directory,
            tools.objects,
            PodTokens(tools.client, tools.clock),
            self._rules,
            tools.local_volumes,
            tools.plugin_references,
        )
        self._operations: dict[str, ContainerOperation] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._stage: Literal["new", "preparing", "prepared"] = "new"
        self._setup: StartProblem | None = None
        self._setup_backoff = Backoff(_SETUP_RETRY)
        self._dirty = False
        self._removed = removed
        self._finishing = False
        self._released = False
        self._probers: dict[str, ContainerProber] = {}
        self._ended: dict[tuple[str, int], float] = {}
        self._messages: dict[tuple[str, int], str] = {}
        self._backoffs_reported: set[tuple[str, int]] = set()
        self._warned: set[tuple[str, int, ContainerWarning]] = set()
        self._written: Object | None = None
        """The status that was last handed to the writer."""
        self._writing = False
        self._resize = resize.ResizeState()
        self.history = self._remembered()

    def _remembered(self) -> PodHistory:
        """What an earlier agent left, or what the API can tell."""
        now = self._tools.time.now()
        found = histories.load(self._tools.directory(self.uid)) or histories.from_status(self.pod)
        if not found.started_at:
            found = replace(found, started_at=now)
        if not found.allocated:
            asked, running = resize.requested_resources(self.pod), resize.from_status(self.pod)
            found = replace(found, allocated={**asked, **running}, actuated=running)
        runs = runs_of(self._tools.runtime.pod(self.uid), found)
        found = with_lost_runs(found, runs, now)
        for name, known in runs.items():
            if not known[-1].running:
                # It ended before this agent looked: its own time is all there is, but it cannot lie ahead.
                self._ended[name, known[-1].attempt] = min(known[-1].finished_at, now)
        return found

    # What the manager tells.

    def update(self, pod: Object) -> None:
        if _version(pod) >= _version(self.pod):
            self.pod = pod

    def remove(self, pod: Object) -> None:
        """The API has no such pod any more."""
        self.pod = pod
        self._removed = True
        self._tools.writer.forget(self.uid)
        self._tools.events.retract(self.uid)

    def objects_changed(self) -> None:
        """A ConfigMap, Secret or claim of the pod changed: volumes are out of date, and what failed may work now."""
        self._dirty = True
        now = self._tools.time.now()
        if self._setup is not None:
            self._setup = replace(self._setup, retry_at=now)
        for name, container in self.history.containers.items():
            if container.problem is not None:
                hastened = replace(container, problem=replace(container.problem, retry_at=now))
                self.history = self.history.with_container(name, hastened)

    def give_up(self, reason: str, message: str) -> None:
        """Fail the pod: an eviction, or a node that cannot run it."""
        if self.history.failure is None:
            self._tools.record_event(self.pod, "Warning", reason, message)
            self._remember(replace(self.history, failure=PodFailure(reason, message)))

    @property
    def never_ran(self) -> bool:
        return not self.history.containers and self._tools.runtime.pod(self.uid) is None and not ending(self.pod, False)

    async def close(self) -> None:
        """The agent ends: leave the containers alone."""
        for prober in list(self._probers.values()):
            await prober.close()

    # Looking and deciding.

    def sync(self) -> None:
        self._observe()
        self._admit_resize()
        view = self.view()
        if winding_down(view) and not self.history.terminating_since:
            self._remember(replace(self.history, terminating_since=self._tools.time.now()))
            view = self.view()
        plan: PodPlan = decide(view, self._rules)
        for action in plan.actions:
            self._perform(action)
        self._report()
        if plan.wake_at < NEVER:
            self._tools.wake(self.uid, max(0.01, plan.wake_at - self._tools.time.now()))

    def view(self) -> PodView:
        runs = runs_of(self._tools.runtime.pod(self.uid), self.history)
        refresh_in = self._volumes.refresh_in
        now = self._tools.time.now()
        return PodView(
            pod=self.pod,
            now=now,
            wall=self._tools.clock.now().timestamp(),
            runs=runs,
            ended_at={
                name: self._ended[name, known[-1].attempt]
                for name, known in runs.items()
                if (name, known[-1].attempt) in self._ended
            },
            probes={name: prober.result for name, prober in self._probers.items()},
            history=self.history,
            operations=dict(self._operations),
            stage=self._stage,
            setup=self._setup,
            refresh_at=now if self._dirty else NEVER if refresh_in is None else now + refresh_in,
            removed=self._removed,
            finishing=self._finishing,
            released=self._released,
            resize=self._resize,
        )

    # Resizing.

    def allocated_requests(self) -> tuple[int, int]:
        """CPU in thousandths and memory that the node gave the pod; nothing once it has ended."""
        if pod_model.phase_is_final(self.pod) or self._removed:
            return 0, 0
        given = resize.requests_of(self._allocated_pod())
        if not self.history.resizing:
            return given
        held = resize.requests_of(resize.with_resources(self.pod, self.history.actuated))
        return max(given[0], held[0]), max(given[1], held[1])

    def _allocated_pod(self) -> Object:
        """The pod with the resources that the node gave it."""
        return resize.with_resources(self.pod, self.history.allocated)

    def _admit_resize(self) -> None:
        asked = resize.requested_resources(self.pod)
        if asked == self.history.allocated or ending(self.pod, self._removed) or self._finishing:
            if self._resize.refusal is not None:
                self._resize = replace(self._resize, refusal=None)
            return
        runtime = self._tools.runtime
        if isinstance(runtime, ResizingRuntime):
            problem = runtime.resize_problem(self.uid)
        else:
            problem = f"the runtime {runtime.name} cannot change limits of running containers"
        refusal = resize.admit(self.pod, self.history.allocated, self._room(), problem)
        before, self._resize = self._resize.refusal, replace(self._resize, refusal=refusal)
        if refusal is None:
            self._resize = resize.ResizeState(busy=self._resize.busy)
            self._remember(replace(self.history, allocated=asked, resizing=True))
            self._tools.record_event(self.pod, "Normal", "ResizeStarted", "Pod resize started")
            return
        if before is None or before.reason != refusal.reason:
            self._tools.record_event(self.pod, "Warning", f"Resize{refusal.reason}", refusal.message)
        if refusal.reason == resize.DEFERRED:
            self._tools.wake(self.uid, resize.RETRY_SECONDS)

    def _room(self) -> resize.Room:
        found = self._tools.allocatable()
        cpu, memory = (quantity.parse(found.get(name) or "0") for name in resize.RESIZABLE)
        return resize.Room(cpu.milli_value(), memory.value(), *self._tools.requests_of_others(self.uid))

    async def _apply_resize(self, action: ResizePod) -> None:
        """What is allocated when this begins is what is put in force; a newer resize is applied after it."""
        pod, allocated = self._allocated_pod(), self.history.allocated
        runtime, now = self._tools.runtime, self._tools.time.now
        try:
            await operations.resize(self._tools, pod, action.containers, final=action.final)
        except (RuntimeFailure, OSError) as problem:
            error = problem.message if isinstance(problem, RuntimeFailure) else str(problem)
            if error != self._resize.error:
                self._tools.record_event(self.pod, "Warning", "ResizeError", f"Pod resize error: {error}")
            self._resize = replace(self._resize, busy=False, error=error, retry_at=now() + resize.RETRY_SECONDS)
            return
        self._resize = replace(self._resize, busy=False, error="", retry_at=0.0)
        actuated = {**self.history.actuated, **{name: allocated.get(name, {}) for name in action.containers}}
        finished = action.final and allocated == self.history.allocated
        self._remember(replace(self.history, actuated=actuated, resizing=not finished))
        if finished:
            self._log.info("The pod was resized", runtime=runtime.name)
            self._tools.record_event(self.pod, "Normal", "ResizeCompleted", "Pod resize completed")

    def _observe(self) -> None:
        """Note what ended since the last look, and keep the probes in step with what runs."""
        runs = runs_of(self._tools.runtime.pod(self.uid), self.history)
        for name, known in runs.items():
            newest = known[-1]
            for warning in newest.warnings:
                if (name, newest.attempt, warning) not in self._warned:
                    self._warned.add((name, newest.attempt, warning))
                    self._tools.record_event(self.pod, "Warning", warning.reason, warning.message, name)
            if newest.running:
                self._probe(name, newest)
                continue
            prober = self._probers.pop(name, None)
            if prober is not None:
                self._run_task(f"unprobe/{name}", prober.close())
            self._ended.setdefault((name, newest.attempt), self._tools.time.now())
            for run in known[-2:]:
                if not run.running and (name, run.attempt) not in self._messages:
                    self._messages[name, run.attempt] = self._message_of(name, run)
        self._forget_old_runs(runs)

    def _forget_old_runs(self, runs: Mapping[str, tuple[ContainerState, ...]]) -> None:
        if len(self._ended) + len(self._messages) + len(self._backoffs_reported) < _REMEMBERED_RUNS:
            return
        known = {(name, run.attempt) for name, states in runs.items() for run in states[-2:]}
        self._ended = {run: at for run, at in self._ended.items() if run in known}
        self._messages = {run: text for run, text in self._messages.items() if run in known}
        self._backoffs_reported.clear()
        self._warned = {entry for entry in self._warned if (entry[0], entry[1]) in known}

    def _message_of(self, name: str, run: ContainerState) -> str:
        container = pod_model.container_named(self.pod, name)
        if container is None:
            return ""
        with contextlib.suppress(OSError):  # a message is a courtesy; the state is told without it
            return termination_message(
                self._tools.directory(self.uid), container, run.attempt, exit_code(run) != 0, run.log_path, self._rules
            )
        return ""

    def _probe(self, name: str, run: ContainerState) -> None:
        known = self._probers.get(name)
        if name in self._operations or (known is not None and known.result.attempt == run.attempt):
            return
        container = pod_model.container_named(self.pod, name)
        if container is None or ending(self.pod, self._removed):
            return
        if not any(container.get(field) for field in ("startupProbe", "livenessProbe", "readinessProbe")):
            return
        if known is not None:
            self._run_task(f"unprobe/{name}", known.close())
        prober = ContainerProber(
            self.uid,
            container,
            run.attempt,
            self._tools.checker,
            self._tools.clock,
            lambda: self._tools.wake(self.uid, 0),
            lambda reason, message: self._tools.record_event(self.pod, "Warning", reason, message, name),
            age=max(0.0, self._tools.clock.now().timestamp() - run.started_at),
            adopted=self._adopted(name, run),
        )
        self._probers[name] = prober
        prober.start()

    def _adopted(self, name: str, run: ContainerState) -> Probed | None:
        """What the API was told of this very run by the agent before us: readiness must not flicker on a restart."""
        wanted = pod_model.container_id(self._runtime_name(), self.uid, name, run.attempt)
        status = pod_model.status_in(self.pod)
        for group in ("initContainerStatuses", "containerStatuses"):
            for container_status in status.get(group) or ():
                if container_status.get("containerID") == wanted and (container_status.get("state") or {}).get(
                    "running"
                ):
                    return Probed(
                        run.attempt,
                        started=bool(container_status.get("started")),
                        ready=bool(container_status.get("ready")),
                    )
        return None

    # Acting.

    def _perform(self, action: Action) -> None:
        match action:
            case PreparePod():
                self._stage = "preparing"
                self._run_task("prepare", self._prepare())
            case RefreshVolumes():
                if "refresh" not in self._tasks:
                    self._dirty = False
                    self._run_task("refresh", self._refresh())
            case StartContainer(name):
                self._operations[name] = ContainerOperation("starting")
                self._run_task(f"start/{name}", self._start(action))
            case ReportBackoff(name, attempt):
                if (name, attempt) not in self._backoffs_reported:
                    self._backoffs_reported.add((name, attempt))
                    key = pod_model.key_of(self.pod)
                    sentence = (
                        f"Back-off restarting failed container {name} in pod {key.name}_{key.namespace}({self.uid})"
                    )
                    self._tools.record_event(self.pod, "Warning", "BackOff", sentence, name)
            case StopContainer(name, grace, message):
                starting = self._tasks.get(f"start/{name}")
                if starting is not None:
                    starting.cancel()
                self._operations[name] = ContainerOperation("stopping", self._tools.time.now() + grace)
                self._tools.record_event(self.pod, "Normal", "Killing", message, name)
                self._run_task(f"stop/{name}", self._stop(name, grace))
            case KillContainer(name):
                self._operations[name] = ContainerOperation("stopping", self._tools.time.now())
                self._run_task(f"kill/{name}", self._kill(name))
            case ResizePod():
                self._resize = replace(self._resize, busy=True)
                self._run_task("resize", self._apply_resize(action))
            case FailPod(reason, message):
                self.give_up(reason, message)
                self._tools.wake(self.uid, 0)
            case ReleasePod():
                self._released = True
                self._release()
                self._run_task("devices", self._tools.devices.free(self.uid))
                if self.history.failure is not None and self.history.failure.reason == EVICTED:
                    self._run_task("free", self._free())
            case FinishPod():
                self._finishing = True
                self._run_task("finish", self._finish())

    async def _prepare(self) -> None:
        try:
            await operations.set_up(self._tools, self._allocated_pod(), self._volumes)
        except operations.OperationFailed as failure:
            if failure.final:
                self._stage = "new"
                self.give_up(failure.reason, failure.message)
                return
            now = self._tools.time.now()
            first = self._setup
            since = first.since if first is not None else now
            self._setup = StartProblem(failure.reason, failure.message, since, now + self._setup_backoff.failed())
            self._stage = "new"
            if first is None or first.message != failure.message:
                self._tools.record_event(self.pod, "Warning", failure.reason, failure.message)
        else:
            self._setup_backoff.succeeded()
            self._setup = None
            self._stage = "prepared"
            self._remember(self.history, always=True)

    async def _free(self) -> None:
        """An evicted pod stays in the API; what it wrote does not stay on the disk."""
        for path in operations.pod_files(self._tools.runtime, self._tools.settings, self.uid):
            if path.is_dir():
                await asyncio.to_thread(remove_tree, path)

    async def _refresh(self) -> None:
        try:
            await self._volumes.make(self.pod, self._tools.facts(self.uid))
        except ConfigProblem as problem:
            self._tools.record_event(self.pod, "Warning", "FailedMount", str(problem))
        except (OSError, ApiError, TransportError) as error:
            self._log.warning("Volumes could not be refreshed", error=error)
            self._dirty = True
            self._tools.wake(self.uid, self._setup_backoff.failed())

    async def _start(self, action: StartContainer) -> None:
        name, attempt = action.name, action.attempt
        pod, allocated = self._allocated_pod(), self.history.allocated.get(name)
        container = pod_model.container_named(pod, name)
        assert container is not None, "decided from this pod"
        known = self.history.of(name)
        try:
            try:
                if self.history.resizing:
                    # The pod as a whole may have been given less so far than this container has now.
                    await self._loosen_pod(pod)
                await operations.start(self._tools, pod, container, attempt, self._volumes)
            except operations.OperationFailed as failure:
                self._start_failed(container, action, failure)
                return
            known = replace(known, attempts=attempt + 1, backoff=action.backoff, problem=None)
            history = self.history.with_container(name, known)
            if allocated is not None:
                history = replace(history, actuated={**history.actuated, name: allocated})
            self._remember(history)
            self._tools.record_event(self.pod, "Normal", "Created", f"Created container {name}", name)
            self._tools.record_event(self.pod, "Normal", "Started", f"Started container {name}", name)
            why = await operations.run_hook(self._tools, self.pod, container, "postStart", 3600.0)
            if why:
                self._tools.record_event(
                    self.pod, "Warning", "FailedPostStartHook", f"PostStartHook failed: {why}", name
                )
                self._tools.record_event(self.pod, "Normal", "Killing", "FailedPostStartHook", name)
                await operations.stop(self._tools, self.pod, container, name, pod_model.termination_grace(self.pod))
        finally:
            if self._operations.get(name) == ContainerOperation("starting"):
                del self._operations[name]

    async def _loosen_pod(self, pod: Object) -> None:
        try:
            await operations.resize(self._tools, pod, (), final=False)
        except (RuntimeFailure, OSError) as problem:
            self._log.warning("The limits of a pod could not be raised", error=problem)

    def _start_failed(self, container: Object, action: StartContainer, failure: operations.OperationFailed) -> None:
        name, now = action.name, self._tools.time.now()
        known = self.history.of(name)
        if failure.reason in operations.START_ERRORS:
            ending = Ending(action.attempt, 128, "StartError", failure.message, now, now, container.get("image") or "")
            known = replace(
                known,
                attempts=action.attempt + 1,
                backoff=action.backoff,
                problem=None,
                endings=(*known.endings, ending)[-2:],
            )
            self._ended[name, action.attempt] = now
            self._tools.record_event(self.pod, "Warning", "Failed", f"Error: {failure.message}", name)
        else:
            before = known.problem
            count = before.count + 1 if before is not None else 1
            if count > 1 and failure.reason in operations.BACK_OFF:
                again = f"Back-off pulling image: {failure.message}"
                failure = operations.OperationFailed(operations.BACK_OFF[failure.reason], again)
            pause = min(self._rules.backoff_limit, self._rules.start_retry_first * 2.0 ** min(count - 1, 16))
            since = before.since if before is not None else now
            known = replace(
                known, problem=StartProblem(failure.reason, failure.message, since, now + pause, count, failure.final)
            )
            if before is None or before.reason != failure.reason:
                for reason, message in operations.start_failure_events(failure.reason, failure.message):
                    self._tools.record_event(self.pod, "Warning", reason, message, name)
        self._remember(self.history.with_container(name, known))

    async def _stop(self, name: str, grace: float) -> None:
        container = pod_model.container_named(self.pod, name)
        try:
            await operations.stop(self._tools, self.pod, container, name, grace)
        except (RuntimeFailure, OSError) as problem:
            self._log.error("A container could not be stopped; trying again", error=problem, container=name)
            await self._tools.clock.sleep(1.0)
        finally:
            self._operations.pop(name, None)

    async def _kill(self, name: str) -> None:
        with contextlib.suppress(RuntimeFailure, OSError):  # the stop that is under way ends it otherwise
            await self._tools.runtime.signal_container(self.uid, name, signal.SIGKILL)

    async def _finish(self) -> None:
        """Tell how it ended, free everything, and let the API forget the pod. Tried until done."""
        # A set-up that is still under way would make anew what is removed here.
        begun = [task for name in ("prepare", "refresh") if (task := self._tasks.get(name)) is not None]
        for task in begun:
            task.cancel()
        if begun:
            await asyncio.wait(begun)
        retry = Backoff(_FINISH_RETRY)
        reported = False
        while True:
            try:
                if not self._removed and not reported:
                    reported = await self._report_end()
                self._release()
                for plugin in self._tools.plugins:
                    plugin.network_gone(self.uid)
                await self._tools.runtime.remove_pod(self.uid)
                await self._tools.devices.free(self.uid)
                if not self._removed:
                    await operations.remove_from_api(self._tools, self.pod)
            except (ApiError, TransportError, RuntimeFailure, OSError) as error:
                self._log.warning("A pod that ended could not be removed; trying again", error=error)
                await self._tools.clock.sleep(retry.failed())
                continue
            break
        self._tools.forget(self.uid)

    async def _report_end(self) -> bool:
        status = status_of(replace(self.view(), operations={}), self._place(), self._rules)
        if overwritten(pod_model.status_in(self.pod), status):
            await self._tools.writer.put(self.pod, status, self._was_written)
        return True

    def _release(self) -> None:
        for name in list(self._probers):
            self._run_task(f"unprobe/{name}", self._probers.pop(name).close())
        self._volumes.release(self.uid)

    def _run_task(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        task = self._tools.owner.start(f"{pod_model.key_of(self.pod)}/{name}", work, vital=False)
        self._tasks[name] = task

        def ended(done: asyncio.Task[Any]) -> None:
            if self._tasks.get(name) is done:
                del self._tasks[name]
            if not done.cancelled() and done.exception() is not None:
                self._recover(name)
            self._tools.wake(self.uid, 0)

        task.add_done_callback(ended)

    def _recover(self, name: str) -> None:
        """An operation broke in a way nobody foresaw (it is in the log). The pod must neither hang nor spin: whatever it
        was is tried again after a pause."""
        kind, _, container = name.partition("/")
        now = self._tools.time.now()
        if kind == "prepare":
            self._stage = "new"
            self._setup = StartProblem("FailedCreatePodSandBox", _BROKEN, now, now + self._setup_backoff.failed())
        elif kind == "resize":
            self._resize = replace(self._resize, busy=False, error=_BROKEN, retry_at=now + resize.RETRY_SECONDS)
        elif kind == "start":
            known = self.history.of(container)
            problem = StartProblem("CreateContainerError", _BROKEN, now, now + self._rules.start_retry_first)
            self._remember(self.history.with_container(container, replace(known, problem=problem)))
        elif kind in ("stop", "finish"):
            if kind == "stop":
                self._operations[container] = ContainerOperation("stopping", now)
            self._run_task(f"pause/{name}", self._pause(kind, container))

    async def _pause(self, kind: str, container: str) -> None:
        await self._tools.clock.sleep(_BROKEN_PAUSE)
        if kind == "stop":
            self._operations.pop(container, None)
        else:
            self._finishing = False

    # Remembering and reporting.

    def _remember(self, history: PodHistory, *, always: bool = False) -> None:
        if history == self.history and not always:
            return
        self.history = history
        directory = self._tools.directory(self.uid)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            histories.save(directory, history)
        except OSError as error:
            # A full disk must not stop pods from being looked after; the API knows most of it too.
            self._log.warning("A pod's history could not be written", error=error)

    def _place(self) -> PodLocation:
        address = self._tools.settings.address
        known = pod_model.status_in(self.pod).get("podIP") or ""
        there = self._stage == "prepared" or bool(known)
        return PodLocation(
            self._runtime_name(),
            address,
            (self._tools.runtime.pod_ip(self.uid) or known or address) if there else "",
            self._messages,
        )

    def _runtime_name(self) -> str:
        """As the IDs of containers begin: the handler that the pod asked for, else the node's runtime."""
        return security_context.handler_of(self.pod, self._tools.runtime.name)

    def _report(self) -> None:
        if self._removed or self._finishing or pod_model.phase_is_final(self.pod):
            return
        status = status_of(self.view(), self._place(), self._rules)
        before = pod_model.status_in(self.pod)
        if status == self._written and (self._writing or not overwritten(before, status)):
            return
        if self._written is None and not changed(before, status):
            self._written = status
            return
        self._written = status
        self._writing = True
        delay = self._rules.pending_status_delay if status["phase"] == "Pending" else 0.0
        self._tools.writer.put(self.pod, status, self._was_written, delay)

    def _was_written(self, pod: Object) -> None:
        self._writing = False
        self.update(pod)
        self._tools.wake(self.uid, 0)


def changed(before: Object, after: Object) -> bool:
    return any(before.get(key) != value for key, value in after.items())


def overwritten(before: Object, after: Object) -> bool:
    """Whether the API's status says something else about what matters to others: somebody wrote over ours."""
    statuses = {condition["type"]: condition.get("status") for condition in before.get("conditions") or ()}
    ours = {condition["type"]: condition.get("status") for condition in after["conditions"]}
    return before.get("phase") != after["phase"] or any(statuses.get(kind) != value for kind, value in ours.items())


def ending(pod: Object, removed: bool) -> bool:
    return removed or pod_model.deleting(pod) or pod_model.phase_is_final(pod)


def _version(pod: Object) -> int:
    text = pod["metadata"].get("resourceVersion") or "0"
    return int(text) if text.isdigit() else 0
