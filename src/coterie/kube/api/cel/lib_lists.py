"""The list library of Kubernetes, and the lists and sets extensions of CEL."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, Overload, function, method
from coterie.kube.api.cel.lib_standard import int64, uint64
from coterie.kube.api.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    CelType,
    list_of,
    optional_of,
)
from coterie.kube.api.cel.values import MAX_TEXT, NONE, Duration, Optional, UInt, equal, kind_of
from coterie.kube.api.schema.validate import freeze

_ORDERED: Final = (INT, UINT, DOUBLE, BOOL, TIMESTAMP, DURATION, STRING, BYTES)
_ORDERED_KINDS: Final = frozenset(type_.name for type_ in _ORDERED)
_DEEPEST: Final = 64
"""Levels that `flatten` takes out: no value is nested deeper."""


def _require_kind(items: list[Any], kind: str) -> None:
    """A list of dyn may hold anything; only elements of one kind can be put in order or added."""
    if any(kind_of(item) != kind for item in items):
        raise CelError("no such overload")


def _is_sorted(items: list[Any]) -> bool:
    if items:
        _require_kind(items, kind_of(items[0]))
    return all(left <= right for left, right in pairwise(items))


def _extreme(name: str, choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def pick(items: list[Any]) -> Any:
        if not items:
            raise CelError(f"{name} called on empty list")
        _require_kind(items, kind_of(items[0]))
        return choose(items)

    return pick


def _sum(items: list[Any]) -> Any:
    if not items:
        return 0
    kind = kind_of(items[0])
    _require_kind(items, kind)
    if kind == "int":
        return int64(sum(items))
    if kind == "uint":
        return uint64(sum(map(int, items)))
    if kind == "google.protobuf.Duration":
        return Duration(int64(sum(item.nanos for item in items)))
    if kind == "double":
        return sum(items)
    raise CelError("no such overload")


_EMPTY_SUM: Final[dict[CelType, Any]] = {INT: 0, UINT: UInt(0), DOUBLE: 0.0, DURATION: Duration(0)}


def _index_of(items: list[Any], wanted: Any) -> int:
    return next((at for at, item in enumerate(items) if equal(item, wanted)), -1)


def _last_index_of(items: list[Any], wanted: Any) -> int:
    return next((at for at in range(len(items) - 1, -1, -1) if equal(items[at], wanted)), -1)


def _distinct(items: list[Any]) -> list[Any]:
    seen: set[object] = set()
    out: list[Any] = []
    for item in items:
        frozen = freeze(item)
        if frozen not in seen:
            seen.add(frozen)
            out.append(item)
    return out


def _slice(items: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise CelError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise CelError("level must be non-negative")
    for _ in range(min(depth, _DEEPEST)):
        if not any(isinstance(item, list) for item in items):
            break
        if sum(len(item) if isinstance(item, list) else 1 for item in items) > MAX_TEXT:
            raise CelError("list is too long")
        items = [part for item in items for part in (item if isinstance(item, list) else (item,))]
    return items


def _range(count: int) -> list[int]:
    if count > MAX_TEXT:
        raise CelError("list is too long")
    return list(range(max(count, 0)))


def ordered(items: list[Any], keys: list[Any]) -> list[Any]:
    """The items in the order of their keys, which must be of one kind that has an order."""
    if not keys:
        return []
    kind = kind_of(keys[0])
    if kind not in _ORDERED_KINDS:
        raise CelError("list elements must be comparable")
    if any(kind_of(key) != kind for key in keys):
        raise CelError("list elements must have the same type")
    places = sorted(range(len(items)), key=lambda place: keys[place])
    return [items[place] for place in places]


def _covers(items: list[Any], wanted: list[Any]) -> bool:
    """By hashing: two lists of a thousand elements must not cost a million comparisons."""
    have = set(map(freeze, items))
    return all(freeze(item) in have for item in wanted)


def _meets(left: list[Any], right: list[Any]) -> bool:
    return not set(map(freeze, left)).isdisjoint(map(freeze, right))


def _library() -> list[Overload]:
    out: list[Overload] = []
    for kind in _ORDERED:
        out += [
            method("isSorted", (list_of(kind),), BOOL, _is_sorted),
            method("min", (list_of(kind),), kind, _extreme("min", min)),
            method("max", (list_of(kind),), kind, _extreme("max", max)),
        ]
    for kind, zero in _EMPTY_SUM.items():
        out.append(method("sum", (list_of(kind),), kind, lambda items, zero=zero: _sum(items) if items else zero))
    anything = list_of(A)
    out += [
        method("indexOf", (anything, A), INT, _index_of, deep=True),
        method("lastIndexOf", (anything, A), INT, _last_index_of, deep=True),
        method("distinct", (anything,), anything, _distinct, deep=True),
        method("slice", (anything, INT, INT), anything, _slice),
        method("reverse", (anything,), anything, lambda items: items[::-1]),
        method("sort", (anything,), anything, lambda items: ordered(items, items)),
        method("flatten", (list_of(A),), list_of(DYN), _flatten, grows=True),
        method("flatten", (list_of(A), INT), list_of(DYN), _flatten, grows=True),
        method("first", (anything,), optional_of(A), lambda items: Optional(True, items[0]) if items else NONE),
        method("last", (anything,), optional_of(A), lambda items: Optional(True, items[-1]) if items else NONE),
        function("lists.range", (INT,), list_of(INT), _range, grows=True),
        function("sets.contains", (anything, anything), BOOL, _covers, deep=True),
        function(
            "sets.equivalent", (anything, anything), BOOL, lambda a, b: _covers(a, b) and _covers(b, a), deep=True
        ),
        function("sets.intersects", (anything, anything), BOOL, _meets, deep=True),
    ]
    return out


LIBRARY: Final[Library] = tuple(_library())
