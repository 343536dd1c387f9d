"""What one compilation knows: the names in scope and their slots, the functions, and the faults found so far.

A compiled expression is a closure over closures. They all get one list, the environment: slot 0 holds the work still
allowed, then come the variables, then one slot for each nested comprehension variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from coterie.kube.api.cel import (
    lib_authorization,
    lib_kubernetes,
    lib_lists,
    lib_math,
    lib_net,
    lib_optional,
    lib_semver,
    lib_standard,
    lib_strings,
    lib_time,
)
from coterie.kube.api.cel.errors import CelError, CelIssue, CostExceeded
from coterie.kube.api.cel.functions import index
from coterie.kube.api.cel.types import DYN, TYPE, CelType
from coterie.kube.api.cel.values import KINDS, MAX_COMPARE, TypeValue

Env = list[Any]
Run = Callable[[Env], Any]
Built = tuple[CelType, Run]
"""The static type of a part and the closure that computes it."""

FUNCTIONS: Final = index(
    (
        lib_standard.LIBRARY,
        lib_time.LIBRARY,
        lib_strings.LIBRARY,
        lib_lists.LIBRARY,
        lib_optional.LIBRARY,
        lib_kubernetes.LIBRARY,
        lib_net.LIBRARY,
        lib_math.LIBRARY,
        lib_semver.LIBRARY,
        lib_authorization.LIBRARY,
    )
)
TYPE_NAMES: Final = {name: TypeValue(name) for name in KINDS.values()}
_CONTAINERS: Final = frozenset({dict}) | frozenset(python for python, kind in KINDS.items() if kind == "list")
_SIZED: Final = frozenset({str, bytes, list, dict}) | frozenset(
    python for python, kind in KINDS.items() if kind == "list"
)


def decided(runs: Iterable[Run], env: Env, deciding: bool) -> bool:
    """CEL's logic: the first deciding value wins, also over errors before it; an error counts only when none
    decides."""
    error: CelError | None = None
    for run in runs:
        try:
            value = run(env)
        except CelError as fault:
            error = error or fault
            continue
        if value is deciding:
            return bool(deciding)
        if type(value) is not bool:
            error = error or CelError("no such overload")
    if error is not None:
        raise error
    return not deciding


class MessageType(NamedTuple):
    """A type that an expression may construct."""

    type: CelType
    field: Callable[[str], CelType | None]
    """Name -> type; None: there is no such field."""


Messages = Callable[[str], MessageType | None]


class Scope:
    def __init__(self, variables: dict[str, CelType], messages: Messages | None = None) -> None:
        self.messages = messages
        self.types: dict[int, CelType] | None = None
        """Type of each node of the tree by its id(), where somebody wants to know."""
        self.issues: list[CelIssue] = []
        self.names: dict[str, tuple[int, CelType]] = {}
        self.used: set[str] = set()
        self.size = 0
        """Parts built so far: the price of running a loop's body once is what it added."""
        self._next = 1
        for name, type_ in variables.items():
            self.names[name] = (self._next, type_)
            self._next += 1
        self.slots = self._next

    @contextmanager
    def variable(self, name: str, type_: CelType) -> Iterator[int]:
        before = self.names.get(name)
        slot = self._next
        self._next += 1
        self.slots = max(self.slots, self._next)
        self.names[name] = (slot, type_)
        try:
            yield slot
        finally:
            self._next -= 1
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before

    def fault(self, pos: int, message: str) -> Built:
        self.issues.append(CelIssue(pos, message))
        return DYN, _never

    def lookup(self, name: str) -> Built | None:
        known = self.names.get(name)
        if known is not None:
            self.used.add(name)
            slot, type_ = known
            return type_, lambda env: env[slot]
        constant = TYPE_NAMES.get(name)
        if constant is not None:
            return TYPE, lambda env: constant
        return None


def _never(env: Env) -> Any:
    raise CelError("the expression was not compiled")


def spend(env: Env, cost: int) -> None:
    env[0] -= cost
    if env[0] < 0:
        raise CostExceeded("call cost exceeds limit")


def charge(env: Env, value: Any) -> None:
    """Functions over texts and collections cost what they read."""
    kind = type(value)
    if kind in _SIZED:
        size = len(value)
        if size > 16:
            spend(env, size >> 4 if kind is str or kind is bytes else size)


def charge_all(env: Env, value: Any) -> None:
    """What compares values costs all that is in them: a short list can hold long ones."""
    kind = type(value)
    if kind not in _CONTAINERS:
        charge(env, value)
        return
    size, rest = 0, [value]
    while rest and size <= MAX_COMPARE:
        part = rest.pop()
        size += len(part)
        rest.extend(item for item in (part.values() if type(part) is dict else part) if type(item) in _CONTAINERS)
    if size > 16:
        spend(env, size)
