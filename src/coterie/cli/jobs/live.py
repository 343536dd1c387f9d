"""A job before the user's eyes: a picture that is redrawn in place on a terminal, lines of changes elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from coterie.cli.app import App, CliError
from coterie.cli.jobs.chart import svg
from coterie.cli.jobs.follow import JobFollower
from coterie.cli.jobs.view import changes, picture
from coterie.cli.live_display import LiveDisplay, takes_unicode
from coterie.cli.session import CliSession
from coterie.cli.terminal import is_terminal, size_of
from coterie.cli.terminal_format import TerminalFormat, safe
from coterie.kuscia.api.jobs.job_state import JobState
from coterie.kuscia.api.jobs.timeline import PhaseTimes, Timeline
from coterie.kuscia.api.types.job import JobPhase
from coterie.kuscia.control.job_snapshots import JobSnapshot

_TICK = 1.0
_PLAIN_WIDTH = 120
_SAY_AGAIN = 60.0
"""Seconds without trouble after which trouble is worth a word again."""


def terminal_format(app: App, *, whole: bool = False) -> TerminalFormat:
    """What the user's output is like. `whole`: it may scroll, so that height does not matter."""
    size = size_of(app.out)
    width, height = size or (_PLAIN_WIDTH, 0)
    return TerminalFormat(max(16, width), 0 if whole else max(0, height - 1), app.colour, takes_unicode(app.out))


class JobDisplay:
    """Shows each state of a job: redrawn on a terminal, as lines of changes elsewhere."""

    def __init__(self, app: App, display: LiveDisplay) -> None:
        self._app = app
        self._display = display
        self._before: JobState | None = None

    def show(self, job: JobState) -> None:
        if self._display.live:
            self._display.draw(picture(job, terminal_format(self._app), time.time()))
        else:
            at = datetime.now(UTC).strftime("%H:%M:%S")
            for line in changes(self._before, job):
                self._app.say(f"{at} {line}")
        self._before = job


async def follow(
    session: CliSession,
    name: str,
    *,
    timeout: float = 0.0,
    quiet: bool = False,
    stopwatch: PhaseTimes | None = None,
    since: float = 0.0,
) -> JobSnapshot:
    """Until the job has ended. Raises TimeoutError when it has not after `timeout` seconds (0: for ever).

    `stopwatch` notes moments in seconds of the monotonic clock after `since`.
    """
    display = LiveDisplay(session.app, keep=True)
    show = JobDisplay(session.app, display)
    redraws = display.live and not quiet
    last_trouble = float("-inf")

    def trouble(words: str) -> None:
        nonlocal last_trouble
        now = time.monotonic()
        if now - last_trouble > _SAY_AGAIN:
            display.clear()
            session.app.warn(f"The control plane does not answer ({words}); the job goes on, and so do we")
        last_trouble = now

    following = JobFollower(session.client, name, closely=stopwatch is not None, trouble=trouble)
    async with asyncio.timeout(timeout or None), following:
        with display, _resized(following.wake if redraws else None):
            while True:
                now = await following.next(_TICK if redraws else None)
                if stopwatch is not None:
                    stopwatch.note(now.facts, time.monotonic() - since)
                state = now.state
                if not quiet:
                    show.show(state)
                if state.over:
                    return now


@contextlib.contextmanager
def _resized(act: Callable[[], None] | None) -> Iterator[None]:
    """`act` is called when the terminal changes its size."""
    if act is None:
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGWINCH, act)
    except (RuntimeError, ValueError, NotImplementedError):  # not the main thread: the tick redraws within a second
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


def final_message(app: App, job: JobState) -> None:
    """What a user should know and do when a job did not succeed."""
    if not job.exit_code:
        return
    lines = job.message.strip().splitlines()
    if len(lines) > 1 or is_terminal(app.out):
        app.warn("\n".join((f"Job {job.name} is {job.phase}:", *(f"  {safe(line)}" for line in lines))))
    if job.phase == JobPhase.FAILED:
        begun = any(task.began is not None for task in job.tasks)
        more = f"`coterie job logs {job.name}` has all of its output, " if begun else ""
        app.warn(f"{more}`coterie job show {job.name}` all about it")
        app.warn(f"`coterie job bundle {job.name}` writes an archive for support, without secrets")


def write_svg(app: App, name: str, line: Timeline) -> None:
    path = app.cwd / Path(name).expanduser()
    try:
        path.write_text(svg(line), "utf-8")
    except OSError as error:
        raise CliError(f"Error: {name} cannot be written: {error.strerror}") from error
    app.warn(f"Wrote {name}")
