"""One measured number beside what a prototype reached, and all of them as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float
    unit: str
    cpu: float | None = None
    """Microseconds of the server's CPU time for one operation: what stays comparable when the machine is busy."""
    prototype: float | None = None
    lower_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """1 is as good as the prototype, 2 is twice as good."""
        if self.prototype is None or not self.value:
            return None
        return self.prototype / self.value if self.lower_is_better else self.value / self.prototype


def markdown(rows: Iterable[Row]) -> str:
    lines = [
        "| what | measured | CPU µs each | prototype | ratio | note |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = (
            row.what,
            f"{number(row.value)} {row.unit}".rstrip(),
            number(row.cpu) if row.cpu is not None else "",
            number(row.prototype) if row.prototype is not None else "",
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            row.note,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Three digits that count: 33,329; 14.0; 0.35."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
