"""The strings extension: positions are in code points, as in cel-go."""

from __future__ import annotations

from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.format import format_text
from coterie.kube.api.cel.functions import Library, function, method
from coterie.kube.api.cel.lib_standard import compiled
from coterie.kube.api.cel.types import DYN, INT, STRING, list_of
from coterie.kube.api.cel.values import bounded

_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_QUOTED: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise CelError(f"index out of range: {at}")
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part)


def _last_index_before(text: str, part: str, start: int) -> int:
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part))


def _join(parts: list[Any], between: str = "") -> str:
    if not all(isinstance(part, str) for part in parts):
        raise CelError("no such overload")
    if sum(map(len, parts)) + len(between) * len(parts) > 1 << 20:
        raise CelError("string is too long")
    return between.join(parts)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    places = text.count(old) if count < 0 else min(count, text.count(old))
    if len(text) + places * max(len(new) - len(old), 0) > 1 << 20:
        raise CelError("string is too long")
    return text.replace(old, new, places)


def _split(text: str, by: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if not by:
        parts = list(text)
        return parts if count < 0 or len(parts) <= count else [*parts[: count - 1], "".join(parts[count - 1 :])]
    return text.split(by, count - 1 if count > 0 else -1)


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    if not 0 <= last <= len(text):
        raise CelError(f"index out of range: {last}")
    if start > last:
        raise CelError(f"invalid substring range. start: {start}, end: {last}")
    return text[start:last]


def _quote(text: str) -> str:
    return bounded('"' + "".join(_QUOTED.get(char, char) for char in text) + '"')


LIBRARY: Final[Library] = (
    method("charAt", (STRING, INT), STRING, _char_at),
    method("indexOf", (STRING, STRING), INT, _index_of),
    method("indexOf", (STRING, STRING, INT), INT, _index_of),
    method("lastIndexOf", (STRING, STRING), INT, _last_index_of),
    method("lastIndexOf", (STRING, STRING, INT), INT, _last_index_before),
    method("join", (list_of(STRING),), STRING, _join),
    method("join", (list_of(STRING), STRING), STRING, _join),
    method("lowerAscii", (STRING,), STRING, lambda text: text.translate(_LOWER)),
    method("upperAscii", (STRING,), STRING, lambda text: text.translate(_UPPER)),
    method("replace", (STRING, STRING, STRING), STRING, _replace),
    method("replace", (STRING, STRING, STRING, INT), STRING, _replace),
    method("split", (STRING, STRING), list_of(STRING), _split),
    method("split", (STRING, STRING, INT), list_of(STRING), _split),
    method("substring", (STRING, INT), STRING, _substring),
    method("substring", (STRING, INT, INT), STRING, _substring),
    method("trim", (STRING,), STRING, lambda text: text.strip(_SPACE)),
    method("reverse", (STRING,), STRING, lambda text: text[::-1]),
    method("format", (STRING, list_of(DYN)), STRING, format_text),
    function("strings.quote", (STRING,), STRING, _quote),
    # For paths in JSON patches that mutations make.
    function("jsonpatch.escapeKey", (STRING,), STRING, lambda key: bounded(key.replace("~", "~0").replace("/", "~1"))),
    # The regex library of Kubernetes.
    method("find", (STRING, STRING), STRING, lambda text, pattern: compiled(pattern).find(text)),
    method("findAll", (STRING, STRING), list_of(STRING), lambda text, pattern: compiled(pattern).find_all(text)),
    method(
        "findAll",
        (STRING, STRING, INT),
        list_of(STRING),
        lambda text, pattern, limit: compiled(pattern).find_all(text, limit),
    ),
)
