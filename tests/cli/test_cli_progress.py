"""What somebody sees while a network comes up."""

from __future__ import annotations

import io
import re

import pytest

from coterie.cli.app import App
from coterie.cli.live_display import without_escapes
from coterie.cli.progress import ProgressTable


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def board(out: io.StringIO, *names: str, quiet: bool = False) -> ProgressTable:
    return ProgressTable(App(out, io.StringIO(), {"HOME": "/"}), names, quiet=quiet)


def test_a_log_gets_a_line_for_each_that_is_done():
    out = io.StringIO()
    made = board(out, "alice", "alice -> bob")
    with made.shown():
        made.set_state("alice", "starts")
        made.tick()
        made.done("alice")
        made.done("alice")
        made.print_line("by the way")
    assert re.sub(r"\d+\.\d", "T", out.getvalue()) == "alice is ready after T s.\nby the way\n"
    assert made.late == ["alice -> bob"]


def test_what_was_ready_before_is_not_reported():
    out = io.StringIO()
    made = board(out, "alice")
    made.done("alice", silent=True)
    assert (out.getvalue(), made.late) == ("", [])


def test_a_terminal_shows_a_table_that_is_gone_at_the_end():
    out = Screen()
    made = board(out, "alice", "alice -> bob")
    with made.shown():
        made.set_state("alice -> bob", "TokenNotGenerate: bob holds no token")
        made.done("alice")
        drawn = out.getvalue()
        made.tick()
    assert "alice         \x1b" not in drawn
    assert re.search(r"ready \(\d+\.\d s\)", drawn) and "TokenNotGenerate: bob holds no token" in drawn
    assert out.getvalue().endswith("\r\x1b[2A\x1b[J\x1b[?25h"), "erased, and the cursor is back"


def test_a_long_state_does_not_wrap():
    out = Screen()
    made = board(out, "alice")
    made.set_state("alice", "x" * 500)
    made.tick()
    (line,) = without_escapes(out.getvalue()).strip().splitlines()
    assert line.count("x") < 80 - len("| alice")


@pytest.mark.parametrize("out", [io.StringIO(), Screen()], ids=["log", "terminal"])
def test_quiet_is_quiet(out):
    made = board(out, "alice", quiet=True)
    with made.shown():
        made.tick()
        made.done("alice")
        made.print_line("something")
    assert out.getvalue() == ""
