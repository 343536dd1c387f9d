"""OpenAPI v3: one document for each group-version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.openapi.custom import CustomDefinition, custom_schemas
from coterie.kube.apiserver.openapi.definitions import REF, Schema, SchemaDefinitions, closure, references
from coterie.kube.apiserver.openapi.operations import (
    BODY,
    JSON,
    PARAMETERS,
    TEXT,
    OpenApiOperation,
    operations,
    paths_of,
)

_SCHEMAS = "#/components/schemas/"
_REASONS = {200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}


def info() -> dict[str, str]:
    return {"title": "Kubernetes", "version": "v1.36.0"}


def v3_document(resources: Sequence[Resource], crds: Sequence[CustomDefinition]) -> dict[str, Any]:
    """The document of the group-version that the resources have in common."""
    doings = [operation for resource in resources for operation in operations(resource)]
    schemas = reached_schemas(doings, resources, crds)
    return {
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths_of(doings, _operation, _IN_PATH, _IN_QUERY["pretty"]),
        "components": {
            "schemas": {name: rewrite(schema) for name, schema in schemas.items()},
            "securitySchemes": {
                "BearerToken": {
                    "description": "Bearer token of a service account or of a bootstrap",
                    "in": "header",
                    "name": "authorization",
                    "type": "apiKey",
                }
            },
        },
        "security": [{"BearerToken": []}],
    }


def reached_schemas(
    doings: Iterable[OpenApiOperation], resources: Iterable[Resource], crds: Sequence[CustomDefinition]
) -> dict[str, Schema]:
    """Every definition that the operations send or receive, with all that those refer to."""
    custom = custom_schemas((resource for resource in resources if resource.custom), crds)
    wanted = {name for operation in doings for name in (operation.body, operation.answer) if name}
    for schema in custom.values():
        references(schema, REF, wanted)
    return dict(sorted({**closure(SchemaDefinitions(), wanted - custom.keys()), **custom}.items()))


def rewrite(node: Any) -> Any:
    """References in v3's way. Nothing may stand beside a `$ref` there, so a described one is wrapped."""
    if isinstance(node, list):
        return [rewrite(item) if isinstance(item, (dict, list)) else item for item in node]
    ref = node.get("$ref")
    if isinstance(ref, str) and ref.startswith(REF):
        target = {"$ref": _SCHEMAS + ref[len(REF) :]}
        if len(node) == 1:
            return target
        return {"allOf": [target], **{key: value for key, value in node.items() if key != "$ref"}}
    return {key: rewrite(value) if isinstance(value, (dict, list)) else value for key, value in node.items()}


# ---- paths ---------------------------------------------------------------------------------------------------------


def _parameter(name: str, place: str) -> dict[str, Any]:
    kind, text = PARAMETERS[name]
    made: dict[str, Any] = {"name": name, "in": place, "description": text}
    if place == "path":
        made["required"] = True
    made["schema"] = {"type": kind, "uniqueItems": True}
    return made


_IN_QUERY = {name: _parameter(name, "query") for name in PARAMETERS}
_IN_PATH = {name: _parameter(name, "path") for name in ("name", "namespace", "path")}


def _operation(operation: OpenApiOperation) -> dict[str, Any]:
    group, version, kind = operation.kind
    made: dict[str, Any] = {
        "tags": [operation.tag],
        "description": operation.description,
        "operationId": operation.id,
    }
    if operation.query:
        made["parameters"] = [_IN_QUERY[name] for name in operation.query]
    if operation.body:
        schema = {"schema": {"$ref": _SCHEMAS + operation.body}}
        made["requestBody"] = {"description": BODY, "content": {media: schema for media in operation.consumes}}
        if operation.method != "delete":
            made["requestBody"]["required"] = True
    answer = {"$ref": _SCHEMAS + operation.answer} if operation.answer else {"type": "string"}
    produces = operation.produces if operation.answer or TEXT not in operation.produces else (TEXT, JSON)
    content = {media: {"schema": answer} for media in produces}
    responses: dict[str, Any] = {
        str(code): {"description": _REASONS[code], "content": content} for code in operation.codes
    }
    responses["401"] = {"description": _REASONS[401]}
    made["responses"] = responses
    made["x-kubernetes-action"] = operation.action
    made["x-kubernetes-group-version-kind"] = {"group": group, "kind": kind, "version": version}
    return made
