"""Server-side apply: a manager states the fields it wants, the server merges, and ownership decides who may.

    live + configuration --merge--> merged --removal--> new object --diff with live--> changed fields
                                                                                          |
    fields of others that changed: a conflict, or (force) taken from them  <--------------+

The same value from two managers is shared ownership, not a conflict. An apply that changes nothing gives back the
live object and list themselves, so that the caller can leave the store alone.
"""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import BadRequest
from coterie.kube.api.fields.collect import MalformedConfiguration, applied, created_object
from coterie.kube.api.fields.conflicts import Conflicts, conflict_error
from coterie.kube.api.fields.diff import difference_of
from coterie.kube.api.fields.entries import (
    APPLY,
    BEFORE_FIRST_APPLY,
    UPDATE,
    Entry,
    arrange,
    cap_updaters,
    fields_of,
    identity,
    new_entry,
    with_fields,
)
from coterie.kube.api.fields.fieldset import FieldsV1, difference, intersection, without
from coterie.kube.api.fields.lastapplied import KUBECTL, fields_applied_before, refresh_annotation
from coterie.kube.api.fields.layout import STATUS, FieldLayout, in_scope, root_layout, scope_of
from coterie.kube.api.fields.merge import fresh, merge
from coterie.kube.api.fields.ownership import TOO_DEEP
from coterie.kube.api.fields.removal import remove_abandoned
from coterie.kube.api.schema.node import Schema

Object = dict[str, Any]


def apply(
    live: Object | None,
    config: Object,
    schema: Schema,
    manager: str,
    *,
    force: bool,
    api_version: str,
    now: str,
    subresource: str = "",
    has_status: bool = True,
) -> tuple[Object, list[Entry]]:
    """(new object, new managedFields). The object's own managedFields are left as in `live`; the caller sets them.

    `live` is None when the apply creates the object. ApplyConflict when others own what would change and `force` is
    not given; BadRequest when the configuration does not fit the schema.
    """
    if _meta(config).get("managedFields"):
        raise BadRequest("metadata.managedFields must be nil")
    try:
        return _apply(live, config, schema, manager, force, api_version, now, subresource, has_status)
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None


def _apply(
    live: Object | None,
    config: Object,
    schema: Schema,
    manager: str,
    force: bool,
    api_version: str,
    now: str,
    subresource: str,
    has_status: bool,
) -> tuple[Object, list[Entry]]:
    scope = scope_of(subresource, has_status)
    layout = root_layout(schema, scope)
    wanted = _applicable_part(config, scope, has_status)
    fields = _claimed(layout, wanted, config, api_version)
    if live is None:
        made: Object = fresh(layout, wanted)
        return made, [new_entry(manager, APPLY, api_version, now, fields, subresource)] if fields else []

    entries = _tracked(live) or _before_first_apply(layout, live, scope, api_version, now, subresource)
    mine = next((entry for entry in entries if identity(entry) == (manager, APPLY, "", subresource)), None)
    others = [entry for entry in entries if entry is not mine]
    last = fields_of(mine) if mine is not None else {}

    new: Object = merge(layout, live, wanted)
    abandoned = difference(last, fields) if last != fields else {}
    if abandoned:
        new = remove_abandoned(layout, new, abandoned, [fields, *map(fields_of, others)])
    taken, removed = difference_of(layout, in_scope(live, scope), in_scope(new, scope))
    conflicts: Conflicts = [(entry, lost) for entry in others if (lost := intersection(fields_of(entry), taken))]
    if conflicts and not force:
        _refuse_unless_former_owner(layout, live, manager, api_version, conflicts)
    if manager == KUBECTL and scope != STATUS:
        new = refresh_annotation(new, config)

    if new is live and mine is not None and last == fields and mine.get("apiVersion") == api_version:
        return live, entries
    kept = _others_after(others, conflicts, removed)
    if fields:
        kept.append(new_entry(manager, APPLY, api_version, now, fields, subresource))
    return new, arrange(cap_updaters(kept))


def _applicable_part(config: Object, scope: str, has_status: bool) -> Object:
    """The part of a configuration that this write may set; the rest is ignored, as for updates."""
    if scope == STATUS:
        return in_scope(config, scope)
    return {key: value for key, value in config.items() if key != "status"} if has_status else config


def _claimed(layout: FieldLayout, wanted: Object, config: Object, api_version: str) -> FieldsV1:
    try:
        return applied(layout, wanted)
    except MalformedConfiguration as broken:
        meta = _meta(config)
        name = f"{meta.get('namespace') or ''}/{meta.get('name') or ''}"
        kind = f"{api_version}, Kind={config.get('kind') or ''}"
        raise MalformedConfiguration(
            f"failed to create typed patch object ({name}; {kind}): {broken.message}"
        ) from None


def _tracked(live: Object) -> list[Entry]:
    entries: list[Entry] = _meta(live).get("managedFields") or []
    return entries


def _meta(obj: Object) -> Object:
    meta = obj.get("metadata")
    return meta if isinstance(meta, dict) else {}


def _before_first_apply(
    layout: FieldLayout, live: Object, scope: str, api_version: str, now: str, subresource: str
) -> list[Entry]:
    """An object nobody tracked: what it has belongs to those who wrote before the first apply."""
    fields = created_object(layout, in_scope(live, scope))
    return [new_entry(BEFORE_FIRST_APPLY, UPDATE, api_version, now, fields, subresource)] if fields else []


def _refuse_unless_former_owner(
    layout: FieldLayout, live: Object, manager: str, api_version: str, conflicts: Conflicts
) -> None:
    """kubectl may take what it applied client side before; everything else is a conflict."""
    if manager == KUBECTL:
        allowed = fields_applied_before(layout, live, api_version)
        conflicts = [(entry, left) for entry, lost in conflicts if (left := difference(lost, allowed))]
    if conflicts:
        raise conflict_error(conflicts)


def _others_after(others: list[Entry], conflicts: Conflicts, removed: FieldsV1) -> list[Entry]:
    lost_by = {id(entry): lost for entry, lost in conflicts}
    kept: list[Entry] = []
    for entry in others:
        before = fields_of(entry)
        after = without(difference(before, lost_by.get(id(entry), {})), removed)
        if after is before:
            kept.append(entry)
        elif after:
            kept.append(with_fields(entry, after))
    return kept
