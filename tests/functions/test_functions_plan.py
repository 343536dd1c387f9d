"""Which actors are started, take calls, are reloaded, are removed."""

from __future__ import annotations

import pytest

from coterie.functions.plan import ActorFacts, ActorPlan, ActorState, failed_to_remove, plan_actors, traffic_now

STARTING, READY, FAILED, LEAVING = ActorState.STARTING, ActorState.READY, ActorState.FAILED, ActorState.LEAVING


def actor(
    name: str, state: ActorState = READY, version: str = "v2", template: str = "t", calls: int = 0, fixed: bool = False
) -> ActorFacts:
    return ActorFacts(name, version, template, state, calls, fixed)


@pytest.mark.parametrize(
    ("wanted", "actors", "expected"),
    [
        pytest.param({"v2": 2}, [], ActorPlan(start=("v2", "v2")), id="start"),
        pytest.param(
            {"v2": 2}, [actor("a"), actor("b", STARTING)], ActorPlan(serving=frozenset("ab")), id="one-is-coming"
        ),
        pytest.param(
            {"v2": 1}, [actor("a", LEAVING)], ActorPlan(start=("v2",)), id="one-that-leaves-is-replaced"
        ),
        pytest.param({"v2": 1}, [actor("a", FAILED)], ActorPlan(start=("v2",)), id="a-failed-one-is-replaced"),
        pytest.param(
            {"v2": 1}, [actor("a"), actor("b", calls=1)], ActorPlan(serving=frozenset("b"), remove=("a",)), id="idle-goes"
        ),
        pytest.param({"v2": 0}, [actor("a"), actor("b", calls=1)], ActorPlan(remove=("a",)), id="a-call-ends-first"),
        pytest.param(
            {"v2": 2},
            [actor("a", version="v1"), actor("b", version="v1", calls=1)],
            ActorPlan(serving=frozenset("ab"), reload=("b", "a")[::-1]),
            id="C-19-reloaded-in-place",
        ),
        pytest.param(
            {"v2": 1},
            [actor("a", version="v1", fixed=True)],
            ActorPlan(start=("v2",), serving=frozenset("a")),
            id="other-languages-get-new-pods",
        ),
        pytest.param(
            {"v2": 1},
            [actor("a", version="v1", fixed=True), actor("b", STARTING)],
            ActorPlan(serving=frozenset("ab")),
            id="the-old-one-serves-until-the-new-one-is-ready",
        ),
        pytest.param(
            {"v2": 1},
            [actor("a", version="v1", fixed=True, calls=1), actor("b")],
            ActorPlan(serving=frozenset("b")),
            id="then-drains",
        ),
        pytest.param(
            {"v2": 2},
            [actor("a", template="old"), actor("b", template="old"), actor("c"), actor("d", STARTING)],
            ActorPlan(serving=frozenset("acd"), remove=("b",)),
            id="C-80-new-image-one-by-one",
        ),
        pytest.param(
            {"v1": 1, "v2": 1},
            [actor("a", version="v1"), actor("b", version="v1")],
            ActorPlan(start=("v2",), serving=frozenset("a"), remove=("b",)),
            id="traffic-split",
        ),
        pytest.param(
            {"v2": 1},
            [actor("a", version="v1"), actor("b", version="v1")],
            ActorPlan(serving=frozenset("a"), reload=("a",), remove=("b",)),
            id="reload-no-more-than-needed",
        ),
    ],
)  # fmt: skip
def test_plan(wanted: dict[str, int], actors: list[ActorFacts], expected: ActorPlan) -> None:
    assert plan_actors(wanted, "t", actors) == expected


@pytest.mark.parametrize(
    ("shares", "actors", "expected"),
    [
        pytest.param({"v2": 100}, [], {"v2": 100}, id="none"),
        pytest.param({"v2": 100}, [actor("a", version="v1"), actor("b", STARTING)], {"v1": 100}, id="not-ready-yet"),
        pytest.param({"v2": 100}, [actor("a", version="v1"), actor("b")], {"v2": 100}, id="ready"),
        pytest.param({"v1": 90, "v2": 10}, [actor("a")], {"v1": 90, "v2": 10}, id="split"),
    ],
)
def test_traffic_now(shares: dict[str, int], actors: list[ActorFacts], expected: dict[str, int]) -> None:
    assert traffic_now(shares, actors) == expected


def test_the_last_failed_actor_stays_until_one_is_ready() -> None:
    failed = [("2026-01-01T00:00:02Z", "b"), ("2026-01-01T00:00:01Z", "a")]
    assert failed_to_remove(failed, ready=False) == ("a",)
    assert failed_to_remove(failed, ready=True) == ("a", "b")
