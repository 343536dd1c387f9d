"""The user's terminal for programs that run elsewhere: bytes out, keys in, and its size.

What a container writes are bytes, in whatever encoding; they go to the user as they are. Input is read by a thread of
its own, because there is no other way to wait for a file, a pipe and a terminal alike.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import os
import termios
import threading
import tty
from collections.abc import Iterator
from typing import TextIO

_CHUNK = 32 * 1024
_AHEAD = 4
"""Pieces that are read before they are wanted; then the reader waits."""


class Screen:
    """Bytes to a stream of text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        raw = getattr(self._stream, "buffer", None)
        if raw is not None:
            raw.write(data)
        else:
            self._stream.write(self._decoder.decode(data))
        self._stream.flush()


class Keyboard:
    """Bytes from the user's input, whatever it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._loop = asyncio.get_running_loop()
        self._ended = False
        handle = file_of(stream)
        if handle is None:
            self._arrived.put_nowait(stream.read().encode())
            self._arrived.put_nowait(b"")
        else:
            # A thread that ends with the program: it may be inside a read that nobody can interrupt.
            threading.Thread(target=self._read, args=(handle,), name="keyboard", daemon=True).start()

    async def read(self) -> bytes:
        """Empty at the end."""
        if self._ended:
            return b""
        data = await self._arrived.get()
        self._room.release()
        self._ended = not data
        return data

    def _read(self, handle: int) -> None:
        while True:
            self._room.acquire()
            try:
                data = os.read(handle, _CHUNK)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, data)
            except RuntimeError:  # the loop is closed: nobody wants it any more
                return
            if not data:
                return


def file_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return None


def is_terminal(stream: TextIO) -> bool:
    handle = file_of(stream)
    return handle is not None and os.isatty(handle)


def size_of(stream: TextIO) -> tuple[int, int] | None:
    """Columns and rows of the terminal; None when it does not say."""
    handle = file_of(stream)
    with contextlib.suppress(OSError):
        if handle is not None:
            size = os.get_terminal_size(handle)
            return (size.columns, size.lines) if size.columns and size.lines else None
    return None


@contextlib.contextmanager
def raw(stream: TextIO) -> Iterator[None]:
    """Every key goes to the other side, Ctrl-C too; afterwards the terminal is as before."""
    handle = file_of(stream)
    if handle is None:
        yield
        return
    before = termios.tcgetattr(handle)
    try:
        tty.setraw(handle)
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
