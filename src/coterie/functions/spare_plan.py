"""How many spare actors there are, and which of them go: pure.

Spare actors of a kind (`actor_pods.spare_key`) exist while an action that could use them was called a short while ago. One that waited for as
long as that is replaced: its image may have been replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_KINDS = 4
"""Kinds of which there are spare actors at a time: those that were called last."""


@dataclass(frozen=True, slots=True)
class SparePolicy:
    size: int = 2
    """Spare actors of each kind; 0: there are none."""
    idle_seconds: float = 300.0
    """After the last call of an action that could use them, and the longest that one of them waits."""


STANDARD_SPARES = SparePolicy()


@dataclass(frozen=True, slots=True)
class SpareFacts:
    name: str
    key: str
    created: float
    """Monotonic seconds."""
    ended: bool = False
    """It cannot be used any more."""


@dataclass(frozen=True, slots=True)
class SparePlan:
    create: tuple[str, ...] = ()
    """The kind of each."""
    remove: tuple[str, ...] = ()
    check_after: float | None = None
    """Seconds after which time alone changes something; None: never."""


def plan_spares(
    policy: SparePolicy, called: Mapping[str, float], spares: Sequence[SpareFacts], now: float, *, allowed: bool
) -> SparePlan:
    """`called`: when an action of each kind was called last, monotonic. `allowed` False: nobody may use one."""
    idle = policy.idle_seconds
    recent = sorted(((at, key) for key, at in called.items() if now - at < idle), reverse=True)[:MOST_KINDS]
    kinds = {key: at for at, key in recent} if allowed and policy.size > 0 else {}
    kept: dict[str, list[SpareFacts]] = {key: [] for key in kinds}
    remove: list[str] = []
    for each in sorted(spares, key=lambda spare: (-spare.created, spare.name)):
        mine = kept.get(each.key)
        if mine is None or each.ended or now - each.created >= idle or len(mine) >= policy.size:
            remove.append(each.name)
        else:
            mine.append(each)
    create = [key for key in kinds for _ in range(policy.size - len(kept[key]))]
    ends = [at + idle for at in kinds.values()]
    ends += [each.created + idle for mine in kept.values() for each in mine]
    return SparePlan(tuple(create), tuple(remove), max(0.0, min(ends) - now) if ends else None)
