"""One row per thing a status tells."""

from __future__ import annotations

from typing import Any

import pytest
from view_kit import NOT_STARTED, NOW, STARTING, STOPPING, UNREADY, make_pod, problem, run, sidecar, situation

from coterie.kube.agent.pods.history import PodFailure, PodHistory, from_status
from coterie.kube.agent.pods.pod_view import PodView, runs_of, with_lost_runs
from coterie.kube.agent.pods.status import PodLocation, status_of
from coterie.kube.agent.settings import PodSettings

RULES = PodSettings()
PLACE = PodLocation("fake", "10.0.0.1", "10.0.0.2")
FAILED = PodHistory(started_at=NOW - 9, failure=PodFailure("DeadlineExceeded", "too long"))


@pytest.mark.parametrize(
    ("view", "phase"),
    [
        pytest.param(situation(make_pod(), stage="new"), "Pending", id="new"),
        pytest.param(situation(make_pod(), run()), "Running", id="running"),
        pytest.param(situation(make_pod("a", "b"), run("a")), "Pending", id="not-all-begun"),
        pytest.param(situation(make_pod(inits=("i",)), run("i")), "Pending", id="initializing"),
        pytest.param(situation(make_pod(inits=("i",)), run("i", code=1)), "Pending", id="init-will-be-restarted"),
        pytest.param(situation(make_pod(policy="Never", inits=("i",)), run("i", code=1)), "Failed", id="init-failed"),
        pytest.param(situation(make_pod(), run(code=1)), "Running", id="between-two-runs"),
        pytest.param(situation(make_pod(policy="Never"), run(code=0)), "Succeeded", id="succeeded"),
        pytest.param(situation(make_pod(policy="Never"), run(code=2)), "Failed", id="failed"),
        pytest.param(
            situation(make_pod("a", "b", policy="Never"), run("a", code=0), run("b", code=1)), "Failed", id="one-failed"
        ),
        pytest.param(situation(make_pod("a", "b", policy="Never"), run("a", code=1), run("b")), "Running", id="one-left"),
        pytest.param(situation(make_pod(policy="OnFailure"), run(code=1)), "Running", id="on-failure-goes-on"),
        pytest.param(
            situation(make_pod(policy="Never", inits=(sidecar("s"),)), run("s"), run(code=0)),
            "Running",
            id="sidecar-still-runs",
        ),
        pytest.param(situation(make_pod(), run(), history=FAILED), "Running", id="given-up-but-still-running"),
        pytest.param(situation(make_pod(), run(code=143), history=FAILED), "Failed", id="given-up-and-stopped"),
        pytest.param(situation(make_pod(phase="Succeeded"), run()), "Succeeded", id="an-end-is-never-taken-back"),
        pytest.param(situation(make_pod(deleted=True), run(), operations={"main": STOPPING}), "Running", id="stopping"),
        pytest.param(situation(make_pod(deleted=True), run(code=143)), "Failed", id="stopped-by-deletion"),
        pytest.param(situation(make_pod(deleted=True), run(code=0)), "Succeeded", id="ended-well-by-deletion"),
    ],
)  # fmt: skip
def test_phase(view: PodView, phase: str) -> None:
    assert status_of(view, PLACE, RULES)["phase"] == phase


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": reason}


@pytest.mark.parametrize(
    ("view", "state", "last", "restarts", "ready", "started"),
    [
        pytest.param(situation(make_pod()), waiting("ContainerCreating"), {}, 0, False, False, id="creating"),
        pytest.param(
            situation(make_pod(), history=FAILED), waiting("DeadlineExceeded"), {}, 0, False, False,
            id="failed-before-it-ran",
        ),
        pytest.param(situation(make_pod(inits=("i",))), waiting("PodInitializing"), {}, 0, False, False, id="init"),
        pytest.param(
            situation(make_pod(), problems={"main": problem()}), waiting("ErrImageNeverPull"), {}, 0, False, False,
            id="image-missing",
        ),
        pytest.param(
            situation(make_pod(), problems={"main": problem("CreateContainerConfigError")}),
            waiting("CreateContainerConfigError"), {}, 0, False, False, id="config-missing",
        ),
        pytest.param(situation(make_pod(), run()), {"running": None}, {}, 0, True, True, id="running"),
        pytest.param(
            situation(make_pod(), run(), operations={"main": STARTING}), {"running": None}, {}, 0, False, False,
            id="in-its-post-start-hook",
        ),
        pytest.param(
            situation(make_pod(), run(), probes={"main": UNREADY}), {"running": None}, {}, 0, False, True, id="unready"
        ),
        pytest.param(
            situation(make_pod(), run(), probes={"main": NOT_STARTED}), {"running": None}, {}, 0, False, False,
            id="starting-up",
        ),
        pytest.param(
            situation(make_pod(policy="Never"), run(code=0)), {"terminated": "Completed"}, {}, 0, False, False,
            id="completed",
        ),
        pytest.param(
            situation(make_pod(policy="Never"), run(code=137, reason="OOMKilled")), {"terminated": "OOMKilled"}, {}, 0,
            False, False, id="out-of-memory",
        ),
        pytest.param(
            situation(make_pod(), run(attempt=1, code=1, ended=2), backoff={"main": 10}),
            waiting("CrashLoopBackOff"), {"terminated": "Error"}, 1, False, False, id="crash-loop",
        ),
        pytest.param(
            situation(make_pod(), run(code=3), run(attempt=1)), {"running": None}, {"terminated": "Error"}, 1, True, True,
            id="restarted",
        ),
        pytest.param(
            situation(make_pod(deleted=True), run(attempt=1, code=1, ended=2), backoff={"main": 10}),
            {"terminated": "Error"}, {}, 1, False, False, id="no-waiting-when-it-is-over",
        ),
    ],
)  # fmt: skip
def test_containers(
    view: PodView, state: dict[str, Any], last: dict[str, Any], restarts: int, ready: bool, started: bool
) -> None:
    told = status_of(view, PLACE, RULES)["containerStatuses"][0]
    assert _short(told["state"]) == state and _short(told["lastState"]) == last
    assert (told["restartCount"], told["ready"], told["started"]) == (restarts, ready, started)


def _short(state: dict[str, Any]) -> dict[str, Any]:
    return {kind: details.get("reason") for kind, details in state.items()}


@pytest.mark.parametrize(
    ("view", "kind", "status", "reason", "message"),
    [
        pytest.param(
            situation(make_pod("a", "b"), run("a"), run("b"), probes={"b": UNREADY}),
            "Ready", "False", "ContainersNotReady", "containers with unready status: [b]", id="unready",
        ),
        pytest.param(
            situation(make_pod(inits=("i", "j")), run("i", code=0), run("j")),
            "Initialized", "False", "ContainersNotInitialized", "containers with incomplete status: [j]", id="init",
        ),
        pytest.param(situation(make_pod(inits=("i",)), run("i", code=0)), "Initialized", "True", None, None, id="inited"),
        pytest.param(
            situation(make_pod(policy="Never"), run(code=0)), "Ready", "False", "PodCompleted", None, id="completed"
        ),
        pytest.param(
            situation(make_pod(policy="Never"), run(code=1)), "ContainersReady", "False", "PodFailed", None, id="failed"
        ),
        pytest.param(
            situation(make_pod(readinessGates=[{"conditionType": "x"}]), run()),
            "Ready", "False", "ReadinessGatesNotReady",
            'corresponding condition of pod readiness gate "x" does not exist.', id="gate-missing",
        ),
        pytest.param(
            situation(
                make_pod(readinessGates=[{"conditionType": "x"}], conditions=({"type": "x", "status": "True"},)), run()
            ),
            "Ready", "True", None, None, id="gate-open",
        ),
        pytest.param(situation(make_pod(), stage="new"), "PodReadyToStartContainers", "False", None, None, id="no-box"),
    ],
)  # fmt: skip
def test_conditions(view: PodView, kind: str, status: str, reason: str | None, message: str | None) -> None:
    found = next(c for c in status_of(view, PLACE, RULES)["conditions"] if c["type"] == kind)
    assert (found["status"], found.get("reason"), found.get("message")) == (status, reason, message)


def test_transition_times_stay_until_the_status_changes() -> None:
    old = ({"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},)
    same = status_of(situation(make_pod(conditions=old), run()), PLACE, RULES)
    assert next(c for c in same["conditions"] if c["type"] == "Ready")["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    other = status_of(situation(make_pod(conditions=old), run(), probes={"main": UNREADY}), PLACE, RULES)
    assert next(c for c in other["conditions"] if c["type"] == "Ready")["lastTransitionTime"] == "2027-01-15T08:00:00Z"


def test_addresses_reason_and_message() -> None:
    place = PodLocation("fake", "10.0.0.1", "10.0.0.2", {("main", 0): "because"})
    status = status_of(situation(make_pod(), run(code=1), history=FAILED), place, RULES)
    assert (status["hostIP"], status["podIP"]) == ("10.0.0.1", "10.0.0.2")
    assert (status["reason"], status["message"]) == ("DeadlineExceeded", "too long")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert ended["message"] == "because" and ended["exitCode"] == 1
    assert ended["startedAt"] < ended["finishedAt"]


def test_a_status_can_be_remembered() -> None:
    """History made from a status gives the same restart counts and states again."""
    view = situation(make_pod(), run(code=3), run(attempt=1))
    told = make_pod()
    told["status"] = status_of(view, PLACE, RULES)
    history = from_status(told)
    lost = with_lost_runs(history, runs_of(None, history), NOW)
    container = lost.of("main")
    assert container.attempts == 2
    assert [(e.attempt, e.exit_code, e.reason) for e in container.endings] == [
        (0, 3, "Error"),
        (1, 137, "ContainerStatusUnknown"),
    ]


def test_the_status_of_an_unchanged_pod_does_not_change() -> None:
    pod = make_pod(inits=("i",))
    pod["status"] = status_of(situation(pod, run("i", code=0), run()), PLACE, RULES)
    assert status_of(situation(pod, run("i", code=0), run()), PLACE, RULES) == pod["status"]
