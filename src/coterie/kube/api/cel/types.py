"""Static types, and how an argument's type fits a parameter's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class CelType:
    name: str
    params: tuple[CelType, ...] = ()
    fields: dict[str, tuple[str, CelType]] | None = field(default=None, compare=False, repr=False)
    """Of an object: the field as CEL spells it -> (the key in the data, its type)."""
    is_var: bool = False
    """A type parameter of a function: A, B."""

    def __str__(self) -> str:
        if self.name == "optional_type" or self.params:
            return f"{self.name}({', '.join(map(str, self.params))})"
        return self.name


DYN: Final = CelType("dyn")
INT: Final = CelType("int")
UINT: Final = CelType("uint")
DOUBLE: Final = CelType("double")
BOOL: Final = CelType("bool")
STRING: Final = CelType("string")
BYTES: Final = CelType("bytes")
NULL: Final = CelType("null_type")
TIMESTAMP: Final = CelType("google.protobuf.Timestamp")
DURATION: Final = CelType("google.protobuf.Duration")
QUANTITY: Final = CelType("kubernetes.Quantity")
URL: Final = CelType("kubernetes.URL")
IP: Final = CelType("net.IP")
CIDR: Final = CelType("net.CIDR")
FORMAT: Final = CelType("kubernetes.NamedFormat")
SEMVER: Final = CelType("kubernetes.Semver")
AUTHORIZER: Final = CelType("kubernetes.authorization.Authorizer")
PATH_CHECK: Final = CelType("kubernetes.authorization.PathCheck")
GROUP_CHECK: Final = CelType("kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = CelType("kubernetes.authorization.ResourceCheck")
DECISION: Final = CelType("kubernetes.authorization.Decision")
A: Final = CelType("A", is_var=True)
B: Final = CelType("B", is_var=True)
TYPE: Final = CelType("type")
NUMERIC: Final = (INT, UINT, DOUBLE)


def list_of(item: CelType) -> CelType:
    return CelType("list", (item,))


def map_of(key: CelType, value: CelType) -> CelType:
    return CelType("map", (key, value))


def optional_of(inner: CelType) -> CelType:
    return CelType("optional_type", (inner,))


Bindings = dict[str, CelType]


def fits(param: CelType, arg: CelType, bound: Bindings) -> bool:
    """Whether `arg` may stand where `param` is wanted; fills `bound` with what the parameters turned out to be."""
    if param.is_var:
        known = bound.get(param.name)
        if known is None or known is DYN or known is NULL:
            bound[param.name] = arg
            return True
        # Null compares with anything: a nullable field may hold it.
        return arg is NULL or fits(known, arg, bound)
    if param is DYN or arg is DYN or arg.is_var:
        return True
    if param.name != arg.name:
        return False
    if param.fields is not None or not param.params:
        return param.fields is arg.fields or param == arg
    return len(param.params) == len(arg.params) and all(
        fits(inner, given, bound) for inner, given in zip(param.params, arg.params, strict=True)
    )


def resolve(type_: CelType, bound: Bindings) -> CelType:
    if type_.is_var:
        return bound.get(type_.name, DYN)
    if not type_.params:
        return type_
    return CelType(type_.name, tuple(resolve(param, bound) for param in type_.params), type_.fields)


def common(types: Iterable[CelType]) -> CelType:
    """The type of a list literal's elements or of both arms of a condition: one type, or dyn."""
    seen: CelType | None = None
    for type_ in types:
        if seen is None or seen is NULL:
            seen = type_
        elif type_ is NULL or (seen == type_ and seen.fields is type_.fields):
            continue
        elif fits(seen, type_, {}):
            seen = seen if type_ is DYN or type_.params else type_
        else:
            return DYN
    return seen or DYN


def is_dynamic(type_: CelType) -> bool:
    """True when the run-time type may differ from the static one at the outermost level."""
    return type_ is DYN or type_.is_var or type_ is NULL
