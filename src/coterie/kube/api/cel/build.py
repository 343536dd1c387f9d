"""The syntax tree to closures, checking types on the way; each function gives (static type, closure).

A fault is noted and compilation goes on with `dyn`, so that one run shows all of them, as cel-go does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coterie.kube.api.cel.ast import (
    CallNode,
    Conditional,
    Ident,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    MessageLiteral,
    Node,
    Select,
    dotted,
)
from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Impl, Overload, dispatcher
from coterie.kube.api.cel.lib_math import VARIADIC, extreme
from coterie.kube.api.cel.lib_standard import compiled
from coterie.kube.api.cel.lib_time import parse_duration, parse_timestamp
from coterie.kube.api.cel.macros import expand
from coterie.kube.api.cel.scope import FUNCTIONS, Built, Env, Run, Scope, charge, charge_all, decided, spend
from coterie.kube.api.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    NUMERIC,
    STRING,
    TIMESTAMP,
    UINT,
    Bindings,
    CelType,
    common,
    fits,
    is_dynamic,
    list_of,
    map_of,
    optional_of,
    resolve,
)
from coterie.kube.api.cel.values import NONE, Optional, UInt

_LITERALS: Final[dict[type, CelType]] = {
    int: INT,
    UInt: UINT,
    float: DOUBLE,
    bool: BOOL,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}
_PARSED: Final[dict[str, Callable[[str], Any]]] = {
    "duration": parse_duration,
    "timestamp": parse_timestamp,
    "matches": compiled,
}
_FIXED: Final = (INT, UINT, DOUBLE, BOOL, TIMESTAMP, DURATION)
"""Types whose values all cost the same to look at."""


def build(node: Node, scope: Scope) -> Built:
    scope.size += 1
    built: Built
    match node:
        case Literal(_, value):
            built = _LITERALS[type(value)], lambda env: value
        case Ident():
            built = scope.lookup(node.name) or scope.fault(
                node.pos, f"undeclared reference to '{node.name}' (in container '')"
            )
        case Select():
            built = _select(node, scope)
        case Index():
            built = _index(node, scope)
        case CallNode():
            built = expand(node, scope, build) or _call(node, scope)
        case Logic():
            built = _logic(node, scope)
        case Conditional():
            built = _conditional(node, scope)
        case ListLiteral():
            built = _list(node, scope)
        case MapLiteral():
            built = _map(node, scope)
        case MessageLiteral():
            built = _message(node, scope)
    if scope.types is not None:
        scope.types[id(node)] = built[0]
    return built


def _no_overload(name: str, args: list[CelType]) -> str:
    return f"found no matching overload for '{name}' applied to '({', '.join(map(str, args))})'"


# -- fields and elements ----------------------------------------------------------------------------------------------


def _select(node: Select, scope: Scope) -> Built:
    name = dotted(node)
    if name and (name in scope.names or name.partition(".")[0] not in scope.names):
        constant = scope.lookup(name)
        if constant is not None:
            return constant
    type_, operand = build(node.operand, scope)
    key, found = field_of(type_, node, scope)
    if node.optional or type_.name == "optional_type":
        inner = found if found.name != "optional_type" else found.params[0]
        return optional_of(inner), lambda env: _optional_get(operand(env), key)

    def get(env: Env) -> Any:
        value = operand(env)
        try:
            return value[key]
        except KeyError as fault:
            raise CelError(f"no such key: {key}") from fault
        except TypeError as fault:
            raise CelError("no such overload") from fault

    return found, get


def field_of(type_: CelType, node: Select, scope: Scope) -> tuple[str, CelType]:
    """The key in the data and the type of a field; notes a fault where there is none."""
    if type_.name == "optional_type":
        type_ = type_.params[0]
    if type_.fields is not None:
        known = type_.fields.get(node.field)
        if known is None:
            scope.fault(node.pos, f"undefined field '{node.field}'")
            return node.field, DYN
        return known
    if type_.name == "map":
        return node.field, type_.params[1]
    if not is_dynamic(type_):
        scope.fault(node.pos, f"type '{type_}' does not support field selection")
    return node.field, DYN


def _optional_get(value: Any, key: Any) -> Optional:
    if type(value) is Optional:
        if not value.has:
            return NONE
        value = value.value
    if isinstance(value, dict):
        return Optional(True, value[key]) if key in value else NONE
    if isinstance(value, list) and type(key) in (int, UInt):
        return Optional(True, value[key]) if 0 <= key < len(value) else NONE
    raise CelError("no such overload")


def _index(node: Index, scope: Scope) -> Built:
    type_, operand = build(node.operand, scope)
    index_type, index = build(node.index, scope)
    inner = type_.params[0] if type_.name == "optional_type" else type_
    found = DYN
    if inner.name == "list" and (is_dynamic(index_type) or index_type in (INT, UINT, DOUBLE)):
        found = inner.params[0]
    elif inner.name == "map" and fits(inner.params[0], index_type, {}):
        found = inner.params[1]
    elif not is_dynamic(inner):
        return scope.fault(node.pos, _no_overload("_[_]", [type_, index_type]))
    if node.optional or type_.name == "optional_type":
        return optional_of(found), lambda env: _optional_get(operand(env), index(env))
    return found, lambda env: _element(operand(env), index(env))


def _element(container: Any, key: Any) -> Any:
    if type(container) is dict:
        try:
            return container[key]
        except KeyError as fault:
            raise CelError(f"no such key: {key}") from fault
        except TypeError as fault:
            raise CelError("no such overload") from fault
    if not isinstance(container, list) or type(key) not in (int, UInt, float):
        raise CelError("no such overload")
    if type(key) is float and not key.is_integer():
        raise CelError(f"unsupported index value: {key}")
    if not 0 <= key < len(container):
        raise CelError(f"index out of bounds: {int(key)}")
    return container[int(key)]


# -- calls ------------------------------------------------------------------------------------------------------------


def _call(node: CallNode, scope: Scope) -> Built:
    name, args, member = node.name, list(node.args), False
    if node.target is not None:
        qualified = dotted(node.target)
        full = f"{qualified}.{name}"
        free = qualified and qualified.partition(".")[0] not in scope.names
        if free and full in VARIADIC:
            return _extreme(node, full, scope)
        if free and (full, False) in FUNCTIONS:
            name = full
        else:
            member, args = True, [node.target, *args]
    built = [build(arg, scope) for arg in args]
    overloads = FUNCTIONS.get((name, member), [])
    if not overloads:
        return scope.fault(node.pos, f"undeclared reference to '{name}' (in container '')")
    types = [type_ for type_, _ in built]
    matching: list[tuple[Overload, Bindings]] = []
    for overload in overloads:
        bound: Bindings = {}
        if len(overload.params) == len(types) and all(
            fits(param, type_, bound) for param, type_ in zip(overload.params, types, strict=True)
        ):
            matching.append((overload, bound))
    if not matching:
        shown = f"{types[0]}.({', '.join(map(str, types[1:]))})" if member else f"({', '.join(map(str, types))})"
        return scope.fault(node.pos, f"found no matching overload for '{name}' applied to '{shown}'")
    results = {resolve(overload.result, bound) for overload, bound in matching}
    result = resolve(*_first(matching)) if len(results) == 1 else DYN
    certain = len(matching) == 1 and not any(map(_uncertain, types, matching[0][0].params))
    impl = matching[0][0].impl if certain else dispatcher([overload for overload, _ in matching])
    if args:
        _check_literal(name, args[-1], scope)
    price = max(overload.cost for overload, _ in matching)
    deep = any(overload.deep for overload, _ in matching)
    run = _applied(impl, types, [run for _, run in built], price, charge_all if deep else charge)
    return result, _charged(run) if any(overload.grows for overload, _ in matching) else run


def _charged(run: Run) -> Run:
    def call(env: Env) -> Any:
        value = run(env)
        charge(env, value)
        return value

    return call


def _check_literal(name: str, arg: Node, scope: Scope) -> None:
    """Literals that can never be right are refused when the expression is compiled."""
    parse = _PARSED.get(name)
    if parse is None or not isinstance(arg, Literal) or type(arg.value) is not str:
        return
    try:
        parse(arg.value)
    except CelError:
        scope.fault(arg.pos, f"invalid {name} argument")


def _extreme(node: CallNode, name: str, scope: Scope) -> Built:
    """`math.greatest(1, 2u, 3.0)`, `math.greatest([1, 2])`."""
    built = [build(arg, scope) for arg in node.args]
    types = [type_ for type_, _ in built]
    listed = len(types) == 1 and types[0].name == "list"
    numbers = [types[0].params[0]] if listed else types
    if not types or not all(is_dynamic(type_) or type_ in NUMERIC for type_ in numbers):
        return scope.fault(node.pos, f"{name}() invalid argument: {', '.join(map(str, types)) or 'none'}")
    runs = [run for _, run in built]

    def choose(env: Env) -> Any:
        values = [run(env) for run in runs]
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
            charge(env, values)
        return extreme(name, values)

    return common(numbers), choose


def _first(matching: list[tuple[Overload, Bindings]]) -> tuple[CelType, Bindings]:
    overload, bound = matching[0]
    return overload.result, bound


def _uncertain(given: CelType, param: CelType) -> bool:
    """The value may turn out to be of another type than the function takes."""
    return is_dynamic(given) and not param.is_var and param is not DYN


def _applied(impl: Impl, types: list[CelType], runs: list[Run], price: int, pay: Callable[[Env, Any], None]) -> Run:
    if price:

        def priced(env: Env) -> Any:
            spend(env, price)
            return impl(*[run(env) for run in runs])

        return priced
    if all(type_ in _FIXED for type_ in types):
        if len(runs) == 1:
            (only,) = runs
            return lambda env: impl(only(env))
        if len(runs) == 2:
            left, right = runs
            return lambda env: impl(left(env), right(env))

    def call(env: Env) -> Any:
        args = [run(env) for run in runs]
        for arg in args:
            pay(env, arg)
        return impl(*args)

    return call


# -- conditions -------------------------------------------------------------------------------------------------------


def _logic(node: Logic, scope: Scope) -> Built:
    built = [build(term, scope) for term in node.terms]
    types = [type_ for type_, _ in built]
    if not all(type_ is BOOL or is_dynamic(type_) for type_ in types):
        return scope.fault(node.pos, _no_overload("_&&_" if node.is_and else "_||_", types[:2]))
    runs = tuple(run for _, run in built)
    deciding = not node.is_and

    def decide(env: Env) -> bool:
        return decided(runs, env, deciding)

    return BOOL, decide


def _conditional(node: Conditional, scope: Scope) -> Built:
    test_type, test = build(node.test, scope)
    then_type, then = build(node.then, scope)
    else_type, otherwise = build(node.otherwise, scope)
    types = [test_type, then_type, else_type]
    same = fits(then_type, else_type, {}) or fits(else_type, then_type, {}) or NULL in (then_type, else_type)
    if not (test_type is BOOL or is_dynamic(test_type)) or not same:
        return scope.fault(node.pos, _no_overload("_?_:_", types))

    def choose(env: Env) -> Any:
        value = test(env)
        if value is True:
            return then(env)
        if value is False:
            return otherwise(env)
        raise CelError("no such overload")

    return common((then_type, else_type)), choose


# -- literals ---------------------------------------------------------------------------------------------------------


def _list(node: ListLiteral, scope: Scope) -> Built:
    parts = [(*build(item, scope), optional) for item, optional in node.items]
    type_ = list_of(common(_inside(given, optional) for given, _, optional in parts))
    if not any(optional for _, _, optional in parts):
        runs = [run for _, run, _ in parts]
        return type_, lambda env: [run(env) for run in runs]

    def make(env: Env) -> list[Any]:
        out: list[Any] = []
        for _, run, optional in parts:
            value = run(env)
            if not optional:
                out.append(value)
            elif _taken(value):
                out.append(value.value)
        return out

    return type_, make


def _map(node: MapLiteral, scope: Scope) -> Built:
    parts = [(build(key, scope), build(value, scope), optional) for key, value, optional in node.entries]
    type_ = map_of(
        common(key for (key, _), _, _ in parts),
        common(_inside(given, optional) for _, (given, _), optional in parts),
    )

    def make(env: Env) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for (_, key_run), (_, value_run), optional in parts:
            key, value = key_run(env), value_run(env)
            if type(key) not in (str, int, UInt, bool):
                raise CelError("unsupported key type")
            if key in out:
                raise CelError(f"Failed with repeated key: {key}")
            if not optional:
                out[key] = value
            elif _taken(value):
                out[key] = value.value
        return out

    return type_, make


def _message(node: MessageLiteral, scope: Scope) -> Built:
    """`Object.spec{replicas: 3}`, `JSONPatch{op: "add", ...}`: only where the variables come with message types."""
    message = scope.messages(node.name) if scope.messages is not None else None
    if message is None:
        return scope.fault(node.pos, f"undeclared reference to '{node.name}' (in container '')")
    parts: list[tuple[str, Run, bool]] = []
    for name, value, optional in node.fields:
        type_, run = build(value, scope)
        given = _inside(type_, optional)
        wanted = message.field(name)
        if wanted is None:
            scope.fault(node.pos, f"undefined field '{name}'")
        elif wanted.name.startswith("Object."):
            # Objects without a schema: only what is constructed here can be checked, by its name.
            made = given.params[0] if given.name == "list" else given
            if made.name.startswith("Object") and made.name != wanted.name:
                scope.fault(node.pos, f"unexpected type name '{made.name}', expected '{wanted.name}'")
        elif not fits(wanted, given, {}):
            scope.fault(node.pos, f"expected type of field '{name}' is '{wanted}' but provided type is '{given}'")
        parts.append((name, run, optional))

    def make(env: Env) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, run, optional in parts:
            value = run(env)
            if not optional:
                out[name] = value
            elif _taken(value):
                out[name] = value.value
        return out

    return message.type, make


def _inside(type_: CelType, optional: bool) -> CelType:
    return type_.params[0] if optional and type_.name == "optional_type" else type_


def _taken(value: Any) -> bool:
    if type(value) is not Optional:
        raise CelError("no such overload")
    return bool(value.has)
