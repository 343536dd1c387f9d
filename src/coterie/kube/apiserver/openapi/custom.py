"""Schemas of custom resources, from the definitions that their owners wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.openapi.definitions import META, REF, Schema
from coterie.kube.apiserver.openapi.operations import schema_name

CustomDefinition = dict[str, Any]

_API_VERSION = "Version of the schema in which the object is written."
_KIND = "Kind of the object; it cannot be changed."
_METADATA = "Standard metadata of the object."


def custom_schemas(resources: Iterable[Resource], crds: Sequence[CustomDefinition]) -> dict[str, Schema]:
    """Each custom kind and its list, by definition name, referring to shared definitions as the built-in ones do."""
    by_plural = {(crd["spec"]["group"], crd["spec"]["names"]["plural"]): crd for crd in crds}
    made: dict[str, Schema] = {}
    for resource in resources:
        crd = by_plural.get((resource.group, resource.plural))
        if crd is None:
            continue
        made[schema_name(resource)] = _kind_schema(resource, _written_schema(crd, resource.version))
        made[schema_name(resource, resource.list_kind)] = _list_schema(resource)
    return made


def _written_schema(crd: CustomDefinition, version: str) -> Schema:
    for served in crd["spec"]["versions"]:
        if served["name"] == version:
            schema: Schema | None = (served.get("schema") or {}).get("openAPIV3Schema")
            if schema is not None:
                if crd["spec"].get("preserveUnknownFields"):
                    return schema | {"x-kubernetes-preserve-unknown-fields": True}
                return schema
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _kind_schema(resource: Resource, written: Schema) -> Schema:
    schema = {key: _embed(value) for key, value in written.items()}
    schema["type"] = "object"
    schema["properties"] = schema.get("properties", {}) | _object_properties()
    schema["x-kubernetes-group-version-kind"] = [_gvk(resource, resource.kind)]
    return schema


def _list_schema(resource: Resource) -> Schema:
    return {
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"description": _API_VERSION, "type": "string"},
            "items": {
                "description": f"List of {resource.plural}.",
                "type": "array",
                "items": {"$ref": REF + schema_name(resource)},
            },
            "kind": {"description": _KIND, "type": "string"},
            "metadata": {"$ref": f"{REF}{META}ListMeta", "description": "Standard metadata of the list."},
        },
        "x-kubernetes-group-version-kind": [_gvk(resource, resource.list_kind)],
    }


def _object_properties() -> Schema:
    return {
        "apiVersion": {"description": _API_VERSION, "type": "string"},
        "kind": {"description": _KIND, "type": "string"},
        "metadata": {"$ref": f"{REF}{META}ObjectMeta", "description": _METADATA},
    }


def _embed(node: Any) -> Any:
    """A copy in which whole objects inside the object (`x-kubernetes-embedded-resource`) have the common fields."""
    if isinstance(node, list):
        return [_embed(item) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {key: _embed(value) for key, value in node.items()}
    if copy.get("x-kubernetes-embedded-resource") is True and isinstance(copy.get("properties", {}), dict):
        copy["properties"] = copy.get("properties", {}) | _object_properties()
    return copy


def _gvk(resource: Resource, kind: str) -> dict[str, str]:
    return {"group": resource.group, "kind": kind, "version": resource.version}
