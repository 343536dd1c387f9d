"""Ephemeral containers: started once, whatever the others do; they decide nothing about the pod."""

from __future__ import annotations

from typing import Any

from view_kit import NOW, STARTING, make_pod, problem, run, situation

from coterie.kube.agent.pods.decide import StartContainer, decide
from coterie.kube.agent.pods.history import from_status
from coterie.kube.agent.pods.status import PodLocation, status_of
from coterie.kube.agent.settings import PodSettings

RULES = PodSettings()
PLACE = PodLocation("runp", "10.0.0.1", "100.96.0.2")
DEBUG: dict[str, Any] = {"name": "debug", "image": "tools", "targetContainerName": "main"}


def begun(view: Any) -> list[str]:
    return [action.name for action in decide(view, RULES).actions if isinstance(action, StartContainer)]


def test_it_starts_beside_containers_that_run() -> None:
    pod = make_pod(ephemeralContainers=[DEBUG])
    assert begun(situation(pod, run(), stage="prepared")) == ["debug"]


def test_it_starts_while_others_hang() -> None:
    waiting = make_pod(inits=("init",), ephemeralContainers=[DEBUG])
    assert begun(situation(waiting, run("init"), stage="prepared")) == ["debug"]
    hooked = make_pod(ephemeralContainers=[DEBUG])
    assert begun(situation(hooked, run(), stage="prepared", operations={"main": STARTING})) == ["debug"]


def test_it_is_never_restarted() -> None:
    pod = make_pod(ephemeralContainers=[DEBUG])
    for code in (0, 1):
        assert begun(situation(pod, run(), run("debug", code=code, ended=600), stage="prepared")) == []


def test_a_start_that_failed_is_tried_again_after_a_pause() -> None:
    pod = make_pod(ephemeralContainers=[DEBUG], policy="Never")
    later = situation(pod, run(), stage="prepared", problems={"debug": problem(retry_in=10)})
    plan = decide(later, RULES)
    assert plan.actions == () and plan.wake_at == NOW + 10
    now = situation(pod, run(), stage="prepared", problems={"debug": problem(retry_in=-1)})
    assert begun(now) == ["debug"]


def test_its_status_says_nothing_about_the_pod() -> None:
    pod = make_pod(ephemeralContainers=[DEBUG])
    status = status_of(situation(pod, run(), run("debug", code=1, ended=5), stage="prepared"), PLACE, RULES)
    assert status["phase"] == "Running"
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    (ephemeral,) = status["ephemeralContainerStatuses"]
    assert ephemeral["state"]["terminated"]["exitCode"] == 1
    assert (ephemeral["restartCount"], ephemeral["ready"]) == (0, False)
    waiting = status_of(situation(pod, run(), stage="prepared"), PLACE, RULES)["ephemeralContainerStatuses"][0]
    assert waiting["state"] == {"waiting": {"reason": "ContainerCreating"}}


def test_a_pod_ends_without_waiting_for_it() -> None:
    pod = make_pod(policy="Never", ephemeralContainers=[DEBUG])
    actions = decide(situation(pod, run(code=0, ended=1), run("debug"), stage="prepared"), RULES).actions
    assert [action.name for action in actions] == ["debug"]  # type: ignore[union-attr]
    assert type(actions[0]).__name__ == "StopContainer"


def test_it_is_remembered_from_the_api() -> None:
    pod = make_pod(ephemeralContainers=[DEBUG])
    status = status_of(situation(pod, run(), run("debug", code=0, ended=5), stage="prepared"), PLACE, RULES)
    assert from_status({**pod, "status": status}).of("debug").attempts == 1
