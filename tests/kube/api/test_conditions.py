"""Conditions of a status."""

from __future__ import annotations

from coterie.kube.api.conditions import find_condition, is_true, with_condition


def test_transition_time_moves_only_with_the_status() -> None:
    first = with_condition(None, "Ready", "False", "Starting", "", "t1")
    same = with_condition(first, "Ready", "False", "Waiting", "still", "t2")
    ready = with_condition(same, "Ready", "True", "Up", "", "t3")
    assert (same[0]["lastTransitionTime"], same[0]["reason"]) == ("t1", "Waiting")
    assert ready[0]["lastTransitionTime"] == "t3"
    assert is_true(ready, "Ready")
    assert not is_true(first, "Ready")
    assert first[0]["reason"] == "Starting"


def test_setting_the_same_again_changes_nothing() -> None:
    once = with_condition([{"type": "Other", "status": "True"}], "Ready", "True", "Up", "m", "t1")
    assert with_condition(once, "Ready", "True", "Up", "m", "t9") == once
    assert find_condition(once, "Other") == {"type": "Other", "status": "True"}
    assert find_condition(None, "Ready") is None
