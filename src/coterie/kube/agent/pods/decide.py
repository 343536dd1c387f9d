"""What to do next with a pod: a pure function from everything known to a list of actions and a time to look again.

    new ──Prepare──> prepared ──Start init 1, 2, ...──> initialized ──Start containers──> running
                                        ^                                   │ ended, or killed for its probe
                                        └─────── after the back-off ────────┘
    deleted, removed, failed or finished:  Stop containers ──> Stop sidecars ──> Release or Finish

Containers are started one at a time, in their order; everything else happens side by side. An action is given out again
until its effect shows in the next view, except while an operation on the container is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.kube.agent.pods import pod_model, resize
from coterie.kube.agent.pods.history import StartProblem
from coterie.kube.agent.pods.pod_view import NEVER, PodView, init_done, initialized, will_restart, winding_down
from coterie.kube.agent.runtimes.protocol import ContainerState
from coterie.kube.agent.settings import PodSettings
from coterie.kube.api.meta import Object

EVICTED = "Evicted"
"""Why a pod failed that used too much, or that the node has no room for."""


@dataclass(frozen=True, slots=True)
class PreparePod:
    """Make the volumes and the sandbox."""


@dataclass(frozen=True, slots=True)
class RefreshVolumes:
    """Bring the volumes up to date."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    name: str
    attempt: int
    backoff: float = 0.0
    """The pause to keep after this run before the next."""


@dataclass(frozen=True, slots=True)
class ReportBackoff:
    """A container waits for its restart: people should know."""

    name: str
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StopContainer:
    """preStop hook, SIGTERM, grace, SIGKILL."""

    name: str
    grace: float
    message: str


@dataclass(frozen=True, slots=True)
class KillContainer:
    """The time is over for a container that is being stopped."""

    name: str


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Give running containers, and the pod as a whole, the limits that were allocated."""

    containers: tuple[str, ...]
    final: bool
    """Whether all containers have theirs afterwards, so that the pod as a whole gets no more than that."""


@dataclass(frozen=True, slots=True)
class FailPod:
    """Give the pod up."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """The pod is through but stays in the API: free what it holds, keep its logs and states."""


@dataclass(frozen=True, slots=True)
class FinishPod:
    """Nothing of the pod runs: remove it here, and from the API if it is there."""


Action = (
    PreparePod
    | RefreshVolumes
    | StartContainer
    | ReportBackoff
    | StopContainer
    | KillContainer
    | ResizePod
    | FailPod
    | ReleasePod
    | FinishPod
)


@dataclass(frozen=True, slots=True)
class PodPlan:
    actions: tuple[Action, ...] = ()
    wake_at: float = NEVER
    """When to decide again although nothing changed."""


@dataclass(slots=True)
class _Draft:
    actions: list[Action] = field(default_factory=list)
    wake_at: float = NEVER

    def wake(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)

    def plan(self) -> PodPlan:
        return PodPlan(tuple(self.actions), self.wake_at)


def decide(view: PodView, rules: PodSettings) -> PodPlan:
    draft = _Draft()
    if view.finishing:
        return draft.plan()
    if winding_down(view):
        _wind_down(view, draft)
        return draft.plan()
    failure = _given_up(view, rules, draft)
    if failure is not None:
        return PodPlan((failure,))
    _keep_prepared(view, draft)
    _kill_unhealthy(view, draft)
    _stop_changed(view, draft)
    if view.history.resizing:
        _apply_resize(view, draft)
    if view.stage == "prepared":
        _start_what_is_due(view, rules, draft)
        _start_ephemeral(view, draft)
    return draft.plan()


# Giving up.


def _given_up(view: PodView, rules: PodSettings, draft: _Draft) -> FailPod | None:
    deadline = pod_model.spec_of(view.pod).get("activeDeadlineSeconds")
    if deadline is not None:
        end = view.history.started_at + float(deadline)
        if view.now >= end:
            return FailPod("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        draft.wake(end)
    if pod_model.restart_policy(view.pod) != "Never" or not rules.start_failure_seconds:
        return None
    problems: list[tuple[str, StartProblem | None]] = [("", view.setup)]
    problems += [(container["name"], view.history.of(container["name"]).problem) for container in _all(view)]
    for name, problem in problems:
        if problem is None:
            continue
        end = problem.since + rules.start_failure_seconds
        if problem.final:
            return FailPod(problem.reason, f"container {name} could not be started: {problem.message}")
        if view.now >= end:
            what = f"container {name} could not be started" if name else "the pod could not be set up"
            return FailPod(problem.reason, f"{what} within {rules.start_failure_seconds:g} s: {problem.message}")
        draft.wake(end)
    return None


# Going on.


def _keep_prepared(view: PodView, draft: _Draft) -> None:
    if view.stage == "new":
        if view.setup is None or view.setup.retry_at <= view.now:
            draft.actions.append(PreparePod())
        else:
            draft.wake(view.setup.retry_at)
    elif view.stage == "prepared" and view.refresh_at < NEVER:
        if view.refresh_at <= view.now:
            draft.actions.append(RefreshVolumes())
        else:
            draft.wake(view.refresh_at)


def _kill_unhealthy(view: PodView, draft: _Draft) -> None:
    for container in _all(view):
        name = container["name"]
        if view.running(name) is None or name in view.operations:
            continue
        probed = view.probed(name)
        if probed.failed:
            grace = pod_model.termination_grace(view.pod) if probed.grace is None else probed.grace
            draft.actions.append(StopContainer(name, grace, f"Container {name} {probed.failed}"))


def _stop_changed(view: PodView, draft: _Draft) -> None:
    """The image is the one thing of a container that may change while it runs. Without a restart policy it runs on."""
    if pod_model.restart_policy(view.pod) == "Never":
        return
    for container in pod_model.containers(view.pod):
        name = container["name"]
        run = view.running(name)
        if run is None or name in view.operations or not run.image or run.image == container.get("image"):
            continue
        message = f"Container {name} definition changed, will be restarted"
        if not any(isinstance(action, StopContainer) and action.name == name for action in draft.actions):
            draft.actions.append(StopContainer(name, pod_model.termination_grace(view.pod), message))


def _apply_resize(view: PodView, draft: _Draft) -> None:
    """In place where the container's policy allows it; else it is stopped, and its next run has the new limits."""
    history, in_place, waiting = view.history, [], False
    stopping = {action.name for action in draft.actions if isinstance(action, StopContainer)}
    for container in resize.resizable_containers(view.pod):
        name = container["name"]
        allocated = history.allocated.get(name, {})
        actuated = history.actuated.get(name, allocated)
        if name in view.operations or name in stopping:
            waiting = True
        elif view.running(name) is None or actuated == allocated:
            continue
        elif resize.needs_restart(container, actuated, allocated):
            waiting = True
            message = f"Container {name} resize requires restart"
            draft.actions.append(StopContainer(name, pod_model.termination_grace(view.pod), message))
        else:
            in_place.append(name)
    if view.resize.busy or (waiting and not in_place):
        return
    if view.resize.retry_at > view.now:
        draft.wake(view.resize.retry_at)
        return
    draft.actions.append(ResizePod(tuple(in_place), final=not waiting))


def _start_ephemeral(view: PodView, draft: _Draft) -> None:
    """Each once, at any time: also while an init container or a hook of another container hangs."""
    for container in pod_model.ephemeral_containers(view.pod):
        name = container["name"]
        if name in view.operations or view.attempts(name):
            continue
        problem = view.history.of(name).problem
        if problem is not None and problem.retry_at > view.now:
            draft.wake(problem.retry_at)
        else:
            draft.actions.append(StartContainer(name, 0))


def _start_what_is_due(view: PodView, rules: PodSettings, draft: _Draft) -> None:
    if initialized(view):
        for container in [*pod_model.sidecars(view.pod), *pod_model.containers(view.pod)]:
            _start(view, rules, draft, container)
        return
    for container in pod_model.init_containers(view.pod):
        if init_done(view, container):
            continue
        _start(view, rules, draft, container)
        return  # the next one begins when this one is through


def _start(view: PodView, rules: PodSettings, draft: _Draft, container: Object) -> None:
    name = container["name"]
    if name in view.operations or view.running(name) is not None:
        return
    run, known = view.newest(name), view.history.of(name)
    is_init = any(other is container for other in pod_model.init_containers(view.pod))
    if run is not None and not will_restart(view.pod, container, run, init=is_init):
        return
    pause = pause_before_restart(run, known.backoff, rules)
    due = view.ended(name) + pause if run is not None else 0.0
    if due > view.now:
        draft.actions.append(ReportBackoff(name, view.attempts(name), pause))
        draft.wake(due)
        return
    if known.problem is not None and known.problem.retry_at > view.now:
        draft.wake(known.problem.retry_at)
        return
    if any(operation.kind == "starting" for operation in view.operations.values()) or any(
        isinstance(action, StartContainer) for action in draft.actions
    ):
        return  # one at a time; the end of that start wakes us
    draft.actions.append(StartContainer(name, view.attempts(name), next_backoff(run, pause, rules)))


def pause_before_restart(run: ContainerState | None, backoff: float, rules: PodSettings) -> float:
    """Seconds to wait after the end of `run`: what was set when it began, unless it went well for long."""
    if run is None or run.finished_at - run.started_at >= rules.backoff_reset:
        return 0.0
    return backoff


def next_backoff(run: ContainerState | None, pause: float, rules: PodSettings) -> float:
    """The pause after a run that begins now: none after the first, then 10 s, 20 s, ... 300 s."""
    if run is None:
        return 0.0
    return min(rules.backoff_limit, pause * 2 if pause else rules.backoff_first)


# Ending.


def _wind_down(view: PodView, draft: _Draft) -> None:
    # Whoever is evicted takes what others need, so it has next to no time to go on.
    evicted = view.history.failure is not None and view.history.failure.reason == EVICTED
    grace = 1.0 if evicted else max(1.0, pod_model.termination_grace(view.pod))
    deadline = (view.history.terminating_since or view.now) + grace
    sidecars = [container["name"] for container in pod_model.sidecars(view.pod)]
    first = [name for name in view.runs if name not in sidecars]
    if _stop(view, draft, first, deadline):
        if view.now < deadline:
            draft.wake(deadline)
            return
        _stop(view, draft, sidecars, deadline)
        return
    # Sidecars serve the others, so they go last, each before those that it was started after.
    for name in reversed(sidecars):
        if _stop(view, draft, [name], deadline) and view.now < deadline:
            draft.wake(deadline)
            return
    if draft.actions or view.operations or any(view.running(name) for name in view.runs):
        return
    if view.removed or pod_model.deleting(view.pod):
        draft.actions.append(FinishPod())
    elif not view.released:
        draft.actions.append(ReleasePod())


def _stop(view: PodView, draft: _Draft, names: Sequence[str], deadline: float) -> bool:
    """Stop these; says whether any of them still runs."""
    busy = False
    for name in names:
        operation = view.operations.get(name)
        if view.running(name) is None:
            busy = busy or operation is not None
            continue
        busy = True
        if operation is None or operation.kind == "starting":
            # Also in the middle of a postStart hook: the container runs, and it is to end.
            draft.actions.append(StopContainer(name, max(1.0, deadline - view.now), f"Stopping container {name}"))
        elif operation.deadline > deadline + 1.0:
            # It was being stopped with more patience than there is now.
            if view.now >= deadline:
                draft.actions.append(KillContainer(name))
            else:
                draft.wake(deadline)
    return busy


def _all(view: PodView) -> list[Object]:
    return list(pod_model.all_containers(view.pod))
