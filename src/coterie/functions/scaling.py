"""How many actors an action needs: a pure function of what was called, what waits, and what was decided before.

    Load             max(calls/s x median seconds / (0.7 x concurrency), waiting calls / calls that one actor does in 5 s)
                     up at once, down to the most of the last 60 s, to the least after idleSeconds
    CallsPerMinute   calls in 60 s: 0, 1-9, 10-19, 20-29, 30-39, 40+ -> 0..5; one step a minute

A call that waits for an action without actors starts one at once, whatever the policy. Nobody scales to zero while calls wait or run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.functions.model import ActionLoad
from coterie.kuscia.api.functions.types import CALLS_PER_MINUTE, Scaling

_BUSY = 0.7
"""Share of an actor's time that may be used before another one is wanted."""
_CATCH_UP_SECONDS = 5.0
"""In which calls that wait should be done."""
_UNKNOWN_SECONDS = 1.0
"""How long a call is taken to last while none has ended."""
_SHORTEST_SECONDS = 0.001
STABILIZATION_SECONDS = 60.0
"""For which less must be needed before an actor is removed; of CallsPerMinute: between two steps."""
_WINDOW, _PANIC_WINDOW = 60.0, 6.0
_CALLS_PER_STEP, _MOST_STEPS = 10, 5


@dataclass(frozen=True, slots=True)
class NeededActors:
    at: float
    """Monotonic seconds."""
    replicas: int


@dataclass(frozen=True, slots=True)
class ScalingHistory:
    recommendations: tuple[NeededActors, ...] = ()
    """Of the last 60 seconds; of equal ones in a row, only the last."""
    last_step: float | None = None
    """When CallsPerMinute last changed the number; None: it may at once."""

    @classmethod
    def after_restart(cls, replicas: int, now: float, seconds_since_step: float | None) -> ScalingHistory:
        """What runs counts as needed when we begin: a restart removes no actor early."""
        step = None if seconds_since_step is None else now - seconds_since_step
        return cls((NeededActors(now, replicas),) if replicas else (), step)


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    replicas: int
    history: ScalingHistory


def decide(
    policy: Scaling, concurrency: int, load: ActionLoad, current: int, now: float, now_ms: int, history: ScalingHistory
) -> ScalingDecision:
    """`current`: as decided before. `now`: monotonic seconds, `now_ms`: milliseconds since 1970."""
    low, high = min(policy.min_replicas, policy.max_replicas), max(policy.max_replicas, 0)
    waiting = load.lag > 0 or load.running > 0
    idle = not waiting and now_ms - load.last_call >= policy.idle_seconds * 1000
    if policy.policy == CALLS_PER_MINUTE:
        found, step = _one_step(load, min(max(current, low), high), low, high, now, history, waiting=waiting, idle=idle)
        return ScalingDecision(found, ScalingHistory(last_step=step))
    wanted = 0 if idle else max(_by_load(concurrency, load), 1)
    wanted = min(max(wanted, low), high)
    recent = _remember(history.recommendations, NeededActors(now, wanted))
    if idle:
        return ScalingDecision(wanted, ScalingHistory((NeededActors(now, wanted),)))
    return ScalingDecision(min(max(each.replicas for each in recent), high), ScalingHistory(recent))


def _by_load(concurrency: int, load: ActionLoad) -> int:
    seconds = max(load.median_seconds, _SHORTEST_SECONDS) if load.median_seconds > 0 else _UNKNOWN_SECONDS
    rate = max(load.calls / _WINDOW, load.calls_panic / _PANIC_WINDOW)
    by_rate = math.ceil(rate * seconds / (_BUSY * concurrency)) if load.median_seconds > 0 else 0
    by_lag = math.ceil(load.lag / max(1.0, _CATCH_UP_SECONDS * concurrency / seconds))
    return max(by_rate, by_lag)


def _remember(before: tuple[NeededActors, ...], new: NeededActors) -> tuple[NeededActors, ...]:
    kept = [each for each in before if new.at - each.at < STABILIZATION_SECONDS]
    # What is smaller than a later one never decides.
    while kept and kept[-1].replicas <= new.replicas:
        kept.pop()
    return (*kept, new)


def calls_table(calls: int) -> int:
    """The seed's: 0, 1-9, 10-19, 20-29, 30-39, 40+ calls a minute -> 0..5 actors."""
    return min(_MOST_STEPS, calls // _CALLS_PER_STEP + 1) if calls > 0 else 0


def _one_step(
    load: ActionLoad,
    current: int,
    low: int,
    high: int,
    now: float,
    history: ScalingHistory,
    *,
    waiting: bool,
    idle: bool,
) -> tuple[int, float | None]:
    wanted = calls_table(load.calls)
    if not idle:
        wanted = max(wanted, 1)
    wanted = min(max(wanted, low), high)
    if current == 0 and waiting and wanted:
        return max(1, low), now
    due = history.last_step is None or now - history.last_step >= STABILIZATION_SECONDS
    if wanted == current or not due:
        return current, history.last_step
    return current + (1 if wanted > current else -1), now


def spread_over_versions(replicas: int, traffic: Mapping[str, int]) -> dict[str, int]:
    """Actors of each version that gets calls: its share, and at least one while there are any."""
    if replicas <= 0:
        return {version: 0 for version, percent in traffic.items() if percent > 0}
    return {version: max(1, math.ceil(replicas * percent / 100)) for version, percent in traffic.items() if percent > 0}
