"""`string.format(list)`: the verbs of CEL's strings extension."""

from __future__ import annotations

import re
from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.lib_standard import show_double
from coterie.kube.api.cel.lib_time import show_duration, show_timestamp
from coterie.kube.api.cel.values import Duration, Timestamp, TypeValue, bounded, kind_of

_VERB: Final = re.compile(r"%(?:(%)|(?:\.(\d{1,4}))?(.)|)", re.DOTALL | re.ASCII)
_MAX_PARTS: Final = 20_000


def format_text(template: str, args: list[Any]) -> str:
    out: list[str] = []
    last = used = 0
    for found in _VERB.finditer(template):
        out.append(template[last : found.start()])
        last = found.end()
        if found[1]:
            out.append("%")
            continue
        verb = found[3]
        if verb is None:
            raise CelError("could not parse formatting clause: unexpected end of string")
        if used >= len(args):
            raise CelError(f"index {used} out of range")
        precision = min(int(found[2]), 100) if found[2] else 6
        out.append(_one(verb, args[used], precision))
        used += 1
    out.append(template[last:])
    return bounded("".join(out))


def _one(verb: str, value: Any, precision: int) -> str:
    kind = kind_of(value)
    if verb == "s":
        return show(value, [_MAX_PARTS])
    if verb == "d" and kind in ("int", "uint"):
        return str(int(value))
    if verb == "d" and kind == "double":
        return show_double(value)
    if verb in "fe" and kind in ("double", "int", "uint"):
        return _float(verb, float(value), precision)
    if verb in "xX":
        return _hex(value, kind, verb)
    if verb == "o" and kind in ("int", "uint"):
        return f"{int(value):o}"
    if verb == "b" and kind in ("int", "uint", "bool"):
        return f"{int(value):b}"
    raise CelError(f'error during formatting: "%{verb}" clause can not be used with type {kind}')


def _float(verb: str, value: float, precision: int) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    return f"{value:.{precision}{verb}}"


def _hex(value: Any, kind: str, verb: str) -> str:
    if kind in ("int", "uint"):
        return f"{int(value):{verb}}"
    if kind in ("string", "bytes"):
        text: str = (value.encode() if kind == "string" else value).hex()
        return text.upper() if verb == "X" else text
    raise CelError(f'error during formatting: "%{verb}" clause can not be used with type {kind}')


def show(value: Any, budget: list[int]) -> str:
    """A value as `%s` prints it; strings inside lists and maps are quoted."""
    budget[0] -= 1
    if budget[0] < 0:
        raise CelError("string is too long")
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return show_double(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Timestamp):
        return show_timestamp(value)
    if isinstance(value, Duration):
        return show_duration(value)
    if isinstance(value, TypeValue):
        return value.name
    if isinstance(value, list):
        return "[" + ", ".join(_inner(item, budget) for item in value) + "]"
    if isinstance(value, dict):
        pairs = sorted((_inner(key, budget), _inner(item, budget)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    return str(value)


def _inner(value: Any, budget: list[int]) -> str:
    return f'"{value}"' if isinstance(value, str) else show(value, budget)
