"""Redrawing in place, on a terminal that is played here: what is on the screen after each write."""

from __future__ import annotations

import io
import re

import pytest

from coterie.cli import live_display
from coterie.cli.app import App
from coterie.cli.live_display import LiveDisplay, columns, takes_unicode, without_escapes


class Screen:
    """Enough of a terminal to know what is on it after cursor movements and erasing; long lines break."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[str] = [""]
        self.at = 0
        self.cursor = True

    def write(self, text: str) -> None:
        for token in re.findall(r"\x1b\[\??\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if token.startswith("\x1b["):
                number, action = token[2:-1], token[-1]
                if action == "A":
                    self.at = max(0, self.at - int(number or 1))
                elif action in "lh":
                    self.cursor = action == "h"
                elif action == "J":
                    self.rows = [*self.rows[: self.at], ""]
            elif token == "\n":
                self.at += 1
                self.rows += [""] * (self.at + 1 - len(self.rows))
            elif token != "\r":
                for start in range(0, len(token), self.width):
                    self.rows += [""] * (self.at + 1 - len(self.rows))
                    self.rows[self.at] = token[start : start + self.width]
                    self.at += start + self.width < len(token)

    def narrow(self, width: int) -> None:
        """As terminals do it that break their lines anew."""
        rows = [row[i : i + width] for row in self.rows for i in range(0, max(1, len(row)), width)]
        self.rows, self.width, self.at = rows, width, len(rows) - 1

    @property
    def shown(self) -> list[str]:
        return [row for row in self.rows if row]


class Recorder(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


class Terminal(Recorder):
    def isatty(self) -> bool:
        return True


def display_on(stream: io.StringIO, *, keep: bool = False, **environ: str) -> LiveDisplay:
    return LiveDisplay(App(stream, io.StringIO(), {"HOME": "/", **environ}), keep=keep)


def test_drawings_replace_each_other_in_one_write():
    stream, screen = Terminal(), Screen(80)
    display = display_on(stream)
    for lines in (["one", "two"], ["one", "2", "three"], ["just this"]):
        display.draw(lines)
        screen.write(stream.writes[-1])
        assert screen.shown == lines
    assert len(stream.writes) == 3
    display.draw(["just this"])
    assert len(stream.writes) == 3, "nothing changed, nothing is written"


def test_a_window_that_became_narrower_is_not_torn(monkeypatch: pytest.MonkeyPatch):
    stream, screen = Terminal(), Screen(20)
    width = 20
    monkeypatch.setattr(live_display, "size_of", lambda _: (width, 10))
    display = display_on(stream)
    display.draw(["a line of twenty ch.", "short"])
    screen.write(stream.writes[-1])
    width = 8
    screen.narrow(8)
    assert len(screen.shown) == 4
    display.draw(["a line…", "short"])
    screen.write(stream.writes[-1])
    assert screen.shown == ["a line…", "short"]


@pytest.mark.parametrize(("keep", "left"), [(True, ["a line that stays", "two"]), (False, ["a line that stays"])])
def test_an_interrupt_restores_the_cursor(keep: bool, left: list[str]):
    stream, screen = Terminal(), Screen(80)
    with pytest.raises(KeyboardInterrupt), display_on(stream, keep=keep) as display:
        display.draw(["one"])
        screen.write("".join(stream.writes))
        assert not screen.cursor
        display.say("a line that stays")
        display.draw(["two"])
        raise KeyboardInterrupt
    screen = Screen(80)
    screen.write("".join(stream.writes))
    assert screen.cursor and screen.shown == left


@pytest.mark.parametrize(("stream", "term"), [(Recorder(), "xterm"), (Terminal(), "dumb")], ids=["file", "dumb"])
def test_elsewhere_only_lines_are_written(stream: Recorder, term: str):
    with display_on(stream, TERM=term) as display:
        display.draw(["one"])
        display.say("done")
    assert not display.live and "".join(stream.writes) == "done\n"


def test_columns_of_wide_and_combining_letters():
    assert [columns(text) for text in ("abc", "数据", "e\u0301")] == [3, 4, 1]


def test_plain_text_of_coloured():
    assert without_escapes("\x1b[1mname\x1b[0m  \x1b[32mok\x1b[0m") == "name  ok"


def test_letters_that_the_output_can_take():
    assert takes_unicode(io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert not takes_unicode(io.TextIOWrapper(io.BytesIO(), "ascii"))
