"""Execs and attachments on containerd.

An exec is a second process of the container's task, with named pipes that its shim opens: so it can be killed, and its terminal
resized. An attachment goes through CRI, since containerd itself holds the ends of a container's output: CRI answers with a URL on
the loopback that is good for one use within a minute, at which SPDY is spoken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.parse
from pathlib import Path
from typing import Any

from coterie.base.files import private_directory
from coterie.http.spdy import SpdyClient, SpdyStream
from coterie.kube.agent.runtimes.cri.connection import ContainerdCallFailed, ContainerdConnection
from coterie.kube.agent.runtimes.cri.messages import Message
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.agent.runtimes.runp.session import PipeReader, PipeWriter

_PROCESS_TYPE = "types.containerd.io/opencontainers/runtime-spec/1/Process"
_NOT_EXECUTED = ((127, ("executable file not found", "no such file or directory")), (126, ("permission denied",)))
_CHUNK = 64 << 10
_KILLED = 137
_EXIT_SECONDS = 5.0
_LINGER = 0.3
"""Seconds for which an attachment stays after its input has ended."""


class NotExecuted(Exception):
    """The program of an exec cannot be executed: the exit code that a shell would give."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class TaskExec:
    """Implements `ExecSession`: a process beside the container's own."""

    def __init__(self, connection: ContainerdConnection, container: str, name: str, *, tty: bool) -> None:
        self._connection = connection
        self._about: Message = {"container_id": container, "exec_id": name}
        self._tty = tty
        self._stdin: PipeWriter | None = None
        self._readers: dict[str, PipeReader] = {}
        self._ended: asyncio.Task[int] | None = None
        self._resizing: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        connection: ContainerdConnection,
        directory: Path,
        container: str,
        process: dict[str, Any],
        *,
        stdin: bool,
        stderr: bool,
    ) -> TaskExec:
        """`process`: as the OCI runtime specification has it. Raises NotExecuted and RuntimeFailure."""
        name, tty = f"exec-{os.urandom(8).hex()}", bool(process["terminal"])
        session = cls(connection, container, name, tty=tty)
        wanted = ["stdout", *(["stdin"] if stdin else []), *(["stderr"] if stderr and not tty else [])]
        paths = {stream: directory / f"{name}.{stream}" for stream in wanted}
        try:
            await session._run(directory, paths, process)
        finally:
            for path in paths.values():  # who needs them has them open
                path.unlink(missing_ok=True)
        return session

    async def _run(self, directory: Path, paths: dict[str, Path], process: dict[str, Any]) -> None:
        private_directory(directory)
        handles = {}
        try:
            for stream, path in paths.items():
                os.mkfifo(path, 0o600)
                # For both, or the writing end could not be opened before the shim reads.
                mode = os.O_RDWR if stream == "stdin" else os.O_RDONLY
                handles[stream] = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
            await self._connection.call(
                "tasks.v1.Tasks/Exec",
                {
                    **self._about,
                    **{stream: str(path) for stream, path in paths.items()},
                    "terminal": self._tty,
                    "spec": {"type_url": _PROCESS_TYPE, "value": json.dumps(process).encode()},
                },
            )
            try:
                await self._connection.call("tasks.v1.Tasks/Start", self._about)
            except ContainerdCallFailed as problem:
                await self._delete()
                raise _start_failure(problem) from problem
            if "stdin" in handles:
                writing = os.open(paths["stdin"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.close(handles.pop("stdin"))
                self._stdin = PipeWriter(writing)
        except BaseException:
            for handle in handles.values():
                os.close(handle)
            raise
        self._readers = {stream: PipeReader(handle) for stream, handle in handles.items()}
        self._ended = asyncio.create_task(self._wait(), name="cri-exec")

    async def _wait(self) -> int:
        try:
            answer = await self._connection.call("tasks.v1.Tasks/Wait", self._about, seconds=None)
        except ContainerdCallFailed:
            return _KILLED
        await self._delete()
        return int(answer.get("exit_status", 0))

    async def _delete(self) -> None:
        with contextlib.suppress(ContainerdCallFailed):
            await self._connection.call("tasks.v1.Tasks/DeleteProcess", self._about)

    async def read_stdout(self) -> bytes:
        return await self._readers["stdout"].read()

    async def read_stderr(self) -> bytes:
        reader = self._readers.get("stderr")
        return await reader.read() if reader is not None else b""

    async def write_stdin(self, data: bytes) -> None:
        if self._stdin is not None:
            await self._stdin.write(data)

    async def close_stdin(self) -> None:
        if self._stdin is None:
            return
        if self._tty:
            await self._stdin.write(b"\x04")
            return
        self._stdin.close()
        with contextlib.suppress(ContainerdCallFailed):
            await self._connection.call("tasks.v1.Tasks/CloseIO", {**self._about, "stdin": True})

    def resize(self, columns: int, rows: int) -> None:
        if self._tty:
            task = asyncio.create_task(self._resize(columns, rows), name="cri-resize")
            self._resizing.add(task)
            task.add_done_callback(self._resizing.discard)

    async def _resize(self, columns: int, rows: int) -> None:
        with contextlib.suppress(ContainerdCallFailed):
            await self._connection.call("tasks.v1.Tasks/ResizePty", {**self._about, "width": columns, "height": rows})

    async def wait(self) -> int:
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        if self._ended is not None and not self._ended.done():
            with contextlib.suppress(ContainerdCallFailed):
                await self._connection.call("tasks.v1.Tasks/Kill", {**self._about, "signal": int(signal.SIGKILL)})
        for reader in self._readers.values():
            reader.close()


def _start_failure(problem: ContainerdCallFailed) -> Exception:
    text = problem.message
    for code, marks in _NOT_EXECUTED:
        if any(mark in text for mark in marks):
            return NotExecuted(code, text.rpartition("exec: ")[2] or text)
    return RuntimeFailure("ExecFailed", text)


class Attachment:
    """Implements `ExecSession`: the streams of a container's own process."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        session: SpdyClient,
        streams: dict[str, SpdyStream],
        ended: asyncio.Task[int],
        *,
        tty: bool,
        stdin_once: bool,
    ) -> None:
        """`ended`: resolves to the container's exit code."""
        self._writer = writer
        self._streams = streams
        self._ended = ended
        self._tty = tty
        self._stdin_once = stdin_once
        self._left = False
        """Whether it ends by itself: its user has said all, and the container goes on."""
        self._reading = asyncio.create_task(session.run(), name="cri-attach")

    @classmethod
    async def open(
        cls,
        url: str,
        ended: asyncio.Task[int],
        *,
        stdin: bool,
        tty: bool,
        stdin_once: bool,
    ) -> Attachment:
        """Raises RuntimeFailure."""
        place = urllib.parse.urlsplit(url)
        try:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            request = (
                f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
                "X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
            )
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as problem:
            raise RuntimeFailure(
                "AttachFailed", f"containerd's streaming server does not answer: {problem}"
            ) from problem
        if b" 101 " not in head.partition(b"\r\n")[0]:
            writer.close()
            raise RuntimeFailure("AttachFailed", f"containerd does not attach: {head[:100].decode(errors='replace')}")
        session = SpdyClient(lambda: reader.read(_CHUNK), writer.write, writer.drain)
        names = ["error", *(["stdin"] if stdin else []), "stdout", *(["resize"] if tty else ["stderr"])]
        streams = {name: session.open_stream({"streamtype": name}) for name in names}
        return cls(writer, session, streams, ended, tty=tty, stdin_once=stdin_once)

    async def read_stdout(self) -> bytes:
        return await self._read("stdout")

    async def read_stderr(self) -> bytes:
        return await self._read("stderr")

    async def _read(self, name: str) -> bytes:
        stream = self._streams.get(name)
        if stream is None:
            return b""
        data = await stream.read()
        if not data:
            del self._streams[name]
        return data

    async def write_stdin(self, data: bytes) -> None:
        stream = self._streams.get("stdin")
        if stream is not None:
            stream.write(data)
            with contextlib.suppress(OSError):
                await stream.drain()

    async def close_stdin(self) -> None:
        """A container whose input belongs to many keeps it; then containerd ends this attachment, with what the container
        has not said yet."""
        if self._tty:
            await self.write_stdin(b"\x04")
        elif (stream := self._streams.get("stdin")) is not None:
            if not self._stdin_once:
                await asyncio.sleep(_LINGER)
                self._left = True
            stream.close()

    def resize(self, columns: int, rows: int) -> None:
        stream = self._streams.get("resize")
        if stream is not None:
            stream.write(json.dumps({"Width": columns, "Height": rows}).encode() + b"\n")

    async def wait(self) -> int:
        """The container's exit code; 0 for an attachment that ended before the container."""
        await asyncio.wait((self._ended, self._reading), return_when=asyncio.FIRST_COMPLETED)
        if not self._left:
            # The streams end with the container, a moment before it is known how it ended.
            await asyncio.wait((self._ended,), timeout=_EXIT_SECONDS)
        return self._ended.result() if self._ended.done() else 0

    async def close(self) -> None:
        self._writer.close()
        for task in (self._reading, self._ended):
            task.cancel()
        await asyncio.gather(self._reading, self._ended, return_exceptions=True)
