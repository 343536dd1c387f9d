"""JSON patch and merge patch: rows from the RFCs, limits, and laws against simple oracles."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.errors import ApiError, BadRequest, Invalid, RequestEntityTooLarge, UnsupportedMediaType
from coterie.kube.api.patch import JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, apply_patch, merge_patch
from coterie.kube.api.patch.jsonpatch import json_patch


def op(name: str, path: str, **members: Any) -> dict[str, Any]:
    if "from_" in members:
        members["from"] = members.pop("from_")
    return {"op": name, "path": path, **members}


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param({"a": 1}, [op("add", "/b", value=2)], {"a": 1, "b": 2}, id="add-key"),
        pytest.param({"a": 1}, [op("add", "/a", value=2)], {"a": 2}, id="add-replaces"),
        pytest.param({"a": [1, 3]}, [op("add", "/a/1", value=2)], {"a": [1, 2, 3]}, id="add-inserts"),
        pytest.param({"a": [1]}, [op("add", "/a/1", value=2)], {"a": [1, 2]}, id="add-at-end"),
        pytest.param({"a": [1]}, [op("add", "/a/-", value=[2])], {"a": [1, [2]]}, id="add-dash"),
        pytest.param({"a": 1}, [op("add", "", value={"z": 1})], {"z": 1}, id="add-root"),
        pytest.param({"a": 1}, [op("add", "/", value=2)], {"a": 1, "": 2}, id="add-empty-key"),
        pytest.param({"a": 1, "b": 2}, [op("remove", "/a")], {"b": 2}, id="remove-key"),
        pytest.param({"a": [1, 2, 3]}, [op("remove", "/a/1")], {"a": [1, 3]}, id="remove-item"),
        pytest.param({"a": {"b": 1}}, [op("replace", "/a/b", value=None)], {"a": {"b": None}}, id="replace-null"),
        pytest.param({"a": [1, 2]}, [op("replace", "/a/0", value=9)], {"a": [9, 2]}, id="replace-item"),
        pytest.param({"a": 1}, [op("replace", "", value={})], {}, id="replace-root"),
        pytest.param({"a": {"b": 1}}, [op("move", "/c", from_="/a/b")], {"a": {}, "c": 1}, id="move"),
        pytest.param({"a": [1, 2, 3]}, [op("move", "/a/2", from_="/a/0")], {"a": [2, 3, 1]}, id="move-in-list"),
        pytest.param({"a": 1}, [op("move", "/a", from_="/a")], {"a": 1}, id="move-to-itself"),
        pytest.param({"a": {"b": 1}}, [op("copy", "/c", from_="/a")], {"a": {"b": 1}, "c": {"b": 1}}, id="copy"),
        pytest.param(
            {"a": {"b": 1}},
            [op("copy", "/c", from_="/a"), op("replace", "/c/b", value=2)],
            {"a": {"b": 1}, "c": {"b": 2}},
            id="copies-are-separate",
        ),
        pytest.param(
            {"a": {"b": 1}},
            [op("add", "/a/x", value=0), op("copy", "/c", from_="/a"), op("replace", "/c/b", value=2)],
            {"a": {"b": 1, "x": 0}, "c": {"b": 2, "x": 0}},
            id="copies-of-changed-are-separate",
        ),
        pytest.param({"a/b": 1, "m~n": 2}, [op("remove", "/a~1b"), op("remove", "/m~0n")], {}, id="escapes"),
        pytest.param({"~1": 1}, [op("remove", "/~01")], {}, id="escape-order"),
        pytest.param({"a": 1}, [op("test", "/a", value=1)], {"a": 1}, id="test"),
        pytest.param({"a": 1}, [op("test", "/a", value=1.0)], {"a": 1}, id="test-number-value"),
        pytest.param({"a": {"x": [1], "y": 2}}, [op("test", "/a", value={"y": 2, "x": [1]})], {"a": {"x": [1], "y": 2}}, id="test-deep"),
        pytest.param({"a": 1}, [op("test", "/b", value=None)], {"a": 1}, id="test-null-of-absent"),
        pytest.param({"a": 1}, [], {"a": 1}, id="nothing"),
        pytest.param({"a": []}, [op("add", "/a/0", value=i) for i in range(3)], {"a": [2, 1, 0]}, id="several"),
    ],
)  # fmt: skip
def test_json_patch(before: dict[str, Any], patch: list[Any], after: dict[str, Any]) -> None:
    original = copy.deepcopy(before)
    given_patch = copy.deepcopy(patch)
    assert json_patch(before, patch) == after
    assert before == original
    assert patch == given_patch


@pytest.mark.parametrize(
    ("patch", "error", "told"),
    [
        pytest.param({}, BadRequest, "list of operations", id="no-list"),
        pytest.param(["x"], BadRequest, "must be an object", id="no-object"),
        pytest.param([{"path": "/a"}], BadRequest, "Unexpected kind", id="no-op"),
        pytest.param([op("frobnicate", "/a")], BadRequest, "Unexpected kind: frobnicate", id="unknown-op"),
        pytest.param([{"op": ["add"], "path": "/a"}], BadRequest, "Unexpected kind", id="op-no-string"),
        pytest.param([{"op": "remove"}], BadRequest, '"path"', id="no-path"),
        pytest.param([op("remove", "a")], BadRequest, 'must begin with "/"', id="relative-path"),
        pytest.param([op("add", "/a")], BadRequest, '"value"', id="no-value"),
        pytest.param([op("copy", "/a")], BadRequest, '"from"', id="no-from"),
        pytest.param([op("remove", "/zz")], Invalid, 'doc is missing path: "/zz"', id="remove-missing"),
        pytest.param([op("remove", "")], Invalid, "cannot be removed", id="remove-root"),
        pytest.param([op("replace", "/zz", value=1)], Invalid, "replace operation does not apply", id="replace-missing"),
        pytest.param([op("add", "/zz/b", value=1)], Invalid, "add operation does not apply", id="add-below-missing"),
        pytest.param([op("add", "/s/b", value=1)], Invalid, "does not apply", id="add-below-scalar"),
        pytest.param([op("add", "/l/4", value=1)], Invalid, "invalid index", id="add-beyond"),
        pytest.param([op("remove", "/l/3")], Invalid, "invalid index", id="remove-beyond"),
        pytest.param([op("remove", "/l/-")], Invalid, "no list index", id="remove-dash"),
        pytest.param([op("remove", "/l/-1")], Invalid, "no list index", id="negative"),
        pytest.param([op("remove", "/l/01")], Invalid, "no list index", id="leading-zero"),
        pytest.param([op("remove", "/l/" + "9" * 5000)], Invalid, "no list index", id="absurd-index"),
        pytest.param([op("remove", "/l/²")], Invalid, "no list index", id="unicode-digit"),
        pytest.param([op("test", "/s", value="y")], Invalid, "testing value /s failed: test failed", id="test-fails"),
        pytest.param([op("test", "/t", value=1)], Invalid, "test failed", id="true-is-not-1"),
        pytest.param([op("test", "/zz", value=1)], Invalid, "test failed", id="test-missing"),
        pytest.param([op("move", "/s", from_="/zz")], Invalid, "move operation", id="move-missing"),
        pytest.param([op("move", "/o/in", from_="/o")], Invalid, "into itself", id="move-into-itself"),
        pytest.param([op("copy", "/s", from_="/l/9")], Invalid, "copy operation", id="copy-missing"),
        pytest.param([op("replace", "", value=[])], Invalid, "not an object", id="root-becomes-list"),
        pytest.param([op("remove", "/l/0")] * 10_001, RequestEntityTooLarge, "10000, got 10001", id="too-many"),
    ],
)  # fmt: skip
def test_json_patch_refuses(patch: Any, error: type[ApiError], told: str) -> None:
    doc = {"s": "x", "t": True, "l": [1, 2, 3], "o": {"in": {}}}
    with pytest.raises(error) as caught:
        json_patch(doc, patch)
    assert told in caught.value.message
    assert (caught.value.code, caught.value.reason) == (error.code, error.reason)


def test_copies_are_bounded() -> None:
    bomb = [op("copy", "/a/-", from_="/a")] * 60
    with pytest.raises(Invalid, match="accumulated size increase of copy"):
        json_patch({"a": ["x" * 100]}, bomb)


def test_ten_thousand_operations_on_one_list_are_quick() -> None:
    patched = json_patch({"a": [], "keep": {"b": 1}}, [op("add", "/a/-", value=n) for n in range(10_000)])
    assert patched["a"] == list(range(10_000))


def test_what_is_not_touched_is_shared() -> None:
    doc: dict[str, Any] = {"a": {"x": 1}, "b": {"y": {"z": 1}, "w": {}}}
    patched = json_patch(doc, [op("replace", "/b/y/z", value=2)])
    assert patched["a"] is doc["a"]
    assert patched["b"]["w"] is doc["b"]["w"]


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replace"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="add"),
        pytest.param({"a": "b", "b": 1}, {"a": None}, {"b": 1}, id="delete"),
        pytest.param({"a": ["b"]}, {"a": "c"}, {"a": "c"}, id="list-to-scalar"),
        pytest.param({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}, id="nested"),
        pytest.param({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}, id="list-replaced"),
        pytest.param({"e": None}, {"a": 1}, {"e": None, "a": 1}, id="null-kept"),
        pytest.param({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}, id="new-without-nulls"),
        pytest.param({"a": 1}, {"a": {"b": None}}, {"a": {}}, id="scalar-to-object"),
        pytest.param({"a": 1}, {}, {"a": 1}, id="nothing"),
    ],
)
def test_merge_patch(before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]) -> None:
    original = copy.deepcopy(before)
    assert merge_patch(before, patch) == after
    assert before == original


@pytest.mark.parametrize("patch", [[], "x", None, 1])
def test_merge_patch_refuses_what_is_no_object(patch: Any) -> None:
    with pytest.raises(BadRequest):
        merge_patch({}, patch)


_scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8
)
_objects = st.dictionaries(st.sampled_from("abc"), _values)


def rfc7386(target: Any, patch: Any) -> Any:
    """The pseudo code of the RFC, word for word."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = rfc7386(result.get(name), value)
    return result


@given(_objects, _objects)
@settings(max_examples=150, deadline=None)
def test_merge_patch_does_what_the_rfc_says(target: dict[str, Any], patch: dict[str, Any]) -> None:
    original = copy.deepcopy(target)
    assert merge_patch(target, patch) == rfc7386(target, patch)
    assert target == original


def paths_of(value: Any, prefix: str = "") -> list[str]:
    out = [prefix]
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        out += paths_of(below, f"{prefix}/{key}")
    return out


def naive(doc: Any, operation: dict[str, Any]) -> Any:
    """One operation on a deep copy, as plainly as possible."""
    doc = copy.deepcopy(doc)
    *parents, last = operation["path"].split("/")[1:]
    here = doc
    for part in parents:
        here = here[int(part)] if isinstance(here, list) else here[part]
    place: Any = int(last) if isinstance(here, list) else last
    if operation["op"] == "remove":
        del here[place]
    elif operation["op"] == "replace" or isinstance(here, dict):
        here[place] = copy.deepcopy(operation["value"])
    else:
        here.insert(place, copy.deepcopy(operation["value"]))
    return doc


@given(_objects, st.data())
@settings(max_examples=150, deadline=None)
def test_json_patch_agrees_with_a_naive_one(doc: dict[str, Any], data: st.DataObject) -> None:
    original, expected, patch = copy.deepcopy(doc), doc, []
    for _ in range(data.draw(st.integers(0, 6))):
        places = [path for path in paths_of(expected) if path]
        if not places:
            break
        operation = op(data.draw(st.sampled_from(["add", "remove", "replace"])), data.draw(st.sampled_from(places)))
        if operation["op"] != "remove":
            operation["value"] = data.draw(_values)
        expected = naive(expected, operation)
        patch.append(operation)
    assert json_patch(doc, patch) == expected
    assert doc == original


def test_the_one_entry() -> None:
    assert apply_patch(JSON_PATCH, {}, [op("add", "/a", value=1)]) == {"a": 1}
    assert apply_patch(MERGE_PATCH, {}, {"a": 1}) == {"a": 1}
    with pytest.raises(UnsupportedMediaType, match="accepted media types include"):
        apply_patch(STRATEGIC_MERGE_PATCH, {}, {"a": 1}, None)
    with pytest.raises(UnsupportedMediaType):
        apply_patch("text/plain", {}, {"a": 1}, None)


def test_depth_is_no_crash() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="too deep"):
        apply_patch(MERGE_PATCH, {}, deep)
    with pytest.raises(Invalid, match="too deep"):
        apply_patch(JSON_PATCH, {"x": deep}, [op("copy", "/b", from_="/x")])
