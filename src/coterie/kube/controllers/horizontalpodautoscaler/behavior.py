"""How fast a recommendation may become true: stabilization windows, policies and the limits of the autoscaler. Pure.

    recommendation of the metrics
      -> stabilized     scale up to the lowest recommendation of the window, down to the highest one
      -> rate limited   the policies allow so many pods (or percent) for each period
      -> within minReplicas and maxReplicas

Without `behavior` the defaults that Kubernetes documents apply: no window up and 300 s down; at most 4 pods or a doubling for each
sync up, no limit down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from coterie.kube.api.types.autoscaling import ScalingBehavior, ScalingPolicy, ScalingRules

DISABLED = "Disabled"
MIN = "Min"
_UP_AT_ONCE = 4
_UP_FACTOR = 2
_LONGEST_PERIOD = 1800.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    at: float
    change: int
    """Pods that were added or removed; always positive."""


T = TypeVar("T", Recommendation, ScaleEvent)


@dataclass(frozen=True, slots=True)
class History:
    """What windows and policies need to know of the past of one autoscaler. Times are monotonic seconds."""

    recommendations: tuple[Recommendation, ...] = ()
    ups: tuple[ScaleEvent, ...] = ()
    downs: tuple[ScaleEvent, ...] = ()

    def started(self, now: float, replicas: int) -> History:
        """A controller that has just started takes the present size as the first recommendation: what it does not remember
        must not make it scale down at once."""
        return self if self.recommendations else replace(self, recommendations=(Recommendation(now, replicas),))

    def recommended(self, now: float, replicas: int, longest: float) -> History:
        kept = tuple(each for each in self.recommendations if each.at > now - longest)
        return replace(self, recommendations=(*kept, Recommendation(now, replicas)))

    def scaled(self, now: float, before: int, after: int) -> History:
        if after == before:
            return self
        event = ScaleEvent(now, abs(after - before))
        if after > before:
            return replace(self, ups=(*_recent(self.ups, now), event))
        return replace(self, downs=(*_recent(self.downs, now), event))


@dataclass(frozen=True, slots=True)
class LimitedReplicas:
    """A number of replicas, with the reasons and messages of two conditions."""

    replicas: int
    able_reason: str
    able_message: str
    limited: bool
    limit_reason: str
    limit_message: str
    history: History


@dataclass(frozen=True, slots=True)
class _Limit:
    replicas: int
    reason: str
    message: str


_TOO_MANY = "the desired replica count is more than the maximum replica count"
_TOO_FEW = "the desired replica count is less than the minimum replica count"
_TOO_FAST_UP = "the desired replica count is increasing faster than the maximum scale rate"
_TOO_FAST_DOWN = "the desired replica count is decreasing faster than the maximum scale rate"
_IN_RANGE = "the desired count is within the acceptable range"
_UP_STABILIZED = "recent recommendations were lower than current one, applying the lowest recent recommendation"
_DOWN_STABILIZED = "recent recommendations were higher than current one, applying the highest recent recommendation"


def normalize(
    behavior: ScalingBehavior | None,
    history: History,
    current: int,
    desired: int,
    least: int,
    most: int,
    now: float,
    down_window: int,
) -> LimitedReplicas:
    """`down_window`: seconds, where the autoscaler does not say itself."""
    up = behavior.scale_up if behavior is not None else None
    down = behavior.scale_down if behavior is not None else None
    up_seconds, down_seconds = _windows(up, down, down_window)
    lowest = min((each.replicas for each in _within(history.recommendations, now, up_seconds)), default=desired)
    highest = max((each.replicas for each in _within(history.recommendations, now, down_seconds)), default=desired)
    lowest, highest = min(lowest, desired), max(highest, desired)
    stable = highest if behavior is None else min(max(current, lowest), highest)
    if stable == desired:
        able = ("ReadyForNewScale", "recommended size matches current size")
    elif behavior is not None and desired >= current:
        able = ("ScaleUpStabilized", _UP_STABILIZED)
    else:
        able = ("ScaleDownStabilized", _DOWN_STABILIZED)
    limit = _limit(up, down, behavior is not None, history, current, stable, least, most, now)
    out = limit.replicas if limit is not None else stable
    return LimitedReplicas(
        out,
        *able,
        limit is not None,
        limit.reason if limit is not None else "DesiredWithinRange",
        limit.message if limit is not None else _IN_RANGE,
        history.recommended(now, desired, max(up_seconds, down_seconds)),
    )


def _windows(up: ScalingRules | None, down: ScalingRules | None, down_window: int) -> tuple[int, int]:
    """Seconds, up and down."""
    given = down.stabilization_window_seconds if down is not None else None
    return (up.stabilization_window_seconds or 0 if up is not None else 0), (down_window if given is None else given)


def _limit(
    up: ScalingRules | None,
    down: ScalingRules | None,
    ruled: bool,
    history: History,
    current: int,
    desired: int,
    least: int,
    most: int,
    now: float,
) -> _Limit | None:
    """What stands against the desired number, if anything does."""
    if desired > current:
        fastest = max(current, _up_limit(up, history, current, now) if ruled else _default_up_limit(current))
        if desired > min(fastest, most):
            return _Limit(fastest, "ScaleUpLimit", _TOO_FAST_UP) if fastest < most else _too_many(most)
    elif desired < current and ruled:
        slowest = min(current, _down_limit(down, history, current, now))
        if desired < max(slowest, least):
            return _Limit(slowest, "ScaleDownLimit", _TOO_FAST_DOWN) if slowest > least else _too_few(least)
    if desired > most:
        return _too_many(most)
    if desired < least:
        return _too_few(least)
    return None


def _too_many(most: int) -> _Limit:
    return _Limit(most, "TooManyReplicas", _TOO_MANY)


def _too_few(least: int) -> _Limit:
    return _Limit(least, "TooFewReplicas", _TOO_FEW)


def _default_up_limit(current: int) -> int:
    return max(_UP_FACTOR * current, _UP_AT_ONCE)


def _up_limit(rules: ScalingRules | None, history: History, current: int, now: float) -> int:
    if rules is None or not rules.policies:
        return _default_up_limit(current)
    if rules.select_policy == DISABLED:
        return current
    limits = [_up_policy(policy, _period_start(policy, history, current, now)) for policy in rules.policies]
    return min(limits) if rules.select_policy == MIN else max(limits)


def _up_policy(policy: ScalingPolicy, start: int) -> int:
    if policy.type == "Pods":
        return start + policy.value
    return -(-start * (100 + policy.value) // 100)


def _down_limit(rules: ScalingRules | None, history: History, current: int, now: float) -> int:
    if rules is None or not rules.policies:
        return 0
    if rules.select_policy == DISABLED:
        return current
    limits = [_down_policy(policy, _period_start(policy, history, current, now)) for policy in rules.policies]
    # The policy that allows the smallest change leaves the most replicas.
    return max(limits) if rules.select_policy == MIN else min(limits)


def _down_policy(policy: ScalingPolicy, start: int) -> int:
    if policy.type == "Pods":
        return start - policy.value
    return start * (100 - policy.value) // 100


def _period_start(policy: ScalingPolicy, history: History, current: int, now: float) -> int:
    """How many replicas there were when the period began."""
    added = sum(each.change for each in _within(history.ups, now, policy.period_seconds))
    removed = sum(each.change for each in _within(history.downs, now, policy.period_seconds))
    return current - added + removed


def _within(entries: Iterable[T], now: float, seconds: float) -> Iterable[T]:
    return (each for each in entries if each.at > now - seconds)


def _recent(events: Iterable[ScaleEvent], now: float) -> Iterable[ScaleEvent]:
    return _within(events, now, _LONGEST_PERIOD)
