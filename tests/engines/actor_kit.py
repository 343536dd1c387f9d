"""Actors as processes on loopback, and a small client of their protocol."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import coterie

SOURCE = str(Path(coterie.__file__).parents[1])
COMMAND = (sys.executable, "-S", "-P", "-m", "coterie.engines.actor")
TOKEN = "a token"
SECONDS = 45.0
HELLO = """
    from serverless import Response
    def action(req):
        return Response("hello " + str(req.param("name")))
"""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def line(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body.partition(b"\n")[0])
        return found

    @property
    def response(self) -> dict[str, Any]:
        found: dict[str, Any] = self.line["response"]
        return found

    @property
    def content(self) -> bytes:
        return self.body.partition(b"\n")[2]


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.file = self.socket.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, method: str, path: str, body: bytes = b"", *, token: str = TOKEN, more: str = "") -> None:
        length = "" if "chunked" in more else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: actor\r\nAuthorization: Bearer {token}\r\n{length}{more}\r\n"
        self.socket.sendall(head.encode() + body)

    def read(self) -> Reply:
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, b"".join(self.chunks()))
        return Reply(status, headers, self.file.read(int(headers["content-length"])))

    def chunks(self) -> Iterator[bytes]:
        while True:
            line = self.file.readline()
            if not line:
                raise EOFError("the answer is not complete")
            data = self.file.read(int(line, 16))
            self.file.readline()
            if not data:
                return
            yield data

    def ask(self, method: str, path: str, body: bytes = b"", *, token: str = TOKEN, more: str = "") -> Reply:
        self.send(method, path, body, token=token, more=more)
        return self.read()

    def call(self, params: dict[str, Any] | None = None, body: bytes = b"", **fields: Any) -> Reply:
        return self.ask("POST", "/invoke", call_body(params, body, **fields))


def call_body(params: dict[str, Any] | None = None, body: bytes = b"", **fields: Any) -> bytes:
    line = {"id": "c1", "request": "r1", "action": "test", "params": params or {}, **fields}
    return json.dumps(line).encode() + b"\n" + body


class RunningActor:
    def __init__(self, process: subprocess.Popen[bytes], code: Path) -> None:
        self.process = process
        self.code = code
        self.port = 0
        self.clients: list[Client] = []
        self._out: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            self._out.append(data)

    @property
    def output(self) -> str:
        return b"".join(self._out).decode()

    def wait_for(self, text: str) -> str:
        until(lambda: text in self.output or self.process.poll() is not None)
        assert text in self.output, self.output
        return self.output

    def ended(self) -> int:
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def client(self) -> Client:
        self.clients.append(Client(self.port))
        return self.clients[-1]

    def ask(self, method: str, path: str, body: bytes = b"", *, token: str = TOKEN, more: str = "") -> Reply:
        client = self.client()
        try:
            return client.ask(method, path, body, token=token, more=more)
        finally:
            client.close()

    def call(self, params: dict[str, Any] | None = None, body: bytes = b"", **fields: Any) -> Reply:
        return self.ask("POST", "/invoke", call_body(params, body, **fields))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def until(what: Callable[[], object]) -> None:
    limit = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


def spawn(folder: Path, code: str | dict[str, str | bytes] = HELLO, **variables: str) -> RunningActor:
    """Does not wait for anything."""
    place = folder / "userland"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in ({"action.py": code} if isinstance(code, str) else code).items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        "PYTHONPATH": SOURCE,
        "PATH": os.defpath,
        "TMPDIR": str(temporary),
        "COTERIE_ACTION": "test",
        "COTERIE_ACTION_VERSION": "v1",
        "COTERIE_ACTOR_TOKEN": TOKEN,
        "COTERIE_ACTOR_PORT": "0",
        "COTERIE_ACTOR_HOST": "127.0.0.1",
        "COTERIE_ACTOR_CODE": str(place),
        **{f"COTERIE_{name.upper()}": value for name, value in variables.items()},
    }
    process = subprocess.Popen(
        COMMAND, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return RunningActor(process, place)


@contextmanager
def actor(folder: Path, code: str | dict[str, str | bytes] = HELLO, **variables: str) -> Iterator[RunningActor]:
    running = spawn(folder, code, **variables)
    try:
        line = running.wait_for("listens on port")
        running.port = int(line.split("listens on port")[1].split()[0])
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.process.kill()
        running.process.wait()
        assert running.process.stdout is not None
        running._reader.join(SECONDS)
        running.process.stdout.close()


def packed(files: dict[str, str], *members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, text in files.items():
            data = (textwrap.dedent(text) if len(text) < 1 << 16 else text).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()
