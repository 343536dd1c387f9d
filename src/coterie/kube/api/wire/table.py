"""The messages of the Kubernetes API: rows of `messages.tsv` turned into what the decoder walks by.

A row is: message, field number, JSON name, type, shape, and whether a zero is kept. The last column is what a .proto
file cannot tell: Go writes plain fields even when they are zero and leaves pointers out, so a zero of a plain
`omitempty` field means "absent", while a zero of a pointer (`replicas: 0`) was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from coterie.base.protobuf_wire import FIXED64, LENGTH, VARINT
from coterie.kube.api.wire.values import FINISH


class Op(IntEnum):
    """What a field holds. The order has no meaning; the decoder asks for the commonest first."""

    STRING = 0
    MESSAGE = 1
    INLINE = 2
    MAP = 3
    INT = 4
    BOOL = 5
    BASE64 = 6
    RAW = 7
    DOUBLE = 8
    PACKED = 9


class Field(NamedTuple):
    op: int
    name: str
    many: bool
    keep: bool
    """A zero stays in the JSON."""
    message: Message | None = None
    """Of a MESSAGE or INLINE field, or the entries of a MAP."""
    bits: int = 64
    """Width of an INT (or of the members of a PACKED list; 1 for bool)."""


class Message:
    """`fields` maps whole tags (number and wire type) to fields; None until the message is first met."""

    __slots__ = ("fields", "finish", "name", "numbers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.finish: Callable[[dict[str, Any]], Any] | None = FINISH.get(name)
        self.fields: dict[int, Field] | None = None
        self.numbers: frozenset[int] = frozenset()
        """Known field numbers: to tell an unknown field, which is skipped, from one of the wrong wire type."""

    def compiled(self) -> dict[int, Field]:
        fields: dict[int, Field] = {}
        exact = self.finish is not None or self.name in _EXACT
        for number, name, kind, shape, keep in _rows(self.name):
            fields.update(_compile(int(number), name, kind, shape, keep == "1" or exact, exact))
        self.numbers = frozenset(tag >> 3 for tag in fields)
        self.fields = fields
        return fields


_EXACT = frozenset({"runtime.Unknown"})
"""Besides the values: messages whose bytes are wanted as they are."""

_SCALARS: dict[str, tuple[Op, int, int]] = {
    "string": (Op.STRING, LENGTH, 0),
    "bytes": (Op.BASE64, LENGTH, 0),
    "int32": (Op.INT, VARINT, 32),
    "int64": (Op.INT, VARINT, 64),
    "bool": (Op.BOOL, VARINT, 1),
    "double": (Op.DOUBLE, FIXED64, 0),
}


def _compile(number: int, name: str, kind: str, shape: str, keep: bool, exact: bool) -> dict[int, Field]:
    tag = number << 3
    if shape.startswith("map<"):
        return {tag | LENGTH: Field(Op.MAP, name, False, True, _map_entry(shape[4:-1].split(",")[1]))}
    if shape == "inline":
        return {tag | LENGTH: Field(Op.INLINE, name, False, True, message(kind))}
    many = shape == "list"
    if kind not in _SCALARS:
        return {tag | LENGTH: Field(Op.MESSAGE, name, many, keep, message(kind))}
    op, wire, bits = _SCALARS[kind]
    if op is Op.BASE64 and exact:
        op = Op.RAW
    fields = {tag | wire: Field(op, name, many, keep, bits=bits)}
    if many and wire == VARINT:
        # Kubernetes writes such lists member by member, but a reader has to take the packed form as well.
        fields[tag | LENGTH] = Field(Op.PACKED, name, True, True, bits=bits)
    return fields


def field_rows(of: Message) -> list[tuple[int, Field]]:
    """The fields of a message with their numbers, for the encoder: one row each, whatever wire types a reader takes."""
    rows: list[tuple[int, Field]] = []
    for number, name, kind, shape, keep in _rows(of.name):
        compiled = _compile(int(number), name, kind, shape, keep == "1", False)
        rows.append((int(number), next(iter(compiled.values()))))
    return rows


@cache
def _map_entry(value: str) -> Message:
    entry = Message(f"entry of {value}")
    fields = {**_compile(1, "key", "string", "one", True, False), **_compile(2, "value", value, "one", True, False)}
    entry.fields, entry.numbers = fields, frozenset((1, 2))
    return entry


@cache
def message(name: str) -> Message:
    return Message(name)


@cache
def _text() -> str:
    return Path(__file__).with_name("messages.tsv").read_text(encoding="utf-8")


def _rows(name: str) -> list[list[str]]:
    """The rows of one message, which stand together in the file; none for a message without fields."""
    text, head = _text(), f"\n{name}\t"
    rows: list[list[str]] = []
    at = text.find(head)
    while at >= 0 and text.startswith(head, at):
        end = text.index("\n", at + 1)
        rows.append(text[at + len(head) : end].split("\t"))
        at = end
    return rows


_PLAIN_GROUPS = {"": "core", "flowcontrol.apiserver.k8s.io": "flowcontrol", "rbac.authorization.k8s.io": "rbac"} | {
    group: group for group in ("apps", "autoscaling", "batch", "policy")
}


_META_KINDS = frozenset(("APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "Status"))
_PARTIAL_KINDS = frozenset(("PartialObjectMetadata", "PartialObjectMetadataList"))


@lru_cache(maxsize=512)  # the strings come from strangers
def message_of_kind(api_version: str, kind: str) -> Message | None:
    """The message of a kind, or None. Options travel under the group-version of the resource they are sent to."""
    group, _, version = api_version.rpartition("/")
    prefix = _PLAIN_GROUPS.get(group)
    if prefix is None:
        prefix, _, rest = group.partition(".")
        if rest != "k8s.io":
            prefix = ""
    names = [f"{prefix}.{version}.{kind}"]
    if kind.endswith("Options") or (kind in _META_KINDS and api_version == "v1"):
        names.append(f"meta.v1.{kind}")
    if version == "v1beta1" and kind in _PARTIAL_KINDS:
        names.append(f"meta.v1.{kind}")
    for name in names:
        if name not in FINISH and f"\n{name}\t" in _text():
            return message(name)
    return None
