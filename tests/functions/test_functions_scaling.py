"""How many actors an action needs."""

from __future__ import annotations

import pytest

from coterie.functions.model import ActionLoad
from coterie.functions.scaling import ScalingHistory, calls_table, decide, spread_over_versions
from coterie.kuscia.api.functions.types import CALLS_PER_MINUTE, Scaling

NOW_MS = 1_800_000_000_000


def load(**more: float) -> ActionLoad:
    return ActionLoad(**{"last_call": NOW_MS, **more})  # type: ignore[arg-type]


def wanted(load_: ActionLoad, policy: Scaling | None = None, current: int = 0, concurrency: int = 1) -> int:
    return decide(policy or Scaling(), concurrency, load_, current, 0.0, NOW_MS, ScalingHistory()).replicas


@pytest.mark.parametrize(
    ("given", "policy", "expected"),
    [
        pytest.param(ActionLoad(), Scaling(), 0, id="never-called"),
        pytest.param(ActionLoad(), Scaling(min_replicas=2), 2, id="least"),
        pytest.param(ActionLoad(lag=1), Scaling(), 1, id="first-call"),
        pytest.param(load(lag=60), Scaling(), 5, id="C-81-sixty-calls-of-unknown-length"),
        pytest.param(load(lag=60), Scaling(max_replicas=100), 12, id="lag"),
        pytest.param(load(lag=10_000, median_seconds=0.001), Scaling(max_replicas=100), 2, id="short-calls"),
        pytest.param(load(calls=600, median_seconds=0.2), Scaling(max_replicas=100), 3, id="rate"),
        pytest.param(load(calls=60, calls_panic=60, median_seconds=0.7), Scaling(max_replicas=100), 10, id="burst"),
        pytest.param(load(lag=9, running=9), Scaling(max_replicas=0), 0, id="forbidden"),
        pytest.param(load(calls=1, median_seconds=0.01), Scaling(), 1, id="warm"),
        pytest.param(ActionLoad(last_call=NOW_MS - 60_000, calls=1), Scaling(), 0, id="idle"),
        pytest.param(ActionLoad(last_call=NOW_MS - 90_000, running=1), Scaling(), 1, id="a-call-still-runs"),
    ],
)
def test_load(given: ActionLoad, policy: Scaling, expected: int) -> None:
    assert wanted(given, policy) == expected


def test_an_actor_with_more_concurrency_does_more() -> None:
    assert wanted(load(calls=600, median_seconds=0.7), Scaling(max_replicas=50), concurrency=5) == 2


def test_up_at_once_and_down_after_a_minute_of_less() -> None:
    history, seen = ScalingHistory(), []
    policy = Scaling(max_replicas=20, idle_seconds=600)
    for at, lag in ((0, 50), (1, 100), (2, 0), (30, 10), (59, 0), (62, 0), (95, 0)):
        made = decide(policy, 1, load(lag=lag), 0, float(at), NOW_MS, history)
        history = made.history
        seen.append(made.replicas)
    assert seen == [10, 20, 20, 20, 20, 2, 1]


def test_after_idle_seconds_all_go_at_once() -> None:
    busy = decide(Scaling(idle_seconds=10), 1, load(lag=25), 0, 0.0, NOW_MS, ScalingHistory())
    assert busy.replicas == 5
    idle = decide(Scaling(idle_seconds=10), 1, load(), 5, 10.0, NOW_MS + 10_000, busy.history)
    assert idle.replicas == 0


def test_a_restart_removes_nothing_early() -> None:
    history = ScalingHistory.after_restart(4, 100.0, None)
    assert decide(Scaling(), 1, load(), 4, 130.0, NOW_MS, history).replicas == 4
    assert decide(Scaling(), 1, load(), 4, 161.0, NOW_MS, history).replicas == 1


@pytest.mark.parametrize(
    ("calls", "actors"), [(0, 0), (1, 1), (9, 1), (10, 2), (19, 2), (20, 3), (30, 4), (39, 4), (40, 5), (400, 5)]
)
def test_c23_table_of_calls_per_minute(calls: int, actors: int) -> None:
    assert calls_table(calls) == actors


def test_c23_one_step_a_minute_up_to_five_and_back_to_zero() -> None:
    policy, history, current, seen = Scaling(policy=CALLS_PER_MINUTE), ScalingHistory(), 0, []
    for second in range(0, 660, 10):
        calling = second < 300
        given = ActionLoad(calls=45 if calling else 0, lag=int(second == 0), last_call=NOW_MS + min(second, 300) * 1000)
        made = decide(policy, 1, given, current, float(second), NOW_MS + second * 1000, history)
        history, current = made.history, made.replicas
        if not seen or seen[-1][1] != current:
            seen.append((second, current))
    assert seen == [(0, 1), (60, 2), (120, 3), (180, 4), (240, 5), (300, 4), (360, 3), (420, 2), (480, 1), (540, 0)]


def test_calls_per_minute_keeps_the_time_of_its_last_step_over_a_restart() -> None:
    history = ScalingHistory.after_restart(2, 1000.0, 20.0)
    policy = Scaling(policy=CALLS_PER_MINUTE)
    assert decide(policy, 1, load(calls=45), 2, 1000.0, NOW_MS, history).replicas == 2
    assert decide(policy, 1, load(calls=45), 2, 1040.0, NOW_MS, history).replicas == 3


def test_versions_get_actors_by_their_share() -> None:
    assert spread_over_versions(10, {"v1": 90, "v2": 10}) == {"v1": 9, "v2": 1}
    assert spread_over_versions(1, {"v1": 90, "v2": 10, "v3": 0}) == {"v1": 1, "v2": 1}
    assert spread_over_versions(0, {"v1": 100}) == {"v1": 0}
