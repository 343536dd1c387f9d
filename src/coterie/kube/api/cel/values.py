"""Values at run time. JSON data is used as it is; only what JSON has no type for gets a class.

    int -> int   uint -> UInt   double -> float   bool, string, bytes, null -> Python's own
    list -> list   map and object -> dict   timestamp, duration -> Timestamp, Duration (nanoseconds)
    optional -> Optional   quantity, ip, cidr, url -> their own (lib_*.py)

Lists that a schema declares as `set` or `map` are SetList and MapList: they compare without order, as Kubernetes does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.quantity import Quantity

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
UINT64_MAX: Final = 2**64 - 1
MAX_TEXT: Final = 1 << 20
"""No function makes a longer string: doubling in nested `cel.bind` must not eat the memory."""
MAX_COMPARE: Final = 100_000
"""How many pairs one comparison may look at: values that share parts can be exponentially larger than they look."""


class UInt(int):
    """An unsigned integer; a type of its own, since CEL never mixes it with int in arithmetic."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """Nanoseconds since 1970 in UTC."""

    nanos: int


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    nanos: int


@dataclass(frozen=True, slots=True)
class TypeValue:
    name: str


@dataclass(frozen=True, slots=True)
class Optional:
    has: bool
    value: Any = None


NONE: Final = Optional(False)


class SetList(list[Any]):
    __slots__ = ()


class MapList(list[Any]):
    """`keys` are the fields that identify an item."""

    __slots__ = ("keys",)

    def __init__(self, items: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        self.keys = keys

    def key_of(self, item: Any) -> tuple[Any, ...]:
        return tuple(item.get(key) for key in self.keys) if isinstance(item, dict) else (id(item),)


KINDS: dict[type, str] = {
    int: "int",
    UInt: "uint",
    float: "double",
    bool: "bool",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    SetList: "list",
    MapList: "list",
    dict: "map",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    TypeValue: "type",
    Optional: "optional_type",
    Quantity: "kubernetes.Quantity",
}
"""The CEL type name of each Python type; libraries add their own types when they are imported."""
_NUMBERS: Final = frozenset({int, UInt, float})
_LISTS: Final = frozenset({list, SetList, MapList})


def kind_of(value: Any) -> str:
    return KINDS.get(type(value), "dyn")


def equal(left: Any, right: Any) -> bool:
    """CEL's equality over all types: numbers by value, other types only with their own kind, never an error."""
    left_type = type(left)
    if left_type is type(right) and left_type is not dict and left_type not in _LISTS:
        return bool(left == right)
    return _equal(left, right, [MAX_COMPARE])


def _equal(left: Any, right: Any, budget: list[int]) -> bool:
    budget[0] -= 1
    if budget[0] < 0:
        raise CelError("comparison is too large")
    left_type, right_type = type(left), type(right)
    if left_type in _LISTS and right_type in _LISTS:
        return _equal_lists(left, right, budget)
    if left_type is dict and right_type is dict:
        return len(left) == len(right) and all(
            key in right and _equal(value, right[key], budget) for key, value in left.items()
        )
    if left_type in _NUMBERS and right_type in _NUMBERS:
        return bool(int(left) == right if left_type is UInt else left == right)
    if left_type is Optional and right_type is Optional:
        return left.has == right.has and _equal(left.value, right.value, budget)
    return left_type is right_type and bool(left == right)


def _equal_lists(left: list[Any], right: list[Any], budget: list[int]) -> bool:
    if len(left) != len(right):
        return False
    if type(left) is SetList or type(right) is SetList:
        return all(any(_equal(item, other, budget) for other in right) for item in left)
    keyed = left if type(left) is MapList else right
    if isinstance(keyed, MapList):
        others = {_hashable(keyed.key_of(item)): item for item in right}
        return all(
            (key := _hashable(keyed.key_of(item))) in others and _equal(item, others[key], budget) for item in left
        )
    return all(_equal(item, other, budget) for item, other in zip(left, right, strict=True))


def _hashable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((type(part).__name__, part if not isinstance(part, dict | list) else id(part)) for part in key)


def contains(items: list[Any], wanted: Any) -> bool:
    return any(equal(item, wanted) for item in items)


def join_lists(left: list[Any], right: list[Any]) -> list[Any]:
    """`+`: plain lists append; a set takes what it lacks; a map list replaces items of the same key, keeping places."""
    if len(left) + len(right) > MAX_TEXT:
        raise CelError("list is too long")
    if type(left) is SetList:
        return SetList([*left, *(item for item in right if not contains(left, item))])
    if isinstance(left, MapList):
        merged = {_hashable(left.key_of(item)): item for item in left}
        merged.update((_hashable(left.key_of(item)), item) for item in right)
        return MapList(list(merged.values()), left.keys)
    return [*left, *right]


def bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise CelError("string is too long")
    return text
