"""The arithmetic of rollouts: surge and unavailability, who may grow, how a change of scale is shared. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.kube.api.int_or_percent import resolve
from coterie.kube.api.labels import MAX_REPLICAS
from coterie.kube.api.types.apps import Deployment, ReplicaSet
from coterie.kube.controllers.deployment.drafts import Draft


@dataclass(frozen=True, slots=True)
class Bounds:
    surge: int
    unavailable: int


def bounds(deployment: Deployment) -> Bounds:
    """How many pods too many and too few a rollout may have.

    Percentages of surge round up and of unavailability down; when nothing at all would be left to move, one pod may
    be missing, or the rollout could never begin.
    """
    strategy = deployment.spec.strategy
    if strategy.type != "RollingUpdate":
        return Bounds(0, 0)
    wanted, rolling = deployment.replicas, strategy.rolling_update
    surge = resolve("25%" if rolling is None else rolling.max_surge, wanted, up=True)
    unavailable = resolve("25%" if rolling is None else rolling.max_unavailable, wanted, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(surge, min(unavailable, wanted))


def most(deployment: Deployment) -> int:
    """Pods that may exist at once."""
    return deployment.replicas + bounds(deployment).surge


def new_size(deployment: Deployment, total: int, current: int) -> int:
    """The size of the newest set, given the wanted pods of all sets and its own."""
    if deployment.spec.strategy.type == "Recreate":
        return deployment.replicas
    room = most(deployment) - total
    if room <= 0:
        return current
    return current + max(0, min(room, deployment.replicas - current))


def shrink_old(deployment: Deployment, newest: Draft, old: Sequence[Draft]) -> dict[str, int]:
    """Sizes of old sets (oldest first) that may be smaller now, by name; empty when nothing may be taken.

    First go the pods that do not work anyway, then as many of the working ones as availability allows.
    """
    sizes = {draft.name: draft.replicas for draft in old}
    if not sum(sizes.values()):
        return {}
    least = deployment.replicas - bounds(deployment).unavailable
    not_yet = newest.replicas - newest.before.status.available_replicas
    spare = newest.replicas + sum(sizes.values()) - least - not_yet
    if spare <= 0:
        return {}
    for draft in old:
        broken = sizes[draft.name] - draft.before.status.available_replicas
        taken = min(spare, max(0, broken))
        sizes[draft.name] -= taken
        spare -= taken
    available = sum(draft.before.status.available_replicas for draft in (*old, newest))
    surplus = available - least
    for draft in old:
        if surplus <= 0:
            break
        taken = min(surplus, sizes[draft.name])
        sizes[draft.name] -= taken
        surplus -= taken
    return {draft.name: sizes[draft.name] for draft in old if sizes[draft.name] != draft.replicas}


def share(deployment: Deployment, drafts: Sequence[Draft]) -> dict[str, int]:
    """Sizes of all active sets when a deployment is scaled in the middle of a rollout: each keeps its proportion.

    What rounding leaves over goes to the largest, or is taken from the largest first.
    """
    active = [draft for draft in drafts if draft.replicas > 0]
    allowed = most(deployment) if deployment.replicas > 0 else 0
    more = allowed - sum(draft.replicas for draft in active)
    # The largest is served first; of equals the newer one when growing, the older one when shrinking.
    active.sort(key=lambda draft: draft.created, reverse=more > 0)
    active.sort(key=lambda draft: -draft.replicas)
    sizes: dict[str, int] = {}
    given = 0
    for draft in active:
        part = _proportion(deployment, draft, more, given) if more else 0
        sizes[draft.name] = draft.replicas + part
        given += part
    # What rounding leaves over: all of it to the largest, but no set goes below nought.
    left = more - given
    for draft in active:
        part = max(-sizes[draft.name], left)
        sizes[draft.name] += part
        left -= part
    return sizes


def _proportion(deployment: Deployment, draft: Draft, more: int, given: int) -> int:
    left = more - given
    if left == 0:
        return 0
    if deployment.replicas == 0:
        fraction = -draft.replicas
    else:
        before = _number(draft.annotations.get(MAX_REPLICAS)) or deployment.status.replicas or most(deployment)
        fraction = math.floor(draft.replicas * most(deployment) / before + 0.5) - draft.replicas
    return min(fraction, left) if more > 0 else max(fraction, left)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def sum_replicas(sets: Sequence[ReplicaSet]) -> int:
    return sum(found.replicas for found in sets)
