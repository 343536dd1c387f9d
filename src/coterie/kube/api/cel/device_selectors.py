"""Expressions that select devices (`resource.k8s.io`): they see one variable, `device`."""

from __future__ import annotations

from typing import Final

from coterie.kube.api.cel.errors import CompileError
from coterie.kube.api.cel.program import compile_expression
from coterie.kube.api.cel.types import BOOL, DYN, QUANTITY, STRING, CelType, map_of

_DEVICE: Final = CelType(
    "DRADevice",
    fields={
        "driver": ("driver", STRING),
        "attributes": ("attributes", map_of(STRING, map_of(STRING, DYN))),
        "capacity": ("capacity", map_of(STRING, map_of(STRING, QUANTITY))),
        "allowMultipleAllocations": ("allowMultipleAllocations", BOOL),
    },
)


def compile_error(expression: str) -> str:
    """What is wrong with an expression; empty when it can be used."""
    try:
        program = compile_expression(expression, {"device": _DEVICE})
    except CompileError as fault:
        return f"compilation failed: {fault}"
    if program.type not in (BOOL, DYN):
        return f"must evaluate to bool or the unknown type, not {program.type}"
    return ""
