"""One row per transition: a situation, and what is to be done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from view_kit import (
    NOT_STARTED,
    NOW,
    STARTING,
    STOPPING,
    UNHEALTHY,
    make_pod,
    problem,
    run,
    sidecar,
    situation,
)

from coterie.kube.agent.pods.decide import (
    Action,
    FailPod,
    FinishPod,
    KillContainer,
    PreparePod,
    RefreshVolumes,
    ReleasePod,
    ReportBackoff,
    StartContainer,
    StopContainer,
    decide,
)
from coterie.kube.agent.pods.history import PodFailure, PodHistory
from coterie.kube.agent.pods.pod_view import NEVER, ContainerOperation, PodView
from coterie.kube.agent.settings import PodSettings

RULES = PodSettings()
OLD = PodHistory(started_at=NOW - 60, terminating_since=NOW - 10)
STOP = "Stopping container main"


@pytest.mark.parametrize(
    ("view", "actions"),
    [
        # Setting up.
        pytest.param(situation(make_pod(), stage="new"), [PreparePod()], id="new-pod-is-prepared"),
        pytest.param(situation(make_pod(), stage="preparing"), [], id="being-prepared"),
        pytest.param(situation(make_pod(), stage="new", setup=problem(retry_in=3)), [], id="setup-waits"),
        pytest.param(situation(make_pod(), stage="new", setup=problem(retry_in=-1)), [PreparePod()], id="setup-again"),
        pytest.param(situation(make_pod(), run(), stage="new"), [PreparePod()], id="adopted-pod-is-prepared-too"),
        pytest.param(situation(make_pod(), run(), refresh_at=NOW), [RefreshVolumes()], id="volumes-out-of-date"),
        # Starting.
        pytest.param(situation(make_pod()), [StartContainer("main", 0)], id="first-start"),
        pytest.param(situation(make_pod("a", "b")), [StartContainer("a", 0)], id="one-at-a-time"),
        pytest.param(situation(make_pod("a", "b"), operations={"a": STARTING}), [], id="second-waits-for-first"),
        pytest.param(situation(make_pod("a", "b"), run("a")), [StartContainer("b", 0)], id="then-the-second"),
        pytest.param(
            situation(make_pod("a", "b"), problems={"a": problem()}), [StartContainer("b", 0)], id="a-problem-does-not-block"
        ),
        pytest.param(situation(make_pod(), problems={"main": problem(retry_in=-1)}), [StartContainer("main", 0)], id="retried"),
        pytest.param(situation(make_pod(), run()), [], id="running-is-left-alone"),
        # Init containers and sidecars.
        pytest.param(situation(make_pod(inits=("i", "j"))), [StartContainer("i", 0)], id="first-init"),
        pytest.param(situation(make_pod(inits=("i", "j")), run("i")), [], id="init-runs"),
        pytest.param(situation(make_pod(inits=("i", "j")), run("i", code=0)), [StartContainer("j", 0)], id="next-init"),
        pytest.param(
            situation(make_pod(inits=("i",)), run("i", code=0)), [StartContainer("main", 0)], id="main-after-the-last-init"
        ),
        pytest.param(situation(make_pod(inits=("i",)), run("i", code=1)), [StartContainer("i", 1, 10)], id="init-again"),
        pytest.param(
            situation(make_pod(policy="Never", inits=("i",)), run("i", code=1)), [ReleasePod()], id="init-failed-for-good"
        ),
        pytest.param(situation(make_pod(inits=(sidecar("s"),))), [StartContainer("s", 0)], id="sidecar-first"),
        pytest.param(situation(make_pod(inits=(sidecar("s"),)), run("s")), [StartContainer("main", 0)], id="main-beside-it"),
        pytest.param(
            situation(make_pod(inits=(sidecar("s"),)), run("s"), probes={"s": NOT_STARTED}),
            [],
            id="main-waits-for-the-sidecars-startup",
        ),
        pytest.param(
            situation(make_pod(policy="Never", inits=(sidecar("s"),)), run("s", code=1), run("main")),
            [StartContainer("s", 1, 10)],
            id="sidecar-is-restarted-whatever-the-policy",
        ),
        # Restarting.
        pytest.param(situation(make_pod(), run(code=1)), [StartContainer("main", 1, 10)], id="first-restart-at-once"),
        pytest.param(situation(make_pod(), run(code=0)), [StartContainer("main", 1, 10)], id="always-means-always"),
        pytest.param(
            situation(make_pod(), run(attempt=1, code=1, ended=4), backoff={"main": 10}),
            [ReportBackoff("main", 2, 10)],
            id="backs-off",
        ),
        pytest.param(
            situation(make_pod(), run(attempt=1, code=1, ended=11), backoff={"main": 10}),
            [StartContainer("main", 2, 20)],
            id="pause-doubles",
        ),
        pytest.param(
            situation(make_pod(), run(attempt=9, code=1, ended=301), backoff={"main": 300}),
            [StartContainer("main", 10, 300)],
            id="pause-has-a-limit",
        ),
        pytest.param(
            situation(make_pod(), run(attempt=9, code=1, lasted=700), backoff={"main": 300}),
            [StartContainer("main", 10, 10)],
            id="a-long-run-forgives",
        ),
        pytest.param(
            situation(make_pod(policy="OnFailure"), run(code=1)), [StartContainer("main", 1, 10)], id="on-failure-restarts"
        ),
        pytest.param(situation(make_pod(policy="OnFailure"), run(code=0)), [ReleasePod()], id="on-failure-succeeded"),
        pytest.param(situation(make_pod(policy="Never"), run(code=1)), [ReleasePod()], id="never-failed"),
        pytest.param(
            situation(make_pod("main", "b", policy="Never"), run(code=1), run("b")), [], id="others-go-on"
        ),
        # Probes.
        pytest.param(
            situation(make_pod(), run(), probes={"main": UNHEALTHY}),
            [StopContainer("main", 30, "Container main failed liveness probe, will be restarted")],
            id="unhealthy-is-killed",
        ),
        pytest.param(
            situation(make_pod(), run(), probes={"main": replace(UNHEALTHY, grace=3.0)}),
            [StopContainer("main", 3, "Container main failed liveness probe, will be restarted")],
            id="with-the-probes-own-grace",
        ),
        pytest.param(
            situation(make_pod(), run(), probes={"main": UNHEALTHY}, operations={"main": STOPPING}),
            [],
            id="killed-once",
        ),
        pytest.param(situation(make_pod(), run(attempt=1), probes={"main": UNHEALTHY}), [], id="verdict-of-an-old-run"),
        # Giving up.
        pytest.param(
            situation(make_pod(activeDeadlineSeconds=60), run()),
            [FailPod("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")],
            id="deadline",
        ),
        pytest.param(situation(make_pod(activeDeadlineSeconds=61), run()), [], id="before-the-deadline"),
        pytest.param(
            situation(make_pod(policy="Never"), problems={"main": problem(since=60)}),
            [FailPod("ErrImageNeverPull", "container main could not be started within 60 s: there is none")],
            id="a-task-that-cannot-start-fails",
        ),
        pytest.param(
            situation(make_pod(policy="Always"), problems={"main": problem(since=60)}), [], id="a-service-waits-on"
        ),
        pytest.param(
            situation(make_pod(policy="Never"), stage="new", setup=problem("FailedMount", since=61)),
            [FailPod("FailedMount", "the pod could not be set up within 60 s: there is none")],
            id="a-task-without-its-volumes-fails",
        ),
        # Ending.
        pytest.param(situation(make_pod(deleted=True), run()), [StopContainer("main", 30, STOP)], id="deleted"),
        pytest.param(situation(make_pod(deleted=True), run(), history=OLD), [StopContainer("main", 20, STOP)], id="time-passed"),
        pytest.param(
            situation(make_pod(deleted=True), run(), operations={"main": STARTING}),
            [StopContainer("main", 30, STOP)],
            id="deleted-during-the-post-start-hook",
        ),
        pytest.param(situation(make_pod(deleted=True), run(), operations={"main": STOPPING}), [], id="being-stopped"),
        pytest.param(situation(make_pod(deleted=True), run(code=0)), [FinishPod()], id="all-stopped"),
        pytest.param(situation(make_pod(deleted=True), stage="new"), [FinishPod()], id="deleted-before-it-started"),
        pytest.param(
            situation(make_pod(deleted=True), operations={"main": STARTING}), [], id="wait-for-the-start-to-end"
        ),
        pytest.param(
            situation(make_pod(deleted=True, grace=5), run(), history=OLD, operations={"main": STOPPING}),
            [KillContainer("main")],
            id="grace-was-shortened",
        ),
        pytest.param(situation(make_pod(deleted=True), finishing=True), [], id="being-removed"),
        pytest.param(situation(make_pod(), run(), removed=True), [StopContainer("main", 30, STOP)], id="removed-by-force"),
        pytest.param(situation(make_pod(), removed=True), [FinishPod()], id="removed-and-stopped"),
        pytest.param(situation(make_pod(phase="Failed"), run()), [StopContainer("main", 30, STOP)], id="failed-by-others"),
        pytest.param(
            situation(make_pod(), run(), history=PodHistory(failure=PodFailure("DeadlineExceeded", "late"))),
            [StopContainer("main", 30, STOP)],
            id="given-up",
        ),
        pytest.param(
            situation(make_pod(), run(), history=PodHistory(failure=PodFailure("Evicted", "disk is full"))),
            [StopContainer("main", 1, STOP)],
            id="evicted",
        ),
        pytest.param(situation(make_pod(policy="Never"), run(code=0), released=True), [], id="released-once"),
        pytest.param(
            situation(make_pod(deleted=True, inits=(sidecar("s"),)), run("s"), run("main")),
            [StopContainer("main", 30, STOP)],
            id="main-before-sidecars",
        ),
        pytest.param(
            situation(make_pod(deleted=True, inits=(sidecar("s"), sidecar("t"))), run("s"), run("t"), run(code=0)),
            [StopContainer("t", 30, "Stopping container t")],
            id="sidecars-in-reverse",
        ),
        pytest.param(
            situation(make_pod(policy="Never", inits=(sidecar("s"),)), run("s"), run(code=0)),
            [StopContainer("s", 30, "Stopping container s")],
            id="sidecars-end-with-the-task",
        ),
    ],
)  # fmt: skip
def test_what_is_done(view: PodView, actions: list[Action]) -> None:
    assert list(decide(view, RULES).actions) == actions


@pytest.mark.parametrize(
    ("view", "seconds"),
    [
        pytest.param(situation(make_pod(), run()), NEVER, id="an-idle-pod-needs-no-timer"),
        pytest.param(situation(make_pod(activeDeadlineSeconds=100), run()), 40, id="deadline"),
        pytest.param(situation(make_pod(), run(code=1, ended=4), backoff={"main": 10}), 6, id="back-off"),
        pytest.param(situation(make_pod(), problems={"main": problem(retry_in=5)}), 5, id="retry"),
        pytest.param(situation(make_pod(policy="Never"), problems={"main": problem(since=58)}), 2, id="giving-up"),
        pytest.param(situation(make_pod(), run(), refresh_at=NOW + 9), 9, id="token-rotation"),
        pytest.param(
            situation(
                make_pod(deleted=True, grace=15),
                run(),
                history=OLD,
                operations={"main": ContainerOperation("stopping", NOW + 500)},
            ),
            5,
            id="shortened-grace",
        ),
    ],
)
def test_when_to_look_again(view: PodView, seconds: float) -> None:
    assert decide(view, RULES).wake_at - NOW == pytest.approx(seconds)


def test_the_clock_moved_back_does_not_stretch_a_pause() -> None:
    """The runtime's time of an end may lie in the future; what counts is when we saw it."""
    view = situation(make_pod(), run(code=1, ended=-3600), backoff={"main": 10}, ended_at={"main": NOW - 4})
    assert decide(view, RULES).wake_at - NOW == pytest.approx(6)
