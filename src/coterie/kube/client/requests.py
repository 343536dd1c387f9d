"""Requests as data: which path, query and body each verb has. Nothing here sends anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlencode

import orjson

from coterie.kube.api.resources import Resource

PatchType = Literal["json", "merge", "strategic", "apply"]
Propagation = Literal["Background", "Foreground", "Orphan"]

CONTENT_TYPES: Mapping[str, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


def path(resource: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """`/apis/apps/v1/namespaces/ns/deployments/web/scale`, not percent-encoded."""
    if subresource and not name:
        raise ValueError(f"a sub-resource belongs to an object: {resource.group_resource}/{subresource}")
    parts = ["/apis/", resource.group, "/", resource.version] if resource.group else ["/api/", resource.version]
    if resource.namespaced and namespace:
        parts += ["/namespaces/", segment(namespace)]
    elif resource.namespaced and name:
        raise ValueError(f"{resource.group_resource} {name!r} lives in a namespace; none was given")
    elif namespace:
        raise ValueError(f"{resource.group_resource} have no namespace, but {namespace!r} was given")
    parts += ["/", resource.plural]
    if name:
        parts += ["/", segment(name)]
    if subresource:
        parts += ["/", subresource]
    return "".join(parts)


def segment(text: str) -> str:
    """A name as part of a path. What would leave its place in the path is refused, not escaped."""
    if not text or text in (".", "..") or "/" in text or "%" in text:
        raise ValueError(f"not a name that can be part of a path: {text!r}")
    return text


def query(**params: str | int | bool | None) -> str:
    """Parameters with a value, in the given order; True is `true`."""
    given = {}
    for key, value in params.items():
        if value is None or value == "" or value is False:
            continue
        given[key] = "true" if value is True else str(value)
    return urlencode(given)


def delete_options(
    *,
    propagation: Propagation | None = None,
    grace: int | None = None,
    uid: str = "",
    resource_version: str = "",
) -> bytes:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if propagation:
        options["propagationPolicy"] = propagation
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    preconditions = {}
    if uid:
        preconditions["uid"] = uid
    if resource_version:
        preconditions["resourceVersion"] = resource_version
    if preconditions:
        options["preconditions"] = preconditions
    return orjson.dumps(options) if len(options) > 2 else b""
