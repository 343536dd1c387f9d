"""What creates, updates and patches do to `metadata.managedFields`.

A field belongs to whoever changed it last: the fields that differ between the stored and the new object move to the
entry of the writing manager, removed fields leave every entry, and a write that changes nothing changes no owner and
no time.
"""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import BadRequest
from coterie.kube.api.fields.collect import applied, created_object
from coterie.kube.api.fields.diff import difference_of
from coterie.kube.api.fields.entries import (
    UPDATE,
    Entry,
    arrange,
    cap_updaters,
    fields_of,
    identity,
    new_entry,
    with_fields,
)
from coterie.kube.api.fields.fieldset import FieldsV1, union, without
from coterie.kube.api.fields.layout import WHOLE, in_scope, root_layout, scope_of
from coterie.kube.api.schema.node import Schema

Object = dict[str, Any]
TOO_DEEP = "the object is nested too deep"


def owned_by_object(obj: Object, schema: Schema, scope: str = WHOLE) -> FieldsV1:
    """The fields that an applied configuration claims; BadRequest when it does not fit the schema."""
    try:
        return applied(root_layout(schema, scope), in_scope(obj, scope))
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None


def created_fields(obj: Object, schema: Schema, scope: str = WHOLE) -> FieldsV1:
    """The fields that the creator of an object owns. The result shares nodes with others: never change it."""
    try:
        return created_object(root_layout(schema, scope), in_scope(obj, scope))
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None


def changed(old: Object, new: Object, schema: Schema, scope: str = WHOLE) -> tuple[FieldsV1, FieldsV1]:
    """(added or modified, removed) fields. A removed path stands for all that was below it."""
    try:
        return difference_of(root_layout(schema, scope), in_scope(old, scope), in_scope(new, scope))
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None


def track_update(
    managed_fields: list[Entry],
    old: Object | None,
    new: Object,
    schema: Schema,
    manager: str,
    operation: str = UPDATE,
    *,
    api_version: str,
    now: str,
    subresource: str = "",
    has_status: bool = True,
) -> list[Entry]:
    """The list after a write; `managed_fields` itself when the write changed no field.

    `old` is None for a create. `has_status` tells whether the kind has a status sub-resource; if so, writes to the
    main resource own nothing of the status, and writes to /status nothing but it. An object that lost its list (a
    reset) is not tracked again until someone applies it.
    """
    scope = scope_of(subresource, has_status)
    if old is None:
        fields = created_fields(new, schema, scope)
        if not managed_fields:
            return [new_entry(manager, operation, api_version, now, fields, subresource)] if fields else []
        return take_over(managed_fields, fields, {}, (manager, operation, api_version, subresource), now)
    if not managed_fields:
        return []
    taken, removed = changed(old, new, schema, scope)
    if not taken and not removed:
        return managed_fields
    return take_over(managed_fields, taken, removed, (manager, operation, api_version, subresource), now)


def take_over(
    entries: list[Entry], taken: FieldsV1, removed: FieldsV1, owner: tuple[str, str, str, str], now: str
) -> list[Entry]:
    """Move `taken` to the entry of `owner` and `removed` out of all entries; empty entries disappear."""
    manager, operation, api_version, subresource = owner
    out: list[Entry] = []
    is_placed = not taken
    for entry in entries:
        before = fields_of(entry)
        after = without(without(before, removed), taken)
        if taken and identity(entry) == owner:
            out.append({**entry, "time": now, "fieldsV1": union(after, taken)})
            is_placed = True
        elif after is before:
            out.append(entry)
        elif after:
            out.append(with_fields(entry, after))
    if not is_placed:
        out.append(new_entry(manager, operation, api_version, now, taken, subresource))
    return arrange(cap_updaters(out))
