"""Object metadata as frozen, typed data, and the small rules about it: keys, owners, conditions.

Typed objects are read models. They name only the fields our code looks at and drop the rest when they decode, so
writing one back whole would erase what other clients put there. Writes therefore go through patches, server-side
apply, plain dict kinds, or `Client.modify`, which lays the change of a typed object over the untouched original
(`kube/api/types/overlay.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

Object = dict[str, Any]
"""An object as plain JSON data."""


class ObjectKey(NamedTuple):
    """The name of an object within its kind; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Model(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Base of typed API data: camelCase on the wire, unknown fields ignored, defaults not written.

    `gc=False` is safe because decoded API data is a tree; it keeps the cycle collector away from large caches.
    """


class OwnerReference(Model, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model, frozen=True, kw_only=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)

    @property
    def owners(self) -> tuple[OwnerReference, ...]:
        return self.owner_references or ()

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    def has_finalizer(self, name: str) -> bool:
        return name in (self.finalizers or ())


class ApiObject(Model, frozen=True, kw_only=True):
    """What every typed object starts with."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.metadata.namespace, self.metadata.name)


class PartialObjectMetadata(ApiObject, frozen=True, kw_only=True):
    """Only the metadata of an object of any kind, as the server sends it when asked for no more."""


class Condition(Model, frozen=True, kw_only=True):
    type: str
    status: str = ""
    """No word as default: defaults are not written, and `Unknown` has to be."""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The owner that manages the object, if one claims to."""
    for owner in meta.owners:
        if owner.controller:
            return owner
    return None


def key_of(obj: Mapping[str, Any]) -> ObjectKey:
    meta = obj.get("metadata") or {}
    return ObjectKey(meta.get("namespace") or "", meta.get("name") or "")


def find_condition(conditions: Iterable[Condition] | None, type_: str) -> Condition | None:
    for condition in conditions or ():
        if condition.type == type_:
            return condition
    return None


def is_true(conditions: Iterable[Condition] | None, type_: str) -> bool:
    found = find_condition(conditions, type_)
    return found is not None and found.status == "True"


def set_condition(conditions: Sequence[Condition] | None, new: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with `new` in them; the transition time moves only when the status does.

    Returns an equal value when nothing changed, so that callers can compare before they write.
    """
    out: list[Condition] = []
    placed = False
    for old in conditions or ():
        if old.type != new.type:
            out.append(old)
            continue
        placed = True
        since = old.last_transition_time if old.status == new.status else now
        out.append(msgspec.structs.replace(new, last_transition_time=since))
    if not placed:
        out.append(msgspec.structs.replace(new, last_transition_time=new.last_transition_time or now))
    return tuple(out)
