"""Optional values: what `?` in selections and literals gives, and how to take it apart."""

from __future__ import annotations

from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, function, method
from coterie.kube.api.cel.types import BOOL, TYPE, A, list_of, optional_of
from coterie.kube.api.cel.values import NONE, Duration, Optional, Timestamp, TypeValue, kind_of


def _value(optional: Optional) -> Any:
    if not optional.has:
        raise CelError("optional.none() dereference")
    return optional.value


def _is_zero(value: Any) -> bool:
    if isinstance(value, Duration | Timestamp):
        return value.nanos == 0
    return value is None or (isinstance(value, bool | int | float | str | bytes | list | dict) and not value)


def _unwrap(items: list[Any]) -> list[Any]:
    if not all(type(item) is Optional for item in items):
        raise CelError("no such overload")
    return [item.value for item in items if item.has]


LIBRARY: Final[Library] = (
    function("optional.unwrap", (list_of(optional_of(A)),), list_of(A), _unwrap),
    method("unwrapOpt", (list_of(optional_of(A)),), list_of(A), _unwrap),
    function("optional.of", (A,), optional_of(A), lambda value: Optional(True, value)),
    function("optional.none", (), optional_of(A), lambda: NONE),
    function(
        "optional.ofNonZeroValue",
        (A,),
        optional_of(A),
        lambda value: NONE if _is_zero(value) else Optional(True, value),
    ),
    method("hasValue", (optional_of(A),), BOOL, lambda optional: optional.has),
    method("value", (optional_of(A),), A, _value),
    method("orValue", (optional_of(A), A), A, lambda optional, other: optional.value if optional.has else other),
    method("or", (optional_of(A), optional_of(A)), optional_of(A), lambda one, other: one if one.has else other),
    function("type", (A,), TYPE, lambda value: TypeValue(kind_of(value))),
)
