"""Runs a command on a terminal of its own and draws what stands there at its end, as an SVG for light and one for dark pages.

    scripts/terminal_picture.py docs/pictures/terminal -- coterie job run --engine sample --parties alice,bob --timeline

writes docs/pictures/terminal-light.svg and docs/pictures/terminal-dark.svg. The colours are those of the console. The picture of the
README: in a network of `coterie up`, with KUBECONFIG of alice, the command above.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

# Black, red, green, yellow, blue, magenta, cyan, white; then the bright ones. The first ones as in web/style.css.
PALETTES = {
    "light": {
        "background": "#ffffff", "frame": "#d5dae0", "bar": "#f6f7f9", "text": "#1a1f26", "dim": "#5c6673",
        "colours": (
            "#1a1f26", "#941313", "#0e824c", "#a06404", "#1554d6", "#7a1fa0", "#0b6e8a", "#5c6673",
            "#5c6673", "#c0524a", "#4aa67c", "#c99a3c", "#6f95e6", "#b678cf", "#4d9db3", "#5c6673",
        ),
    },
    "dark": {
        "background": "#0f1317", "frame": "#2b333d", "bar": "#171c22", "text": "#e6eaef", "dim": "#9aa5b1",
        "colours": (
            "#7f8892", "#ff6b57", "#2fd9a5", "#f2bd2c", "#9cc4fb", "#d45cf2", "#6fd3e8", "#e6eaef",
            "#7f8892", "#ff9d8f", "#8aebcb", "#f8d98a", "#c8defd", "#e9a6f8", "#a9e4f1", "#ffffff",
        ),
    },
}  # fmt: skip
_CELL = (8.4, 19.0)
_MARGIN = 16
_BAR = 34
_FONT = "ui-monospace, 'JetBrains Mono', SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_BLOCKS = {"█": 1.0, "▓": 0.7, "▒": 0.45, "░": 0.25}
"""Drawn as bars of this strength, so that no font leaves gaps in them."""
_SEQUENCE = re.compile(
    r"\x1b\[([?>=!]?)([0-9;:]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()#%].|\x1b[=>78cDEHM]"
)


@dataclass(frozen=True, slots=True)
class Style:
    colour: int | None = None
    """0 to 15 of the palette."""
    bold: bool = False
    dim: bool = False
    reverse: bool = False


@dataclass(slots=True)
class Screen:
    """As much of a terminal as our commands need."""

    columns: int
    lines: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = Style()

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if found := _SEQUENCE.match(text, at):
                self._control(found)
                at = found.end()
                continue
            self._character(text[at])
            at += 1

    def _character(self, character: str) -> None:
        if character == "\n":
            self._go(self.row + 1, self.column)
        elif character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character == "\t":
            self.column += 8 - self.column % 8
        elif character >= " ":
            if self.column >= self.columns:
                self._go(self.row + 1, 0)
            line = self.lines[self.row]
            line.extend([(" ", Style())] * (self.column + 1 - len(line)))
            line[self.column] = (character, self.style)
            self.column += 1

    def _go(self, row: int, column: int) -> None:
        self.row, self.column = max(0, row), max(0, column)
        while len(self.lines) <= self.row:
            self.lines.append([])

    def _control(self, found: re.Match[str]) -> None:
        private, given, letter = found[1], found[2], found[3]
        if letter is None or private:
            return
        numbers = [int(each) if each else 0 for each in re.split("[;:]", given)] if given else []
        first = numbers[0] if numbers else 0
        match letter:
            case "m":
                self._select(numbers or [0])
            case "A" | "F":
                self._go(self.row - max(1, first), 0 if letter == "F" else self.column)
            case "B" | "E":
                self._go(self.row + max(1, first), 0 if letter == "E" else self.column)
            case "C":
                self.column += max(1, first)
            case "D":
                self.column = max(0, self.column - max(1, first))
            case "G":
                self.column = max(1, first) - 1
            case "K":
                line = self.lines[self.row]
                self.lines[self.row] = [] if first == 2 else line[: self.column]
            case "J":
                if first == 0:
                    self.lines[self.row] = self.lines[self.row][: self.column]
                    del self.lines[self.row + 1 :]
            case _:
                return

    def _select(self, numbers: list[int]) -> None:
        for number in numbers:
            if number == 0:
                self.style = Style()
            elif number in (1, 22):
                self.style = replace(self.style, bold=number == 1, dim=False)
            elif number == 2:
                self.style = replace(self.style, dim=True)
            elif number in (7, 27):
                self.style = replace(self.style, reverse=number == 7)
            elif 30 <= number <= 37:
                self.style = replace(self.style, colour=number - 30)
            elif number == 90:
                self.style = replace(self.style, colour=None, dim=True)
            elif 91 <= number <= 97:
                self.style = replace(self.style, colour=number - 82)
            elif number == 39:
                self.style = replace(self.style, colour=None)

    def rows(self) -> list[list[tuple[str, Style]]]:
        """Without what is empty at the end."""
        found = [_stripped(line) for line in self.lines]
        while found and not found[-1]:
            found.pop()
        return found


def _stripped(line: list[tuple[str, Style]]) -> list[tuple[str, Style]]:
    end = len(line)
    while end and line[end - 1][0] == " " and not line[end - 1][1].reverse:
        end -= 1
    return line[:end]


def run(command: list[str], columns: int) -> tuple[str, int]:
    """What the command wrote to its terminal, and its exit status."""
    child, master = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "60"}
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    out = bytearray()
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        out += piece
    return out.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def pieces(line: list[tuple[str, Style]]) -> Iterator[tuple[int, str, Style]]:
    """Runs of one style that can be drawn as one text; characters of odd width stand alone, so that columns stay columns."""
    at = 0
    for (style, kind), group in groupby(line, key=lambda cell: (cell[1], _kind(cell[0]))):
        text = "".join(character for character, _ in group)
        if kind != "alone":
            if text.strip() or style.reverse:
                yield at, text, style
        else:
            yield from ((at + index, character, style) for index, character in enumerate(text))
        at += len(text)


def _kind(character: str) -> str:
    if character in _BLOCKS:
        return character
    return "text" if character.isascii() or unicodedata.category(character).startswith("L") else "alone"


def svg(rows: list[list[tuple[str, Style]]], prompt: str, palette: dict[str, object], label: str) -> str:
    width_of, height_of = _CELL
    longest = max([len(row) for row in rows] + [len(prompt) + 2, 60])
    width = round(longest * width_of + 2 * _MARGIN)
    height = round((len(rows) + 1) * height_of + _BAR + 2 * _MARGIN - 4)
    colours = palette["colours"]
    assert isinstance(colours, tuple)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{_escaped(label)}" font-family="{_FONT}" font-size="14">',
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{palette["background"]}" '
        f'stroke="{palette["frame"]}"/>',
        f'<path d="M1 {_BAR}V9a8 8 0 0 1 8-8H{width - 9}a8 8 0 0 1 8 8V{_BAR}z" fill="{palette["bar"]}"/>',
        f'<path d="M1 {_BAR}.5H{width - 1}" stroke="{palette["frame"]}"/>',
        *(f'<circle cx="{20 + 18 * at}" cy="{_BAR / 2}" r="5.5" fill="{palette["frame"]}"/>' for at in range(3)),
    ]
    command = [("$", Style(dim=True)), (" ", Style()), *((each, Style(bold=True)) for each in prompt)]
    for number, row in enumerate([command, *rows]):
        y = _BAR + _MARGIN + 12 + number * height_of
        for at, text, style in pieces(row):
            fill = colours[style.colour] if style.colour is not None else palette["dim" if style.dim else "text"]
            bar = 1.0 if style.reverse else _BLOCKS.get(text[0], 0.0)
            if bar:
                out.append(
                    f'<rect x="{_MARGIN + at * width_of:.1f}" y="{y - 12:.1f}" width="{len(text) * width_of:.1f}" '
                    f'height="15" fill="{fill}" opacity="{bar:g}"/>'
                )
                if not text.strip() or text[0] in _BLOCKS:
                    continue
                fill = palette["background"]
            weight = ' font-weight="600"' if style.bold else ""
            length = (
                f' textLength="{len(text) * width_of:.1f}" lengthAdjust="spacingAndGlyphs"' if len(text) > 1 else ""
            )
            out.append(
                f'<text x="{_MARGIN + at * width_of:.1f}" y="{y:.1f}" fill="{fill}"{weight}{length} xml:space="preserve">'
                f"{_escaped(text)}</text>"
            )
    return "\n".join([*out, "</svg>", ""])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where to write, without -light.svg and -dark.svg")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    text, status = run(args.command, args.columns)
    if status != 0:
        sys.stderr.write(f"{text}\n{shlex.join(args.command)} ended with {status}\n")
        return 1
    screen = Screen(args.columns)
    screen.feed(text)
    prompt = shlex.join(args.command)
    for name, palette in PALETTES.items():
        file = args.file.with_name(f"{args.file.name}-{name}.svg")
        file.write_text(svg(screen.rows(), prompt, palette, f"A terminal: {prompt}"))
        sys.stdout.write(f"{file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
