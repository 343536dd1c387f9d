"""How long to wait before the next attempt: exponential, bounded, with jitter.

`delay(policy, attempt, random)` is the pure rule; `Backoff` counts the attempts of one thing and forgets them after it
has gone well for a while. Handing in a seeded `Random` makes the delays repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Policy:
    """The n-th wait (from 0) is `first * factor**n`, at most `limit`, moved by up to `jitter` of itself."""

    first: float = 0.1
    factor: float = 2.0
    limit: float = 30.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.first < 0 or self.limit < self.first or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise ValueError(f"not a back-off policy: {self}")


DEFAULT_POLICY = Policy()
_shared_random = Random()


def base_delay(policy: Policy, attempt: int) -> float:
    """The wait before jitter. Never overflows, however many attempts there were."""
    if attempt <= 0 or policy.first == 0:
        return policy.first
    try:
        return min(policy.limit, policy.first * policy.factor**attempt)
    except OverflowError:
        return policy.limit


def delay(policy: Policy, attempt: int, random: Random | None = None) -> float:
    """The wait after `attempt` earlier failures, spread evenly over base * (1 - jitter) .. base * (1 + jitter)."""
    base = base_delay(policy, attempt)
    if not policy.jitter:
        return base
    spread = (random or _shared_random).uniform(-policy.jitter, policy.jitter)
    return min(policy.limit, base * (1 + spread))


class Backoff:
    """The attempts of one thing. `failed()` says how long to wait; `succeeded()` starts anew."""

    __slots__ = ("_random", "attempts", "policy")

    def __init__(self, policy: Policy = DEFAULT_POLICY, random: Random | None = None) -> None:
        self.policy = policy
        self.attempts = 0
        self._random = random

    def failed(self) -> float:
        wait = delay(self.policy, self.attempts, self._random)
        self.attempts += 1
        return wait

    def succeeded(self) -> None:
        self.attempts = 0
