"""A stand-in for the node agent, for tests only: it answers the kubelet's paths so that a real kubectl can prove that
the API server carries logs, exec, attach, cp and port-forward through.

    python fake_agent.py PKI-DIRECTORY WORK-DIRECTORY      # prints its port, then serves until it is ended

exec runs the command in the work directory; attach echoes; a forwarded port answers what it is sent, with its number.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from fake_spdy import Session, Stream
from fake_websocket import WebSocket, accept_key

from coterie.base import pki_files

Query = dict[str, list[str]]
_CHANNELS = {"stdin": 0, "stdout": 1, "stderr": 2, "error": 3}
_CLOSE_CHANNEL = 255
_CHUNK = 32 * 1024


class Channels(Protocol):
    """The standard streams of a remote command, whatever carries them."""

    async def read(self) -> bytes:
        """Bytes of standard input; empty at its end."""

    def write(self, name: str, data: bytes) -> None: ...

    async def finish(self, status: dict[str, Any]) -> None: ...


class WebSocketChannels:
    """v4 and v5.channel.k8s.io: the first byte of a message is the channel; in v5 255 closes one."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def read(self) -> bytes:
        while (message := await self._socket.receive()) is not None:
            if message[:1] == b"\0" and len(message) > 1:
                return message[1:]
            if message[:1] == bytes([_CLOSE_CHANNEL]):
                return b""
        return b""

    def write(self, name: str, data: bytes) -> None:
        self._socket.send(bytes([_CHANNELS[name]]) + data)

    async def finish(self, status: dict[str, Any]) -> None:
        self.write("error", json.dumps(status).encode())
        await self._socket.close()


class SpdyChannels:
    """v4.channel.k8s.io over SPDY: one stream for each, named by its streamType header."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self._streams = streams

    async def read(self) -> bytes:
        return await self._streams["stdin"].read() if "stdin" in self._streams else b""

    def write(self, name: str, data: bytes) -> None:
        if name in self._streams:
            self._streams[name].write(data)

    async def finish(self, status: dict[str, Any]) -> None:
        self.write("error", json.dumps(status).encode())
        for stream in self._streams.values():
            stream.close()


class Agent:
    def __init__(self, work: Path) -> None:
        self._work = work

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            target = urlsplit(head[0].split(" ")[1])
            headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:]) if n}
            kind, query = target.path.split("/")[1], parse_qs(target.query)
            if kind == "containerLogs":
                await self._logs(writer, query)
            elif kind == "stats":
                self._stats(writer)
            elif kind == "podConnect":
                await self._pod(reader, writer, query)
            elif kind == "portForward":
                await self._port_forward(headers, reader, writer)
            elif kind in ("exec", "attach"):
                command = self._exec if kind == "exec" else self._attach
                await self._stream(headers, query, command, reader, writer)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            pass  # The client went away, which ends it.
        finally:
            writer.close()

    def _stats(self, writer: asyncio.StreamWriter) -> None:
        """What pods use: figures that the test left in the work directory."""
        figures = self._work / "summary.json"
        body = figures.read_bytes() if figures.exists() else b""
        line = b"200 OK" if body else b"404 Not Found"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (line, len(body), body))

    async def _pod(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: Query) -> None:
        """A pod with a small web server, for the API server's proxy."""
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n")
        line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        body = b"port %b got %b\n" % (query["port"][0].encode(), line.rpartition(b" ")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    # -- logs ---------------------------------------------------------------------------------------------------

    async def _logs(self, writer: asyncio.StreamWriter, query: Query) -> None:
        option = {name: values[0] for name, values in query.items()}
        lines = ["the run before"] if "previous" in option else [f"line {n}" for n in range(1, 6)]
        lines = lines[-int(option.get("tailLines", len(lines))) :]
        if option.get("timestamps") == "true":
            lines = [f"{datetime.now(UTC).isoformat().replace('+00:00', 'Z')} {line}" for line in lines]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        for line in lines:
            _write_chunk(writer, f"{line}\n".encode())
        tick = 0
        while option.get("follow") == "true":
            tick += 1
            _write_chunk(writer, f"tick {tick}\n".encode())
            await writer.drain()
            await asyncio.sleep(0.1)
        _write_chunk(writer, b"")
        await writer.drain()

    # -- exec and attach ----------------------------------------------------------------------------------------

    async def _stream(
        self,
        headers: dict[str, str],
        query: Query,
        command: Callable[[Query, Channels], Coroutine[Any, Any, None]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if headers["upgrade"].lower() == "websocket":
            offered = _words(headers.get("sec-websocket-protocol", ""))
            chosen = next(p for p in ("v5.channel.k8s.io", "v4.channel.k8s.io") if p in offered)
            await command(query, WebSocketChannels(_accept_websocket(headers, chosen, reader, writer)))
            await writer.drain()
            return
        if "v4.channel.k8s.io" not in _words(headers.get("x-stream-protocol-version", "")):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        session = _accept_spdy("v4.channel.k8s.io", reader, writer)
        wanted = 1 + sum(name in query for name in ("input", "output", "error"))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(session.run())
            streams: dict[str, Stream] = {}
            while len(streams) < wanted and (stream := await session.opened.get()) is not None:
                streams[stream.headers["streamtype"]] = stream
            await command(query, SpdyChannels(streams))
            await writer.drain()
            # The client hangs up when it has read everything.
            await running

    async def _exec(self, query: Query, channels: Channels) -> None:
        process = await asyncio.create_subprocess_exec(
            *query["command"],
            cwd=self._work,
            stdin=asyncio.subprocess.PIPE if "input" in query else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        feeding = asyncio.create_task(_feed(process, channels)) if "input" in query else None
        assert process.stdout is not None and process.stderr is not None
        await asyncio.gather(
            _copy(process.stdout, "stdout", channels), _copy(process.stderr, "stderr", channels), process.wait()
        )
        if feeding is not None:
            feeding.cancel()
        await channels.finish(_exit_status(process.returncode or 0))

    async def _attach(self, query: Query, channels: Channels) -> None:
        channels.write("stdout", b"attached\n")
        while data := await channels.read():
            channels.write("stdout", b"echo: " + data)
        await channels.finish(_exit_status(0))

    # -- port-forward -------------------------------------------------------------------------------------------

    async def _port_forward(
        self, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if headers["upgrade"].lower() == "websocket":
            socket = _accept_websocket(headers, "SPDY/3.1+portforward.k8s.io", reader, writer)

            async def receive() -> bytes:
                # A message may be empty, which is not the end.
                while (message := await socket.receive()) is not None:
                    if message:
                        return message
                return b""

            session = Session(receive, socket.send)
        else:
            session = _accept_spdy("portforward.k8s.io", reader, writer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(session.run())
            errors: dict[str, Stream] = {}
            while (stream := await session.opened.get()) is not None:
                request = stream.headers["requestid"]
                if stream.headers["streamtype"] == "error":
                    errors[request] = stream
                else:
                    tasks.create_task(_answer_port(stream, errors.pop(request)))


async def _answer_port(data: Stream, error: Stream) -> None:
    port = data.headers["port"]
    while received := await data.read():
        data.write(f"port {port} got {received.decode()}".encode())
    data.close()
    error.close()


async def _copy(source: asyncio.StreamReader, name: str, channels: Channels) -> None:
    while data := await source.read(_CHUNK):
        channels.write(name, data)


async def _feed(process: asyncio.subprocess.Process, channels: Channels) -> None:
    assert process.stdin is not None
    while data := await channels.read():
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


def _exit_status(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _accept_websocket(
    headers: dict[str, str], protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> WebSocket:
    key = accept_key(headers["sec-websocket-key"])
    writer.write(
        f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {key}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
    )
    return WebSocket(reader, writer)


def _accept_spdy(protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Session:
    writer.write(
        f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n"
        f"X-Stream-Protocol-Version: {protocol}\r\n\r\n".encode()
    )
    return Session(lambda: reader.read(_CHUNK), writer.write)


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _words(header: str) -> list[str]:
    return [word.strip() for word in header.split(",")]


async def main(pki: Path, work: Path) -> None:
    now = datetime.now(UTC)
    authority = pki_files.ensure_authority(pki, "coterie-api", now=now)
    pair = pki_files.ensure_server(work.parent / "agent-pki", "agent", authority, names=["127.0.0.1"], now=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_path, pair.key_path)
    # Only the API server may give orders to an agent.
    context.load_verify_locations(pki / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(Agent(work).serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
