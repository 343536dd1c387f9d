"""Decisions about the actors of one action: which to start, which take calls, which to reload, which to remove. Pure.

An actor is *current* when its version gets calls and its template (image, environment, resources, ...) is that of the action now. Others go on
until enough current ones are ready, then get no more calls, and are removed when their last call has ended. So nothing that is rolled out
interrupts a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class ActorState(Enum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    """Ended, or not to be used any more."""
    LEAVING = "leaving"
    """Being deleted."""


@dataclass(frozen=True, slots=True)
class ActorFacts:
    name: str
    """Of the pod."""
    version: str
    """Of the code that it runs."""
    template: str
    state: ActorState
    calls: int = 0
    """That run in it."""
    fixed: bool = False
    """It cannot take other code while it runs."""


@dataclass(frozen=True, slots=True)
class ActorPlan:
    start: tuple[str, ...] = ()
    """The version of each actor to start."""
    serving: frozenset[str] = frozenset()
    """Names of actors that take calls, when they are ready."""
    reload: tuple[str, ...] = ()
    """Names of actors that get the code of the only version."""
    remove: tuple[str, ...] = ()


def plan_actors(wanted: Mapping[str, int], template: str, actors: Sequence[ActorFacts]) -> ActorPlan:
    """`wanted`: actors by version, of versions that get calls."""
    alive = [each for each in actors if each.state in (ActorState.STARTING, ActorState.READY)]
    reload: list[ActorFacts] = []
    if len(wanted) == 1:
        version = next(iter(wanted))
        reload = [
            each
            for each in alive
            if each.version != version
            and each.template == template
            and each.state is ActorState.READY
            and not each.fixed
        ]
        alive = [each for each in alive if each not in reload] + reload
    serving: set[str] = {each.name for each in reload}
    start: list[str] = []
    missing = 0
    """Actors whose place an older one has for the time being."""
    for version, count in wanted.items():
        mine = [each for each in alive if each.version == version and each.template == template]
        coming = len(reload) if len(wanted) == 1 else 0
        kept = _most_useful(mine, max(0, count - coming))
        serving |= {each.name for each in kept}
        start += [version] * max(0, count - coming - len(kept))
        missing += count - coming - sum(each.state is ActorState.READY for each in kept)
    older = [
        each
        for each in alive
        if each.name not in serving and each.state is ActorState.READY and not _is_current(each, wanted, template)
    ]
    serving |= {each.name for each in _most_useful(older, max(0, missing))}
    surplus = _surplus(reload, sum(wanted.values()))
    serving -= surplus
    remove = [
        each.name
        for each in actors
        if each.state in (ActorState.STARTING, ActorState.READY) and each.name not in serving and not each.calls
    ]
    return ActorPlan(
        tuple(start), frozenset(serving), tuple(each.name for each in reload if each.name not in surplus), tuple(remove)
    )


def _is_current(actor: ActorFacts, wanted: Mapping[str, int], template: str) -> bool:
    return actor.version in wanted and actor.template == template


def _surplus(actors: Sequence[ActorFacts], count: int) -> set[str]:
    return {each.name for each in actors} - {each.name for each in _most_useful(actors, count)}


def _most_useful(actors: Iterable[ActorFacts], count: int) -> list[ActorFacts]:
    """Those that are ready, then those with calls; by name, so that the choice stays the same."""
    ordered = sorted(actors, key=lambda each: (each.state is not ActorState.READY, -each.calls, each.name))
    return ordered[:count]


def traffic_now(shares: Mapping[str, int], actors: Sequence[ActorFacts]) -> Mapping[str, int]:
    """Percent by version for calls that come now: while the only version has no ready actor, calls go to the one that has."""
    if len(shares) != 1:
        return shares
    ready = Counter(each.version for each in actors if each.state is ActorState.READY)
    if not ready or next(iter(shares)) in ready:
        return shares
    return {max(sorted(ready), key=lambda version: ready[version]): 100}


def failed_to_remove(failed: Sequence[tuple[str, str]], ready: bool) -> tuple[str, ...]:
    """Of actors that ended, as (time of creation, name): while none is ready the last one stays, for whoever asks why."""
    ordered = sorted(failed)
    return tuple(name for _, name in (ordered if ready else ordered[:-1]))
