"""How the demos speak: numbered headings, the commands as a user would type them, and how long each took."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from coterie.cli.app import App


class DemoScript:
    def __init__(self, app: App) -> None:
        self.app = app
        self.began = time.perf_counter()
        self.step = 0

    def heading(self, text: str) -> None:
        self.step += 1
        line = f"{self.step}. {text}"
        self.app.say()
        self.app.say(self.app.paint(line, "bold") if self.app.colour else f"== {line} ==")

    def typed(self, line: str) -> None:
        self.app.say(self.app.paint(f"$ {line}", "cyan"))

    def took(self) -> Timer:
        return Timer(self.app)


class Timer:
    """`with timer as took: ...` and then `took()` is how long it took, in the words of the demo."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.seconds = 0.0

    def __enter__(self) -> Callable[[], str]:
        self._started = time.perf_counter()
        return lambda: self._app.paint(f"({self.seconds:.2f} s)", "dim")

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started


class DeferredSignals:
    """Whoever wants to end us meanwhile has to wait: something is begun that must be known or finished."""

    def __enter__(self) -> None:
        self._asked = False
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._asked:
            raise KeyboardInterrupt


def interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
