"""What the code prints while it works on a call: each line begins with `call=<id> `.

The call is found by a context variable, so lines of calls that run side by side are told apart. A line is written as a whole; one
without an end is written in parts of 8 KiB, so nothing grows. A full pipe blocks whoever prints, nobody else.
"""

from __future__ import annotations

import io
import os
from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONGEST_LINE = 8 << 10


class CallLines:
    """The unfinished lines of one call, by stream."""

    __slots__ = ("partial", "prefix")

    def __init__(self, call: str) -> None:
        self.prefix = f"call={call} "
        self.partial: dict[int, str] = {}


CURRENT: ContextVar[CallLines | None] = ContextVar("coterie_call", default=None)


class CallStream(io.TextIOBase):
    """In place of `sys.stdout` and `sys.stderr`."""

    def __init__(self, handle: int) -> None:
        super().__init__()
        self._handle = os.dup(handle)  # the code may close the other one
        self._number = handle
        self.buffer = _BinarySide(self)
        self.mode = "w"
        self.name = "<stdout>" if handle == 1 else "<stderr>"
        self.line_buffering = True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        """Stays open: the next call prints too."""

    def reconfigure(self, **_: Any) -> None:
        """Lines are written when they end; the encoding is UTF-8."""

    def write(self, text: str) -> int:
        lines = CURRENT.get()
        if lines is None:
            self._send(text)
            return len(text)
        whole = lines.partial.pop(self._number, "") + text if lines.partial else text
        if len(whole) < _LONGEST_LINE and "\n" not in whole:
            if whole:
                lines.partial[self._number] = whole
            return len(text)
        *done, rest = whole.split("\n")
        while len(rest) >= _LONGEST_LINE:
            done.append(rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        for line in done:
            self._send(f"{lines.prefix}{line}\n")
        if rest:
            lines.partial[self._number] = rest
        return len(text)

    def finish(self, lines: CallLines) -> None:
        """The call has ended: so has its line."""
        if (rest := lines.partial.pop(self._number, "")) != "":
            self._send(f"{lines.prefix}{rest}\n")

    def _send(self, text: str) -> None:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while data:
                data = data[os.write(self._handle, data) :]
        except OSError:
            return  # nobody reads the log any more; calls go on


class _BinarySide(io.RawIOBase):
    """`sys.stdout.buffer`"""

    def __init__(self, text: CallStream) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """As the text side."""

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._text.write(raw.decode("utf-8", "backslashreplace"))
        return len(raw)
