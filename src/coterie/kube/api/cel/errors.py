"""What can go wrong with an expression: while compiling (with places), while running, or by taking too long.

CelError            the expression has no value: `&&`, `||`, `all` and `exists` may absorb it
CostExceeded        the expression used up its budget: nothing absorbs it
CompileError        the source is refused; the text shows each place as cel-go does
"""

from __future__ import annotations

from dataclasses import dataclass


class CelError(Exception):
    """An evaluation error, e.g. `no such key: x`."""


class CostExceeded(Exception):
    """The work allowed for one check is used up."""


@dataclass(frozen=True, slots=True)
class CelIssue:
    position: int
    message: str


class CompileError(Exception):
    def __init__(self, source: str, issues: list[CelIssue]) -> None:
        self.issues = issues
        super().__init__("\n".join(format_issues(source, issue) for issue in issues))


def format_issues(source: str, issue: CelIssue) -> str:
    """The three lines that cel-go prints: the place, the line, a mark under the column."""
    before = source[: issue.position]
    line_number = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1)
    line = source.split("\n")[line_number - 1]
    mark = "." * column + "^"
    return f"ERROR: <input>:{line_number}:{column + 1}: {issue.message}\n | {line}\n | {mark}"
