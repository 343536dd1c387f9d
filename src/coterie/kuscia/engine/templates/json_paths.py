"""A part of a value that is JSON: `.NAME.field[0][key=value][.OTHER.index].field`. Pure.

What is found prints plainly: texts without quotes, numbers, true and false as in JSON, lists and objects as JSON. What is not
there prints as nothing. Unlike in Kuscia, 0 and false are there: `selfPartyIdx` of the first party prints as 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kuscia.engine.templates.errors import TemplateError

_NAME = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)")
_FIELD = re.compile(r"\.([A-Za-z0-9_-]+)")
_INDEX = re.compile(r"\[([0-9]{1,9})\]")
_MATCH = re.compile(r"\[([A-Za-z0-9_.-]+)=([^\[\]]*)\]")
_DEEPEST = 8
"""An index that is taken from elsewhere may itself need one; further than this nobody follows it."""
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Match:
    """The first element of a list whose field has this value."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Path:
    name: str
    steps: tuple[str | int | Match | Path, ...] = ()
    """A field, an index, a matching element, or the element whose index stands elsewhere."""

    @property
    def names(self) -> set[str]:
        found = {self.name}
        for step in self.steps:
            if isinstance(step, Path):
                found |= step.names
        return found


def parse(text: str) -> Path:
    path, end = _path(text, 0, 0)
    if end != len(text):
        raise TemplateError(f'"{text[end : end + 40]}" after "{text[:end][-40:]}" is neither .field nor [index]')
    return path


def _path(text: str, at: int, depth: int) -> tuple[Path, int]:
    if depth > _DEEPEST:
        raise TemplateError("indexes are taken from other values too many times over")
    name = _NAME.match(text, at)
    if name is None:
        raise TemplateError(f'"{text[at : at + 40]}" does not begin with .NAME')
    at = name.end()
    steps: list[str | int | Match | Path] = []
    while at < len(text):
        if field := _FIELD.match(text, at):
            steps.append(field[1])
            at = field.end()
        elif index := _INDEX.match(text, at):
            steps.append(int(index[1]))
            at = index.end()
        elif text.startswith("[.", at):
            inner, at = _path(text, at + 1, depth + 1)
            if not text.startswith("]", at):
                raise TemplateError(f'"{text[at : at + 40]}" should be the ] of an index')
            steps.append(inner)
            at += 1
        elif match := _MATCH.match(text, at):
            steps.append(Match(match[1], match[2]))
            at = match.end()
        else:
            break
    return Path(name[1], tuple(steps)), at


class Values:
    """Texts by name; each is read as JSON at most once, however many of its parts a template asks for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._read: dict[str, Any] = {}

    def json(self, name: str) -> Any:
        if name not in self._read:
            try:
                self._read[name] = json.loads(self.texts[name])
            except (KeyError, ValueError, RecursionError):  # not there, not JSON, or nothing a person wrote
                self._read[name] = _MISSING
        return self._read[name]


def look_up(path: Path, values: Values) -> str:
    return _printed(_value_at(path, values))


def _value_at(path: Path, values: Values) -> Any:
    if not path.steps:
        return values.texts.get(path.name, _MISSING)
    here = values.json(path.name)
    for step in path.steps:
        here = _step(here, _index(step, values) if isinstance(step, Path) else step)
    return here


def _step(here: Any, step: str | int | Match | None) -> Any:
    if isinstance(here, dict) and isinstance(step, str):
        return here.get(step, _MISSING)
    if isinstance(here, list) and isinstance(step, int):
        return here[step] if step < len(here) else _MISSING
    if isinstance(here, list) and isinstance(step, Match):
        for each in here:
            if isinstance(each, dict) and step.key in each and _printed(each[step.key]) == step.value:
                return each
    return _MISSING


def _index(path: Path, values: Values) -> int | None:
    text = _printed(_value_at(path, values))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _printed(value: Any) -> str:
    if value is _MISSING or value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
