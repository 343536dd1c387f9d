"""Operators and conversions of the CEL standard: 64-bit arithmetic that errs on overflow, ordering, size, casts."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, Overload, function, method
from coterie.kube.api.cel.lib_time import parse_duration, parse_timestamp, show_duration, show_timestamp
from coterie.kube.api.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NUMERIC,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    B,
    CelType,
    list_of,
    map_of,
)
from coterie.kube.api.cel.values import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    Duration,
    Timestamp,
    UInt,
    bounded,
    contains,
    equal,
    join_lists,
)
from coterie.kube.api.schema.pattern import Pattern, PatternError

_NUMBER_TEXT: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DOUBLE_TEXT: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?i:inf|infinity|nan)", re.ASCII)


def int64(value: int) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise CelError("integer overflow")


def uint64(value: int) -> UInt:
    if 0 <= value <= UINT64_MAX:
        return UInt(value)
    raise CelError("unsigned integer overflow")


def _divide(left: int, right: int) -> int:
    """Truncated toward zero, as Go and C do; Python rounds down."""
    if right == 0:
        raise CelError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _modulo(left: int, right: int) -> int:
    if right == 0:
        raise CelError("modulus by zero")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _divide_doubles(left: float, right: float) -> float:
    if right == 0:
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    return left / right


def _times(nanos: int) -> Timestamp:
    return Timestamp(_in_years(nanos))


def _in_years(nanos: int) -> int:
    # 0001-01-01T00:00:00Z to 9999-12-31T23:59:59Z
    if -62135596800 <= nanos // 10**9 <= 253402300799:
        return nanos
    raise CelError("timestamp overflow")


def _lasts(nanos: int) -> Duration:
    if INT64_MIN <= nanos <= INT64_MAX:
        return Duration(nanos)
    raise CelError("integer overflow")


def matches(text: str, pattern: str) -> bool:
    return compiled(pattern).search(text)


_patterns: dict[str, Pattern] = {}


def compiled(pattern: str) -> Pattern:
    """Patterns are nearly always constants; a handful is kept, so that a hostile rule cannot fill the memory."""
    known = _patterns.get(pattern)
    if known is None:
        try:
            known = Pattern(pattern)
        except PatternError as fault:
            raise CelError(str(fault)) from fault
        if len(_patterns) >= 64:
            _patterns.clear()
        _patterns[pattern] = known
    return known


# -- conversions ------------------------------------------------------------------------------------------------------


def _int_of_double(value: float) -> int:
    if not -9.223372036854775808e18 < value < 9.223372036854775808e18:
        raise CelError("integer overflow")
    return int(value)


def _uint_of_double(value: float) -> UInt:
    if not 0 <= value < 1.8446744073709552e19:
        raise CelError("unsigned integer overflow")
    return UInt(value)


def _int_of_text(text: str) -> int:
    if _NUMBER_TEXT.fullmatch(text) is None:
        raise CelError(f'strconv.ParseInt: parsing "{text[:80]}": invalid syntax')
    return int64(int(text))


def _uint_of_text(text: str) -> UInt:
    if _NUMBER_TEXT.fullmatch(text) is None or text[0] in "+-":
        raise CelError(f'strconv.ParseUint: parsing "{text[:80]}": invalid syntax')
    return uint64(int(text))


def _double_of_text(text: str) -> float:
    if len(text) > 400 or _DOUBLE_TEXT.fullmatch(text) is None:
        raise CelError(f'strconv.ParseFloat: parsing "{text[:80]}": invalid syntax')
    return float(text)


def _bool_of_text(text: str) -> bool:
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise CelError(f'strconv.ParseBool: parsing "{text[:80]}": invalid syntax')


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as fault:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from fault


def show_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].zfill(2)}" if e else text


# -- the table --------------------------------------------------------------------------------------------------------


def _arithmetic() -> list[Overload]:
    integer: dict[str, Callable[[int, int], int]] = {
        "_+_": operator.add, "_-_": operator.sub, "_*_": operator.mul, "_/_": _divide, "_%_": _modulo,
    }  # fmt: skip
    out: list[Overload] = []
    for name, op in integer.items():
        out.append(function(name, (INT, INT), INT, lambda a, b, op=op: int64(op(a, b))))
        out.append(function(name, (UINT, UINT), UINT, lambda a, b, op=op: uint64(op(int(a), int(b)))))
    doubles: dict[str, Callable[[float, float], float]] = {
        "_+_": operator.add, "_-_": operator.sub, "_*_": operator.mul, "_/_": _divide_doubles,
    }  # fmt: skip
    out += [function(name, (DOUBLE, DOUBLE), DOUBLE, op) for name, op in doubles.items()]
    out += [
        function("-_", (INT,), INT, lambda a: int64(-a)),
        function("-_", (DOUBLE,), DOUBLE, operator.neg),
        function("!_", (BOOL,), BOOL, operator.not_),
        function("_+_", (STRING, STRING), STRING, lambda a, b: bounded(a + b)),
        function("_+_", (BYTES, BYTES), BYTES, operator.add),
        function("_+_", (list_of(A), list_of(A)), list_of(A), join_lists),
        function("_+_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: _times(a.nanos + b.nanos)),
        function("_+_", (DURATION, TIMESTAMP), TIMESTAMP, lambda a, b: _times(a.nanos + b.nanos)),
        function("_+_", (DURATION, DURATION), DURATION, lambda a, b: _lasts(a.nanos + b.nanos)),
        function("_-_", (TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: _times(a.nanos - b.nanos)),
        function("_-_", (TIMESTAMP, TIMESTAMP), DURATION, lambda a, b: _lasts(a.nanos - b.nanos)),
        function("_-_", (DURATION, DURATION), DURATION, lambda a, b: _lasts(a.nanos - b.nanos)),
    ]
    return out


def _comparisons() -> list[Overload]:
    out: list[Overload] = []
    ordered = (STRING, BYTES, BOOL, TIMESTAMP, DURATION)
    pairs: list[tuple[CelType, CelType]] = [(a, b) for a in NUMERIC for b in NUMERIC] + [(t, t) for t in ordered]
    for name, op in (("_<_", operator.lt), ("_<=_", operator.le), ("_>_", operator.gt), ("_>=_", operator.ge)):
        out += [function(name, pair, BOOL, op) for pair in pairs]
    out += [
        function("_==_", (A, A), BOOL, equal, deep=True),
        function("_!=_", (A, A), BOOL, lambda a, b: not equal(a, b), deep=True),
        function("@in", (A, list_of(A)), BOOL, lambda item, items: contains(items, item), deep=True),
        function("@in", (A, map_of(A, B)), BOOL, _is_key),
    ]
    return out


def _is_key(key: Any, mapping: dict[Any, Any]) -> bool:
    try:
        return key in mapping
    except TypeError:  # a list or a map is no key of anything
        return False


def _conversions() -> list[Overload]:
    same = lambda value: value  # noqa: E731
    rows: list[tuple[str, CelType, CelType, Callable[[Any], Any]]] = [
        ("int", INT, INT, same), ("int", UINT, INT, lambda v: int64(int(v))), ("int", DOUBLE, INT, _int_of_double),
        ("int", STRING, INT, _int_of_text), ("int", TIMESTAMP, INT, lambda v: v.nanos // 10**9),
        ("int", DURATION, INT, lambda v: v.nanos),
        ("uint", UINT, UINT, same), ("uint", INT, UINT, uint64), ("uint", DOUBLE, UINT, _uint_of_double),
        ("uint", STRING, UINT, _uint_of_text),
        ("double", DOUBLE, DOUBLE, same), ("double", INT, DOUBLE, float), ("double", UINT, DOUBLE, float),
        ("double", STRING, DOUBLE, _double_of_text),
        ("bool", BOOL, BOOL, same), ("bool", STRING, BOOL, _bool_of_text),
        ("string", STRING, STRING, same), ("string", INT, STRING, str), ("string", UINT, STRING, lambda v: str(int(v))),
        ("string", DOUBLE, STRING, show_double), ("string", BOOL, STRING, lambda v: "true" if v else "false"),
        ("string", BYTES, STRING, _text_of_bytes), ("string", TIMESTAMP, STRING, show_timestamp),
        ("string", DURATION, STRING, show_duration),
        ("bytes", BYTES, BYTES, same), ("bytes", STRING, BYTES, str.encode),
        ("timestamp", TIMESTAMP, TIMESTAMP, same), ("timestamp", STRING, TIMESTAMP, parse_timestamp),
        ("timestamp", INT, TIMESTAMP, lambda v: _times(v * 10**9)),
        ("duration", DURATION, DURATION, same), ("duration", STRING, DURATION, parse_duration),
        ("dyn", A, DYN, same),
    ]  # fmt: skip
    return [function(name, (given,), result, impl) for name, given, result, impl in rows]


def _sizes_and_texts() -> list[Overload]:
    out: list[Overload] = []
    for make in (function, method):
        for sized in (STRING, BYTES, list_of(A), map_of(A, B)):
            out.append(make("size", (sized,), INT, len))
        out.append(make("matches", (STRING, STRING), BOOL, matches))
    out += [
        method("contains", (STRING, STRING), BOOL, operator.contains),
        method("startsWith", (STRING, STRING), BOOL, str.startswith),
        method("endsWith", (STRING, STRING), BOOL, str.endswith),
    ]
    return out


LIBRARY: Final[Library] = (*_arithmetic(), *_comparisons(), *_conversions(), *_sizes_and_texts())
