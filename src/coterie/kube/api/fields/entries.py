"""The list `metadata.managedFields`: who an entry belongs to, in which order entries stand, how many there may be.

An entry belongs to a manager, an operation, a sub-resource and, for updates, an API version; an applier keeps its one
entry when it changes the version it applies with.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, Final

from coterie.kube.api.errors import FieldError, invalid, too_long
from coterie.kube.api.fields.fieldset import FieldsV1, parse, union

Entry = dict[str, Any]
Identity = tuple[str, str, str, str]
"""(manager, operation, apiVersion or "" of an applier, subresource)."""

APPLY: Final = "Apply"
UPDATE: Final = "Update"
MAX_UPDATERS: Final = 10
ANCIENT: Final = "ancient-changes"
BEFORE_FIRST_APPLY: Final = "before-first-apply"
_LONGEST_MANAGER: Final = 128
_LONGEST_SUBRESOURCE: Final = 256


def new_entry(
    manager: str, operation: str, api_version: str, time: str, fields: FieldsV1, subresource: str = ""
) -> Entry:
    entry = {
        "manager": manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    if subresource:
        entry["subresource"] = subresource
    return entry


def identity(entry: Entry) -> Identity:
    operation = entry.get("operation") or ""
    version = "" if operation == APPLY else entry.get("apiVersion") or ""
    return entry.get("manager") or "", operation, version, entry.get("subresource") or ""


def fields_of(entry: Entry) -> FieldsV1:
    found: FieldsV1 = entry.get("fieldsV1") or {}
    return found


def with_fields(entry: Entry, fields: FieldsV1) -> Entry:
    return {**entry, "fieldsV1": fields}


def arrange(entries: Iterable[Entry]) -> list[Entry]:
    """Appliers first, then by time, then by name: the order in which Kubernetes writes them."""
    return sorted(entries, key=_place)


def _place(entry: Entry) -> tuple[str, str, str, str, str]:
    return (
        entry.get("operation") or "",
        entry.get("time") or "",
        entry.get("manager") or "",
        entry.get("apiVersion") or "",
        entry.get("subresource") or "",
    )


def cap_updaters(entries: list[Entry]) -> list[Entry]:
    """At most `MAX_UPDATERS` update entries: the oldest of a version are merged into one called ancient-changes."""
    updaters = sorted((e for e in entries if e.get("operation") != APPLY), key=_age)
    surplus = len(updaters) - MAX_UPDATERS
    if surplus <= 0:
        return entries
    groups: dict[str, list[Entry]] = {}
    for entry in updaters:
        if surplus <= 0:
            break
        group = groups.setdefault(entry.get("apiVersion") or "", [])
        surplus -= bool(group)  # a group of one is left as it is
        group.append(entry)
    merged = {version: group for version, group in groups.items() if len(group) > 1}
    gone = {id(entry) for group in merged.values() for entry in group}
    kept = {identity(entry): entry for entry in entries if id(entry) not in gone}
    for version, group in merged.items():
        # The youngest time of the group: a bucket is as old as the last change in it.
        bucket = new_entry(ANCIENT, UPDATE, version, group[-1].get("time") or "", _all_fields(group))
        former = kept.get(identity(bucket))
        kept[identity(bucket)] = bucket if former is None else with_fields(former, _all_fields([bucket, former]))
    return list(kept.values())


def _all_fields(entries: list[Entry]) -> FieldsV1:
    return reduce(union, map(fields_of, entries))


def _age(entry: Entry) -> tuple[str, str, str]:
    return entry.get("time") or "", entry.get("manager") or "", entry.get("apiVersion") or ""


def choose_managed_fields(live: dict[str, Any] | None, new: dict[str, Any], subresource: str = "") -> list[Entry]:
    """The list that a write starts from: what the request itself brings, else what the live object has.

    A request may rewrite the list (kubectl does when it moves an object to server-side apply) and may reset it with
    one empty entry; clients that do not know the field leave it out and so change nothing. Sub-resources never
    rewrite it. A list that cannot be read counts as left out; `validate_managed_fields` tells the client why.
    """
    kept: list[Entry] = _managed_fields_of(live) or []  # ours, so it is in order
    given = _managed_fields_of(new)
    if subresource or not given or given is kept or given == kept:
        return kept
    if is_reset(given):
        return []
    return _read(given) or kept


def _managed_fields_of(obj: dict[str, Any] | None) -> Any:
    return ((obj or {}).get("metadata") or {}).get("managedFields")


def is_reset(given: object) -> bool:
    """`[{}]`: forget all owners."""
    return isinstance(given, list) and len(given) == 1 and given[0] == {}


def _read(given: object) -> list[Entry] | None:
    """Entries in canonical form, the last of each identity; None when any cannot be read."""
    if not isinstance(given, list):
        return None
    out: dict[Identity, Entry] = {}
    for entry in given:
        if not isinstance(entry, dict) or entry.get("fieldsType") != "FieldsV1":
            return None
        try:
            fields = parse(entry.get("fieldsV1") or {})
        except (ValueError, RecursionError):
            return None
        same = fields == entry.get("fieldsV1")
        out[identity(entry)] = entry if same else with_fields(entry, fields)
    return list(out.values())


def validate_managed_fields(given: object, path: str = "metadata.managedFields") -> list[FieldError]:
    """The faults of a list that a client sent; a reset (`[{}]`) has none."""
    if given is None or is_reset(given):
        return []
    if not isinstance(given, list):
        return [invalid(path, given, "must be a list")]
    errors: list[FieldError] = []
    for index, entry in enumerate(given):
        here = f"{path}[{index}]"
        if not isinstance(entry, dict):
            errors.append(invalid(here, entry, "must be an object"))
        else:
            errors += _validate_entry(entry, here)
    return errors


def _validate_entry(entry: Entry, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    operation = entry.get("operation") or ""
    if operation not in (APPLY, UPDATE):
        errors.append(invalid(f"{path}.operation", operation, "must be `Apply` or `Update`"))
    fields_type = entry.get("fieldsType") or ""
    if fields_type not in ("", "FieldsV1"):
        errors.append(invalid(f"{path}.fieldsType", fields_type, "must be `FieldsV1`"))
    errors += validate_field_manager(entry.get("manager") or "", f"{path}.manager")
    subresource = entry.get("subresource") or ""
    if not isinstance(subresource, str):
        errors.append(invalid(f"{path}.subresource", subresource, "must be a string"))
    elif len(subresource.encode()) > _LONGEST_SUBRESOURCE:
        errors.append(too_long(f"{path}.subresource", _LONGEST_SUBRESOURCE))
    for key in ("apiVersion", "time"):
        if not isinstance(entry.get(key) or "", str):
            errors.append(invalid(f"{path}.{key}", entry[key], "must be a string"))
    try:
        parse(entry.get("fieldsV1") or {})
    except RecursionError:
        errors.append(invalid(f"{path}.fieldsV1", entry["fieldsV1"], "nested too deep"))
    except ValueError as broken:
        errors.append(invalid(f"{path}.fieldsV1", entry["fieldsV1"], str(broken)))
    return errors


def validate_field_manager(name: object, path: str = "fieldManager") -> list[FieldError]:
    """The rules for the name of a manager, also for the query parameter fieldManager."""
    if not isinstance(name, str):
        return [invalid(path, name, "must be a string")]
    errors = [too_long(path, _LONGEST_MANAGER)] if len(name.encode()) > _LONGEST_MANAGER else []
    for position, letter in enumerate(name):
        if not letter.isprintable():
            errors.append(invalid(path, name, f"invalid character U+{ord(letter):04X} (at position {position})"))
    return errors
