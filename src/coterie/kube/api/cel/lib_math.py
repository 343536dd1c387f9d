"""The math extension of CEL (version 2): extremes, rounding, signs, bits.

`math.greatest` and `math.least` take any number of arguments, so `build.py` builds their calls itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, Overload, function
from coterie.kube.api.cel.lib_standard import int64, uint64
from coterie.kube.api.cel.types import BOOL, DOUBLE, INT, UINT
from coterie.kube.api.cel.values import INT64_MAX, UINT64_MAX, UInt, kind_of

VARIADIC: Final[dict[str, Callable[[list[Any]], Any]]] = {"math.greatest": max, "math.least": min}
_NUMBERS: Final = frozenset(("int", "uint", "double"))


def extreme(name: str, values: list[Any]) -> Any:
    """`math.greatest` and `math.least` over values of any numeric types."""
    if not values:
        raise CelError(f"{name}(list) argument must not be empty")
    if any(kind_of(value) not in _NUMBERS for value in values):
        raise CelError("no such overload")
    return VARIADIC[name](values)


def _rounded(value: float) -> float:
    """Half away from zero, unlike Python."""
    if not math.isfinite(value):
        return value
    return math.copysign(math.floor(abs(value) + 0.5), value) if abs(value) < 2**52 else value


def _whole(change: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: float(change(value)) if math.isfinite(value) else value


def _sign(value: float) -> float:
    return value if math.isnan(value) or value == 0 else math.copysign(1.0, value)


def _signed(bits: int) -> int:
    return bits if bits <= INT64_MAX else bits - UINT64_MAX - 1


def _offset(name: str, offset: int) -> int:
    if offset < 0:
        raise CelError(f"{name}() negative offset: {offset}")
    return min(offset, 64)


def _shift_left(value: int, offset: int) -> int:
    return _signed((value << _offset("math.bitShiftLeft", offset)) & UINT64_MAX)


def _shift_right(value: int, offset: int) -> int:
    """Zeros come in from the left, also for negative numbers."""
    return _signed((value & UINT64_MAX) >> _offset("math.bitShiftRight", offset))


def _library() -> list[Overload]:
    out = [
        function("math.ceil", (DOUBLE,), DOUBLE, _whole(math.ceil)),
        function("math.floor", (DOUBLE,), DOUBLE, _whole(math.floor)),
        function("math.trunc", (DOUBLE,), DOUBLE, _whole(math.trunc)),
        function("math.round", (DOUBLE,), DOUBLE, _rounded),
        function("math.isInf", (DOUBLE,), BOOL, math.isinf),
        function("math.isNaN", (DOUBLE,), BOOL, math.isnan),
        function("math.isFinite", (DOUBLE,), BOOL, math.isfinite),
        function("math.abs", (INT,), INT, lambda value: int64(abs(value))),
        function("math.abs", (UINT,), UINT, lambda value: value),
        function("math.abs", (DOUBLE,), DOUBLE, abs),
        function("math.sign", (INT,), INT, lambda value: (value > 0) - (value < 0)),
        function("math.sign", (UINT,), UINT, lambda value: UInt(value > 0)),
        function("math.sign", (DOUBLE,), DOUBLE, _sign),
        function("math.bitNot", (INT,), INT, lambda value: ~value),
        function("math.bitNot", (UINT,), UINT, lambda value: UInt(int(value) ^ UINT64_MAX)),
        function("math.bitShiftLeft", (INT, INT), INT, _shift_left),
        function("math.bitShiftRight", (INT, INT), INT, _shift_right),
        function(
            "math.bitShiftLeft",
            (UINT, INT),
            UINT,
            lambda value, by: UInt((int(value) << _offset("math.bitShiftLeft", by)) & UINT64_MAX),
        ),
        function(
            "math.bitShiftRight",
            (UINT, INT),
            UINT,
            lambda value, by: UInt(int(value) >> _offset("math.bitShiftRight", by)),
        ),
    ]
    for number in (INT, UINT, DOUBLE):
        out.append(function("math.sqrt", (number,), DOUBLE, lambda v: math.sqrt(v) if v >= 0 else math.nan))
    pairs: dict[str, Callable[[int, int], int]] = {
        "math.bitAnd": int.__and__, "math.bitOr": int.__or__, "math.bitXor": int.__xor__,
    }  # fmt: skip
    for name, op in pairs.items():
        out.append(function(name, (INT, INT), INT, op))
        out.append(function(name, (UINT, UINT), UINT, lambda a, b, op=op: uint64(op(int(a), int(b)))))
    return out


LIBRARY: Final[Library] = tuple(_library())
