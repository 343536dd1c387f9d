"""A timeline as a picture: bars on a terminal, or an SVG file. Pure."""

from __future__ import annotations

from html import escape
from textwrap import wrap

from coterie.cli.live_display import columns
from coterie.cli.terminal_format import TerminalFormat, cut, padded, safe
from coterie.kuscia.api.jobs.timeline import (
    AGREE,
    CALL,
    CHECK,
    DATA,
    END,
    KINDS,
    PREPARE,
    PULL,
    RESERVE,
    RUN,
    START,
    WAIT,
    Bar,
    Timeline,
    shares,
)

# Of agreeing and starting, the colours of the console; red is for what failed.
_CODES = {
    CHECK: "95",
    AGREE: "35",
    PREPARE: "36",
    WAIT: "90",
    RESERVE: "34",
    PULL: "93",
    START: "33",
    RUN: "32",
    END: "37",
    CALL: "94",
    DATA: "96",
}
_LETTERS = {
    CHECK: "c",
    AGREE: "a",
    PREPARE: "p",
    WAIT: ".",
    RESERVE: "r",
    PULL: "i",
    START: "s",
    RUN: "=",
    END: "e",
    CALL: "~",
    DATA: "d",
}
_FILLS = {
    CHECK: "#c48fd1",
    AGREE: "#a05bb5",
    PREPARE: "#2a9d9d",
    WAIT: "#8a8f98",
    RESERVE: "#3f6fc4",
    PULL: "#e6c069",
    START: "#d99a1c",
    RUN: "#5aa55a",
    END: "#b9bec6",
    CALL: "#7f9fd1",
    DATA: "#57a8a0",
}
_LEAST = 16
_MOST_NOTES = 12
_REPORTED = "as the partner reported it"


def format_seconds(seconds: float, exact: bool) -> str:
    if not exact or seconds >= 100:
        return f"{seconds:.0f}s"
    return f"{seconds:.2f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"


def bars(line: Timeline, paper: TerminalFormat) -> list[str]:
    """One line for each of job, task and party, then a legend and where the time of the longest chain went."""
    labels = ["  " * bar.depth + safe(bar.label) + ("*" if bar.reported else "") for bar in line.bars]
    wide = min(max(map(columns, labels), default=0), max(8, paper.width // 3))
    room = max(_LEAST, paper.width - wide - 10)
    out = []
    for label, bar in zip(labels, line.bars, strict=True):
        took = format_seconds(bar.spans[-1].end - bar.spans[0].begin, line.exact) if bar.spans else ""
        out.append(f"{padded(cut(label, wide, paper.dots), wide)} {_bar(bar, line, room, paper)} {took:>8}".rstrip())
    out.append(f"{' ' * wide} {_axis(line, room)}".rstrip())
    used = {span.kind for bar in line.bars for span in bar.spans}
    out.append("")
    out += [f"{_sample(kind, paper)} {kind:<8} {words}" for kind, words in KINDS.items() if kind in used]
    if any(bar.reported for bar in line.bars):
        out.append(f"* {_REPORTED}")
    out += _notes(line, paper)
    out += ["", *(part for text in _summary(line) for part in wrap(text, paper.width))]
    return [_clipped(text, paper) for text in out]


def _axis(line: Timeline, room: int) -> str:
    """The time below the bars: at the begin, in the middle, at the end."""
    end = format_seconds(line.seconds, line.exact)
    middle = format_seconds(line.seconds / 2, line.exact)
    text = "0s".ljust(room // 2 - len(middle) // 2) + middle
    return text.ljust(room - len(end)) + end


def _notes(line: Timeline, paper: TerminalFormat) -> list[str]:
    """What was said about waits, the newest last."""
    if not line.notes:
        return []
    out, left = [""], max(0, len(line.notes) - _MOST_NOTES)
    if left:
        out.append(f"({left} earlier notes are left out; `-o json` has them)")
    for note in line.notes[left:]:
        times = f" (x{note.count})" if note.count > 1 else ""
        at = format_seconds(max(0.0, note.at - line.begin), line.exact)
        text = f"+{at} {safe(note.about)}{times}: {safe(note.sentence)}"
        out += wrap(text, paper.width, subsequent_indent="    ")
    return out


def _clipped(text: str, paper: TerminalFormat) -> str:
    return text if "\x1b" in text else cut(text, paper.width, paper.dots)


def _sample(kind: str, paper: TerminalFormat) -> str:
    return f"\x1b[7;{_CODES[kind]}m \x1b[0m" if paper.colour else _LETTERS[kind]


def _bar(bar: Bar, line: Timeline, room: int, paper: TerminalFormat) -> str:
    """Every span has at least one column: what was short is still seen."""
    total = line.seconds or 1.0
    cells = [" "] * room
    for span in bar.spans:
        first = min(room - 1, int((span.begin - line.begin) / total * room))
        last = min(room - 1, max(first, int((span.end - line.begin) / total * room + 1e-9) - 1))
        for i in range(first, last + 1):
            cells[i] = span.kind
    out, at = [], 0
    while at < room:
        until = at
        while until < room and cells[until] == cells[at]:
            until += 1
        kind, length = cells[at], until - at
        if kind == " ":
            out.append(" " * length)
        elif paper.colour:
            out.append(f"\x1b[7;{_CODES[kind]}m{' ' * length}\x1b[0m")
        else:
            out.append(_LETTERS[kind] * length)
        at = until
    return "".join(out)


def _summary(line: Timeline) -> list[str]:
    out = []
    if len(line.chain) > 1:
        out.append(f"The longest chain: {' -> '.join(safe(alias) for alias in line.chain)}.")
    parts = [
        f"{kind} {format_seconds(seconds, line.exact)} ({seconds / line.seconds:.0%})"
        for kind, seconds in shares(line)
        if line.seconds
    ]
    out.append(f"{format_seconds(line.seconds, line.exact)} in all" + (f": {', '.join(parts)}" if parts else ""))
    if line.trace:
        out.append(f"Trace id: {line.trace}")
    if not line.exact:
        out.append("Objects record whole seconds; `coterie job run --timeline` measures while the job runs.")
    return out


# SVG.

_ROW, _LEFT, _WIDTH, _RIGHT, _TOP = 22, 190, 760, 90, 46


def svg(line: Timeline) -> str:
    """A picture that needs nothing else, for light and dark pages."""
    height = _TOP + _ROW * len(line.bars) + 118
    total = line.seconds or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{escape(_title(line))}">',
        "<style>text{fill:#223}line{stroke:#8896;stroke-width:1}"
        "@media (prefers-color-scheme: dark){text{fill:#dde}}</style>",
        f'<text x="12" y="22" font-size="15" font-weight="600">{escape(_title(line))}</text>',
    ]
    for number in range(5):
        x = _LEFT + _WIDTH * number / 4
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{_TOP + _ROW * len(line.bars)}"/>')
        tick = format_seconds(total * number / 4, line.exact)
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 8}" text-anchor="middle" font-size="10">{tick}</text>')
    for number, bar in enumerate(line.bars):
        parts += _svg_bar(bar, line, _TOP + _ROW * number, total)
    base = _TOP + _ROW * len(line.bars) + 24
    used = [kind for kind in KINDS if any(span.kind == kind for bar in line.bars for span in bar.spans)]
    for number, kind in enumerate(used):
        x, y = 12 + 510 * (number % 2), base + 18 * (number // 2)
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{_FILLS[kind]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{kind}: {escape(KINDS[kind])}</text>')
    parts.append(f'<text x="12" y="{height - 10}">{escape(" ".join(_summary(line)[:2]))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(line: Timeline) -> str:
    return f"Job {line.name}: {line.phase}, {format_seconds(line.seconds, line.exact)}"


def _svg_bar(bar: Bar, line: Timeline, y: int, total: float) -> list[str]:
    weight = ' font-weight="600"' if bar.depth == 0 else ""
    label = cut(safe(bar.label) + ("*" if bar.reported else ""), 26 - 2 * bar.depth)
    out = [f'<text x="{12 + 14 * bar.depth}" y="{y + 14}"{weight}>{escape(label)}</text>']
    for span in bar.spans:
        x = _LEFT + (span.begin - line.begin) / total * _WIDTH
        wide = max(1.5, span.seconds / total * _WIDTH)
        message = f"{bar.label}: {span.kind} {format_seconds(span.seconds, line.exact)}"
        out.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{wide:.1f}" height="{_ROW - 8}" rx="2" fill="{_FILLS[span.kind]}">'
            f"<title>{escape(message)}</title></rect>"
        )
    if bar.spans:
        took = format_seconds(bar.spans[-1].end - bar.spans[0].begin, line.exact)
        out.append(f'<text x="{_LEFT + _WIDTH + 8}" y="{y + 14}">{took}</text>')
    return out
