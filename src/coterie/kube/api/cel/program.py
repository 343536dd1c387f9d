"""A compiled expression and how it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from coterie.kube.api.cel.ast import Node
from coterie.kube.api.cel.build import build
from coterie.kube.api.cel.errors import CelError, CelIssue, CompileError
from coterie.kube.api.cel.parser import parse
from coterie.kube.api.cel.scope import Messages, Run, Scope
from coterie.kube.api.cel.types import CelType

BUDGET: Final = 1_000_000
"""Steps one check may take: a few tenths of a second for the worst rules that were tried."""


@dataclass(frozen=True, slots=True)
class CelProgram:
    source: str
    type: CelType
    run: Run
    slots: int
    used: frozenset[str]
    """The variables it reads."""

    def evaluate(self, values: Sequence[Any], budget: list[int] | None = None) -> Any:
        """The value, with variables in the order in which they were declared.

        Raises CelError or CostExceeded. `budget` holds the steps left and is counted down over several programs.
        """
        left = budget if budget is not None else [BUDGET]
        env = [left[0], *values, *[None] * (self.slots - 1 - len(values))]
        try:
            return self.run(env)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as fault:
            # The data is not what its schema says (it failed validation): the typed fast paths met another type.
            raise CelError("no such overload") from fault
        except RecursionError as fault:
            raise CelError("the value is nested too deeply") from fault
        finally:
            left[0] = env[0]


def compile_expression(source: str, variables: dict[str, CelType], messages: Messages | None = None) -> CelProgram:
    """Raises CompileError, whose text shows every fault and its place."""
    return compile_tree(parse(source), source, Scope(variables, messages))


def compile_tree(tree: Node, source: str, scope: Scope) -> CelProgram:
    try:
        type_, run = build(tree, scope)
    except RecursionError as fault:
        raise CompileError(source[:80], [CelIssue(0, "expression recursion limit exceeded")]) from fault
    if scope.issues:
        raise CompileError(source, sorted(scope.issues, key=lambda issue: issue.position))
    return CelProgram(source, type_, run, scope.slots, frozenset(scope.used))
