"""Situations of a pod as data: `situation(...)` builds a View from a few words."""

from __future__ import annotations

from typing import Any

from coterie.kube.agent.pods.history import ContainerHistory, PodHistory, StartProblem
from coterie.kube.agent.pods.pod_view import ContainerOperation, PodView, Probed
from coterie.kube.agent.runtimes.protocol import ContainerState
from coterie.kube.api.meta import Object

NOW = 1_800_000_000.0


def run(
    name: str = "main",
    attempt: int = 0,
    *,
    code: int | None = None,
    ended: float = 0.0,
    lasted: float = 5.0,
    **more: Any,
) -> ContainerState:
    """A run that goes on, or, with a code, ended `ended` seconds ago after `lasted` seconds."""
    if code is None:
        return ContainerState(name, attempt, "image", "sha256:1", 7, NOW - lasted, **more)
    reason = more.pop("reason", "Error" if code else "Completed")
    return ContainerState(
        name, attempt, "image", "sha256:1", 0, NOW - ended - lasted, NOW - ended, code, reason=reason, **more
    )


def make_pod(
    *containers: Object | str,
    policy: str = "Always",
    inits: tuple[Object | str, ...] = (),
    deleted: bool = False,
    grace: int = 30,
    phase: str = "",
    conditions: tuple[Object, ...] = (),
    **spec: Any,
) -> Object:
    meta: Object = {"name": "web", "namespace": "alice", "uid": "uid-1"}
    if deleted:
        meta |= {"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": grace}
    found: Object = {
        "metadata": meta,
        "spec": {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": grace,
            "containers": [_container(c) for c in containers or ("main",)],
            **spec,
        },
        "status": {"conditions": list(conditions)},
    }
    if inits:
        found["spec"]["initContainers"] = [_container(c) for c in inits]
    if phase:
        found["status"]["phase"] = phase
    return found


def sidecar(name: str) -> Object:
    return {"name": name, "image": "image", "restartPolicy": "Always"}


def situation(pod: Object, *runs: ContainerState, **fields: Any) -> PodView:
    grouped: dict[str, tuple[ContainerState, ...]] = {}
    for one in runs:
        grouped[one.name] = (*grouped.get(one.name, ()), one)
    fields.setdefault("stage", "prepared")
    history = fields.pop("history", PodHistory(started_at=NOW - 60))
    backoffs: dict[str, float] = fields.pop("backoff", {})
    for name, pause in backoffs.items():
        history = history.with_container(name, ContainerHistory(grouped[name][-1].attempt + 1, pause))
    problems: dict[str, StartProblem] = fields.pop("problems", {})
    for name, problem in problems.items():
        history = history.with_container(name, ContainerHistory(problem=problem))
    return PodView(pod=pod, now=NOW, runs=grouped, history=history, **fields)


def problem(reason: str = "ErrImageNeverPull", *, since: float = 0.0, retry_in: float = 5.0) -> StartProblem:
    return StartProblem(reason, "there is none", NOW - since, NOW + retry_in)


STARTING = ContainerOperation("starting")
STOPPING = ContainerOperation("stopping", NOW + 20)
UNREADY = Probed(0, ready=False)
NOT_STARTED = Probed(0, started=False, ready=False)
UNHEALTHY = Probed(0, failed="failed liveness probe, will be restarted")


def _container(told: Object | str) -> Object:
    return {"name": told, "image": "image"} if isinstance(told, str) else told
