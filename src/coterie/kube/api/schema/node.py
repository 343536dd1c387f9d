"""The one shape in which every schema is kept: of built-in kinds and of custom ones.

A `Schema` is read by pruning, defaulting, validation, strict field checks, strategic merge and field ownership, so
each of those is one walk over an object beside a schema. Nodes of built-in kinds are shared and may be recursive
(JSONSchemaProps contains itself): never walk a schema without an object beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from coterie.kube.api.schema.pattern import Pattern


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""Stands for "no default given": None is a value."""


@dataclass(slots=True)
class ValidationRule:
    """One entry of `x-kubernetes-validations`; `program` is filled when the rule is compiled."""

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = "FieldValueInvalid"
    field_path: str = ""
    optional_old_self: bool = False
    program: Any = None


@dataclass(slots=True)
class Schema:
    type: str = ""
    """object, array, string, integer, number, boolean; empty means anything."""
    properties: dict[str, Schema] = field(default_factory=dict)
    additional: Schema | None = None
    """Schema of the values of a map (additionalProperties)."""
    items: Schema | None = None
    required: tuple[str, ...] = ()

    # How lists and maps merge (server-side apply, strategic merge).
    list_type: str = "atomic"
    """atomic, set or map."""
    list_keys: tuple[str, ...] = ()
    atomic_map: bool = False
    """x-kubernetes-map-type: atomic."""
    patch_strategy: frozenset[str] = frozenset()
    """Subset of merge, replace, retainKeys."""
    patch_merge_key: str = ""

    # What may stand where.
    nullable: bool = False
    preserve_unknown: bool = False
    embedded_resource: bool = False
    int_or_string: bool = False
    quantity: bool = False
    """A Kubernetes quantity: a string or a number (built-in kinds only)."""

    default: Any = MISSING
    has_defaults: bool = False
    """True when this node or one below it has a default, so that defaulting can skip whole branches."""
    has_rules: bool = False
    """True when this node or one below it has CEL rules."""

    # Value checks.
    format: str = ""
    enum: tuple[Any, ...] | None = None
    pattern: Pattern | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    min_properties: int | None = None
    max_properties: int | None = None
    all_of: tuple[Schema, ...] = ()
    any_of: tuple[Schema, ...] = ()
    one_of: tuple[Schema, ...] = ()
    not_: Schema | None = None
    rules: tuple[ValidationRule, ...] = ()

    # What walks learn about the node once and keep; never part of what the schema says.
    fast_check: Any = field(default=None, repr=False, compare=False)
    """The compiled decoder check (`decode.py`), made on first use."""
    cel_type: Any = field(default=None, repr=False, compare=False)
    """The node's type in CEL (`cel/decls.py`), made on first use."""
