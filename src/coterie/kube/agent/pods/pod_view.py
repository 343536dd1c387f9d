"""`PodView`: all that is known about one pod at one moment. Deciding and reporting look at nothing else.

It joins what the runtime saw (runs), what probes found, what was remembered (history), and what is being done right now
(operations), so that the functions over it are pure and a test can write any situation down as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.history import ContainerHistory, Ending, PodHistory, StartProblem
from coterie.kube.agent.pods.resize import ResizeState
from coterie.kube.agent.runtimes.protocol import ContainerState, PodState
from coterie.kube.api.meta import Object

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probes of one run say. Without probes a running container is started and ready."""

    attempt: int
    started: bool = True
    ready: bool = True
    failed: str = ""
    """Why the run must be killed: its startup or liveness probe failed for too long."""
    grace: float | None = None
    """The probe's own grace for that kill."""


@dataclass(frozen=True, slots=True)
class ContainerOperation:
    """Something that is being done to a container and takes its time."""

    kind: Literal["starting", "stopping"]
    deadline: float = NEVER
    """When a container that is being stopped will be killed."""


@dataclass(frozen=True, slots=True)
class PodView:
    pod: Object
    now: float
    """Seconds since 1970 on a clock that nobody moves (see `manager`)."""
    wall: float = 0.0
    """The time of day to write into the status; 0: `now`."""
    runs: Mapping[str, tuple[ContainerState, ...]] = field(default_factory=dict)
    """By container, newest last."""
    ended_at: Mapping[str, float] = field(default_factory=dict)
    """When the newest run of a container ended, on the clock of `now`."""
    probes: Mapping[str, Probed] = field(default_factory=dict)
    history: PodHistory = PodHistory()  # noqa: RUF009 - frozen
    operations: Mapping[str, ContainerOperation] = field(default_factory=dict)
    stage: Literal["new", "preparing", "prepared"] = "new"
    setup: StartProblem | None = None
    """Why volumes or the sandbox could not be made."""
    refresh_at: float = NEVER
    """When volumes must be brought up to date."""
    removed: bool = False
    """The API does not know the pod (any more)."""
    finishing: bool = False
    released: bool = False
    resize: ResizeState = ResizeState()  # noqa: RUF009 - frozen

    def newest(self, name: str) -> ContainerState | None:
        runs = self.runs.get(name)
        return runs[-1] if runs else None

    def running(self, name: str) -> ContainerState | None:
        run = self.newest(name)
        return run if run is not None and run.running else None

    def probed(self, name: str) -> Probed:
        run = self.newest(name)
        found = self.probes.get(name)
        if run is None or found is None or found.attempt != run.attempt:
            return Probed(run.attempt if run is not None else 0)
        return found

    def started(self, name: str) -> bool:
        """It runs, its postStart hook is through and its startup probe is content."""
        return self.running(name) is not None and name not in self.operations and self.probed(name).started

    def ended(self, name: str) -> float:
        run = self.newest(name)
        return self.ended_at.get(name, run.finished_at if run is not None else 0.0)

    def attempts(self, name: str) -> int:
        """Runs begun so far."""
        run = self.newest(name)
        return max(self.history.of(name).attempts, run.attempt + 1 if run is not None else 0)


def runs_of(state: PodState | None, history: PodHistory) -> dict[str, tuple[ContainerState, ...]]:
    """All runs that are known, those of the runtime before those that are only remembered."""
    found: dict[str, dict[int, ContainerState]] = {}
    for name, container in history.containers.items():
        for ending in container.endings:
            found.setdefault(name, {})[ending.attempt] = _remembered(name, ending)
    for run in state.containers if state is not None else ():
        found.setdefault(run.name, {})[run.attempt] = run
    return {name: tuple(runs[attempt] for attempt in sorted(runs)) for name, runs in found.items()}


def _remembered(name: str, ending: Ending) -> ContainerState:
    return ContainerState(
        name=name,
        attempt=ending.attempt,
        image=ending.image,
        image_id=ending.image_id,
        pid=0,
        started_at=ending.started_at,
        finished_at=ending.finished_at or ending.started_at or 1.0,
        exit_code=ending.exit_code,
        reason=ending.reason,
        message=ending.message,
    )


def will_restart(pod: Object, container: Object, run: ContainerState, *, init: bool) -> bool:
    """Whether the restart policy wants another run after this one."""
    policy = pod_model.restart_policy(pod)
    failed = exit_code(run) != 0
    if init:
        return pod_model.is_sidecar(container) or (failed and policy != "Never")
    return policy == "Always" or (policy == "OnFailure" and failed)


def exit_code(run: ContainerState) -> int:
    return run.exit_code or (128 + run.signal if run.signal else 0)


def initialized(view: PodView) -> bool:
    """Init containers have done their work. Once a main container has run this never becomes false again."""
    if any(view.attempts(container["name"]) for container in pod_model.containers(view.pod)):
        return True
    return all(init_done(view, container) for container in pod_model.init_containers(view.pod))


def init_done(view: PodView, container: Object) -> bool:
    if pod_model.is_sidecar(container):
        return view.started(container["name"])
    run = view.newest(container["name"])
    return run is not None and not run.running and exit_code(run) == 0


def init_failed(view: PodView) -> bool:
    """An init container failed for good."""
    for container in pod_model.init_containers(view.pod):
        run = view.newest(container["name"])
        if run is None or run.running or pod_model.is_sidecar(container) or exit_code(run) == 0:
            continue
        if not will_restart(view.pod, container, run, init=True):
            return True
    return False


def finished(view: PodView) -> bool:
    """All main containers ended and none will run again."""
    if init_failed(view):
        return True
    main = pod_model.containers(view.pod)
    if not main:
        return False
    for container in main:
        run = view.newest(container["name"])
        if run is None or run.running or will_restart(view.pod, container, run, init=False):
            return False
    return True


def winding_down(view: PodView) -> bool:
    """Nothing is started any more; what still runs is stopped."""
    return (
        view.removed
        or pod_model.deleting(view.pod)
        or view.history.failure is not None
        or pod_model.phase_is_final(view.pod)
        or finished(view)
    )


def anything_runs(view: PodView) -> bool:
    return any(runs and runs[-1].running for runs in view.runs.values())


def with_lost_runs(history: PodHistory, runs: Mapping[str, tuple[ContainerState, ...]], now: float) -> PodHistory:
    """After a power cut: runs that were begun but that nobody knows any more have ended, nobody knows how."""
    for name, container in history.containers.items():
        newest = runs[name][-1].attempt if runs.get(name) else -1
        if newest >= container.attempts - 1:
            continue
        lost = Ending(
            container.attempts - 1,
            137,
            "ContainerStatusUnknown",
            "The container could not be located when the agent came back",
            0.0,
            now,
        )
        endings = (*container.endings, lost)[-2:]
        history = history.with_container(
            name, ContainerHistory(container.attempts, container.backoff, container.problem, endings)
        )
    return history
