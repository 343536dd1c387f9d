"""What a user sees while something takes its time."""

from __future__ import annotations

import io
import os
import pty
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coterie.cli.app import App
from coterie.cli.live_display import without_escapes
from coterie.cli.progress import ProgressTable, working
from coterie.kuscia.api.jobs.job_state import progress_text


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
    assert re.search(r"✔\x1b\[0m alice +\d+\.\d s  ready", drawn) and "TokenNotGenerate: bob holds no token" in drawn
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


# One step of a command.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def step(err: io.StringIO, clock: Clock, *, quiet: bool = False) -> ProgressTable:
    app = App(io.StringIO(), err, {"HOME": "/"})
    made = ProgressTable(app, ["image a"], quiet=quiet, slow_only=True, clock=clock)
    made.set_state("image a", "pulling")
    return made


def test_a_log_is_not_bothered_with_what_is_quick():
    err, clock = io.StringIO(), Clock()
    made = step(err, clock)
    with made.shown():
        clock.now = 0.9
        made.tick()
        made.done("image a", "pulled")
    assert err.getvalue() == ""


def test_a_log_learns_what_is_slow_and_that_it_ended():
    err, clock = io.StringIO(), Clock()
    made = step(err, clock)
    with made.shown():
        for clock.now in (0.5, 1.5, 2.5):
            made.tick()
        made.done("image a", "pulled")
    assert err.getvalue() == "image a: pulling ...\nimage a is pulled after 2.5 s.\n"


@pytest.mark.parametrize("err", [io.StringIO(), Screen()], ids=["log", "terminal"])
def test_a_quiet_step_is_quiet(err):
    clock = Clock()
    made = step(err, clock, quiet=True)
    with made.shown(ticking=True):
        clock.now = 5.0
        made.tick()
        made.done("image a")
    assert err.getvalue() == ""


def test_a_share_has_the_bar_and_the_number_of_a_job():
    err = Screen()
    made = step(err, Clock())
    with made.shown():
        made.set_state("image a", "3 of 5 MiB", 0.996)
        made.tick()
    drawn = without_escapes(err.getvalue())
    assert progress_text(0.996) == "99%", "never all before the end"
    assert "● image a  ███████████░  99%  0.0 s  3 of 5 MiB" in drawn


def test_text_of_others_does_not_steer_the_terminal():
    err = Screen()
    made = step(err, Clock())
    made.set_state("image a", "evil\x1b[2Jname")
    made.tick()
    assert "\x1b[2J" not in err.getvalue()


# On a terminal.


@contextmanager
def terminal() -> Iterator[tuple[App, list[bytes]]]:
    """An app whose standard error is a terminal, and what was written to it."""
    master, slave = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                seen.append(data)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        yield App(io.StringIO(), stream, {"HOME": "/", "TERM": "xterm"}), seen
    reader.join()
    os.close(master)


def test_a_blocking_step_moves_on_a_terminal_and_leaves_nothing():
    with terminal() as (app, seen):
        with working(app, "table a", "copying") as made:
            until = time.monotonic() + 10
            while b"table a" not in b"".join(seen) and time.monotonic() < until:
                time.sleep(0.01)
            made.update("reading", 0.5)
            while b"50%" not in b"".join(seen) and time.monotonic() < until:
                time.sleep(0.01)
            made.print_line("a line that stays")
        assert app.out.getvalue() == "a line that stays\n"
    text = b"".join(seen).decode()
    assert "50%" in text and "copying" in text
    assert text.endswith("\x1b[J\x1b[?25h"), "erased, and the cursor is back"


def test_a_failing_step_gives_the_terminal_back():
    with terminal() as (app, seen), pytest.raises(ZeroDivisionError), working(app, "table a", "copying"):
        raise ZeroDivisionError
    assert b"".join(seen).endswith(b"\x1b[?25h")
