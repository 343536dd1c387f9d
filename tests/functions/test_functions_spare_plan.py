"""Which spare actors are made and which go."""

from __future__ import annotations

import pytest

from coterie.functions.spare_plan import MOST_KINDS, SpareFacts, SparePlan, SparePolicy, plan_spares

POLICY = SparePolicy(2, 300.0)


def spare(name: str, key: str = "k", created: float = 900.0, *, ended: bool = False) -> SpareFacts:
    return SpareFacts(name, key, created, ended)


@pytest.mark.parametrize(
    ("called", "spares", "expected"),
    [
        pytest.param({}, [], SparePlan(), id="nothing was called: nothing is there"),
        pytest.param({"k": 1000.0}, [], SparePlan(("k", "k"), (), 300.0), id="called"),
        pytest.param({"k": 1000.0}, [spare("a")], SparePlan(("k",), (), 200.0), id="one is missing"),
        pytest.param({"k": 1000.0}, [spare("a"), spare("b")], SparePlan((), (), 200.0), id="enough"),
        pytest.param({"k": 1000.0}, [spare("a"), spare("b"), spare("c")], SparePlan((), ("c",), 200.0), id="too many"),
        pytest.param({"k": 700.0}, [spare("a")], SparePlan((), ("a",)), id="called too long ago"),
        pytest.param({"k": 1000.0}, [spare("a", ended=True)], SparePlan(("k", "k"), ("a",), 300.0), id="one ended"),
        pytest.param({"k": 1000.0}, [spare("a", created=700.0)], SparePlan(("k", "k"), ("a",), 300.0), id="too old"),
        pytest.param({"k": 1000.0}, [spare("a", "other")], SparePlan(("k", "k"), ("a",), 300.0), id="of another image"),
    ],
)
def test_plan(called: dict[str, float], spares: list[SpareFacts], expected: SparePlan) -> None:
    assert plan_spares(POLICY, called, spares, 1000.0, allowed=True) == expected


def test_none_when_they_are_off_or_not_allowed() -> None:
    assert plan_spares(SparePolicy(0), {"k": 1000.0}, [spare("a")], 1000.0, allowed=True) == SparePlan((), ("a",))
    assert plan_spares(POLICY, {"k": 1000.0}, [spare("a")], 1000.0, allowed=False) == SparePlan((), ("a",))


def test_kinds_are_bounded_to_those_that_were_called_last() -> None:
    called = {f"k{number}": 900.0 + number for number in range(MOST_KINDS + 3)}
    plan = plan_spares(POLICY, called, [], 1000.0, allowed=True)
    assert set(plan.create) == {f"k{number}" for number in range(3, MOST_KINDS + 3)}
