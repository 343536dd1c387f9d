"""The shape of one kind's rules, and how the common parts of a life are made: create, update, status update.

The server runs, in this order:
  create:  default, (names and uid are given,) prepare_create, validate_meta, validate_create
  update:  default, prepare_update, validate_meta, validate_meta_update, validate_update
  status:  prepare_status_update, validate_meta_update, validate_status_update
Every function takes objects in their stored version, mutates only the first one, and never raises for an object whose
field types fit the kind's schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.errors import FieldError

Obj = dict[str, Any]
Errors = list[FieldError]


def no_change(obj: Obj) -> None:
    """Nothing to fill in."""


def no_change_from(new: Obj, old: Obj) -> None:
    """Nothing to carry over."""


def no_faults(obj: Obj) -> Errors:
    return []


def no_faults_between(new: Obj, old: Obj) -> Errors:
    return []


@dataclass(frozen=True, slots=True)
class KindRules:
    """What the API demands of one kind. All members are total functions over plain objects."""

    default: Callable[[Obj], None] = no_change
    """Fill in what the user left out; also run on updates, so it must be idempotent."""
    validate_create: Callable[[Obj], Errors] = no_faults
    validate_update: Callable[[Obj, Obj], Errors] = no_faults_between
    """Faults of (new, old): those of the new object by itself, and changes that are not allowed."""
    prepare_create: Callable[[Obj], None] = no_change
    prepare_update: Callable[[Obj, Obj], None] = no_change_from
    prepare_status_update: Callable[[Obj, Obj], None] = no_change_from
    validate_status_update: Callable[[Obj, Obj], Errors] = no_faults_between
    prepare_approval_update: Callable[[Obj, Obj], None] = no_change_from
    """Writes to `/approval`, which CertificateSigningRequests have."""
    validate_approval_update: Callable[[Obj, Obj], Errors] = no_faults_between
    has_status: bool = False
    has_generation: bool = False


def make_rules(
    *,
    default: Callable[[Obj], None] = no_change,
    validate: Callable[[Obj], Errors] = no_faults,
    validate_create: Callable[[Obj], Errors] | None = None,
    changed: Callable[[Obj, Obj], Errors] = no_faults_between,
    status: bool = False,
    initial_status: Callable[[Obj], Obj] | None = None,
    generation: tuple[str, ...] = (),
    create: Callable[[Obj], None] = no_change,
    update: Callable[[Obj, Obj], None] = no_change_from,
    status_update: Callable[[Obj, Obj], None] = no_change_from,
    validate_status: Callable[[Obj, Obj], Errors] = no_faults_between,
) -> KindRules:
    """Rules of a kind from its own parts.

    `validate` are faults of an object by itself (create and update), `changed` those of a change. `generation` names
    the top-level fields whose change counts as a new generation; empty for kinds that have none.
    """

    def prepare_create(obj: Obj) -> None:
        if status:
            obj["status"] = initial_status(obj) if initial_status else {}
        meta = obj.setdefault("metadata", {})
        if generation:
            meta["generation"] = 1
        else:
            meta.pop("generation", None)
        create(obj)

    def prepare_update(new: Obj, old: Obj) -> None:
        if status:
            _take(new, old, "status")
        keep_generation(new, old, generation)
        update(new, old)

    def prepare_status_update(new: Obj, old: Obj) -> None:
        take_only_status(new, old)
        status_update(new, old)

    def validate_update(new: Obj, old: Obj) -> Errors:
        errors = changed(new, old)
        return validate(new) + errors

    return KindRules(
        default=default,
        validate_create=validate_create or validate,
        validate_update=validate_update,
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status_update=prepare_status_update,
        validate_status_update=validate_status,
        has_status=status,
        has_generation=bool(generation),
    )


def _take(new: Obj, old: Obj, key: str) -> None:
    if key in old:
        new[key] = old[key]
    else:
        new.pop(key, None)


def keep_generation(new: Obj, old: Obj, fields: tuple[str, ...]) -> None:
    """A client cannot set the generation: it grows by one when one of `fields` differs."""
    meta = new.setdefault("metadata", {})
    before = (old.get("metadata") or {}).get("generation")
    if not fields:
        if before is None:
            meta.pop("generation", None)
        else:
            meta["generation"] = before
        return
    generation = before or 1
    # A deletion mark is part of what a controller must observe.
    deleted = bool(meta.get("deletionTimestamp")) and not (old.get("metadata") or {}).get("deletionTimestamp")
    if deleted or any(new.get(field) != old.get(field) for field in fields):
        generation += 1
    meta["generation"] = generation


def take_only_status(new: Obj, old: Obj) -> None:
    """Of a write to `/status` only the status and the free part of metadata are taken."""
    for key in [key for key in new if key not in ("metadata", "status")]:
        if key not in old:
            del new[key]
    for key, value in old.items():
        if key not in ("metadata", "status"):
            new[key] = value
    meta, before = new.setdefault("metadata", {}), old.get("metadata") or {}
    if "generation" in before:
        meta["generation"] = before["generation"]
    else:
        meta.pop("generation", None)


def setdefaults(obj: Obj, **values: Any) -> None:
    """Fill in scalars; an absent key, null and the empty string all mean "not given", as in Go."""
    for key, value in values.items():
        if obj.get(key) is None or obj[key] == "":
            obj[key] = value


def section(obj: Obj, key: str) -> Obj:
    """The sub-object under `key`, made when missing."""
    value = obj.get(key)
    if value is None:
        value = obj[key] = {}
    found: Obj = value
    return found
