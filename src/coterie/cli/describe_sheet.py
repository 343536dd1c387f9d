"""The paper a description is written on: titles and values, nested and aligned, and the words used in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from coterie.cli.tables import elastic_tabs
from coterie.kube.apiserver.tables.ages import parse_time

NONE = "<none>"
_INDENT = "  "
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+|[0-9]+")
_UPPER = {"api", "cpu", "dns", "id", "ip", "ips", "os", "tls", "uid", "uri", "url"}
_HIDDEN = frozenset(
    {
        "authorization",
        "encryptedinfo",
        "password",
        "privatekey",
        "secretkey",
        "sourceclientprivatekey",
        "stringdata",
        "token",
    }
)
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Sheet:
    """Collects lines; cells of a line are separated by tabs and aligned at the end."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._level = 0

    def line(self, *cells: object) -> None:
        self._lines.append(_INDENT * self._level + "\t".join(_one_line(cell) for cell in cells))

    def field(self, title: str, value: object) -> None:
        self.line(f"{title}:", value)

    def fields(self, title: str, values: Iterable[str]) -> None:
        """A title with several values below each other."""
        lines = list(values) or [NONE]
        for i, value in enumerate(lines):
            self.line(f"{title}:" if i == 0 else "", value)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self.line(*headers)
        self.line(*("-" * len(header) for header in headers))
        for row in rows:
            self.line(*row)

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        self._lines.append(f"{_INDENT * self._level}{title}:")
        self._level += 1
        try:
            yield
        finally:
            self._level -= 1

    def text(self) -> str:
        return elastic_tabs("\n".join(self._lines)) + "\n"


def _one_line(value: object) -> str:
    """Text that stays in its cell: what would steer the terminal or the alignment is made visible."""
    return str(value).replace("\t", " ").replace("\x1b", "^[").replace("\r", "").replace("\n", " ")


def title(name: str) -> str:
    """`creationTimestamp` becomes `Creation Timestamp`; keys that are no field names stay as they are."""
    if not name.isidentifier():
        return name
    words = _WORD.findall(name)
    return " ".join(word.upper() if word.lower() in _UPPER else word[:1].upper() + word[1:] for word in words) or name


def is_hidden(name: str) -> bool:
    """Whether values of this field are secret by their name."""
    return name.lower() in _HIDDEN


def size(value: object) -> str:
    """How secret values are shown."""
    return f"{len(str(value).encode())} bytes"


def moment(text: Any) -> str:
    seconds = parse_time(text)
    if seconds is None:
        return str(text) if text else "<unset>"
    return datetime.fromtimestamp(seconds, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")


def pairs(mapping: dict[str, Any] | None, joiner: str = "=") -> list[str]:
    return [f"{key}{joiner}{value}" for key, value in sorted((mapping or {}).items())]


def annotation_lines(meta: dict[str, Any]) -> list[str]:
    """Annotations without the copy of the whole object that apply leaves there."""
    shown_annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key != LAST_APPLIED}
    return pairs(shown_annotations, ": ")


def write_value(sheet: Sheet, name: str, value: Any) -> None:
    """Any JSON value under a title: maps and lists become nested blocks."""
    label = title(name)
    if is_hidden(name) and value:
        if isinstance(value, dict):
            with sheet.section(label):
                for key in sorted(value):
                    sheet.field(key, size(value[key]))
        else:
            sheet.field(label, size(value))
    elif isinstance(value, dict) and value:
        with sheet.section(label):
            write_fields(sheet, value)
    elif isinstance(value, list) and value:
        with sheet.section(label):
            for item in value:
                if isinstance(item, dict):
                    write_fields(sheet, item)
                else:
                    sheet.line(scalar(item))
    else:
        sheet.field(label, scalar(value))


def write_fields(sheet: Sheet, value: dict[str, Any], skip: frozenset[str] = frozenset()) -> None:
    for key in sorted(value):
        if key not in skip:
            write_value(sheet, key, value[key])


def scalar(value: Any) -> str:
    if value is None or value in ({}, []):
        return NONE
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
