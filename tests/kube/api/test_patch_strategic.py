"""Strategic merge patch: each directive, list merging and order, with small schemas and with the real ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.errors import ApiError, BadRequest, Invalid
from coterie.kube.api.patch import STRATEGIC_MERGE_PATCH, apply_patch
from coterie.kube.api.patch.strategic import strategic_merge_patch
from coterie.kube.api.schema.node import Schema

STRING = Schema(type="string")
MERGE = frozenset({"merge"})
SET = Schema(type="array", items=STRING, patch_strategy=MERGE)
INNER = Schema(
    type="array",
    patch_strategy=MERGE,
    patch_merge_key="name",
    items=Schema(type="object", properties={"name": STRING, "value": STRING}),
)
ITEMS = Schema(
    type="array",
    patch_strategy=MERGE,
    patch_merge_key="name",
    items=Schema(
        type="object",
        properties={"name": STRING, "image": STRING, "env": INNER, "args": Schema(type="array", items=STRING)},
    ),
)
UNION = Schema(
    type="object",
    properties={"type": STRING, "rolling": Schema(type="object")},
    patch_strategy=frozenset({"retainKeys"}),
)
REPLACED = Schema(type="object", additional=STRING, patch_strategy=frozenset({"replace"}))
SCHEMA = Schema(
    type="object",
    properties={
        "items": ITEMS,
        "set": SET,
        "plain": Schema(type="array", items=Schema(type="object", properties={"a": STRING})),
        "labels": Schema(type="object", additional=STRING),
        "union": UNION,
        "replaced": REPLACED,
        "$ref": STRING,
        "lists": Schema(type="array", patch_strategy=MERGE, items=Schema(type="array")),
    },
)  # fmt: skip


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param({"x": 1, "labels": {"a": "1"}}, {"labels": {"b": "2"}}, {"x": 1, "labels": {"a": "1", "b": "2"}}, id="map-merges"),
        pytest.param({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": None}}, {"labels": {"b": "2"}}, id="null-deletes"),
        pytest.param({}, {"labels": {"a": None, "b": "1"}}, {"labels": {"b": "1"}}, id="null-of-absent-dropped"),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"$patch": "replace", "b": "2"}}, {"labels": {"b": "2"}}, id="map-replace"),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"$patch": "delete"}}, {"labels": {}}, id="map-delete"),
        pytest.param({}, {"labels": {"$patch": "delete"}}, {}, id="map-delete-of-absent"),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"$patch": "merge", "b": "2"}}, {"labels": {"a": "1", "b": "2"}}, id="map-merge-explicit"),
        pytest.param({}, {"labels": {"$patch": "replace", "b": "2"}}, {"labels": {"b": "2"}}, id="map-replace-of-absent"),
        pytest.param({"replaced": {"a": "1"}}, {"replaced": {"b": "2"}}, {"replaced": {"b": "2"}}, id="strategy-replace"),
        pytest.param({"plain": [{"a": "1"}, {"a": "2"}]}, {"plain": [{"a": "3"}]}, {"plain": [{"a": "3"}]}, id="plain-list-replaced"),
        pytest.param({"items": named("a")}, {"items": [{"name": "a", "image": "i"}]}, {"items": [{"name": "a", "image": "i"}]}, id="item-merges"),
        pytest.param({"items": named("a", "b")}, {"items": named("c")}, {"items": named("c", "a", "b")}, id="new-item"),
        pytest.param({"items": named("a", "b", "c")}, {"items": [{"name": "b", "$patch": "delete"}]}, {"items": named("a", "c")}, id="item-delete"),
        pytest.param({"items": named("a", "b")}, {"items": [{"$patch": "replace"}, {"name": "c"}]}, {"items": named("c")}, id="list-replace"),
        pytest.param({"items": named("a", "b")}, {"items": [{"$patch": "replace"}]}, {"items": []}, id="list-replace-by-nothing"),
        pytest.param({}, {"items": [{"name": "a", "$patch": "delete"}, {"name": "b", "image": None}]}, {"items": named("b")}, id="delete-in-new-list"),
        pytest.param({"items": named("a")}, {"items": None}, {}, id="list-null"),
        pytest.param(
            {"items": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]},
            {"items": [{"name": "a", "env": [{"name": "Y", "value": "3"}, {"name": "X", "$patch": "delete"}]}]},
            {"items": [{"name": "a", "env": [{"name": "Y", "value": "3"}]}]},
            id="nested-lists",
        ),
        pytest.param(
            {"items": named("a", "b", "c")},
            {"$setElementOrder/items": named("c", "a"), "items": [{"name": "a", "image": "i"}]},
            {"items": [{"name": "b"}, {"name": "c"}, {"name": "a", "image": "i"}]},
            id="set-order",
        ),
        pytest.param(
            {"items": named("a", "b", "c")}, {"$setElementOrder/items": named("c", "b", "a")}, {"items": named("c", "b", "a")}, id="order-only"
        ),
        pytest.param(
            {"items": named("s1", "a", "s2", "b", "s3")},
            {"$setElementOrder/items": named("a", "n", "b"), "items": named("n")},
            {"items": named("s1", "a", "n", "s2", "b", "s3")},
            id="server-items-keep-their-place",
        ),
        pytest.param(
            {}, {"$setElementOrder/items": named("b", "a"), "items": named("b", "a")}, {"items": named("b", "a")}, id="order-of-new-list"
        ),
        pytest.param({}, {"$setElementOrder/items": named("b", "a")}, {}, id="order-of-nothing"),
        pytest.param(
            {"items": named("a", "b")},
            {"$setElementOrder/items": named("b"), "items": [{"name": "a", "$patch": "delete"}]},
            {"items": named("b")},
            id="order-and-delete",
        ),
        pytest.param({"set": ["a", "b"]}, {"set": ["c"]}, {"set": ["c", "a", "b"]}, id="set-adds"),
        pytest.param({"set": ["a", "b"]}, {"set": ["b"]}, {"set": ["a", "b"]}, id="set-no-duplicates"),
        pytest.param({"set": ["a", "b"]}, {"$deleteFromPrimitiveList/set": ["a", "z"]}, {"set": ["b"]}, id="set-delete"),
        pytest.param({}, {"$deleteFromPrimitiveList/set": ["a"]}, {}, id="set-delete-of-absent"),
        pytest.param(
            {"set": ["a", "b"]},
            {"$deleteFromPrimitiveList/set": ["a"], "$setElementOrder/set": ["c", "b"], "set": ["c"]},
            {"set": ["c", "b"]},
            id="set-delete-order-add",
        ),
        pytest.param(
            {"union": {"type": "Rolling", "rolling": {"x": 1}}},
            {"union": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"union": {"type": "Recreate"}},
            id="retain-keys",
        ),
        pytest.param(
            {"union": {"type": "Rolling", "rolling": {"x": 1}}},
            {"union": {"$retainKeys": ["type"], "type": "Recreate", "rolling": None}},
            {"union": {"type": "Recreate"}},
            id="retain-keys-with-null",
        ),
        pytest.param({"$ref": "a"}, {"$ref": "b"}, {"$ref": "b"}, id="dollar-field"),
        pytest.param({"labels": {"a": "1"}}, {"labels": "x"}, {"labels": "x"}, id="other-type-replaces"),
        pytest.param({"free": {"a": [1], "b": 1}}, {"free": {"a": [2]}}, {"free": {"a": [2], "b": 1}}, id="no-schema"),
    ],
)  # fmt: skip
def test_strategic(before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]) -> None:
    original, given_patch = copy.deepcopy(before), copy.deepcopy(patch)
    assert apply_patch(STRATEGIC_MERGE_PATCH, before, patch, SCHEMA) == after
    assert before == original
    assert patch == given_patch


@pytest.mark.parametrize(
    ("patch", "error", "told"),
    [
        pytest.param([], BadRequest, "invalid JSON document", id="no-object"),
        pytest.param({"labels": {"$patch": "explode"}}, BadRequest, "unknown patch type: explode in map: map[$patch:explode]", id="unknown-map-directive"),
        pytest.param({"items": [{"name": "a", "$patch": "x"}]}, BadRequest, "unknown patch type: x", id="unknown-item-directive"),
        pytest.param({"$frobnicate": 1}, BadRequest, "unknown patch directive: $frobnicate", id="unknown-directive"),
        pytest.param({"items": [{"image": "i"}]}, BadRequest, "map: map[image:i] does not contain declared merge key: name", id="no-merge-key"),
        pytest.param({"items": [{"$patch": "delete"}]}, BadRequest, "does not contain declared merge key: name", id="delete-without-key"),
        pytest.param({"items": ["a"]}, BadRequest, "invalid patch format of primitive list", id="primitive-among-objects"),
        pytest.param({"set": [{"a": 1}]}, BadRequest, "cannot merge lists without merge key", id="object-among-primitives"),
        pytest.param({"lists": [[1]]}, Invalid, "lists of lists are not supported", id="list-of-lists"),
        pytest.param({"$setElementOrder/items": "x"}, BadRequest, "invalid patch format of setElementOrder list", id="order-no-list"),
        pytest.param({"$setElementOrder/items": named("a"), "items": "x"}, BadRequest, "setElementOrder", id="ordered-no-list"),
        pytest.param({"$setElementOrder/items": named("a", "b"), "items": named("b", "a")}, BadRequest, "doesn't match $setElementOrder list", id="order-contradicts"),
        pytest.param({"$setElementOrder/items": named("a"), "items": named("z")}, BadRequest, "doesn't match", id="order-lacks-item"),
        pytest.param({"$deleteFromPrimitiveList/set": "x"}, BadRequest, "invalid patch format of primitive list", id="delete-no-list"),
        pytest.param({"union": {"$retainKeys": "type"}}, BadRequest, "invalid patch format of retainKeys", id="retain-no-list"),
        pytest.param({"union": {"$retainKeys": ["rolling"], "type": "x"}}, BadRequest, "retainKeys", id="retain-contradicts"),
    ],
)  # fmt: skip
def test_strategic_refuses(patch: Any, error: type[ApiError], told: str) -> None:
    with pytest.raises(error) as caught:
        strategic_merge_patch(
            {"items": named("a", "b"), "set": ["a"], "union": {"type": "y"}, "labels": {}}, patch, SCHEMA
        )
    assert told in caught.value.message


_names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(_names, _names)
@settings(max_examples=100, deadline=None)
def test_order_keeps_both_orders(server: list[str], patched: list[str]) -> None:
    """With a full order list the patched items stand as the patch says and the others as the server says."""
    patch = {"$setElementOrder/items": named(*patched), "items": named(*patched)}
    merged = [item["name"] for item in strategic_merge_patch({"items": named(*server)}, patch, SCHEMA)["items"]]
    assert sorted(merged) == sorted({*server, *patched})
    assert [name for name in merged if name in patched] == patched
    assert [name for name in merged if name not in patched] == [name for name in server if name not in patched]


def diff(old: dict[str, str], new: dict[str, str]) -> dict[str, str | None]:
    return {**{key: None for key in old if key not in new}, **new}


_maps = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz"))


@given(_names, _names, _maps, _maps)
@settings(max_examples=100, deadline=None)
def test_a_diff_leads_from_old_to_new(
    old: list[str], new: list[str], before: dict[str, str], after: dict[str, str]
) -> None:
    """What kubectl computes (additions, deletions, order) gives the new object, in its order."""
    patch = {
        "labels": diff(before, after),
        "$setElementOrder/items": named(*new),
        "items": [*named(*new), *({"name": name, "$patch": "delete"} for name in old if name not in new)],
        "$deleteFromPrimitiveList/set": [name for name in old if name not in new],
        "$setElementOrder/set": new,
        "set": [name for name in new if name not in old],
    }
    merged = strategic_merge_patch({"items": named(*old), "set": old, "labels": before}, patch, SCHEMA)
    assert merged == {"items": named(*new), "set": new, "labels": after}
    assert strategic_merge_patch(merged, patch, SCHEMA) == merged
