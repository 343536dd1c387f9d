"""What the last snapshot was made from is remembered, and no more: of a thousand services one changes at a time.

    @remembered
    def service_for_own(place, service): ...

    snapshot(inputs)      asks for each part again, then `forget_unused()`

A cache of a fixed size would either keep every service that ever was, or be useless for a domain with more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_NOTHING = object()
_MEMORIES: list[tuple[dict[Hashable, object], dict[Hashable, object]]] = []
"""Of each function: what this round asked for, and what the one before did."""


def remembered(make: Callable[P, T]) -> Callable[P, T]:
    """For pure functions of positional, hashable arguments. Nobody may change what is handed out."""
    now: dict[Hashable, object] = {}
    before: dict[Hashable, object] = {}
    _MEMORIES.append((now, before))

    @wraps(make)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs, "positional arguments only"
        # Gateways of one process may ask from several threads: each look-up is one step.
        made = now.get(args, before.get(args, _NOTHING))
        if made is _NOTHING:
            made = make(*args, **kwargs)
        now[args] = made
        return cast(T, made)

    return asked


def forget_unused() -> None:
    """A round has ended: what it did not ask for is forgotten, except for what the round before it has in hand."""
    for now, before in _MEMORIES:
        before.clear()
        before.update(now)
        now.clear()
