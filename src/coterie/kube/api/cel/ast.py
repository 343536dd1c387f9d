"""The syntax tree: a handful of node shapes, each with the source position that error messages point at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    pos: int
    value: Any


@dataclass(frozen=True, slots=True)
class Ident:
    pos: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    pos: int
    operand: Node
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    pos: int
    operand: Node
    index: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CallNode:
    """A function, a method (`target` set), or an operator under its CEL name such as `_+_`."""

    pos: int
    name: str
    args: tuple[Node, ...]
    target: Node | None = None


@dataclass(frozen=True, slots=True)
class Logic:
    """A whole chain of `&&` or of `||`: kept flat, so that a long chain is not a deep tree."""

    pos: int
    is_and: bool
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    pos: int
    test: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True)
class ListLiteral:
    pos: int
    items: tuple[tuple[Node, bool], ...]
    """(element, written with `?`)"""


@dataclass(frozen=True, slots=True)
class MapLiteral:
    pos: int
    entries: tuple[tuple[Node, Node, bool], ...]


@dataclass(frozen=True, slots=True)
class MessageLiteral:
    """`Object.spec{replicas: 3}`."""

    pos: int
    name: str
    fields: tuple[tuple[str, Node, bool], ...]
    """(field, value, written with `?`)"""


Node = Literal | Ident | Select | Index | CallNode | Logic | Conditional | ListLiteral | MapLiteral | MessageLiteral


def dotted(node: Node) -> str:
    """`a.b.c` of a chain of plain selections, else nothing."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.optional:
        front = dotted(node.operand)
        return f"{front}.{node.field}" if front else ""
    return ""
