"""Prometheus' text format 0.0.4 and OpenMetrics 1.0, written by hand: the usual library is eighteen times slower and cannot keep names that are
promised.

    page = render([Family("node_load1", "1m load average.", "gauge", [("", 0.25)])])

A row is (labels, value); `labels(...)` joins and escapes them, once per object and not once per scrape. Rows of histograms and
summaries carry the suffix of their name before a space: `("_bucket le=\"1\"", 3)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOTAL = "_total"
_QUOTE = '\\"'
MAX_ROWS = 5000
"""Of one family. What is more is dropped and counted: a page must not grow with whatever happens outside."""
_LONGEST_LABEL = 100

Row = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    help: str
    kind: str
    """counter, gauge, histogram, summary or untyped."""
    rows: Sequence[Row]


def labels(**pairs: str) -> str:
    """`name="value",…` with the values escaped."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items())


def escaped(text: str) -> str:
    return text[:_LONGEST_LABEL].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """All digits, in a form that Prometheus reads: `%g` keeps six, which moves the start of a process by hours."""
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(float(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


def merged(families: Iterable[Family]) -> list[Family]:
    """Families of one name become one, in the order in which they came; a row that is there already is left out.

    Several sources may know of the same family (`process_open_fds`); a page that names it twice is refused as a whole.
    """
    found: dict[str, list[Family]] = {}
    for family in families:
        found.setdefault(family.name, []).append(family)
    return [_united(same) for same in found.values()]


def _united(same: Sequence[Family]) -> Family:
    first = same[0]
    if len(same) == 1 and len({where for where, _ in first.rows}) == len(first.rows):
        return first
    rows: dict[str, float] = {}
    for family in same:
        for where, value in family.rows:
            rows.setdefault(where, value)
    return Family(first.name, first.help, first.kind, list(rows.items()))


def render(families: Iterable[Family]) -> str:
    """The page. Families must have different names (`merged`); each is cut at MAX_ROWS."""
    return "".join(text_pieces(families))


def text_pieces(families: Iterable[Family]) -> Iterator[str]:
    """The page in pieces, one for each family: a page of some megabytes is never in memory as a whole."""
    for family in families:
        name = family.name
        yield _piece(f"# HELP {name} {_escaped_help(family.help)}", f"# TYPE {name} {family.kind}", family)


def openmetrics_pieces(families: Sequence[Family]) -> Iterator[str]:
    """The same page with the same series as OpenMetrics. There, a counter is named without `_total`, which its row has: one whose promised
    name ends otherwise is of type `unknown`."""
    names = {family.name for family in families}
    for family in families:
        name, kind = family.name, family.kind
        if kind == "counter":
            short = name.removesuffix(_TOTAL)
            if short == name or short in names:
                kind = "unknown"
            else:
                name = short
        elif kind == "untyped":
            kind = "unknown"
        words = _escaped_help(family.help).replace('"', _QUOTE)
        yield _piece(f"# HELP {name} {words}", f"# TYPE {name} {kind}", family)
    yield "# EOF\n"


def _escaped_help(words: str) -> str:
    return words.replace("\\", "\\\\").replace("\n", "\\n")


def _piece(about: str, kind: str, family: Family) -> str:
    name = family.name
    lines = [about, kind]
    rows = family.rows if len(family.rows) <= MAX_ROWS else family.rows[:MAX_ROWS]
    for where, value in rows:
        shown = value if type(value) is int else number(value)
        if where[:1] == "_":
            suffix, _, where = where.partition(" ")
            lines.append(f"{name}{suffix}{{{where}}} {shown}" if where else f"{name}{suffix} {shown}")
        else:
            lines.append(f"{name}{{{where}}} {shown}" if where else f"{name} {shown}")
    lines.append("")
    return "\n".join(lines)
