"""What to do about one object, given the state of its owners and its dependents. Pure.

the object is                         its owners are              then
deleted, finalizer orphan             any                         release the dependents, take the finalizer off
deleted, finalizer foregroundDeletion any                         wait for blocking dependents, else take it off
deleted otherwise, or without owners  any                         nothing
alive                                 at least one present        drop the references to those that are not
alive, has dependents                 none present, one waiting   delete in the foreground
alive                                 none present                delete, as its own finalizers ask
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.kube.api.labels import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from coterie.kube.api.meta import ObjectMeta, OwnerReference

OwnerState = Literal["present", "absent", "waiting"]
"""`waiting`: deleted in the foreground, held up by its dependents. What cannot be known is `present`."""


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Orphan:
    """Take this owner off its dependents, then the orphan finalizer off itself."""


@dataclass(frozen=True, slots=True)
class AwaitDependents:
    """Blocking dependents are still there: see to them."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take the foreground finalizer off: no dependent blocks any more."""


@dataclass(frozen=True, slots=True)
class KeepOwners:
    """Leave only these owner references."""

    owners: tuple[OwnerReference, ...]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    propagation: Literal["Background", "Foreground", "Orphan"]
    unblock: bool = False
    """First stop blocking the owners: a circle of objects that block each other would never end."""


Action = Nothing | Orphan | AwaitDependents | RemoveFinalizer | KeepOwners | DeleteObject


def plan(
    meta: ObjectMeta,
    owners: Mapping[str, OwnerState],
    *,
    dependents: int = 0,
    blocking: int = 0,
    dependents_waiting: bool = False,
) -> Action:
    """`dependents_waiting`: one of the object's dependents is itself deleted in the foreground."""
    if meta.deleting:
        if meta.has_finalizer(FINALIZER_ORPHAN):
            return Orphan()
        if meta.has_finalizer(FINALIZER_FOREGROUND):
            return AwaitDependents() if blocking else RemoveFinalizer()
        return Nothing()
    if not meta.owners:
        return Nothing()
    states = [(owner, owners.get(owner.uid, "present")) for owner in meta.owners]
    present = tuple(owner for owner, state in states if state == "present")
    if present:
        return Nothing() if len(present) == len(states) else KeepOwners(present)
    if dependents and any(state == "waiting" for _, state in states):
        return DeleteObject("Foreground", unblock=dependents_waiting)
    if meta.has_finalizer(FINALIZER_ORPHAN):
        return DeleteObject("Orphan")
    return DeleteObject("Foreground" if meta.has_finalizer(FINALIZER_FOREGROUND) else "Background")
