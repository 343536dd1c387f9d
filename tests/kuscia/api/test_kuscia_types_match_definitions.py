"""A typed view that spells a field otherwise than its definition would read nothing, silently: compare them all."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from coterie.kube.api.meta import ApiObject
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.definitions import crds
from coterie.kuscia.api.functions import types as functions
from coterie.kuscia.api.types import data, deployment, domain, job, partner_policy, task_resource

KINDS = {
    value.resource.plural: value
    for module in (data, deployment, domain, functions, job, partner_policy, task_resource)
    for value in vars(module).values()
    if isinstance(value, Kind) and value.resource.custom
}


def schema_of(plural: str) -> dict[str, Any]:
    return next(
        version["schema"]["openAPIV3Schema"]
        for definition in crds.load([f"{plural}.{crds.GROUP}", f"{plural}.coterie.io"])
        for version in definition["spec"]["versions"]
    )


def structs(annotation: Any, schema: dict[str, Any], path: str) -> Iterator[tuple[type, dict[str, Any], str]]:
    """The typed models inside an annotation, each with the schema of what it reads."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation, schema, path
    elif origin in (types.UnionType, typing.Union):
        for each in arguments:
            yield from structs(each, schema, path)
    elif origin is tuple:
        yield from structs(arguments[0], schema.get("items", {}), f"{path}[]")
    elif origin is dict:
        yield from structs(arguments[1], schema.get("additionalProperties", {}), f"{path}{{}}")


def unknown(model: type, schema: dict[str, Any], path: str) -> Iterator[str]:
    hints = typing.get_type_hints(model)
    for field in msgspec.structs.fields(model):
        if issubclass(model, ApiObject) and field.name in ("api_version", "kind", "metadata"):
            continue
        known = schema.get("properties", {})
        where = f"{path}.{field.encode_name}"
        if field.encode_name not in known:
            if not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield where
            continue
        for found, below, at in structs(hints[field.name], known[field.encode_name], where):
            yield from unknown(found, below, at)


@pytest.mark.parametrize("plural", sorted(KINDS))
def test_every_field_of_a_typed_view_is_in_the_definition(plural: str) -> None:
    missing = list(unknown(KINDS[plural].type, schema_of(plural), plural))
    # Conditions are one type for all kinds; reservations have neither a message nor a generation.
    assert [field for field in missing if not field.endswith((".message", ".observedGeneration"))] == []
