"""What `x-kubernetes-list-type` and `x-kubernetes-map-type` demand of a schema: merge keys must identify an item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from coterie.kube.api.errors import FieldError, duplicate, forbidden_field, invalid, not_supported, required

Raw = dict[str, Any]
_LIST_TYPES: Final = ("atomic", "map", "set")
_MAP_TYPES: Final = ("atomic", "granular")
_KEYS: Final = "x-kubernetes-list-map-keys"


def check_list_and_map(raw: Raw, path: str) -> Iterator[FieldError]:
    kind = raw.get("type")
    list_type = raw.get("x-kubernetes-list-type")
    keys = raw.get(_KEYS) or []
    if list_type:
        if list_type not in _LIST_TYPES:
            yield not_supported(f"{path}.x-kubernetes-list-type", list_type, _LIST_TYPES)
        if kind != "array":
            message = "must be array if x-kubernetes-list-type is specified"
            yield invalid(f"{path}.type", kind, message) if kind else required(f"{path}.type", message)
    if keys and list_type != "map":
        yield required(f"{path}.x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty")
    items = raw.get("items")
    if list_type == "map":
        yield from _map_errors(keys, items if type(items) is dict else {}, path)
    elif list_type == "set" and type(items) is dict:
        yield from _set_errors(items, path)
    map_type = raw.get("x-kubernetes-map-type")
    if map_type:
        if map_type not in _MAP_TYPES:
            yield not_supported(f"{path}.x-kubernetes-map-type", map_type, _MAP_TYPES)
        if kind != "object":
            message = "must be object if x-kubernetes-map-type is specified"
            yield invalid(f"{path}.type", kind, message) if kind else required(f"{path}.type", message)


def _map_errors(keys: list[str], items: Raw, path: str) -> Iterator[FieldError]:
    if not keys:
        yield required(f"{path}.{_KEYS}", "must not be empty if x-kubernetes-list-type is map")
    if items.get("type") != "object":
        message = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid(f"{path}.items.type", items.get("type") or "", message)
        return
    properties = items.get("properties") or {}
    seen: set[str] = set()
    for index, key in enumerate(keys):
        place = f"{path}.items.properties[{key}]"
        if key in seen:
            yield duplicate(f"{path}.{_KEYS}[{index}]", key)
        seen.add(key)
        node = properties.get(key)
        if node is None:
            yield invalid(f"{path}.{_KEYS}[{index}]", key, "entries must all be names of item properties")
            continue
        if node.get("type") in ("array", "object"):
            yield invalid(
                f"{place}.type", node["type"], "must be a scalar type if parent array's x-kubernetes-list-type is map"
            )
        if node.get("nullable"):
            yield forbidden_field(f"{place}.nullable", f"this property is in {_KEYS}, so it cannot be nullable")
        if key not in (items.get("required") or ()) and node.get("default") is None:
            message = f"this property is in {_KEYS}, so it must have a default or be a required property"
            yield required(f"{place}.default", message)
    if items.get("nullable"):
        yield forbidden_field(f"{path}.items.nullable", "must be false if parent array's x-kubernetes-list-type is map")


def _set_errors(items: Raw, path: str) -> Iterator[FieldError]:
    message = "must be atomic as item of a list with x-kubernetes-list-type=set"
    if items.get("nullable"):
        yield forbidden_field(f"{path}.items.nullable", "cannot be nullable when x-kubernetes-list-type is set")
    if items.get("type") == "array" and (items.get("x-kubernetes-list-type") or "atomic") != "atomic":
        yield invalid(f"{path}.items.x-kubernetes-list-type", items["x-kubernetes-list-type"], message)
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        yield invalid(f"{path}.items.x-kubernetes-map-type", items.get("x-kubernetes-map-type") or "", message)
