"""What a user sees while something takes its time: the same marks, bars and numbers as a job has in `coterie job watch` and in
the console.

    with working(app, "image engine:1.0", "pulling") as step:         # one thing; on standard error
        step.update("3 of 5 MiB", share=0.6)
        step.print_line("a line that stays")

    progress = ProgressTable(app, ["alice", "alice -> bob"])          # several
    with progress.shown():
        progress.set_state("alice", "its API answers")
        progress.done("alice")            # "alice is ready after 0.9 s."
        progress.tick()                   # now and then, so that the seconds count

On a terminal the lines are redrawn in place and erased at the end: what the command prints next has the result in it. In a log a line
tells what was done, and `working` tells what has taken longer than a second. With `quiet` (-o json) nothing is written.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from coterie.cli.app import App
from coterie.cli.live_display import LiveDisplay, columns, takes_unicode
from coterie.cli.terminal_format import TerminalFormat, cut, padded, safe

_WAITING, _RUNNING, _SUCCEEDED = "Waiting", "Running", "Succeeded"
_TICK_SECONDS = 0.2
_SLOW_SECONDS = 1.0
"""What ends earlier is not worth a line in a log."""


class ProgressTable:
    """`slow_only`: for steps of a command; lines in a log are about those that take longer than a second, and are written to
    standard error, as is the drawing."""

    def __init__(
        self,
        app: App,
        names: Sequence[str] = (),
        *,
        quiet: bool = False,
        slow_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._quiet = quiet
        self._slow_only = slow_only
        self._stream = app.err if slow_only else app.out
        self._display = LiveDisplay(app, stream=self._stream)
        self._moving = self._display.live and not quiet
        self._clock = clock
        self._lock = threading.RLock()
        self._began = clock()
        self._states = dict.fromkeys(names, "")
        self._shares: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._announced: set[str] = set()

    @property
    def late(self) -> list[str]:
        """Those that are not done, in the order in which they were named."""
        return [name for name in self._states if name not in self._done]

    def state(self, name: str) -> str:
        return self._states.get(name, "") or "waiting"

    def add(self, *names: str) -> None:
        for name in names:
            self._states.setdefault(name, "")

    def set_state(self, name: str, state: str, share: float | None = None) -> None:
        """`share`: how much of it is done, from 0 to 1, where that is known."""
        with self._lock:
            self._states[name] = state
            if share is None:
                self._shares.pop(name, None)
            else:
                self._shares[name] = min(1.0, max(0.0, share))

    def done(self, name: str, state: str = "ready", *, silent: bool = False) -> None:
        """`silent`: it was so before we looked, so there is nothing to report."""
        if name in self._done:
            return
        age = self._clock() - self._began
        with self._lock:
            self._states[name] = state
            self._done[name] = age
        if not self._moving and not silent and (not self._slow_only or name in self._announced):
            self._log_line(f"{name} is {state} after {age:.1f} s.")
        self.tick()

    def print_line(self, text: str) -> None:
        """A line of the command's output that stays."""
        if not self._quiet:
            with self._lock:
                self._display.clear()
                self._app.say(text)

    def _log_line(self, text: str) -> None:
        if not self._quiet:
            with self._lock:
                self._stream.write(text + "\n")
                self._stream.flush()

    def tick(self) -> None:
        with self._lock:
            if self._moving:
                paper = TerminalFormat(self._display.width, 0, self._app.colour_on(self._stream), self._letters)
                width = max((columns(name) for name in self._states), default=0)
                self._display.draw([self._line(name, min(width, paper.width // 2), paper) for name in self._states])
            elif self._slow_only and self._clock() - self._began >= _SLOW_SECONDS:
                for name in self.late:
                    if name not in self._announced and self._states[name]:
                        self._announced.add(name)
                        self._log_line(f"{name}: {safe(self._states[name])} ...")

    @property
    def _letters(self) -> bool:
        return takes_unicode(self._stream)

    def _line(self, name: str, width: int, paper: TerminalFormat) -> str:
        done = self._done.get(name)
        phase = _SUCCEEDED if done is not None else _RUNNING if self._states[name] else _WAITING
        share = self._shares.get(name)
        meter = f"{paper.meter(share)}  " if share is not None and done is None else ""
        age = done if done is not None else self._clock() - self._began
        rest = f"{padded(cut(safe(name), width, paper.dots), width)}  {meter}{age:.1f} s  {safe(self.state(name))}"
        return f"{paper.paint(paper.mark(phase), phase)} {cut(rest, max(0, paper.width - 3), paper.dots)}"

    @contextlib.contextmanager
    def shown(self, *, ticking: bool = False) -> Iterator[None]:
        """The table is erased at the end, whatever that is. `ticking`: seconds count by themselves, for work that blocks."""
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick_until, args=(ended,), name="progress", daemon=True)
        with self._display:
            self.tick()
            if ticking and not self._quiet:
                ticker.start()
            try:
                yield
            finally:
                ended.set()
                if ticker.is_alive():
                    ticker.join()

    def _tick_until(self, ended: threading.Event) -> None:
        while not ended.wait(_TICK_SECONDS):
            self.tick()


class WorkStep:
    """One thing that a command does."""

    def __init__(self, progress: ProgressTable, name: str) -> None:
        self._progress = progress
        self._name = name

    def update(self, state: str, share: float | None = None) -> None:
        self._progress.set_state(self._name, state, share)

    def print_line(self, text: str) -> None:
        self._progress.print_line(text)


@contextlib.contextmanager
def working(app: App, name: str, state: str, *, done: str = "done", quiet: bool = False) -> Iterator[WorkStep]:
    """While the block runs, its name, state and seconds are shown."""
    progress = ProgressTable(app, [name], quiet=quiet, slow_only=True)
    progress.set_state(name, state)
    with progress.shown(ticking=True):
        yield WorkStep(progress, name)
        progress.done(name, done)
