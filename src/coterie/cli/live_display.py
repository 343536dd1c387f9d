"""Lines that are redrawn in place on a terminal. Elsewhere nothing is drawn, and commands write plain lines instead.

    with LiveDisplay(app) as display:
        if display.live:
            display.draw(["alice  ready", "bob    starting"])     # replaces what was drawn before
        display.say("a line that stays above")

Each drawing is one write, so that nothing flickers. The cursor is hidden while something is drawn and comes back when
the block is left, however that happens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, TextIO

from coterie.cli.app import App
from coterie.cli.terminal import size_of

DEFAULT_COLUMNS: Final = 80
"""For a terminal that does not tell its size."""
_UP: Final = "\x1b[{}A"
_END_OF_LINE: Final = "\x1b[K"
_END_OF_SCREEN: Final = "\x1b[J"
_HIDE_CURSOR: Final = "\x1b[?25l"
_SHOW_CURSOR: Final = "\x1b[?25h"
_ESCAPE_CODES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LiveDisplay:
    """`keep`: what was drawn last stays on the screen at the end; otherwise it is erased."""

    def __init__(self, app: App, *, keep: bool = False, stream: TextIO | None = None) -> None:
        """`stream`: one of the app's, otherwise its standard output."""
        self._app = app
        self._stream = stream if stream is not None else app.out
        self._keep = keep
        self._lines: list[str] = []
        self._cursor_hidden = False
        self.live = self._stream.isatty() and app.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        size = size_of(self._stream)
        return size[0] if size is not None else DEFAULT_COLUMNS

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what was drawn. The lines must fit into `width`: one that wraps cannot be replaced cleanly."""
        if not self.live or list(lines) == self._lines:
            return
        hide = "" if self._cursor_hidden else _HIDE_CURSOR
        body = "".join(f"{line}{_END_OF_LINE}\n" for line in lines)
        self._write(f"{hide}{self._to_first_line()}{body}{_END_OF_SCREEN}")
        self._cursor_hidden = True
        self._lines = list(lines)

    def clear(self) -> None:
        """Erase what was drawn, before something else is written to the terminal."""
        if self._lines:
            self._write(f"{self._to_first_line()}{_END_OF_SCREEN}")
            self._lines = []

    def say(self, text: str) -> None:
        """A line that stays, also where nothing is drawn."""
        self.clear()
        self._app.say(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _to_first_line(self) -> str:
        """A terminal that became narrower has wrapped the old lines into more rows: so many are gone over."""
        width = max(1, self.width)
        rows = sum(max(1, -(-columns(without_escapes(line)) // width)) for line in self._lines)
        return "\r" + (_UP.format(rows) if rows else "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._keep:
            self.clear()
        self._lines = []
        if self._cursor_hidden:
            self._write(_SHOW_CURSOR)
            self._cursor_hidden = False


# Text on a terminal.


def without_escapes(text: str) -> str:
    """Without colours and other control sequences."""
    return _ESCAPE_CODES.sub("", text)


def columns(text: str) -> int:
    """How wide a text without escape codes is."""
    return len(text) if text.isascii() else sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def takes_unicode(stream: TextIO) -> bool:
    """Whether more than ASCII can be written."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")
