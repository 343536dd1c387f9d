"""The table of functions: one `Overload` for each signature, read by the type checker and by calls at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.types import CelType
from coterie.kube.api.cel.values import kind_of

Impl = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Overload:
    name: str
    member: bool
    """Called as `first.name(rest)`."""
    params: tuple[CelType, ...]
    result: CelType
    impl: Impl
    cost: int = 0
    """What a call costs beyond the size of its arguments."""
    grows: bool = False
    """The result can be larger than the arguments, so it is charged as well."""
    deep: bool = False
    """Arguments are compared with all that is in them, so all of that is charged."""

    def accepts(self, kinds: tuple[str, ...]) -> bool:
        return all(
            param.is_var or param.name == "dyn" or param.name == kind
            for param, kind in zip(self.params, kinds, strict=True)
        )


Library = tuple[Overload, ...]


def function(
    name: str, params: tuple[CelType, ...], result: CelType, impl: Impl, *, grows: bool = False, deep: bool = False
) -> Overload:
    return Overload(name, False, params, result, impl, grows=grows, deep=deep)


def method(
    name: str,
    params: tuple[CelType, ...],
    result: CelType,
    impl: Impl,
    cost: int = 0,
    *,
    grows: bool = False,
    deep: bool = False,
) -> Overload:
    """`params[0]` is the receiver."""
    return Overload(name, True, params, result, impl, cost, grows, deep)


def dispatcher(candidates: list[Overload]) -> Impl:
    """A call whose argument types are known only at run time; each combination of types is looked up once."""
    known: dict[tuple[str, ...], Impl] = {}

    def call(*args: Any) -> Any:
        kinds = tuple(map(kind_of, args))
        impl = known.get(kinds)
        if impl is None:
            chosen = next((candidate for candidate in candidates if candidate.accepts(kinds)), None)
            if chosen is None:
                raise CelError("no such overload")
            impl = known[kinds] = chosen.impl
        return impl(*args)

    return call


def index(libraries: tuple[Library, ...]) -> dict[tuple[str, bool], list[Overload]]:
    out: dict[tuple[str, bool], list[Overload]] = {}
    for library in libraries:
        for overload in library:
            out.setdefault((overload.name, overload.member), []).append(overload)
    return out
