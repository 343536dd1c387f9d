"""What the agent must remember of a pod beyond what the runtime and the API know.

The runtime knows runs and how they ended; the API knows the last status. Lost with the agent would be: starts that
failed before there was a run, how long the next pause is, why the pod was failed, since when it is being stopped. These
are a few lines of JSON in the pod's directory, replaced in one step whenever they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from coterie.base.clock import parse_rfc3339
from coterie.base.files import read_bytes_or_none, write_atomic
from coterie.base.log import logger
from coterie.kube.agent.pods import pod_model
from coterie.kube.api.meta import Object

FILE = "history.json"
log = logger("agent.pods.history")


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why something does not start, in the words of a container's waiting state."""

    reason: str
    message: str
    since: float
    retry_at: float
    count: int = 1
    final: bool = False
    """Whether it can never become better, so that a pod which is not restarted fails at once."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A run that the runtime knows nothing (more) of."""

    attempt: int
    exit_code: int
    reason: str
    message: str
    started_at: float
    finished_at: float
    image: str = ""
    image_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerHistory:
    attempts: int = 0
    """Runs begun so far, counting those that could not be started. The restart count is one less."""
    backoff: float = 0.0
    """The pause that must pass after the end of the newest run before the next."""
    problem: StartProblem | None = None
    endings: tuple[Ending, ...] = ()
    """At most two: those that the newest state and the last state may need."""


NEVER_RAN = ContainerHistory()


@dataclass(frozen=True, slots=True)
class PodFailure:
    """The pod as a whole was given up."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodHistory:
    containers: Mapping[str, ContainerHistory] = field(default_factory=dict)
    failure: PodFailure | None = None
    terminating_since: float = 0.0
    """When stopping the pod began; 0: it has not."""
    started_at: float = 0.0
    """When the agent first saw the pod: its `startTime`."""
    allocated: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """By container: CPU and memory that the node gave it; see `resize`."""
    actuated: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """By container: what its newest run has."""
    resizing: bool = False
    """What was allocated last is not in force everywhere yet."""

    def of(self, name: str) -> ContainerHistory:
        return self.containers.get(name, NEVER_RAN)

    def with_container(self, name: str, container: ContainerHistory) -> PodHistory:
        return replace(self, containers={**self.containers, name: container})


def load(directory: Path) -> PodHistory | None:
    """None when there is none, or none that can be read: then the API's last status must do."""
    data = read_bytes_or_none(directory / FILE)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=PodHistory)
    except msgspec.DecodeError as error:
        log.warning("A pod's history is unreadable; starting a new one", error=error, file=str(directory / FILE))
        return None


def save(directory: Path, history: PodHistory) -> None:
    # Not forced to the disk: it must outlive the agent, and after a power cut no container runs anyway.
    write_atomic(directory / FILE, msgspec.json.encode(history), durable=False)


def from_status(pod: Object) -> PodHistory:
    """What the last status in the API lets us remember: an agent that lost its disk still counts restarts right."""
    status = pod_model.status_in(pod)
    containers: dict[str, ContainerHistory] = {}
    for group in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for container_status in status.get(group) or ():
            found = _container_from_status(container_status)
            if found is not None:
                containers[container_status["name"]] = found
    failure = None
    if status.get("phase") == "Failed" and status.get("reason"):
        failure = PodFailure(status["reason"], status.get("message") or "")
    return PodHistory(containers, failure, 0.0, _moment(status.get("startTime")))


def _container_from_status(status: Object) -> ContainerHistory | None:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    restarts = int(status.get("restartCount") or 0)
    running, ended, before = state.get("running"), state.get("terminated"), last.get("terminated")
    endings: list[Ending] = []
    if before:
        # While a container waits for its restart, the run that ended is the newest one.
        attempt = restarts if not running and not ended else restarts - 1
        endings.append(_ending(status, before, max(attempt, 0)))
    if ended:
        endings.append(_ending(status, ended, restarts))
    if not running and not endings:
        return None
    return ContainerHistory(attempts=restarts + 1, endings=tuple(endings))


def _ending(terminated: Object, ended: Object, attempt: int) -> Ending:
    return Ending(
        attempt,
        int(ended.get("exitCode") or 0),
        ended.get("reason") or "",
        ended.get("message") or "",
        _moment(ended.get("startedAt")),
        _moment(ended.get("finishedAt")),
        terminated.get("image") or "",
        terminated.get("imageID") or "",
    )


def _moment(text: Any) -> float:
    if not isinstance(text, str):
        return 0.0
    try:
        return parse_rfc3339(text).timestamp()
    except ValueError:
        return 0.0
