"""Macros: `has`, the comprehensions with one and two variables, `cel.bind`, `optMap`.

They bind names, so they are built from syntax, not called with values. Every turn of a loop pays for its body: that
is what bounds hostile rules, since only loops can run longer than the expression is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from coterie.kube.api.cel.ast import CallNode, Ident, Node, Select, dotted
from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.lib_lists import ordered
from coterie.kube.api.cel.scope import Built, Env, Run, Scope, decided, spend
from coterie.kube.api.cel.types import BOOL, DYN, INT, CelType, is_dynamic, list_of, map_of, optional_of
from coterie.kube.api.cel.values import NONE, Optional

Build = Callable[[Node, Scope], Built]
_ALIASES: Final = {"existsOne": "exists_one"}
_ARITIES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    # name: (variables, further arguments)
    "all": ((1, 1), (2, 1)),
    "exists": ((1, 1), (2, 1)),
    "exists_one": ((1, 1), (2, 1)),
    "filter": ((1, 1),),
    "map": ((1, 1), (1, 2)),
    "sortBy": ((1, 1),),
    "transformList": ((2, 1), (2, 2)),
    "transformMap": ((2, 1), (2, 2)),
    "transformMapEntry": ((2, 1), (2, 2)),
}


def expand(node: CallNode, scope: Scope, build: Build) -> Built | None:
    """What the macro means, or None when the call is no macro."""
    if node.target is None:
        return _has(node, scope, build) if node.name == "has" and len(node.args) == 1 else None
    if node.name == "bind" and len(node.args) == 3 and dotted(node.target) == "cel":
        return _bind(node, scope, build)
    if node.name in ("optMap", "optFlatMap") and len(node.args) == 2:
        return _opt_map(node, node.target, scope, build)
    name = _ALIASES.get(node.name, node.name)
    for variables, rest in _ARITIES.get(name, ()):
        if len(node.args) == variables + rest:
            return _comprehension(name, node, node.target, variables, scope, build)
    return None


def _has(node: CallNode, scope: Scope, build: Build) -> Built:
    (arg,) = node.args
    if not isinstance(arg, Select):
        return scope.fault(node.pos, "invalid argument to has() macro")
    type_, operand = build(arg.operand, scope)
    inner = type_.params[0] if type_.name == "optional_type" else type_
    key = arg.field
    if inner.fields is not None:
        known = inner.fields.get(arg.field)
        if known is None:
            return scope.fault(arg.pos, f"undefined field '{arg.field}'")
        key = known[0]
    elif inner.name != "map" and not is_dynamic(inner):
        return scope.fault(arg.pos, f"type '{inner}' does not support field selection")

    def test(env: Env) -> bool:
        value = operand(env)
        if type(value) is Optional:
            if not value.has:
                return False
            value = value.value
        if not isinstance(value, dict):
            raise CelError("no such overload")
        return key in value

    return BOOL, test


def _bind(node: CallNode, scope: Scope, build: Build) -> Built:
    name, start, body = node.args
    if not isinstance(name, Ident):
        return scope.fault(node.pos, "cel.bind() variable names must be simple identifiers")
    type_, first = build(start, scope)
    with scope.variable(name.name, type_) as slot:
        result, run = build(body, scope)

    def bind(env: Env) -> Any:
        env[slot] = first(env)
        return run(env)

    return result, bind


def _opt_map(node: CallNode, target: Node, scope: Scope, build: Build) -> Built:
    name, body = node.args
    if not isinstance(name, Ident):
        return scope.fault(node.pos, f"{node.name}() variable name must be a simple identifier")
    type_, operand = build(target, scope)
    with scope.variable(name.name, type_.params[0] if type_.params else DYN) as slot:
        result, run = build(body, scope)
    flat = node.name == "optFlatMap"

    def apply(env: Env) -> Any:
        value = operand(env)
        if type(value) is not Optional:
            raise CelError("no such overload")
        if not value.has:
            return NONE
        env[slot] = value.value
        return run(env) if flat else Optional(True, run(env))

    return (result if flat else optional_of(result)), apply


# -- comprehensions ---------------------------------------------------------------------------------------------------


def _comprehension(name: str, node: CallNode, target: Node, variables: int, scope: Scope, build: Build) -> Built:
    range_type, source = build(target, scope)
    names = node.args[:variables]
    if not all(isinstance(part, Ident) for part in names):
        return scope.fault(node.pos, "argument must be a simple name")
    if range_type.name not in ("list", "map") and not is_dynamic(range_type):
        message = (
            f"expression of type '{range_type}' cannot be range of a comprehension (must be list, map, or dynamic)"
        )
        return scope.fault(node.pos, message)
    first, second = _variable_types(range_type, variables)
    before = scope.size
    words = [part.name for part in names if isinstance(part, Ident)]
    # With one variable the second slot is never read; a name that cannot be written keeps it out of reach.
    with scope.variable(words[0], first) as slot, scope.variable(words[1] if variables == 2 else "", second) as slot2:
        bodies = [build(arg, scope) for arg in node.args[variables:]]
    price = max(scope.size - before, 1)
    turns = _turns(source, slot, slot2 if variables == 2 else 0, price)
    return _FOLDS[name](turns, bodies, range_type, node, scope)


def _variable_types(range_type: CelType, variables: int) -> tuple[CelType, CelType]:
    if is_dynamic(range_type):
        return DYN, DYN
    if range_type.name == "list":
        return (range_type.params[0], DYN) if variables == 1 else (INT, range_type.params[0])
    return range_type.params[0], range_type.params[1]


Turns = Callable[[Env], Iterable[Any]]


def _turns(source: Run, slot: int, slot2: int, price: int) -> Turns:
    """Each turn sets the variables, pays, and yields the key or the element that it is about."""

    def turns(env: Env) -> Iterable[Any]:
        items = source(env)
        if isinstance(items, dict):
            pairs: Iterable[tuple[Any, Any]] = items.items()
        elif isinstance(items, list):
            pairs = enumerate(items) if slot2 else ((item, None) for item in items)
        else:
            raise CelError("no such overload")
        for first, second in pairs:
            spend(env, price)
            env[slot] = first
            if slot2:
                env[slot2] = second
            yield first

    return turns


def _quantified(deciding: bool) -> Callable[..., Built]:
    """`all` stops at the first false, `exists` at the first true; errors count only when nothing decides."""

    def fold(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
        ((type_, test),) = bodies
        if type_ is not BOOL and not is_dynamic(type_):
            return scope.fault(
                node.pos,
                f"found no matching overload for '_{'||' if deciding else '&&'}_' applied to '(bool, {type_})'",
            )

        def run(env: Env) -> bool:
            return decided((test for _ in turns(env)), env, deciding)

        return BOOL, run

    return fold


def _exists_one(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
    test = _tested(bodies[0], node, scope)
    return BOOL, lambda env: sum(1 for _ in turns(env) if test(env)) == 1


def _tested(body: Built, node: CallNode, scope: Scope) -> Run:
    type_, run = body
    if type_ is not BOOL and not is_dynamic(type_):
        scope.fault(node.pos, f"found no matching overload for '_?_:_' applied to '({type_}, dyn, dyn)'")

    def test(env: Env) -> bool:
        value = run(env)
        if value is not True and value is not False:
            raise CelError("no such overload")
        return value is True

    return test


def _always(env: Env) -> bool:
    return True


def _filter(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
    test = _tested(bodies[0], node, scope)
    item = range_type.params[0] if range_type.params else DYN
    return list_of(item), lambda env: [value for value in turns(env) if test(env)]


def _map(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
    """`map`, `transformList`: with three arguments the first body filters."""
    test = _tested(bodies[0], node, scope) if len(bodies) == 2 else _always
    type_, run = bodies[-1]
    return list_of(type_), lambda env: [run(env) for _ in turns(env) if test(env)]


def _sort_by(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
    _, run = bodies[0]
    item = range_type.params[0] if range_type.params else DYN

    def sort(env: Env) -> list[Any]:
        pairs = [(value, run(env)) for value in turns(env)]
        return ordered([value for value, _ in pairs], [key for _, key in pairs])

    return list_of(item), sort


def _transform_map(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
    test = _tested(bodies[0], node, scope) if len(bodies) == 2 else _always
    type_, run = bodies[-1]
    key = INT if range_type.name == "list" else range_type.params[0] if range_type.params else DYN
    return map_of(key, type_), lambda env: {first: run(env) for first in turns(env) if test(env)}


def _transform_entries(turns: Turns, bodies: list[Built], range_type: CelType, node: CallNode, scope: Scope) -> Built:
    test = _tested(bodies[0], node, scope) if len(bodies) == 2 else _always
    type_, run = bodies[-1]

    def make(env: Env) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for _ in turns(env):
            if not test(env):
                continue
            entry = run(env)
            if not isinstance(entry, dict):
                raise CelError("no such overload")
            for key, value in entry.items():
                if key in out:
                    raise CelError(f"insert failed: key {key} already exists")
                out[key] = value
        return out

    return (type_ if type_.name == "map" else DYN), make


_FOLDS: Final[dict[str, Callable[..., Built]]] = {
    "all": _quantified(False),
    "exists": _quantified(True),
    "exists_one": _exists_one,
    "filter": _filter,
    "map": _map,
    "sortBy": _sort_by,
    "transformList": _map,
    "transformMap": _transform_map,
    "transformMapEntry": _transform_entries,
}
