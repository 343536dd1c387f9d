"""What somebody sees while things come up: on a terminal a small table that moves, elsewhere a line for each that is
done.

board = Board(app, ["alice", "alice -> bob"])
with board.shown():
    board.tell("alice", "its API answers")
    board.done("alice")          # "alice is ready after 0.9 s."
    board.tick()                 # now and then, so that the marks move
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from coterie.cli.app import App
from coterie.cli.live_display import LiveDisplay

_FRAMES = "|/-\\"


class ProgressTable:
    def __init__(self, app: App, names: Sequence[str] = (), *, quiet: bool = False) -> None:
        self._app = app
        self._quiet = quiet
        self._display = LiveDisplay(app)
        self._moving = self._display.live and not quiet
        self._began = time.monotonic()
        self._states = dict.fromkeys(names, "waiting")
        self._done: dict[str, float] = {}

    @property
    def late(self) -> list[str]:
        """Those that are not done, in the order in which they were named."""
        return [name for name in self._states if name not in self._done]

    def state(self, name: str) -> str:
        return self._states.get(name, "")

    def add(self, *names: str) -> None:
        for name in names:
            self._states.setdefault(name, "waiting")

    def set_state(self, name: str, state: str) -> None:
        self._states[name] = state

    def done(self, name: str, state: str = "ready", *, silent: bool = False) -> None:
        """`silent`: it was so before we looked, so there is nothing to report."""
        if name in self._done:
            return
        age = time.monotonic() - self._began
        self._states[name] = state
        self._done[name] = age
        if not self._moving and not silent:
            self.print_line(f"{name} is {state} after {age:.1f} s.")
        self.tick()

    def print_line(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._display.say(text)

    def tick(self) -> None:
        if not self._moving:
            return
        width = max((len(name) for name in self._states), default=0)
        self._display.draw([self._line(name, width) for name in self._states])

    def _line(self, name: str, width: int) -> str:
        done = self._done.get(name)
        age = time.monotonic() - self._began
        if done is not None:
            return f"{self._app.paint('*', 'green')} {name:<{width}}  {self._states[name]} ({done:.1f} s)"
        frame = self._app.paint(_FRAMES[int(age * 8) % len(_FRAMES)], "yellow")
        return f"{frame} " + f"{name:<{width}}  {age:.1f} s  {self._states[name]}"[: max(0, self._display.width - 3)]

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """The table is taken away at the end, whatever that is: what is printed next has the result in it."""
        with self._display:
            yield
