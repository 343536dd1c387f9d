"""The JSONPath of printer columns: `.status.conditions[?(@.type=="Ready")].status`, `.spec.ports[*].port`, `['a.b']`.

A path is compiled once into steps; each step maps the values found so far to the next ones. What is missing is no
fault, there is then simply no value. Supported: fields (with escaped dots), quoted keys, indexes (also from the end),
slices, unions, wildcards, recursive descent and comparisons or tests of existence in filters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

Values = list[Any]
Step = Callable[[Any], Iterator[Any]]
Path = Callable[[Any], Values]

_FIELD = re.compile(r"(?:[^\\.\[\]{}()'\"\s]|\\.)+")
_INTEGER = re.compile(r"-?\d+")
_FILTER = re.compile(r"^\s*(?P<left>@[^=!<>]*?)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<right>.+?))?\s*$")
_LONGEST = 512
_MOST_VALUES = 1000


class PathError(ValueError):
    """The path cannot be understood."""


def compile_path(text: str) -> Path:
    """A function that finds the values of `text` in an object; `{...}` around the path is allowed."""
    if len(text) > _LONGEST:
        raise PathError(f"the path is longer than {_LONGEST} characters")
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    steps = _parse(path, text)

    def find(root: Any) -> Values:
        found = [root]
        for step in steps:
            # Some paths find more with each step than there is: `..[*]..[*]`.
            found = list(islice((value for each in found for value in step(each)), _MOST_VALUES))
            if not found:
                break
        return found

    return find


def _parse(path: str, whole: str) -> list[Step]:
    steps: list[Step] = []
    at = 1 if path[:1] in ("$", "@") else 0
    while at < len(path):
        if path.startswith("..", at):
            steps.append(_descend)
            at += 2
            if at < len(path) and path[at] != "[":
                at = _field(path, at, whole, steps)
        elif path[at] == ".":
            at += 1
            if at < len(path) and path[at] not in ".[":
                at = _field(path, at, whole, steps)
        elif path[at] == "[":
            end = _closing(path, at, whole)
            steps.append(_bracket(path[at + 1 : end].strip(), whole))
            at = end + 1
        elif at == 0:
            at = _field(path, at, whole, steps)
        else:
            raise PathError(f"{whole!r}: unexpected {path[at]!r}")
    return steps


def _field(path: str, at: int, whole: str, steps: list[Step]) -> int:
    if path[at] == "*":
        steps.append(_children)
        return at + 1
    found = _FIELD.match(path, at)
    if found is None:
        raise PathError(f"{whole!r}: a field name is missing")
    steps.append(_key(re.sub(r"\\(.)", r"\1", found.group())))
    return found.end()


def _closing(path: str, start: int, whole: str) -> int:
    """The bracket that closes the one at `start`; brackets in quotes do not count."""
    depth, quote, at = 0, "", start
    while at < len(path):
        char = path[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise PathError(f"{whole!r}: a bracket is not closed")


def _bracket(inside: str, whole: str) -> Step:
    if inside == "*":
        return _children
    if inside.startswith("?(") and inside.endswith(")"):
        return _filter(inside[2:-1], whole)
    if inside[:1] in ("'", '"'):
        return _union([_key(name) for name in _quoted(inside, whole)])
    if "," in inside:
        return _union([_bracket(each.strip(), whole) for each in inside.split(",")])
    if ":" in inside:
        return _slice(inside, whole)
    if _INTEGER.fullmatch(inside):
        return _index(int(inside))
    raise PathError(f"{whole!r}: [{inside}] is not understood")


def _quoted(inside: str, whole: str) -> list[str]:
    pieces = re.findall(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", inside)
    if not pieces:
        raise PathError(f"{whole!r}: a quote is not closed")
    return [re.sub(r"\\(.)", r"\1", single or double) for single, double in pieces]


def _key(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _index(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _slice(inside: str, whole: str) -> Step:
    try:
        window = slice(*(int(bound) if bound.strip() else None for bound in inside.split(":")))
    except (ValueError, TypeError):
        raise PathError(f"{whole!r}: [{inside}] is not understood") from None
    if window.step == 0:
        raise PathError(f"{whole!r}: a step of 0 leads nowhere")

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[window]

    return step


def _union(steps: list[Step]) -> Step:
    def step(value: Any) -> Iterator[Any]:
        for each in steps:
            yield from each(value)

    return step


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _descend(value: Any) -> Iterator[Any]:
    yield value
    for child in _children(value):
        yield from _descend(child)


def _filter(condition: str, whole: str) -> Step:
    found = _FILTER.match(condition)
    if found is None:
        raise PathError(f"{whole!r}: the filter {condition!r} is not understood")
    left = _operand(found["left"], whole)
    operator = found["operator"]
    right = _operand(found["right"], whole) if operator else None

    def step(value: Any) -> Iterator[Any]:
        for child in _children(value):
            mine = left(child)
            if right is None:
                if mine:
                    yield child
            else:
                other = right(child)
                if mine and other and _compare(mine[0], operator, other[0]):
                    yield child

    return step


def _operand(text: str, whole: str) -> Path:
    text = text.strip()
    if text.startswith("@"):
        return compile_path(text)
    constant = _constant(text, whole)
    return lambda _: [constant]


def _constant(text: str, whole: str) -> Any:
    if text[:1] in ("'", '"'):
        return _quoted(text, whole)[0]
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        raise PathError(f"{whole!r}: {text!r} is neither a quoted text nor a number") from None


def _compare(mine: Any, operator: str, other: Any) -> bool:
    if operator in ("==", "!="):
        same = bool(mine == other) and isinstance(mine, bool) == isinstance(other, bool)
        return same if operator == "==" else not same
    both_text = isinstance(mine, str) and isinstance(other, str)
    both_number = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (mine, other))
    if not both_text and not both_number:
        return False
    if operator == "<":
        return bool(mine < other)
    if operator == "<=":
        return bool(mine <= other)
    return bool(mine > other) if operator == ">" else bool(mine >= other)
