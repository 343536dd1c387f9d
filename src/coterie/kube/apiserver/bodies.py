"""Request bodies: JSON, YAML or protobuf in, plain objects out, with a bounded depth."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from coterie.kube.api import errors, wire
from coterie.kube.api.schema import decode
from coterie.kube.api.schema.node import Schema
from coterie.kube.apiserver import yaml_body

MAX_DEPTH = 200
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_LONGEST_KEY = 512
_TYPES = "application/json, application/yaml, application/vnd.kubernetes.protobuf"


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def read(body: bytes, content_type: str) -> dict[str, Any]:
    """The object in a request body. A body without a type is taken as JSON: kubectl sends one such."""
    kind = media_type(content_type)
    if kind in ("application/json", ""):
        obj = read_json(body)
    elif kind == "application/vnd.kubernetes.protobuf":
        return wire.decode(body)
    elif kind in ("application/yaml", "application/x-yaml", "text/yaml"):
        obj = read_yaml(body)
    else:
        raise errors.UnsupportedMediaType(
            f"the body of the request was in an unknown format - accepted media types include: {_TYPES}"
        )
    if not isinstance(obj, dict):
        raise errors.BadRequest("the body of the request must be one JSON object")
    return obj


def read_kind(body: bytes, content_type: str, kind: str, schema: Schema) -> dict[str, Any]:
    """The body as an object of a kind that a sub-resource or a review takes; its fields have their types."""
    obj = read(body, content_type)
    if obj.get("kind", kind) != kind:
        raise errors.BadRequest(f"this path takes {kind}, not {str(obj['kind'])[:64]}")
    check_types(obj, kind, schema)
    return obj


def check_types(obj: dict[str, Any], kind: str, schema: Schema) -> None:
    """Refuse an object with a field of a wrong type, as Go's decoder would."""
    wrong = decode.check_types(obj, schema)
    if wrong:
        raise errors.BadRequest(f"the object cannot be handled as a {kind}: {wrong[0]}")


def read_json(body: bytes) -> Any:
    if not body:
        raise errors.BadRequest("the request has no body")
    try:
        obj = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise errors.BadRequest(f"the body of the request is not valid JSON: {problem}") from problem
    # Whatever walks the object recurses. Cheap bound first: only a body with many brackets can be deep.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _too_deep(body):
        raise errors.BadRequest(f"the body of the request is nested deeper than {MAX_DEPTH} levels")
    return obj


def read_yaml(body: bytes) -> Any:
    try:
        return yaml_body.read(body.decode(), MAX_DEPTH)
    except UnicodeDecodeError as problem:
        raise errors.BadRequest("the body of the request is not valid UTF-8") from problem
    except yaml_body.BadYaml as problem:
        raise errors.BadRequest(f"the body of the request is not valid YAML: {problem}") from problem


def duplicate_fields(body: bytes) -> list[str]:
    """Keys that stand twice in one JSON object, for clients that asked for strict reading."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen and len(found) < errors.MAX_SHOWN:
                found.append(key[:_LONGEST_KEY])
            seen[key] = value
        return seen

    json.loads(body, object_pairs_hook=pairs)
    return found


def _too_deep(body: bytes) -> bool:
    """Whether valid JSON nests deeper than it may: each round takes the innermost pairs of brackets out."""
    left = _STRINGS.sub(b"", body).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not left:
            return False
        left = left.replace(b"[]", b"")
    return bool(left)
