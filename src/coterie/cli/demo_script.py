"""How the demos speak: numbered headings, the commands as a user would type them, and how long each took."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from coterie.cli import console_link
from coterie.cli.app import App
from coterie.node.config import NodeSettings


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

    def show_console(self, nodes: Sequence[NodeSettings], root: Path, *, wait: bool, opened: bool = False) -> None:
        """Links to the consoles. `wait`: then stay until Ctrl-C, so that somebody can look. `opened`: a browser has one
        already."""
        self.heading("Look at it in a browser")
        links = console_link.links_of_all(self.app, nodes, browser=not opened)
        if not links:
            return  # why was said
        console_link.print_links(self.app, links, str(root))
        if not wait:
            return
        self.app.say("Everything stays until you press Ctrl-C, and is removed then.")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                signal.pause()
        self.app.say()


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
