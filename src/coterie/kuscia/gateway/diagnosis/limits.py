"""What a partner may use of the diagnostic endpoint. No I/O.

A partner is known by the name that the gateway has verified. Each has its own budget, and all together have one, so that a
partner can neither wear us out nor keep the others from measuring.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from coterie.base.clock import Clock
from coterie.base.rate_limited_log import RateLimit, TokenBucket

_PARTNERS = 1_000
_NUMBERS = 8
_NUMBER_SECONDS = 300.0
_CALLS, _BYTES, _PROBES = RateLimit(200, 2), RateLimit(256 << 20, 1 << 20), RateLimit(30, 1 / 30)


@dataclass(frozen=True, slots=True)
class DiagnosticLimits:
    body_bytes: int = 64 << 20
    """Of one request. Bodies are counted and dropped, never kept."""
    response_bytes: int = 64 << 20
    stream_seconds: float = 30.0
    """For a body in either direction."""
    hold_seconds: float = 600.0
    """How long an answer may be held back. It costs a connection to our own gateway and nothing else."""
    calls: RateLimit = _CALLS
    bytes: RateLimit = _BYTES
    """Both directions together."""
    at_once: int = 8
    total_at_once: int = 64
    probes: RateLimit = _PROBES
    """Measurements of links that we make because a partner asks."""
    probes_at_once: int = 1
    total_probes_at_once: int = 2


class ByteBudget:
    def __init__(self, rate: RateLimit, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._left = rate.burst
        self._filled = clock.monotonic()

    def left(self) -> int:
        now = self._clock.monotonic()
        self._left = min(self._rate.burst, self._left + (now - self._filled) * self._rate.per_second)
        self._filled = now
        return max(0, int(self._left))

    def spend(self, amount: int) -> None:
        self._left -= amount


class PartnerBudget:
    """Of one partner."""

    def __init__(self, limits: DiagnosticLimits, clock: Clock) -> None:
        self.calls = TokenBucket(limits.calls, clock)
        self.probes = TokenBucket(limits.probes, clock)
        self.bytes = ByteBudget(limits.bytes, clock)
        self.open = 0
        self.probing = 0

    @property
    def in_use(self) -> bool:
        return self.open > 0 or self.probing > 0


class DiagnosticBudgets:
    def __init__(self, clock: Clock, limits: DiagnosticLimits | None = None) -> None:
        self.limits = limits or DiagnosticLimits()
        self._clock = clock
        self._partners: OrderedDict[str, PartnerBudget] = OrderedDict()
        self._open = 0
        self._probing = 0

    def begin_call(self, partner: str) -> PartnerBudget | None:
        """None: refused. What is given must be handed to `end_call`."""
        budget = self._of(partner)
        limits = self.limits
        if budget.open >= limits.at_once or self._open >= limits.total_at_once or not budget.calls.take():
            return None
        budget.open += 1
        self._open += 1
        return budget

    def end_call(self, budget: PartnerBudget) -> None:
        budget.open -= 1
        self._open -= 1

    def begin_probe(self, budget: PartnerBudget) -> bool:
        limits = self.limits
        if budget.probing >= limits.probes_at_once or self._probing >= limits.total_probes_at_once:
            return False
        if not budget.probes.take():
            return False
        budget.probing += 1
        self._probing += 1
        return True

    def end_probe(self, budget: PartnerBudget) -> None:
        budget.probing -= 1
        self._probing -= 1

    def _of(self, partner: str) -> PartnerBudget:
        found = self._partners.get(partner)
        if found is None:
            found = self._partners[partner] = PartnerBudget(self.limits, self._clock)
        self._partners.move_to_end(partner)
        if len(self._partners) > _PARTNERS:
            oldest = next((name for name, each in self._partners.items() if not each.in_use), None)
            if oldest is not None:
                del self._partners[oldest]
        return found


class Announcements:
    """Numbers under which partners examine links between each other, for some minutes; a few for each partner."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()

    def add(self, number: str, partner: str) -> None:
        numbers = self._seen.setdefault(partner, OrderedDict())
        self._seen.move_to_end(partner)
        numbers.pop(number, None)
        numbers[number] = self._clock.monotonic()
        if len(numbers) > _NUMBERS:
            numbers.popitem(last=False)
        if len(self._seen) > _PARTNERS:
            self._seen.popitem(last=False)

    def knows(self, number: str) -> bool:
        since = self._clock.monotonic() - _NUMBER_SECONDS
        return any(numbers.get(number, float("-inf")) >= since for numbers in self._seen.values())
