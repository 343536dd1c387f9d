"""Sets of field paths, kept in the form in which Kubernetes writes them: FieldsV1.

A set is a tree of path elements. `f:name` is a field, `k:{...}` an item of a list by its keys, `v:...` an item of a
set by its value, `i:0` an item by its index. A path is a member of the set when its node is `{}` (and nothing below
it is a member) or when the node holds the element `.`:

    {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}   =   .metadata.labels and .metadata.labels.app

The wire form is also the working form, so reading and writing cost nothing and a set can be put into an object as
it is. Sets are values: no function changes its arguments, all share what they can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

FieldsV1 = dict[str, Any]
Path = tuple[str, ...]

MEMBER: Final[FieldsV1] = {}
"""The node of a path that is a member and has no members below it. One for all; never changed."""
SELF: Final = "."


def union(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """Members of either. Gives back `left` itself when `right` adds nothing."""
    if left is right or not right:
        return left
    if not left:
        return right
    out: FieldsV1 | None = None
    for element, theirs in right.items():
        ours = left.get(element)
        joined = theirs if ours is None else _join(ours, theirs)
        if joined is not ours:
            if out is None:
                out = dict(left)
            out[element] = joined
    return left if out is None else out


def _join(ours: FieldsV1, theirs: FieldsV1) -> FieldsV1:
    if not ours:
        return ours if not theirs else _with_self(theirs)
    if not theirs:
        return _with_self(ours)
    return union(ours, theirs)


def _with_self(node: FieldsV1) -> FieldsV1:
    return node if SELF in node else {SELF: MEMBER, **node}


def difference(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """Members of `left` that are not members of `right`; what lies below a removed member stays."""
    return _subtract(left, right, False)


def without(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """Like `difference`, but a member of `right` that ends there takes everything below it along.

    This is what a removed or replaced value asks for: nothing below it can be owned any more.
    """
    return _subtract(left, right, True)


def _subtract(left: FieldsV1, right: FieldsV1, below: bool) -> FieldsV1:
    if not left or not right:
        return left
    out: FieldsV1 | None = None
    for element, theirs in right.items():
        ours = left.get(element)
        if ours is None:
            continue
        rest = _rest(ours, theirs, below)
        if rest is not ours:
            if out is None:
                out = dict(left)
            if rest is None:
                del out[element]
            else:
                out[element] = rest
    return left if out is None else out


def _rest(ours: FieldsV1, theirs: FieldsV1, below: bool) -> FieldsV1 | None:
    if not theirs:
        if below or not ours:
            return None
        if SELF not in ours:
            return ours
        return {element: node for element, node in ours.items() if element != SELF}
    if not ours:
        return None if SELF in theirs else ours
    left = _subtract(ours, theirs, below)
    return _tidy(left) if left is not ours else ours


def _tidy(node: FieldsV1) -> FieldsV1 | None:
    """A node is never left as `{".": {}}` or as an empty non-member."""
    if not node:
        return None
    return MEMBER if len(node) == 1 and SELF in node else node


def intersection(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """Members of both."""
    if len(right) < len(left):
        left, right = right, left
    out: FieldsV1 = {}
    for element, ours in left.items():
        theirs = right.get(element)
        if theirs is None:
            continue
        both = _both(ours, theirs)
        if both is not None:
            out[element] = both
    return out


def _both(ours: FieldsV1, theirs: FieldsV1) -> FieldsV1 | None:
    if not ours or not theirs:
        is_shared = is_member(ours) and is_member(theirs)
        return MEMBER if is_shared else None
    return _tidy(intersection(ours, theirs))


def is_member(node: FieldsV1) -> bool:
    return not node or SELF in node


def contains(fields: FieldsV1, path: Path) -> bool:
    """Is this very path a member?"""
    node = fields
    for element in path:
        child = node.get(element)
        if child is None:
            return False
        node = child
    return bool(path) and is_member(node)


def paths(fields: FieldsV1) -> Iterator[Path]:
    """Every member, those nearer to the root first, else in order of their names."""
    return _paths(fields, ())


def _paths(fields: FieldsV1, prefix: Path) -> Iterator[Path]:
    elements = sorted(element for element in fields if element != SELF)
    for element in elements:
        if is_member(fields[element]):
            yield (*prefix, element)
    for element in elements:
        node = fields[element]
        if node:
            yield from _paths(node, (*prefix, element))


def pretty(path: Path) -> str:
    """`.spec.containers[name="nginx"].ports[containerPort=80,protocol="TCP"]`, as conflict messages show it."""
    return "".join(map(_pretty_element, path))


def _pretty_element(element: str) -> str:
    kind, text = element[:2], element[2:]
    if kind == "f:":
        return "." + text
    if kind == "k:":
        keys = orjson.loads(text)
        return "[" + ",".join(f"{name}={_compact(value)}" for name, value in keys.items()) + "]"
    if kind == "v:":
        return f"[={text}]"
    return f"[{text}]"


def _compact(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def parse(value: object) -> FieldsV1:
    """A set from outside, checked and brought into canonical form; ValueError when it is none."""
    if not isinstance(value, dict):
        raise ValueError("fieldsV1 must be an object")
    out: FieldsV1 = {}
    for element, node in value.items():
        if element == SELF:
            continue  # the root itself is never a member of anything
        out[_canonical(element)] = _parse_node(node)
    return out


def _parse_node(value: object) -> FieldsV1:
    if not isinstance(value, dict):
        raise ValueError("fieldsV1 must be made of objects")
    if not value:
        return MEMBER
    node: FieldsV1 = {}
    for element, child in value.items():
        if element == SELF:
            node[SELF] = MEMBER
        else:
            node[_canonical(element)] = _parse_node(child)
    return MEMBER if len(node) == 1 and SELF in node else node


def _canonical(element: str) -> str:
    kind, text = element[:2], element[2:]
    if kind == "f:":
        return element
    try:
        if kind == "v:":
            return "v:" + _compact(orjson.loads(text))
        if kind == "k:":
            keys = orjson.loads(text)
            if isinstance(keys, dict) and keys:
                return "k:" + _compact(keys)
        elif kind == "i:":
            return f"i:{int(text)}"
    except (ValueError, orjson.JSONEncodeError) as broken:
        raise ValueError(f"invalid path element {element[:80]!r}") from broken
    raise ValueError(f"invalid path element {element[:80]!r}")
