"""Tables of the API as lines of text, aligned as kubectl aligns them.

The server has done the work: cells are ready to print. What is left is to choose the columns (wide or not), to put
namespace, kind and labels beside them, to keep what is printed on one line, and to align it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_PADDING = 3
_MIN_WIDTH = 6
_LINE_BREAK = re.compile("[\f\n\r]")
_NONE = "<none>"

_BOLD, _RED, _YELLOW, _GREEN, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
_COLOURED = frozenset({"STATUS", "PHASE", "READY", "AVAILABLE"})
# fmt: off
_GOOD = frozenset({
    "Active", "Approved", "Available", "Bound", "Complete", "Completed", "Healthy", "Ready", "Reserved", "Running",
    "Schedulable", "Succeeded", "True",
})
_BAD = frozenset({
    "ApprovalReject", "CrashLoopBackOff", "CreateContainerConfigError", "ErrImagePull", "Error", "Evicted", "Failed",
    "False", "ImagePullBackOff", "InvalidImageName", "Lost", "NotReady", "OOMKilled", "ReserveFailed", "Unavailable",
    "Unhealthy", "Unknown",
})
# fmt: on


def render_table(
    table: dict[str, Any],
    *,
    wide: bool = False,
    no_headers: bool = False,
    colour: bool = False,
    kind: str = "",
    namespaces: bool = False,
    show_labels: bool = False,
    label_columns: Sequence[str] = (),
    widths: list[int] | None = None,
) -> str:
    """The table as text, one line for each row, ending in a newline; empty when there is nothing to print.

    `kind` (such as `deployment.apps`) is put before names. Give the same `widths` list to each call of a watch: it
    remembers how wide columns have become, so that later lines stand below earlier ones.
    """
    definitions = table.get("columnDefinitions") or []
    shown = [i for i, column in enumerate(definitions) if wide or not column.get("priority")]
    named = next((i for i, column in enumerate(definitions) if column.get("format") == "name"), -1)
    headers = [definitions[i]["name"].upper() for i in shown]
    if namespaces:
        headers.insert(0, "NAMESPACE")
    headers += [key.rpartition("/")[2].upper() for key in label_columns]
    if show_labels:
        headers.append("LABELS")

    lines = [] if no_headers else [headers]
    for row in table.get("rows") or []:
        cells = row.get("cells") or []
        meta = (row.get("object") or {}).get("metadata") or {}
        texts = [_text(cells[i], kind if i == named else "") for i in shown if i < len(cells)]
        if namespaces:
            texts.insert(0, meta.get("namespace") or "")
        labels = meta.get("labels") or {}
        texts += [_text(labels.get(key), "") for key in label_columns]
        if show_labels:
            texts.append(",".join(f"{key}={labels[key]}" for key in sorted(labels)) or _NONE)
        lines.append(texts)
    if not lines:
        return ""
    return "\n".join(_align(lines, headers, widths, colour=colour, with_headers=not no_headers)) + "\n"


def _text(cell: Any, kind: str) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        text = "true" if cell else "false"
    elif isinstance(cell, str):
        # Only the first line of a text is shown, or the rows could not be told apart.
        line = _LINE_BREAK.search(cell)
        text = cell[: line.start()] + "..." if line else cell
    else:
        text = str(cell)
    # Objects may hold any text; what would steer the terminal is made visible instead. A tab would break the columns.
    text = text.replace("\x1b", "^[").replace("\t", " ")
    return f"{kind}/{text}" if kind else text


def _align(
    lines: list[list[str]], headers: list[str], widths: list[int] | None, *, colour: bool, with_headers: bool
) -> list[str]:
    columns = max(len(line) for line in lines)
    wide = [max([_MIN_WIDTH, *(len(line[i]) + _PADDING for line in lines if i < len(line))]) for i in range(columns)]
    if widths is not None:
        widths += [0] * (columns - len(widths))
        wide = [max(pair) for pair in zip(wide, widths, strict=False)]
        widths[: len(wide)] = wide
    out = []
    for number, line in enumerate(lines):
        is_header = with_headers and number == 0
        padded = []
        for i, cell in enumerate(line):
            blanks = " " * (wide[i] - len(cell)) if i + 1 < len(line) else ""
            if colour and cell:
                cell = _paint(cell, headers[i] if i < len(headers) else "", is_header)
            padded.append(cell + blanks)
        out.append("".join(padded))
    return out


def _paint(cell: str, header: str, is_header: bool) -> str:
    if is_header:
        return f"{_BOLD}{cell}{_RESET}"
    if header not in _COLOURED:
        return cell
    word = cell.rpartition(":")[2].partition(",")[0]
    have, slash, want = cell.partition("/")
    if slash and have.isdigit() and want.isdigit():
        paint = _GREEN if have == want else _YELLOW
    elif cell.isdigit():
        return cell
    else:
        paint = _GREEN if word in _GOOD else _RED if word in _BAD else _YELLOW
    return f"{paint}{cell}{_RESET}"


def elastic_tabs(text: str, *, padding: int = 2, min_width: int = 0) -> str:
    """Text whose tabs are replaced by as many blanks as line up the cells of neighbouring lines.

    A column is as wide as its widest cell among consecutive lines that have it, so each paragraph is aligned for
    itself.
    """
    lines = [line.split("\t") for line in text.split("\n")]
    for column in range(max(len(cells) for cells in lines) - 1):
        start = 0
        while start < len(lines):
            end = start
            while end < len(lines) and len(lines[end]) > column + 1:
                end += 1
            block = lines[start:end]
            width = max([min_width, *(len(cells[column]) + padding for cells in block)])
            for cells in block:
                cells[column] = cells[column].ljust(width)
            start = end + 1
    return "\n".join("".join(cells).rstrip() for cells in lines)
