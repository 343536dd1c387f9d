"""ResourceQuota at the door: a write that would use more than is left is refused, exactly, also under concurrency.

Used amounts are kept per quota and resource and brought up to date from the collection's own history of changes, so a
create costs the changes since the last one and not a walk over the namespace. Writes that were admitted but are not
durable yet hold their share as reservations; each counts once, as a reservation or as the object it became. Where other
servers write too, a write that takes room changes the namespace's guard in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.kube.api import errors, quantity, quota
from coterie.kube.apiserver.admission.chain import AdmissionRequest, GuardOf
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry

Object = dict[str, Any]
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True, eq=False)
class _Reservation:
    """Room for a write that was admitted, until the collection shows it: from then on the object itself counts."""

    name: str
    base: int
    """Revision of the object that the write replaces; 0 when it creates one."""
    usage: quota.Usage

    def stands(self, names: Mapping[str, ObjectEntry]) -> bool:
        entry = names.get(self.name)
        return (entry.revision if entry is not None else 0) == self.base


@dataclass(slots=True)
class _Account:
    """What one quota counts of one resource in its namespace."""

    spec: Object
    revision: int = 0
    used: quota.Usage = field(default_factory=dict)
    reserved: list[_Reservation] = field(default_factory=list)


class Quotas:
    def __init__(
        self,
        quotas: Collection,
        collection_of: Callable[[AdmissionRequest], Collection],
        guard_of: GuardOf | None = None,
    ) -> None:
        """`guard_of`: where other servers give away room too."""
        self._quotas = quotas
        self._guard_of = guard_of
        self._collection_of = collection_of
        self._accounts: dict[tuple[str, str, str], _Account] = {}

    def __call__(self, attempt: AdmissionRequest) -> None:
        if not attempt.namespace or attempt.resource.kind == "ResourceQuota":
            return
        if attempt.subresource not in ("", "resize"):
            return
        names = self._quotas.names(attempt.namespace)
        if not names:
            return
        resource = attempt.resource
        plural, group = resource.plural, resource.storage[0]
        counted = f"{plural}.{group}" if group else plural
        more = _difference(
            quota.usage_of(counted, attempt.obj), quota.usage_of(counted, attempt.old) if attempt.old else {}
        )
        for entry in names.values():
            self._charge(attempt, entry, counted, more)

    def _charge(self, attempt: AdmissionRequest, entry: ObjectEntry, counted: str, more: quota.Usage) -> None:
        limits = entry.load()
        spec: Object = limits.get("spec") or {}
        hard: Object = spec.get("hard") or {}
        wanted = {name: amount for name, amount in more.items() if name in hard}
        if not quota.matches(spec, counted, attempt.obj):
            return
        if attempt.verb == "create" and counted == "pods":
            missing = _unspecified(hard, attempt.obj)
            if missing:
                raise _refusal(attempt, f"failed quota: {entry.name}: must specify {missing}")
        if not any(amount > quantity.ZERO for amount in wanted.values()):
            return
        account = self._account(attempt, entry, spec, counted)
        names = self._collection_of(attempt).names(attempt.namespace)
        used = _total((account.used, *(held.usage for held in account.reserved if held.stands(names))))
        broken = quota.exceeded(hard, used, wanted)
        if broken:
            raise _refusal(
                attempt,
                f"exceeded quota: {entry.name}, requested: {_listed(broken, wanted)}, "
                f"used: {_listed(broken, used)}, limited: " + ",".join(f"{name}={hard[name]}" for name in broken),
            )
        if not attempt.dry_run:
            if self._guard_of is not None:
                key, seen = self._guard_of(f"quota/{attempt.namespace}")
                attempt.guards[key] = seen
            base = int(attempt.old["metadata"]["resourceVersion"]) if attempt.old else 0
            held = _Reservation(attempt.name, base, wanted)
            account.reserved.append(held)
            attempt.release.append(lambda: account.reserved.remove(held))

    def _account(self, attempt: AdmissionRequest, entry: ObjectEntry, spec: Object, counted: str) -> _Account:
        collection = self._collection_of(attempt)
        key = (entry.uid, counted, collection.key)
        account = self._accounts.get(key)
        if account is None or account.spec != spec or account.revision < collection.floor:
            held = account.reserved if account is not None else []
            objects = (one.load() for one in collection.entries(attempt.namespace))
            account = _Account(spec, collection.changed, _used(spec, counted, objects), held)
            self._accounts[key] = account
            return account
        for change in collection.changes_after(account.revision):
            if change.entry.namespace != attempt.namespace:
                continue
            before = [change.old.load()] if change.old is not None else []
            after = [change.entry.load()] if change.kind != "DELETED" else []
            account.used = _total((account.used, _used(spec, counted, after), _negative(_used(spec, counted, before))))
        account.revision = collection.changed
        return account


def _used(spec: Object, counted: str, objects: Iterable[Object]) -> quota.Usage:
    return _total(quota.usage_of(counted, obj) for obj in objects if quota.matches(spec, counted, obj))


def _total(parts: Iterable[quota.Usage]) -> quota.Usage:
    out: quota.Usage = {}
    for part in parts:
        for name, amount in part.items():
            out[name] = out[name] + amount if name in out else amount
    return out


def _negative(usage: quota.Usage) -> quota.Usage:
    return {name: -amount for name, amount in usage.items()}


def _difference(new: quota.Usage, old: quota.Usage) -> quota.Usage:
    return _total((new, _negative(old)))


def _unspecified(hard: Object, pod: Object) -> str:
    """Compute resources that a quota limits, and that containers leave open: they must say what they need."""
    found: dict[str, list[str]] = {}
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for name in hard:
            kind, _, what = name.partition(".") if name.startswith(("requests.", "limits.")) else ("requests", "", name)
            if what in _COMPUTE and what not in (resources.get(kind) or {}):
                found.setdefault(name, []).append(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(where)}" for name, where in sorted(found.items()))


def _listed(names: list[str], usage: quota.Usage) -> str:
    return ",".join(f"{name}={usage.get(name, quantity.ZERO)}" for name in names)


def _refusal(attempt: AdmissionRequest, why: str) -> errors.Forbidden:
    resource = attempt.resource
    return errors.Forbidden(
        f'{resource.group_resource} "{attempt.name}" is forbidden: {why}',
        name=attempt.name,
        group=resource.group,
        kind=resource.plural,
    )
