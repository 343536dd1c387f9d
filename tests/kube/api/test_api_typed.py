"""Typed kinds, conditions and the overlay that writes typed changes back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.meta import (
    Condition,
    ObjectKey,
    ObjectMeta,
    OwnerReference,
    controller_of,
    find_condition,
    is_true,
    key_of,
    set_condition,
)
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES, SECRETS, Secret
from coterie.kube.api.types.kind import Kind, builtin, identify
from coterie.kube.api.types.overlay import overlay


def test_typed_objects_round_trip_what_they_know() -> None:
    ns = NAMESPACES.decode(b'{"metadata":{"name":"x","labels":null,"other":1},"status":{"phase":"Active"},"more":{}}')
    assert ns.active and ns.key == ObjectKey("", "x") and ns.metadata.labels is None
    assert (
        NAMESPACES.encode(ns)
        == b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"},"status":{"phase":"Active"}}'
    )
    with pytest.raises(AttributeError):
        ns.metadata = ObjectMeta()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("phase", "deleted", "active"),
    [("Active", None, True), ("", None, True), ("Terminating", None, False), ("Active", "t", False)],
)
def test_namespace_active(phase: str, deleted: str | None, active: bool) -> None:
    body = {"metadata": {"name": "x", "deletionTimestamp": deleted}, "status": {"phase": phase}}
    assert NAMESPACES.decode(Kind.dynamic(NAMESPACES.resource).encode(body)).active is active


def test_secrets_do_not_show_in_repr() -> None:
    shown = repr(Secret(metadata=ObjectMeta(name="s"), data={"password": "aHVzaA=="}))
    assert "aHVzaA" not in shown and "password" in shown


def test_kind_reads_keys_of_both_forms() -> None:
    plain = {"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5"}}
    typed = SECRETS.decode(SECRETS.as_dynamic.encode(plain))
    for kind, obj in ((SECRETS, typed), (SECRETS.as_dynamic, plain)):
        assert (kind.key(obj), kind.uid(obj), kind.version(obj), kind.namespace(obj)) == (("n", "a"), "u", "5", "n")
    assert key_of({}) == ("", "") and identify(b"[]") == ("", "")
    assert SECRETS.as_dynamic.as_dynamic.plain and not SECRETS.plain


def test_lists_with_a_broken_object() -> None:
    page = CONFIG_MAPS.decode_list(
        b'{"metadata":{"resourceVersion":"5","continue":"c"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"data":1}]}'
    )
    assert [c.metadata.name for c in page.items] == ["a"] and page.broken[0][0] == ("", "b")
    assert (page.resource_version, page.continue_) == ("5", "c")
    assert CONFIG_MAPS.decode_list(b'{"metadata":{},"items":null}').items == []


def test_builtin_names_what_is_missing() -> None:
    with pytest.raises(LookupError, match=r"wishes\.v1"):
        builtin("wishes")


def test_owners() -> None:
    reference = OwnerReference(api_version="v1", kind="Namespace", name="x", uid="u", controller=True)
    other = OwnerReference(api_version="v1", kind="Namespace", name="y", uid="v")
    assert controller_of(ObjectMeta(owner_references=(other, reference))) is reference
    assert controller_of(ObjectMeta(owner_references=(other,))) is None


@pytest.mark.parametrize(
    ("old", "new", "since"),
    [
        (None, Condition(type="Ready", status="True"), "now"),
        (
            Condition(type="Ready", status="True", last_transition_time="before"),
            Condition(type="Ready", status="True", message="m"),
            "before",
        ),
        (
            Condition(type="Ready", status="False", last_transition_time="before"),
            Condition(type="Ready", status="True"),
            "now",
        ),
    ],
    ids=["new", "same-status", "flipped"],
)
def test_set_condition(old: Condition | None, new: Condition, since: str) -> None:
    other = Condition(type="Other", status="Unknown")
    conditions = set_condition((other, old) if old else (other,), new, "now")
    found = find_condition(conditions, "Ready")
    assert found is not None and found.last_transition_time == since and found.message == new.message
    assert conditions[0] is other and is_true(conditions, "Ready") and not is_true(conditions, "Other")
    assert set_condition(conditions, found, "later") == conditions


_json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "x", "y", "hidden"]), inner, max_size=4)
    ),
    max_leaves=12,
)
_objects = st.dictionaries(st.sampled_from(["spec", "x", "y", "hidden"]), _json, max_size=4)


def _without_hidden(value: Any) -> Any:
    """The typed view: everything but the field it does not know."""
    if isinstance(value, dict):
        return {k: _without_hidden(v) for k, v in value.items() if k != "hidden"}
    return [_without_hidden(v) for v in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(original=_objects, after=_objects.map(_without_hidden))
def test_overlay_shows_exactly_the_change(original: dict[str, Any], after: dict[str, Any]) -> None:
    before = _without_hidden(original)
    untouched = copy.deepcopy((original, before, after))
    assert _without_hidden(overlay(original, before, after)) == after
    assert (original, before, after) == untouched
    assert overlay(original, before, before) == original


def test_overlay_keeps_unknown_fields_of_list_elements() -> None:
    original = {"c": [{"name": "a", "v": 1, "secretly": "x"}, {"name": "b", "v": 2, "secretly": "y"}]}
    before = {"c": [{"name": "a", "v": 1}, {"name": "b", "v": 2}]}
    after = {"c": [{"name": "b", "v": 3}, {"name": "new"}]}
    assert overlay(original, before, after) == {"c": [{"name": "b", "v": 3, "secretly": "y"}, {"name": "new"}]}
