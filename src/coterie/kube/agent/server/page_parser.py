"""A page of metrics that a pod serves: parsed, labelled with the pod, and merged with those of other pods. Pure.

    text ──parse_page──> families ──PageMerger──> families of all pods; what collides is left out and counted

What a pod writes is not trusted: every line must be well-formed, names that are ours are not taken from it, labels that say which pod it
is are ours alone, and sizes are bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.base.exposition import MAX_ROWS, Family, Row, escaped

MAX_SERIES = 2000
"""Of one pod."""
MAX_LINES = 20_000
MAX_TOTAL = 50_000
"""Of all pods of the node."""
RESERVED = (
    "ALERTS",
    "DCGM_",
    "apiserver_",
    "container_",
    "coterie_",
    "kube_",
    "kubelet_",
    "node_",
    "process_",
    "scheduler_",
    "scrape_",
)
"""What names of the platform's own families begin with; a product has more."""
_RESERVED_NAMES = frozenset(("up",))
_KINDS = frozenset(("counter", "gauge", "histogram", "summary", "untyped"))
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(
    rf'({_NAME})\s*(?:\{{((?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}})?\s*(?<=[\s}}])([-+0-9.a-zA-Z]+)(?:\s+-?\d+)?\s*', re.ASCII
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\["\\n])*)"\s*(,|$)', re.ASCII)
_COMMENT = re.compile(rf"#\s*(HELP|TYPE)\s+({_NAME})(?:\s+(.*))?", re.ASCII)
_LONGEST_NAME = 200
_LONGEST_LINE = 8192
_LONGEST_HELP = 200
_MAX_LABELS = 20
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class PageError(Exception):
    """The text is no page of metrics; the message says where."""


@dataclass(slots=True)
class ParsedFamily:
    name: str
    kind: str = "untyped"
    help: str = ""
    rows: dict[str, float] = field(default_factory=dict)
    """By suffix and labels, as `Family` has them."""

    @property
    def series_names(self) -> frozenset[str]:
        """Names that its rows may have."""
        return series_names(self.name, self.kind)


@dataclass(slots=True)
class ParsedPage:
    families: dict[str, ParsedFamily]
    dropped: Counter[str]
    """Rows that were left out, by reason: `limit`, `malformed`."""


def series_names(name: str, kind: str) -> frozenset[str]:
    """And the name of the family in OpenMetrics."""
    return frozenset((name, name.removesuffix("_total"), *(name + suffix for suffix in _SUFFIXES.get(kind, ()))))


def parse_page(text: str, own_labels: Mapping[str, str]) -> ParsedPage:
    """`own_labels`: what each row gets; labels of the same name become `exported_…`. Raises PageError."""
    families: dict[str, ParsedFamily] = {}
    dropped: Counter[str] = Counter()
    before = ",".join(f'{name}="{escaped(value)}"' for name, value in own_labels.items())
    if (lines := text.count("\n")) > MAX_LINES:
        raise PageError(f"the page has {lines} lines")
    count = 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line:
            continue
        if len(line) > _LONGEST_LINE:
            raise PageError(f"line {number} has {len(line)} characters")
        if line[0] == "#":
            if len(families) < MAX_SERIES:
                _comment(line, families)
            continue
        count += 1
        if count > MAX_SERIES:
            dropped["limit"] += 1
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None or len(found[1]) > _LONGEST_NAME:
            raise PageError(f"line {number} is not understood")
        value = _value(found[3])
        labels = _labels(found[2] or "")
        if value is None or labels is None:
            raise PageError(f"line {number} is not understood")
        family, suffix = _family_of(found[1], families)
        if not _fits(family.kind, suffix, labels) or len(labels) > _MAX_LABELS:
            dropped["malformed"] += 1
            continue
        where = ",".join((before, *_own_names(labels, own_labels))) if labels else before
        family.rows.setdefault(f"{suffix} {where}" if suffix else where, value)
    return ParsedPage({name: each for name, each in families.items() if each.rows}, dropped)


def _comment(line: str, families: dict[str, ParsedFamily]) -> None:
    """The first TYPE and HELP count; a TYPE after the first row is ignored. Other comments are comments."""
    found = _COMMENT.fullmatch(line)
    if found is None or len(found[2]) > _LONGEST_NAME:
        return
    word, name, rest = found[1], found[2], found[3] or ""
    family = families.get(name)
    if family is None:
        family = families[name] = ParsedFamily(name)
    if word == "HELP":
        family.help = family.help or _printable(rest)
    elif rest.strip() in _KINDS and family.kind == "untyped" and not family.rows:
        family.kind = rest.strip()


def _family_of(name: str, families: dict[str, ParsedFamily]) -> tuple[ParsedFamily, str]:
    """And the suffix of the name within it."""
    if name not in families:
        for suffix in ("_bucket", "_sum", "_count"):
            base = families.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if base is not None and suffix in _SUFFIXES.get(base.kind, ()):
                return base, suffix
        families[name] = ParsedFamily(name)
    return families[name], ""


def _fits(kind: str, suffix: str, labels: dict[str, str]) -> bool:
    """Whether the row has the form that its family's type asks for."""
    if kind == "histogram":
        return bool(suffix) and (suffix != "_bucket" or _value(labels.get("le", "")) is not None)
    if kind == "summary" and not suffix:
        return _value(labels.get("quantile", "")) is not None
    return True


def _labels(text: str) -> dict[str, str] | None:
    """None: they are not well-formed."""
    found: dict[str, str] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None or label[1] in found:
            return None
        found[label[1]] = label[2]
        at = label.end()
    return found


def _own_names(labels: Mapping[str, str], own: Mapping[str, str]) -> Iterable[str]:
    for name, value in labels.items():
        if name.startswith("__"):
            continue
        shown = f"exported_{name}" if name in own else name
        yield f'{shown}="{escaped(_unescaped(value))}"'


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text) if "\\" in text else text


def _value(text: str) -> float | None:
    if not text or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() and each != "\\" else " " for each in text[:_LONGEST_HELP]).strip()


class PageMerger:
    """Collects pages of several pods; the first pod that has a family says its type."""

    def __init__(self, prefixes: tuple[str, ...] = (), names: frozenset[str] = frozenset()) -> None:
        """`prefixes`, `names`: of the product's own families."""
        self._prefixes = (*RESERVED, *prefixes)
        self._names = _RESERVED_NAMES | names
        self._families: dict[str, ParsedFamily] = {}
        self._taken: dict[str, str] = {}
        """Names of series to the family that they belong to."""
        self._count = 0
        self.dropped: Counter[str] = Counter()

    def add(self, page: ParsedPage) -> None:
        self.dropped.update(page.dropped)
        for family in page.families.values():
            self._add(family)

    def _add(self, family: ParsedFamily) -> None:
        if family.name in self._names or family.name.startswith(self._prefixes):
            self.dropped["reserved"] += len(family.rows)
            return
        known = self._families.get(family.name)
        others = {self._taken.get(each, family.name) for each in family.series_names} - {family.name}
        if others or (known is not None and known.kind != family.kind):
            self.dropped["conflict"] += len(family.rows)
            return
        if known is None:
            known = self._families[family.name] = ParsedFamily(family.name, family.kind, family.help)
            self._taken |= dict.fromkeys(family.series_names, family.name)
        room = min(MAX_ROWS - len(known.rows), MAX_TOTAL - self._count)
        for where, value in list(family.rows.items())[: max(0, room)]:
            known.rows.setdefault(where, value)
            self._count += 1
        self.dropped["limit"] += max(0, len(family.rows) - max(0, room))

    def families(self) -> list[Family]:
        return [
            Family(each.name, each.help or "No description.", each.kind, _rows(each))
            for each in self._families.values()
        ]


def _rows(family: ParsedFamily) -> list[Row]:
    return list(family.rows.items())
