"""Tracebacks for the log. The module of the standard library takes longer to import than this program to start, so it is imported with the
first error."""

from __future__ import annotations

import importlib

_MOST = 32 << 10


def traceback_text(problem: BaseException) -> str:
    """Without the frames of the actor itself, and not longer than a page can hold."""
    trace = problem.__traceback__
    while trace is not None and "coterie/engines/actor/" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    try:
        traceback = importlib.import_module("traceback")
        text = "".join(traceback.format_exception(type(problem), problem, trace))
    except BaseException as second:  # noqa: BLE001 (the exception is of the user's making, and so is its text)
        text = f"{type(problem).__name__} (its text cannot be shown: {type(second).__name__})\n"
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]}\n...\n{text[-_MOST // 2 :]}"
