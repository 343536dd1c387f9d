"""Whether a history of one register could have happened one operation after the other (Wing and Gong, with memory)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Operation:
    """`kind`: write (of `value`), swap (from `seen` to `value`), refused (a swap that found another value than `seen`),
    read (`value`). None: there is nothing. `ended` FOREVER: nobody knows whether it took place."""

    kind: str
    value: object
    began: float
    ended: float
    seen: object = None

    def applied(self, state: object) -> tuple[bool, object]:
        """Whether it can happen in this state, and the state then."""
        if self.kind == "write":
            return True, self.value
        if self.kind == "swap":
            return state == self.seen, self.value
        if self.kind == "refused":
            return state != self.seen, state
        return state == self.value, state


def linearizable(history: Sequence[Operation], initial: object = None) -> bool:
    operations = sorted(history, key=lambda each: each.began)
    known = sum(1 << n for n, each in enumerate(operations) if each.ended != FOREVER)
    tried: set[tuple[int, object]] = set()
    stack: list[tuple[int, object]] = [(0, initial)]
    while stack:
        done, state = stack.pop()
        if done & known == known:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        # What may come next began before everything that is left had ended.
        earliest = min(each.ended for n, each in enumerate(operations) if not done >> n & 1)
        for n, each in enumerate(operations):
            if each.began > earliest:
                break
            if not done >> n & 1:
                possible, after = each.applied(state)
                if possible:
                    stack.append((done | 1 << n, after))
    return False
