"""OpenAPI v2 (Swagger): one document for everything, for clients that do not know v3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.openapi.custom import CustomDefinition
from coterie.kube.apiserver.openapi.definitions import INT_OR_STRING, QUANTITY, REF, Schema
from coterie.kube.apiserver.openapi.operations import BODY, PARAMETERS, OpenApiOperation, operations, paths_of
from coterie.kube.apiserver.openapi.v3 import info, reached_schemas

_DEFINITIONS = "#/definitions/"
_REASONS = {200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}
_UNKNOWN_TO_V2 = frozenset(("oneOf", "anyOf", "allOf", "not", "nullable", "default", "example", "externalDocs"))
_OVERRIDES: dict[str, Schema] = {
    QUANTITY: {"type": "string"},
    INT_OR_STRING: {"type": "string", "format": "int-or-string"},
}
"""v2 has no `oneOf`."""


def v2_document(resources: Sequence[Resource], crds: Sequence[CustomDefinition]) -> dict[str, Any]:
    doings = [operation for resource in resources for operation in operations(resource)]
    schemas = reached_schemas(doings, resources, crds)
    return {
        "swagger": "2.0",
        "info": info(),
        "paths": paths_of(doings, _operation, _IN_PATH, _IN_QUERY["pretty"]),
        "definitions": {name: _OVERRIDES.get(name) or _root(schema) for name, schema in schemas.items()},
        "securityDefinitions": {
            "BearerToken": {
                "description": "Bearer token of a service account or of a bootstrap",
                "in": "header",
                "name": "authorization",
                "type": "apiKey",
            }
        },
        "security": [{"BearerToken": []}],
    }


# ---- schemas -------------------------------------------------------------------------------------------------------


def _root(schema: Schema) -> Schema:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        # With some properties known, old clients would take all others for mistakes.
        schema = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    return lower(schema)


def lower(schema: Schema) -> Schema:
    """A schema in the words of v2: what it cannot say is left out, never said wrongly."""
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith(REF):
        return {**schema, "$ref": _DEFINITIONS + ref[len(REF) :]}
    made = {key: value for key, value in schema.items() if key not in _UNKNOWN_TO_V2}
    if schema.get("nullable") or schema.get("x-kubernetes-int-or-string"):
        for key in ("type", "items", "properties", "required", "additionalProperties", "format", "pattern"):
            made.pop(key, None)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        for key in ("items", "properties", "required"):
            made.pop(key, None)
    properties = made.get("properties")
    if properties is not None:
        made["properties"] = {name: lower(value) for name, value in properties.items()}
        maybe_null = {name for name, value in properties.items() if value.get("nullable")}
        if maybe_null and "required" in made:
            made["required"] = [name for name in made["required"] if name not in maybe_null]
    if isinstance(made.get("items"), dict):
        made["items"] = lower(made["items"])
    elif made.get("type") == "array":
        del made["type"]  # a list must say of what
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = lower(made["additionalProperties"])
    return made


# ---- paths ---------------------------------------------------------------------------------------------------------


def _parameter(name: str, place: str) -> dict[str, Any]:
    kind, text = PARAMETERS[name]
    made: dict[str, Any] = {"uniqueItems": True, "type": kind, "description": text, "name": name, "in": place}
    return made | {"required": True} if place == "path" else made


_IN_QUERY = {name: _parameter(name, "query") for name in PARAMETERS}
_IN_PATH = {name: _parameter(name, "path") for name in ("name", "namespace", "path")}


def _operation(operation: OpenApiOperation) -> dict[str, Any]:
    group, version, kind = operation.kind
    made: dict[str, Any] = {
        "description": operation.description,
        "consumes": list(operation.consumes or ("*/*",)),
        "produces": list(operation.produces),
        "schemes": ["https"],
        "tags": [operation.tag],
        "operationId": operation.id,
    }
    parameters: list[dict[str, Any]] = []
    if operation.body:
        body: dict[str, Any] = {
            "name": "body", "in": "body", "description": BODY, "schema": {"$ref": _DEFINITIONS + operation.body},
        }  # fmt: skip
        parameters.append(body | {"required": True} if operation.method != "delete" else body)
    parameters += [_IN_QUERY[name] for name in operation.query]
    if parameters:
        made["parameters"] = parameters
    answer = {"$ref": _DEFINITIONS + operation.answer} if operation.answer else {"type": "string"}
    responses: dict[str, Any] = {
        str(code): {"description": _REASONS[code], "schema": answer} for code in operation.codes
    }
    responses["401"] = {"description": _REASONS[401]}
    made["responses"] = responses
    made["x-kubernetes-action"] = operation.action
    made["x-kubernetes-group-version-kind"] = {"group": group, "kind": kind, "version": version}
    return made
