"""The most an expression can cost, estimated from its tree, its types and the limits of its schema.

The numbers are those of cel-go and of Kubernetes' libraries, so that a definition is refused here exactly when it is
refused there: a tenth of a unit for each character that is read, one for a selection, ten for a list that is made. What
has no limit in the schema is taken to fill a whole request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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
from coterie.kube.api.cel.errors import CompileError
from coterie.kube.api.cel.parser import parse
from coterie.kube.api.cel.program import compile_tree
from coterie.kube.api.cel.scope import FUNCTIONS, Scope
from coterie.kube.api.cel.types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, UINT, CelType
from coterie.kube.api.schema.node import MISSING, Schema

MOST: Final = 2**64 - 1
"""No estimate is higher: what has no limit costs this."""
REQUEST_BYTES: Final = 3 * 1024 * 1024
_READ: Final = 0.1
"""Cost of one character."""
_PATTERN: Final = 0.25
"""Cost of one character of a regular expression."""
_LIST, _MAP, _MESSAGE = 10, 30, 40
_SCALARS: Final = (BOOL, DOUBLE, DURATION, INT, TIMESTAMP, UINT)
_TEXTS: Final = (STRING, BYTES)
_STRING_SIZES: Final = {"byte": 2, "duration": 3, "date": 12, "date-time": 21}


class Size(NamedTuple):
    least: int
    most: int

    def plus(self, other: Size) -> Size:
        return Size(_capped(self.least + other.least), _capped(self.most + other.most))

    def times(self, other: Size) -> Size:
        return Size(_capped(self.least * other.least), _capped(self.most * other.most))

    def union(self, other: Size) -> Size:
        return Size(min(self.least, other.least), max(self.most, other.most))

    def read(self, factor: float = _READ) -> int:
        """Cost of going through it once."""
        return _scaled(self.most, factor)


UNKNOWN: Final = Size(0, MOST)
_ONE: Final = Size(1, 1)


def _capped(value: int) -> int:
    return min(value, MOST)


def _scaled(value: int, factor: float) -> int:
    return MOST if value >= MOST * factor > MOST or value == MOST else _capped(math.ceil(value * factor))


# -- what a schema says -----------------------------------------------------------------------------------------------


def least_bytes(schema: Schema) -> int:
    """The shortest JSON of a value."""
    if schema.int_or_string:
        return 1
    match schema.type:
        case "object":
            size = 2
            if schema.additional is None:
                for name in schema.required:
                    child = schema.properties.get(name)
                    if child is not None and child.default is MISSING and (child.type or child.int_or_string):
                        size += len(name) + least_bytes(child) + 4
            return size
        case "array":
            return 2
        case "string":
            return _STRING_SIZES.get(schema.format, 2)
        case "boolean":
            return 4
    return 1


def most_elements(schema: Schema) -> int:
    """How long a text, list or map can be; other values have no length."""
    if schema.int_or_string:
        return REQUEST_BYTES - 2 if schema.max_length is None else schema.max_length * 4
    match schema.type:
        case "array":
            if schema.max_items is not None:
                return schema.max_items
            return (REQUEST_BYTES - 2) // (least_bytes(schema.items or Schema()) + 1)
        case "object" if schema.additional is not None:
            if schema.max_properties is not None:
                return schema.max_properties
            return (REQUEST_BYTES - 2) // (least_bytes(schema.additional) + 6)
        case "string":
            return _longest_text(schema)
    return 0


def _longest_text(schema: Schema) -> int:
    if schema.format in ("duration", "date-time"):
        return 32
    if schema.format == "date":
        return 12
    if schema.max_length is not None:
        # Counted in characters, which can be four bytes long.
        return schema.max_length if schema.format == "byte" else schema.max_length * 4
    if schema.enum and schema.format != "byte":
        return max((len(value.encode()) for value in schema.enum if isinstance(value, str)), default=0)
    return REQUEST_BYTES - 2


# -- the walk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Estimate:
    cost: int
    size: Size | None = None
    schema: Schema | None = None
    """Where the value comes from, if straight from the data."""
    key: Size | None = None
    item: Size | None = None
    """Sizes of the keys and elements of a list or map that the expression makes."""

    @property
    def extent(self) -> Size:
        return self.size or UNKNOWN


_KEY: Final = Schema(type="string", max_length=0)
"""Keys of maps: Kubernetes takes them for short."""


def estimate(source: str, variables: dict[str, CelType], schemas: dict[str, Schema]) -> int:
    """The highest cost of an expression that compiles; `schemas` tells what the variables hold."""
    tree = parse(source)
    scope = Scope(variables)
    scope.types = {}
    compile_tree(tree, source, scope)
    walk = _Walk(scope.types, schemas)
    try:
        return walk.node(tree).cost
    except RecursionError as fault:
        raise CompileError(source, []) from fault


class _Walk:
    def __init__(self, types: dict[int, CelType], schemas: dict[str, Schema]) -> None:
        self._types = types
        self._names: dict[str, _Estimate] = {name: _Estimate(1, None, schema) for name, schema in schemas.items()}

    def _type(self, node: Node) -> CelType:
        return self._types.get(id(node), DYN)

    def _sized(self, node: Node, made: _Estimate) -> _Estimate:
        """With the size that the schema or the type tells, where the expression does not."""
        if made.size is not None:
            return made
        type_ = self._type(node)
        size = None
        if made.schema is not None:
            size = Size(0, most_elements(made.schema))
        elif (type_.params[0] if type_.name == "optional_type" else type_) in _SCALARS:
            size = _ONE
        return _Estimate(made.cost, size, made.schema, made.key, made.item)

    def node(self, node: Node) -> _Estimate:
        match node:
            case Literal(_, value):
                return _Estimate(0, Size(*[len(value)] * 2) if isinstance(value, str | bytes) else _ONE)
            case Ident():
                return self._sized(node, self._names.get(node.name, _Estimate(1)))
            case Select():
                return self._sized(node, self._select(node))
            case Index():
                return self._sized(node, self._index(node))
            case CallNode():
                return self._sized(node, self._macro(node) or self._call(node))
            case Logic():
                return _Estimate(_capped(sum(self.node(term).cost for term in node.terms)), _ONE)
            case Conditional():
                return self._conditional(node)
            case ListLiteral():
                items = [self.node(item) for item, _ in node.items]
                item = _spanned(items)
                return _Estimate(_total(items, _LIST), Size(*[len(items)] * 2), key=_ONE, item=item)
            case MapLiteral():
                keys = [self.node(key) for key, _, _ in node.entries]
                values = [self.node(value) for _, value, _ in node.entries]
                size = Size(*[len(keys)] * 2)
                return _Estimate(_total([*keys, *values], _MAP), size, key=_spanned(keys), item=_spanned(values))
            case MessageLiteral():
                return _Estimate(_total([self.node(value) for _, value, _ in node.fields], _MESSAGE))

    def _select(self, node: Select) -> _Estimate:
        operand = self.node(node.operand)
        type_ = self._type(node.operand)
        counted = node.optional or type_.fields is not None or type_.name == "map"
        return _Estimate(_capped(operand.cost + counted), None, _below(operand.schema, type_, node.field))

    def _index(self, node: Index) -> _Estimate:
        operand, index = self.node(node.operand), self.node(node.index)
        schema = operand.schema and (operand.schema.items or operand.schema.additional)
        return _Estimate(_capped(1 + operand.cost + index.cost), operand.item, schema)

    def _conditional(self, node: Conditional) -> _Estimate:
        test, then, otherwise = self.node(node.test), self.node(node.then), self.node(node.otherwise)
        cost = _capped(test.cost + max(then.cost, otherwise.cost))
        item = then.item.union(otherwise.item) if then.item and otherwise.item else None
        return _Estimate(cost, then.extent.union(otherwise.extent), key=then.key, item=item)

    # -- macros -------------------------------------------------------------------------------------------------

    def _macro(self, node: CallNode) -> _Estimate | None:
        if node.target is None:
            if node.name == "has" and len(node.args) == 1 and isinstance(node.args[0], Select):
                return _Estimate(self.node(node.args[0].operand).cost, _ONE)
            return None
        if node.name == "bind" and len(node.args) == 3 and dotted(node.target) == "cel":
            first = self.node(node.args[1])
            inner = self._within({_name(node.args[0]): first}, node.args[2])
            return _Estimate(_capped(_LIST + first.cost + inner.cost), inner.size, None, inner.key, inner.item)
        if node.name in ("optMap", "optFlatMap") and len(node.args) == 2:
            target = self.node(node.target)
            inner = self._within({_name(node.args[0]): target}, node.args[1])
            return _Estimate(_capped(_LIST + target.cost + inner.cost + 3), inner.size)
        loop = _LOOPS.get(node.name)
        if loop is None or not (1 < len(node.args) <= 4) or (node.name, True) in FUNCTIONS:
            return None
        variables = 2 if node.name.startswith("transform") or (len(node.args) == 3 and node.name != "map") else 1
        return self._comprehension(node, node.target, variables, loop)

    def _within(self, names: dict[str, _Estimate], body: Node) -> _Estimate:
        before = dict(self._names)
        for name, bound in names.items():
            self._names[name] = _Estimate(1, bound.size, bound.schema, bound.key, bound.item)
        try:
            return self.node(body)
        finally:
            self._names = before

    def _comprehension(self, node: CallNode, target: Node, variables: int, loop: _Loop) -> _Estimate:
        source = self.node(target)
        is_list = self._type(target).name == "list"
        schema = source.schema
        value = _Estimate(1, source.item, schema and (schema.items or schema.additional))
        key = _Estimate(1, source.key, _KEY if schema is not None and not is_list else None)
        if variables == 2:
            names = {_name(node.args[0]): _Estimate(1, _ONE) if is_list else key, _name(node.args[1]): value}
        else:
            names = {_name(node.args[0]): value if is_list else key}
        bodies = [self._within(names, body) for body in node.args[variables:]]
        step = loop.each(bodies)
        cost = source.cost + loop.once + source.extent.most * step
        if not loop.makes:
            return _Estimate(_capped(cost), _ONE)
        result = bodies[-1].extent if node.name not in ("filter", "sortBy") else self._sized(target, value).extent
        return _Estimate(_capped(cost), source.extent, key=_ONE, item=Size(0, result.most))

    # -- calls --------------------------------------------------------------------------------------------------

    def _call(self, node: CallNode) -> _Estimate:
        name, target = node.name, node.target
        if target is not None:
            qualified = f"{dotted(target)}.{name}"
            if (qualified, False) in FUNCTIONS or qualified in ("math.greatest", "math.least"):
                name, target = qualified, None
        args = [self.node(arg) for arg in node.args]
        base = sum(arg.cost for arg in args)
        on: _Estimate | None = None
        if target is not None:
            on = self.node(target)
            base += on.cost
        types = [self._type(arg) for arg in node.args]
        price, size, item = self._price(node, name, on, target, args, types)
        result = _Estimate(_capped(base + price), size, item=item)
        if name == "dyn":
            result = _Estimate(_capped(base + 1), args[0].size, key=args[0].key, item=args[0].item)
        return result

    def _price(
        self,
        node: CallNode,
        name: str,
        on: _Estimate | None,
        target: Node | None,
        args: list[_Estimate],
        types: list[CelType],
    ) -> tuple[int, Size | None, Size | None]:
        """Cost of the call itself, and the sizes of what it gives and of its elements."""
        sizes = [arg.extent for arg in args]
        if on is not None and target is not None:
            return self._method_price(node, name, on, target, sizes)
        if name in ("_==_", "_!=_"):
            return _scaled(min(sizes[0].most, sizes[1].most), _READ), _ONE, None
        if name in ("_<_", "_<=_", "_>_", "_>=_") and any(type_ in _TEXTS or type_ is DYN for type_ in types):
            return _scaled(min(sizes[0].most, sizes[1].most), _READ), _ONE, None
        if name == "_+_":
            return _sum_price(args, types)
        if name == "@in" and types[1].name != "map":
            return sizes[1].most, _ONE, None
        if name in ("string", "bytes") and len(types) == 1 and types[0] in _TEXTS and types[0].name != name:
            most = Size(sizes[0].least, _capped(sizes[0].most * 4)) if name == "bytes" else sizes[0]
            return sizes[0].read(), most, None
        if name in ("url", "strings.quote"):
            size = Size(_capped(sizes[0].least + 2), _capped(sizes[0].most * 2 + 2)) if name != "url" else None
            return sizes[0].read(), size, None
        if name.startswith("sets.") and len(sizes) == 2:
            pairs = sizes[0].times(sizes[1]).most
            return _capped(1 + pairs * (2 if name == "sets.equivalent" else 1)), _ONE, None
        return 1, None, None

    def _method_price(
        self, node: CallNode, name: str, on: _Estimate, target: Node, sizes: list[Size]
    ) -> tuple[int, Size | None, Size | None]:
        size = on.extent
        if name in ("startsWith", "endsWith") and sizes:
            return sizes[0].read(), _ONE, None
        if name == "matches" and sizes:
            return _capped(size.plus(_ONE).read() * sizes[0].read(_PATTERN)), _ONE, None
        if name in ("find", "findAll") and sizes:
            return _capped(size.plus(_ONE).read() * sizes[0].read(_PATTERN)), Size(0, size.most), Size(0, size.most)
        if name == "contains" and sizes:
            return _capped(size.read() * sizes[0].read()), _ONE, None
        if name in ("lowerAscii", "upperAscii", "substring", "trim"):
            return size.read(), size, None
        if name == "format":
            return size.read(), None, None
        if name == "replace" and len(sizes) >= 2:
            return size.read(2 * _READ), _replaced(size, sizes[0], sizes[1]), None
        if name == "split":
            most = size.most
            if len(node.args) > 1 and isinstance(node.args[1], Literal) and type(node.args[1].value) is int:
                most = max(node.args[1].value, 0)
            return size.read(2 * _READ), Size(0, most), None
        if name == "join":
            return self._join_price(on, target, sizes)
        if name in ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"):
            type_ = self._type(target)
            if not type_.params:
                return size.read(), None, None
            each = 1 + (self._element(on, type_).read() if type_.params[0] in _TEXTS else 0)
            return _capped(size.most * each), None, None
        if name in ("distinct", "slice", "reverse", "sort", "flatten") and self._type(target).name == "list":
            return size.most, None if name == "flatten" else size, on.item
        if name in ("containsIP", "containsCIDR"):
            parse_cost = sizes[0].read() if sizes and self._type(node.args[0]) is STRING else 0
            return (4 if name == "containsIP" else 7) + parse_cost, _ONE, None
        if name == "validate":
            return (
                _capped(max(size.most, 1) * (sizes[0].read() if sizes else 1)) if size.most != MOST else 1,
                None,
                None,
            )
        return 1, None, None

    def _element(self, on: _Estimate, type_: CelType) -> Size:
        if on.schema is not None and on.schema.items is not None:
            return Size(0, most_elements(on.schema.items))
        return on.item or UNKNOWN

    def _join_price(self, on: _Estimate, target: Node, sizes: list[Size]) -> tuple[int, Size | None, Size | None]:
        listed = on.extent
        size = listed.times(self._element(on, self._type(target)))
        if sizes:
            size = size.plus(sizes[0].times(Size(max(listed.least - 1, 0), max(listed.most - 1, 0))))
        return size.read(), size, None


def _sum_price(args: list[_Estimate], types: list[CelType]) -> tuple[int, Size | None, Size | None]:
    left, right = args
    size = left.extent.plus(right.extent)
    if any(type_.name == "list" for type_ in types):
        item = left.item.union(right.item) if left.item and right.item else None
        return 1, size, item
    if any(type_ in _TEXTS or type_ is DYN for type_ in types) and not any(type_ in _SCALARS for type_ in types):
        return size.read(), size, None
    return 1, None, None


def _replaced(size: Size, old: Size, new: Size) -> Size:
    """The size of a text after `replace`: the worst mix of short parts that become long ones, and the other way."""
    if old.least == 0:
        most, kept_most = _capped(size.most + 1), size.most
    elif new.most <= old.least:
        most, kept_most = 0, size.most
    else:
        most, kept_most = math.ceil(size.most / old.least), 0
    if old.most == 0:
        least, kept_least = size.least + 1, size.least
    elif old.most <= new.least:
        least, kept_least = 0, size.least
    else:
        least, kept_least = math.ceil(size.least / old.most), 0
    return Size(least, most).times(new).plus(Size(kept_least, kept_most))


def _below(schema: Schema | None, type_: CelType, field: str) -> Schema | None:
    if schema is None:
        return None
    if type_.fields is not None:
        known = type_.fields.get(field)
        return schema.properties.get(known[0]) if known is not None else None
    return schema.properties.get(field) or schema.additional


def _name(node: Node) -> str:
    return node.name if isinstance(node, Ident) else ""


def _total(parts: list[_Estimate], base: int) -> int:
    return _capped(base + sum(part.cost for part in parts))


def _spanned(parts: list[_Estimate]) -> Size:
    span = Size(MOST if parts else 0, 0)
    for part in parts:
        span = span.union(part.extent)
    return span


class _Loop(NamedTuple):
    once: int
    """What the loop costs without its turns: the first and the final value."""
    each: Callable[[list[Any]], int]
    makes: bool = False


def _appended(bodies: list[_Estimate]) -> int:
    """`accumulator + [value]`, after a test where there are two bodies."""
    test = bodies[0].cost if len(bodies) == 2 else 0
    return _capped(test + 12 + bodies[-1].cost)


def _inserted(extra: int) -> Callable[[list[_Estimate]], int]:
    return lambda bodies: _capped((bodies[0].cost if len(bodies) == 2 else 0) + extra + bodies[-1].cost)


_LOOPS: Final[dict[str, _Loop]] = {
    "all": _Loop(1, lambda bodies: _capped(3 + bodies[0].cost)),
    "exists": _Loop(1, lambda bodies: _capped(4 + bodies[0].cost)),
    "exists_one": _Loop(2, lambda bodies: _capped(2 + bodies[0].cost)),
    "existsOne": _Loop(2, lambda bodies: _capped(2 + bodies[0].cost)),
    "filter": _Loop(_LIST + 1, lambda bodies: _capped(13 + bodies[0].cost), True),
    "map": _Loop(_LIST + 1, _appended, True),
    "sortBy": _Loop(_LIST + 1, _appended, True),
    "transformList": _Loop(_LIST + 1, _appended, True),
    "transformMap": _Loop(_MAP + 1, _inserted(3), True),
    "transformMapEntry": _Loop(_MAP + 1, _inserted(2), True),
}
