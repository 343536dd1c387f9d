"""Strategic merge patch: a partial object, merged as the schema of the kind says.

Objects merge, null deletes, lists replace, except lists that the schema says to merge: those of objects by their merge
key, those of primitives as sets. Directives in the patch say what a partial object cannot:

    $patch: delete | replace | merge      on an object or on an item of a merged list
    $retainKeys: [...]                    drop all other fields of the object (unions such as a volume's source)
    $setElementOrder/<list>: [...]        the order of a merged list
    $deleteFromPrimitiveList/<list>: [..] values to take out of a merged list of primitives
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import orjson

from coterie.kube.api.errors import BadRequest, Invalid
from coterie.kube.api.patch.order import Name, in_order
from coterie.kube.api.schema.node import Schema

Object = dict[str, Any]

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_DELETE: Final = "$deleteFromPrimitiveList/"
_NO_SCHEMA: Final = Schema()
_ABSENT: Final = object()


def strategic_merge_patch(current: Object, patch: object, schema: Schema) -> Object:
    if not isinstance(patch, dict):
        raise BadRequest("invalid JSON document")
    return _merge_map(current, patch, schema)


def _merge_map(current: Object, patch: Object, schema: Schema) -> Object:
    directive = patch.get(_PATCH, _ABSENT)
    if directive == "delete":
        return {}
    if directive == "replace":
        return _merge_map({}, {key: value for key, value in patch.items() if key != _PATCH}, schema)
    if directive is not _ABSENT and directive != "merge":
        raise BadRequest(f"unknown patch type: {_go(directive)} in map: {_go(patch)}")
    out = _retained(current, patch)
    handled = _merge_ordered_lists(out, patch, schema)
    for key, wanted in patch.items():
        if key.startswith(_DELETE):
            _delete_primitives(out, key.removeprefix(_DELETE), wanted)
    for key, wanted in patch.items():
        if key in handled or (key[:1] == "$" and _is_directive(key, schema)):
            continue
        if wanted is None:
            out.pop(key, None)
            continue
        merged = _merge_value(out.get(key, _ABSENT), wanted, _child(schema, key))
        if merged is not _ABSENT:
            out[key] = merged
    return current if _same_items(out, current) else out


def _is_directive(key: str, schema: Schema) -> bool:
    """Fields may begin with a dollar too ($ref of a JSON schema); a typed object has only those it names."""
    if key in (_PATCH, _RETAIN) or key.startswith((_ORDER, _DELETE)):
        return True
    if key in schema.properties or schema.additional is not None or not schema.properties:
        return False
    raise BadRequest(f"unknown patch directive: {key[:80]}")


def _child(schema: Schema, key: str) -> Schema:
    return schema.properties.get(key) or schema.additional or _NO_SCHEMA


def _same_items(left: Object, right: Object) -> bool:
    return len(left) == len(right) and all(right.get(key, _ABSENT) is value for key, value in left.items())


def _merge_value(before: Any, wanted: Any, schema: Schema) -> Any:
    """The merged value; _ABSENT when nothing is left to say (a `$patch: delete` of what was not there)."""
    if isinstance(wanted, dict):
        if not isinstance(before, dict) and wanted.get(_PATCH) == "delete":
            return _ABSENT
        is_merged = isinstance(before, dict) and "replace" not in schema.patch_strategy
        return _merge_map(before if is_merged else {}, wanted, schema)
    if isinstance(wanted, list):
        if "merge" in schema.patch_strategy:
            return _merge_list(before if isinstance(before, list) else [], wanted, schema)
        return [_plain(item, schema.items) for item in wanted]
    return before if before is wanted else wanted


def _plain(item: Any, schema: Schema | None) -> Any:
    """An item of a list that is replaced as a whole."""
    return _merge_map({}, item, schema or _NO_SCHEMA) if isinstance(item, dict) else item


def _retained(current: Object, patch: Object) -> Object:
    """A copy of the object to merge into, less what `$retainKeys` does not keep."""
    retain = patch.get(_RETAIN, _ABSENT)
    if retain is _ABSENT:
        return dict(current)
    if not isinstance(retain, list) or not all(isinstance(key, str) for key in retain):
        raise BadRequest("invalid patch format of retainKeys")
    keep = set(retain)
    for key, wanted in patch.items():
        if wanted is not None and key not in keep and not key.startswith((_RETAIN, _ORDER, _DELETE)):
            raise BadRequest("invalid patch format of retainKeys")
    return {key: value for key, value in current.items() if key in keep}


def _merge_ordered_lists(out: Object, patch: Object, schema: Schema) -> set[str]:
    """Lists with a `$setElementOrder`; gives the names of those that need no more work."""
    handled: set[str] = set()
    for directive, order in patch.items():
        if not directive.startswith(_ORDER):
            continue
        key = directive.removeprefix(_ORDER)
        wanted, before = patch.get(key, []), out.get(key, [])
        if wanted is None:
            continue  # the list is deleted below, its order does not matter
        if not isinstance(order, list) or not isinstance(wanted, list):
            raise BadRequest("invalid patch format of setElementOrder list")
        before = before if isinstance(before, list) else []
        child = _child(schema, key)
        name = _namer(child, order, wanted, before)
        _check_order(wanted, order, name)
        merged = _merge_value(before, wanted, child) if key in patch else before
        if merged or key in out or key in patch:
            out[key] = in_order(merged, order, before, name)
        handled.add(key)
    return handled


def _namer(schema: Schema, *lists: list[Any]) -> Name:
    """How items of this list are told apart; checks that all of them can be."""
    key = schema.patch_merge_key
    for items in lists:
        for item in items:
            if isinstance(item, list):
                raise Invalid("lists of lists are not supported")
            if isinstance(item, dict) != bool(key):
                if key:
                    raise BadRequest("invalid patch format of primitive list")
                raise BadRequest("cannot merge lists without merge key")
            if key and key not in item and _PATCH not in item:
                raise BadRequest(f"map: {_go(item)} does not contain declared merge key: {key}")
    if key:
        return lambda item: _hashable(item.get(key))
    return _hashable


def _hashable(value: Any) -> Hashable:
    if isinstance(value, (dict, list)):
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            raise BadRequest("the patch is nested too deep") from None
    return (value.__class__ is bool, value)


def _check_order(wanted: list[Any], order: list[Any], name: Name) -> None:
    """The items of the patch must stand in it as the order list says."""
    names = iter([name(item) for item in order])
    for item in wanted:
        if isinstance(item, dict) and _PATCH in item:
            continue
        if name(item) not in names:  # consumes the iterator up to the match: order counts
            raise BadRequest(
                f"The order in patch list:\n{_go(wanted)}\n doesn't match {_ORDER[:-1]} list:\n{_go(order)}\n"
            )


def _merge_list(before: list[Any], wanted: list[Any], schema: Schema) -> list[Any]:
    name = _namer(schema, wanted, before)
    if not schema.patch_merge_key:
        merged = list({name(item): item for item in [*before, *wanted]}.values())
        return in_order(merged, wanted, before, name)
    plain: list[Any] = []
    is_replaced = False
    for item in wanted:
        directive = item.get(_PATCH, _ABSENT)
        if directive is _ABSENT or directive == "merge":
            if schema.patch_merge_key not in item:
                raise BadRequest(f"map: {_go(item)} does not contain declared merge key: {schema.patch_merge_key}")
            plain.append(item)
        elif directive == "replace":
            is_replaced = True  # the item is a mark only
        elif directive == "delete":
            if schema.patch_merge_key not in item:
                raise BadRequest(f"map: {_go(item)} does not contain declared merge key: {schema.patch_merge_key}")
            before = [old for old in before if name(old) != name(item)]
        else:
            raise BadRequest(f"unknown patch type: {_go(directive)} in map: {_go(item)}")
    if is_replaced:
        return [_plain(item, schema.items) for item in plain]
    return in_order(_merge_items(before, plain, schema, name), plain, before, name)


def _merge_items(before: list[Any], plain: list[Any], schema: Schema, name: Name) -> list[Any]:
    items = schema.items or _NO_SCHEMA
    merged = list(before)
    where: dict[Hashable, int] = {}
    for index, item in enumerate(merged):
        where.setdefault(name(item), index)
    for item in plain:
        index = where.get(name(item), -1)
        if index >= 0:
            merged[index] = _merge_map(merged[index], item, items)
        else:
            where[name(item)] = len(merged)
            merged.append(_merge_map({}, item, items))
    return merged


def _delete_primitives(out: Object, key: str, values: Any) -> None:
    if not isinstance(values, list) or any(isinstance(value, (dict, list)) for value in values):
        raise BadRequest("invalid patch format of primitive list")
    before = out.get(key)
    if isinstance(before, list):
        gone = set(map(_hashable, values))
        out[key] = [item for item in before if _hashable(item) not in gone]


def _go(value: Any) -> str:
    """A value as Go prints it in messages: map[name:web ports:[80]]."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_go(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(_go, value)) + "]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
