"""managedFields through creates, updates and status writes; the rules for the list itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from coterie.kube.api.fields.entries import (
    arrange,
    cap_updaters,
    choose_managed_fields,
    identity,
    new_entry,
    validate_field_manager,
    validate_managed_fields,
)
from coterie.kube.api.fields.ownership import track_update
from coterie.kube.api.schema.node import Schema

M: dict[str, Any] = {}
STRING = Schema(type="string")
STRINGS = Schema(type="object", additional=STRING)
SCHEMA = Schema(
    type="object",
    properties={
        "data": STRINGS,
        "spec": Schema(type="object", properties={"replicas": Schema(type="integer"), "image": STRING}),
        "status": Schema(type="object", properties={"phase": STRING, "ip": STRING}),
    },
)
T0, T1, T2 = "2025-01-01T00:00:00Z", "2025-01-01T00:00:01Z", "2025-01-01T00:00:02Z"


def track(managed: list[Any], old: Any, new: Any, manager: str, now: str = T1, **more: Any) -> list[Any]:
    before = copy.deepcopy((managed, old, new))
    out = track_update(managed, old, new, SCHEMA, manager, api_version=more.pop("api_version", "v1"), now=now, **more)
    assert (managed, old, new) == before
    return out


def entry(manager: str, fields: Any, time: str = T0, operation: str = "Update", **more: str) -> dict[str, Any]:
    return {**new_entry(manager, operation, "v1", time, fields), **more}


def test_the_creator_owns_what_it_wrote() -> None:
    obj = {
        "apiVersion": "v1",
        "kind": "X",
        "metadata": {"name": "x", "uid": "u"},
        "spec": {"replicas": 1},
        "status": {"phase": "P"},
    }
    assert track([], None, obj, "kubectl-create", T0) == [
        {
            "manager": "kubectl-create",
            "operation": "Update",
            "apiVersion": "v1",
            "time": T0,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": M}},
        }
    ]
    assert track([], None, obj, "c", T0, has_status=False)[0]["fieldsV1"]["f:status"] == {"f:phase": M}


def test_a_creator_of_nothing_owns_nothing() -> None:
    assert track([], None, {"metadata": {"name": "x"}}, "c") == []


def test_changed_fields_move_to_the_writer() -> None:
    old = {"spec": {"replicas": 1, "image": "a"}}
    managed = track([], None, old, "alice", T0)
    after = track(managed, old, {"spec": {"replicas": 2, "image": "a"}}, "bob")
    assert after == [
        entry("alice", {"f:spec": {"f:image": M}}),
        entry("bob", {"f:spec": {"f:replicas": M}}, T1),
    ]


def test_a_manager_keeps_one_entry() -> None:
    old = {"data": {"a": "1", "b": "1"}}
    managed = track([], None, old, "alice", T0)
    after = track(managed, old, {"data": {"a": "2", "b": "1", "c": "1"}}, "alice")
    assert after == [entry("alice", {"f:data": {".": M, "f:a": M, "f:b": M, "f:c": M}}, T1)]


def test_what_is_removed_leaves_everybody_and_bumps_nobody() -> None:
    old = {"data": {"a": "1", "b": "1"}}
    managed = [
        entry("alice", {"f:data": {".": M, "f:a": M}}),
        entry("bob", {"f:data": {"f:b": M}}),
        entry("kubectl", {"f:data": {"f:b": M}}, operation="Apply"),
    ]
    after = track(managed, old, {"data": {"a": "1"}}, "bob")
    assert after == [entry("alice", {"f:data": {".": M, "f:a": M}})]


def test_a_write_that_changes_nothing_changes_no_owner() -> None:
    old = {"data": {"a": "1"}, "metadata": {"resourceVersion": "1"}}
    managed = track([], None, old, "alice", T0)
    assert (
        track_update(
            managed,
            old,
            {"data": {"a": "1"}, "metadata": {"resourceVersion": "2"}},
            SCHEMA,
            "bob",
            api_version="v1",
            now=T1,
        )
        is managed
    )


def test_updates_take_from_appliers_too() -> None:
    old = {"data": {"a": "1"}}
    managed = [entry("kubectl", {"f:data": {"f:a": M}}, operation="Apply")]
    assert track(managed, old, {"data": {"a": "2"}}, "bob") == [entry("bob", {"f:data": {"f:a": M}}, T1)]


def test_status_and_main_writes_are_kept_apart() -> None:
    old = {"spec": {"replicas": 1}, "status": {"phase": "A"}}
    new = {"metadata": {"labels": {"x": "y"}}, "spec": {"replicas": 2}, "status": {"phase": "B", "ip": "1"}}
    managed = [entry("alice", {"f:spec": {"f:replicas": M}})]
    by_status = track(managed, old, new, "kubelet", subresource="status")
    assert by_status == [
        managed[0],
        entry("kubelet", {"f:status": {"f:phase": M, "f:ip": M}}, T1, subresource="status"),
    ]
    by_main = track(by_status, old, new, "alice", T2)
    assert by_main == [
        by_status[1],
        entry("alice", {"f:metadata": {"f:labels": {".": M, "f:x": M}}, "f:spec": {"f:replicas": M}}, T2),
    ]
    everything = track(managed, old, new, "bob", has_status=False)
    assert everything[-1]["fieldsV1"]["f:status"] == {"f:phase": M, "f:ip": M}


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (
            {"manager": "a", "operation": "Update", "apiVersion": "v1"},
            {"manager": "a", "operation": "Update", "apiVersion": "v2"},
            False,
        ),
        (
            {"manager": "a", "operation": "Apply", "apiVersion": "v1"},
            {"manager": "a", "operation": "Apply", "apiVersion": "v2"},
            True,
        ),
        ({"manager": "a", "operation": "Apply"}, {"manager": "a", "operation": "Update"}, False),
        (
            {"manager": "a", "operation": "Update"},
            {"manager": "a", "operation": "Update", "subresource": "status"},
            False,
        ),
    ],
    ids=["version-of-updates", "version-of-applies", "operation", "subresource"],
)
def test_identity(left: Any, right: Any, same: bool) -> None:
    assert (identity(left) == identity(right)) is same


def test_order_of_entries() -> None:
    entries = [entry("z", M, T1), entry("a", M, T1), entry("z", M, T0), entry("k", M, T2, operation="Apply")]
    assert arrange(entries) == [entries[3], entries[2], entries[1], entries[0]]


def test_no_tracking_after_a_reset_until_someone_applies() -> None:
    assert track([], {"data": {"a": "1"}}, {"data": {"a": "2"}}, "alice") == []


def test_old_updaters_are_merged() -> None:
    managed: list[Any] = []
    obj: dict[str, Any] = {"data": {}}
    for number in range(14):
        new = {"data": {**obj["data"], f"k{number:02}": "v"}}
        managed = track(managed, obj if managed else None, new, f"m{number:02}", f"2025-01-01T00:00:{number:02}Z")
        obj = new
    assert len(managed) == 10
    ancient = managed[0]
    assert (ancient["manager"], ancient["time"]) == ("ancient-changes", "2025-01-01T00:00:04Z")
    assert ancient["fieldsV1"] == {"f:data": {".": M, **{f"f:k{n:02}": M for n in range(5)}}}
    assert [e["manager"] for e in managed[1:]] == [f"m{n:02}" for n in range(5, 14)]


def test_the_cap_keeps_versions_apart_and_appliers_out() -> None:
    entries = [
        entry(f"m{n}", {f"f:{n}": M}, f"2025-01-01T00:00:0{n}Z", apiVersion="v1" if n % 2 else "v2") for n in range(9)
    ]
    entries += [entry("y", {"f:y": M}, T2, apiVersion="v3"), entry("x", {"f:x": M}, T2, apiVersion="v3")]
    entries += [entry(f"a{n}", {"f:z": M}, operation="Apply") for n in range(20)]
    capped = cap_updaters(entries)
    assert sum(e["operation"] == "Apply" for e in capped) == 20
    updates = [e for e in capped if e["operation"] == "Update"]
    assert len(updates) == 10
    assert [(e["apiVersion"], e["fieldsV1"]) for e in updates if e["manager"] == "ancient-changes"] == [
        ("v2", {"f:0": M, "f:2": M})
    ]


def live_with(managed: Any) -> dict[str, Any]:
    return {"metadata": {"managedFields": managed}}


OURS = [entry("a", {"f:data": M})]
THEIRS = [entry("b", {"f:list": {'k:{ "name": "x" }': M}})]


@pytest.mark.parametrize(
    ("given", "subresource", "chosen"),
    [
        pytest.param(None, "", OURS, id="left-out"),
        pytest.param([], "", OURS, id="empty"),
        pytest.param(copy.deepcopy(OURS), "", OURS, id="sent-back"),
        pytest.param([{}], "", [], id="reset"),
        pytest.param(THEIRS, "", [entry("b", {'f:list': {'k:{"name":"x"}': M}})], id="rewritten"),
        pytest.param(THEIRS, "status", OURS, id="not-through-status"),
        pytest.param([{}], "status", OURS, id="no-reset-through-status"),
        pytest.param([entry("b", {"broken": M})], "", OURS, id="unreadable"),
        pytest.param([{**THEIRS[0], "fieldsType": "FieldsV2"}], "", OURS, id="unknown-type"),
        pytest.param("x", "", OURS, id="no-list"),
        pytest.param([entry("b", {"f:x": M}), entry("b", {"f:y": M})], "", [entry("b", {"f:y": M})], id="last-of-one-manager"),
    ],
)  # fmt: skip
def test_where_a_write_starts_from(given: Any, subresource: str, chosen: Any) -> None:
    assert choose_managed_fields(live_with(OURS), live_with(given), subresource) == chosen


def test_a_create_starts_from_nothing() -> None:
    assert choose_managed_fields(None, {"metadata": {}}) == []


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        pytest.param(None, [], id="none"),
        pytest.param([{}], [], id="reset"),
        pytest.param(OURS, [], id="good"),
        pytest.param({}, ["m: Invalid value"], id="no-list"),
        pytest.param([1], ["m[0]: Invalid value: 1: must be an object"], id="no-object"),
        pytest.param([entry("a", M, operation="Patch")], ['m[0].operation: Invalid value: "Patch": must be `Apply` or `Update`'], id="operation"),
        pytest.param([{**OURS[0], "fieldsType": "X"}], ['m[0].fieldsType: Invalid value: "X": must be `FieldsV1`'], id="type"),
        pytest.param([entry("a" * 129, M)], ["m[0].manager: Too long: may not be more than 128 bytes"], id="long-manager"),
        pytest.param([entry("a\n", M)], ["m[0].manager: Invalid value"], id="unprintable-manager"),
        pytest.param([entry("a", M, subresource="s" * 257)], ["m[0].subresource: Too long"], id="long-subresource"),
        pytest.param([entry("a", {"x": M})], ["m[0].fieldsV1: Invalid value"], id="fields"),
        pytest.param([OURS[0], {**OURS[0], "time": 1}], ["m[1].time: Invalid value"], id="time"),
    ],
)  # fmt: skip
def test_validation(given: Any, faults: list[str]) -> None:
    errors = [str(error) for error in validate_managed_fields(given, "m")]
    assert len(errors) == len(faults)
    assert all(error.startswith(fault) for error, fault in zip(errors, faults, strict=True))


def test_names_of_managers() -> None:
    assert validate_field_manager("kubectl") == []
    assert [str(e) for e in validate_field_manager("a\tb")] == [
        'fieldManager: Invalid value: "a\tb": invalid character U+0009 (at position 1)'
    ]
