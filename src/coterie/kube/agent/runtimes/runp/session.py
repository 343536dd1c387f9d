"""Streams of an exec or an attachment, on the agent's side: bare handles in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Awaitable, Callable

_CHUNK = 64 << 10


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class PipeReader:
    """The reading end of a pipe or a terminal. Reads only when somebody waits, so a slow reader slows the writer."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._waiting: asyncio.Future[None] | None = None
        os.set_blocking(handle, False)

    async def read(self) -> bytes:
        while self._handle >= 0:
            try:
                data = os.read(self._handle, _CHUNK)
            except BlockingIOError:
                await self._ready()
                continue
            except OSError:  # a terminal whose other side is closed answers EIO
                data = b""
            if not data:
                self.close()
            return data
        return b""

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = ready = loop.create_future()
        handle = self._handle
        loop.add_reader(handle, _wake, ready)
        try:
            await ready
        finally:
            # Closing the source wakes the reader; the number may by then belong to somebody else.
            if self._handle == handle:
                loop.remove_reader(handle)

    def close(self) -> None:
        if self._handle >= 0:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1
            if self._waiting is not None:
                _wake(self._waiting)


class PipeWriter:
    """The writing end. What is written after the reader went is thrown away, as a shell would see it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        os.set_blocking(handle, False)

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._handle >= 0:
            try:
                left = left[os.write(self._handle, left) :]
            except BlockingIOError:
                await self._ready()
            except OSError:
                self.close()

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        handle = self._handle
        loop.add_writer(handle, _wake, ready)
        try:
            await ready
        finally:
            if self._handle == handle:
                loop.remove_writer(handle)

    def close(self) -> None:
        if self._handle >= 0:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_writer(self._handle)
            os.close(self._handle)
            self._handle = -1


class StreamSession:
    """`ended` resolves to the exit code; `let_go` tells the supervisor that nobody cares any more."""

    def __init__(
        self,
        *,
        stdin: PipeWriter | None,
        stdout: PipeReader | None,
        stderr: PipeReader | None,
        terminal: int,
        ended: asyncio.Future[int],
        end_input: Callable[[], Awaitable[None]] | None = None,
        let_go: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._terminal = terminal
        self._ended = ended
        self._end_input = end_input
        self._let_go = let_go

    async def read_stdout(self) -> bytes:
        return await self._stdout.read() if self._stdout is not None else b""

    async def read_stderr(self) -> bytes:
        return await self._stderr.read() if self._stderr is not None else b""

    async def write_stdin(self, data: bytes) -> None:
        if self._stdin is not None:
            await self._stdin.write(data)

    async def close_stdin(self) -> None:
        """A terminal has no end of input but the character that means it; pipes are closed."""
        if self._terminal >= 0:
            await self.write_stdin(b"\x04")
        elif self._stdin is not None:
            self._stdin.close()
            if self._end_input is not None:
                await self._end_input()

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        for stream in (self._stdin, self._stdout, self._stderr):
            if stream is not None:
                stream.close()
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        if self._let_go is not None and not self._ended.done():
            await self._let_go()


class FailedSession:
    """An exec whose program could not be started: it says why and ends with the code a shell would give."""

    def __init__(self, code: int, message: str, *, tty: bool) -> None:
        self._code = code
        self._text = {not tty: f"{message}\r\n".encode() if tty else f"{message}\n".encode()}

    async def read_stdout(self) -> bytes:
        return self._text.pop(False, b"")

    async def read_stderr(self) -> bytes:
        return self._text.pop(True, b"")

    async def write_stdin(self, data: bytes) -> None:
        return

    async def close_stdin(self) -> None:
        return

    def resize(self, columns: int, rows: int) -> None:
        return

    async def wait(self) -> int:
        return self._code

    async def close(self) -> None:
        return
