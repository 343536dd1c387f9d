"""The language of config templates: text with places to fill in. Pure.

    {{.NAME}}                 the value, escaped as inside a JSON string: "def": "{{.TASK_CLUSTER_DEFINE}}" is valid JSON
    {{- .NAME -}}             the same, and the white space on that side goes
    {{/* words */}}  {{"{{"}} a comment; text as it stands
    {{{.NAME.a[0].b}}}        a part of a value that is JSON, printed plainly (see `paths`)

The first three are the part of Go's text/template that Kuscia's AppImages use; what a value is missing for becomes empty. The
rest of that language (if, range, pipelines, functions) is refused by name and line: a file that is filled in half is worse
than none. A template is read once, so nothing inside a value is ever taken for a place to fill in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.kuscia.engine.templates import json_paths
from coterie.kuscia.engine.templates.errors import TemplateError
from coterie.kuscia.engine.templates.json_paths import Path

LONGEST_FILE = 64 << 20
"""Characters of one rendered file: a small template may name a large value many times."""
PRIVATE_KEY = "KUSCIA_DOMAIN_KEY_DATA"
_OPENING = re.compile(r"\{\{+")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_VARIABLE = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)")
_SPACE = " \t\r\n"
_WORD = re.compile(r"[A-Za-z_]+")


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    name: str


Piece = Text | Value | Path


@dataclass(frozen=True, slots=True)
class Template:
    pieces: tuple[Piece, ...]

    @property
    def names(self) -> frozenset[str]:
        """All variables that it needs."""
        found: set[str] = set()
        for piece in self.pieces:
            if isinstance(piece, Value):
                found.add(piece.name)
            elif isinstance(piece, Path):
                found |= piece.names
        return frozenset(found)


def parse(text: str) -> Template:
    """TemplateProblem, with the line, for what this language does not have."""
    pieces: list[Piece] = []
    at = 0
    trim = False
    while opening := _OPENING.search(text, at):
        before = text[at : opening.start()]
        # Of more than three braces the first ones are text: a JSON object around a place.
        start = opening.start() + max(0, len(opening[0]) - 3)
        before += text[opening.start() : start]
        piece, end, trim_before, trim_after = _place(text, start)
        if isinstance(piece, str):  # one brace too many for a place: it was text
            before += piece
            piece, end, trim_before, trim_after = _place(text, start + 1)
        _add_text(pieces, before, left=trim, right=trim_before)
        if piece is not None and not isinstance(piece, str):
            pieces.append(piece)
        at, trim = end, trim_after
    _add_text(pieces, text[at:], left=trim, right=False)
    found = Template(tuple(pieces))
    if PRIVATE_KEY in found.names:
        raise TemplateError(
            f"asks for {PRIVATE_KEY}: the domain's private key is not given to engines; they have a certificate of their "
            "own, see CLIENT_CERT_FILE and CLIENT_PRIVATE_KEY_FILE"
        )
    return found


def render(template: Template, values: Mapping[str, str]) -> str:
    known = json_paths.Values(values)
    out: list[str] = []
    size = 0
    for piece in template.pieces:
        if isinstance(piece, Text):
            text = piece.text
        elif isinstance(piece, Value):
            text = escaped(values.get(piece.name, ""))
        else:
            text = json_paths.look_up(piece, known)
        size += len(text)
        if size > LONGEST_FILE:
            raise TemplateError(f"becomes longer than {LONGEST_FILE >> 20} MiB once filled in")
        out.append(text)
    return "".join(out)


def escaped(value: str) -> str:
    """As between the quotes of a JSON string."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _place(text: str, start: int) -> tuple[Piece | str | None, int, bool, bool]:
    """What is filled in there, where it ends, and whether white space before and after it goes. A text instead of a place: it
    is none, but with one brace less it may be."""
    try:
        if text.startswith("{{{", start):
            inside, end = _triple(text, start + 3)
            return (json_paths.parse(inside), end, False, False) if inside else ("{", start + 1, False, False)
        return _double(text, start + 2)
    except TemplateError as problem:
        raise TemplateError(f"line {_line(text, start)}: {problem}") from problem


def _triple(text: str, at: int) -> tuple[str, int]:
    """The path between three braces and where they end; no path when it is something else."""
    end = text.find("}", at)
    inside = text[at:end].strip() if text.startswith("}}}", end) else ""
    return (inside, end + 3) if inside.startswith(".") and "{" not in inside else ("", at)


def _double(text: str, at: int) -> tuple[Piece | None, int, bool, bool]:
    trim_before = text.startswith("-", at) and text[at + 1 : at + 2].isspace()
    at += trim_before
    while text[at : at + 1].isspace():
        at += 1
    end = _end_of_literal(text, at)
    close = text.find("}}", end)
    if close < 0:
        raise TemplateError("{{ is never closed by }}")
    rest = text[end:close]
    trim_after = rest.endswith("-") and rest[-2:-1].isspace()
    inside = (text[at:end] + (rest[:-1] if trim_after else rest)).strip()
    return _meaning(inside), close + 2, trim_before, trim_after


def _end_of_literal(text: str, at: int) -> int:
    """Where a comment or a text in quotes ends, which may hold braces; `at` for anything else."""
    if text.startswith("/*", at):
        end = text.find("*/", at)
        if end < 0:
            raise TemplateError("a comment is never closed by */")
        return end + 2
    if text.startswith("`", at):
        return text.find("`", at + 1) + 1 or at
    string = _STRING.match(text, at)
    return string.end() if string is not None else at


def _meaning(inside: str) -> Piece | None:
    if inside.startswith("/*") and inside.endswith("*/"):
        return None
    if inside.startswith("`") and inside.endswith("`") and inside.count("`") == 2:
        return Text(inside[1:-1])
    if _STRING.fullmatch(inside):
        try:
            return Text(json.loads(inside))
        except ValueError as problem:
            raise TemplateError(f"{inside[:40]} is not a text in quotes") from problem
    variable = _VARIABLE.fullmatch(inside)
    if variable is not None:
        return Value(variable[1])
    if not inside:
        raise TemplateError("{{}} names nothing")
    if inside.startswith(".") and re.fullmatch(r"[.\w\[\]=-]+", inside):
        raise TemplateError(f"a part of a value is written with three braces: {{{{{{{inside[:80]}}}}}}}")
    word = _WORD.match(inside)
    if word is not None:
        raise TemplateError(f'"{word[0]}" is not supported in config templates; only {{{{.NAME}}}} is')
    if "|" in inside:
        raise TemplateError("pipelines (|) are not supported in config templates; only {{.NAME}} is")
    raise TemplateError(f'"{inside[:40]}" is not supported in config templates; only {{{{.NAME}}}} is')


def _add_text(pieces: list[Piece], text: str, *, left: bool, right: bool) -> None:
    if left:
        text = text.lstrip(_SPACE)
    if right:
        text = text.rstrip(_SPACE)
    if text:
        pieces.append(Text(text))


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
