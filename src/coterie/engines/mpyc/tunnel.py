"""Connections of the program to the other parties, carried through HTTP gateways.

    program ──TCP, loopback──> here ── POST /bytes/<sender>/<number> ──> gateways ──> there ──TCP, loopback──> program

The party with the lower index connects, as MPyC has it, so there is one connection between two parties. What one party
writes goes in numbered pieces, one after the other; a piece that comes again, after an answer was lost, is known by its number. An
empty piece closes the connection. The last call is `POST /end/<sender>/<number>`: it says that the program there has ended well, and has all it needs.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 1 << 20
START_SECONDS = 180.0
"""For a partner to come."""
LOST_SECONDS = 60.0
"""For a partner that was there to come back."""
SOURCE_HEADER = "Kuscia-Origin-Source"
"""Set by the gateways: the domain that a call comes from."""
_PAUSE = 0.2
_CALL_SECONDS = 30.0


class Line:
    """The connection between this party and one other."""

    def __init__(self, own: str, other: str, endpoint: str, port: int, lost: Callable[[str], None]) -> None:
        """`port`: where the program listens for this partner; 0: the program connects to us."""
        self._own, self._other, self._endpoint, self._port, self._lost = own, other, endpoint, port, lost
        self._listener = None if port else socket.create_server(("127.0.0.1", 0))
        self._socket: socket.socket | None = None
        self._there = threading.Event()
        """The program is connected."""
        self._receiving = threading.Lock()
        self._expected = 0
        self._number = 0
        self._closing = threading.Event()
        self.ended_there = threading.Event()
        self.ended_here = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    @property
    def address(self) -> str:
        """Where the program finds the partner. It never calls those who call it."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}" if self._listener else "127.0.0.1:1"

    def start(self) -> None:
        threading.Thread(target=self._send, name=f"to {self._other}", daemon=True).start()

    def close(self) -> None:
        """The program has ended."""
        self._closing.set()

    def take(self, number: int, body: bytes, *, last: bool) -> bool:
        """A piece of the partner. False: it is not the next one."""
        with self._receiving:
            if number < self._expected:
                return True
            if number > self._expected:
                return False
            if last:
                self._expected += 1
                return True
            if self._socket is None and self._port:
                self._socket = self._reach_program()
                if self._socket is not None:
                    self._there.set()
            deadline = time.monotonic() + START_SECONDS
            while not self._there.wait(_PAUSE) and not self._closing.is_set():
                if time.monotonic() > deadline:
                    return False
            try:
                if self._socket is not None and body:
                    self._socket.sendall(body)
                elif self._socket is not None:
                    self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the program has closed it: it needs no more
            self._expected += 1
            return True

    def _reach_program(self) -> socket.socket | None:
        deadline = time.monotonic() + START_SECONDS
        while not self._closing.is_set():
            try:
                found = socket.create_connection(("127.0.0.1", self._port), 10)
                found.settimeout(None)
                return found
            except OSError:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.05)
        return None

    def _send(self) -> None:
        try:
            self._carry()
            self._closing.wait()
            self._post("end", b"")
            self.ended_here.set()
        except _PartnerLost as problem:
            self._lost(str(problem))

    def _carry(self) -> None:
        if self._listener is not None:
            self._accept(self._listener)
        while not self._there.wait(_PAUSE):
            if self._closing.is_set():
                return
        found = self._socket
        while found is not None:
            try:
                piece = found.recv(PIECE)
            except OSError:
                piece = b""
            self._post("bytes", piece)
            if not piece:
                return

    def _accept(self, listener: socket.socket) -> None:
        """The program's connection; none if it ends without one."""
        listener.settimeout(_PAUSE)
        with listener:
            while not self._closing.is_set():
                try:
                    found, _ = listener.accept()
                except TimeoutError:
                    continue
                found.settimeout(None)
                self._socket = found
                self._there.set()
                return

    def _post(self, kind: str, body: bytes) -> None:
        """Until the partner has it."""
        began = time.monotonic()
        while True:
            try:
                status = self._call(f"/{kind}/{self._own}/{self._number}", body)
            except (OSError, http.client.HTTPException) as problem:
                self._connection, reason = None, str(problem) or type(problem).__name__
            else:
                if status == 200:
                    self._number += 1
                    return
                reason = f"HTTP status {status}"
            if time.monotonic() - began > (LOST_SECONDS if self._number else START_SECONDS):
                raise _PartnerLost(f"{self._other} cannot be reached: {reason}")
            time.sleep(_PAUSE)

    def _call(self, path: str, body: bytes) -> int:
        host, _, port = self._endpoint.partition(":")
        if self._connection is None:
            proxy = os.environ.get("http_proxy", "").removeprefix("http://").rstrip("/")
            via, _, via_port = (proxy or self._endpoint).partition(":")
            self._connection = http.client.HTTPConnection(via, int(via_port or 80), timeout=_CALL_SECONDS)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = f"{host}:{port}" if port else host
        target = f"http://{name}{path}" if os.environ.get("http_proxy") else path
        self._connection.request("POST", target, body, {"Host": name, "Content-Type": "application/octet-stream"})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


class _PartnerLost(Exception):
    pass


def serve(port: int, lines: dict[str, Line]) -> ThreadingHTTPServer:
    """Take pieces from now on."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length") or ""
            words = self.path.split("/")[-3:]
            if not length.isdigit() or int(length) > PIECE or len(words) != 3:
                self._answer(400, close=True)
                return
            body = self.rfile.read(int(length))
            kind, sender, number = words
            source = self.headers.get(SOURCE_HEADER) or sender
            if sender not in lines or kind not in ("bytes", "end") or not number.isdigit() or len(body) < int(length):
                self._answer(400)
            elif source != sender:
                self._answer(403)
            elif not lines[sender].take(int(number), body, last=kind == "end"):
                self._answer(409)
            else:
                self._answer(200)
                if kind == "end":  # behind the answer: this party may be gone right after
                    lines[sender].ended_there.set()

        def _answer(self, status: int, *, close: bool = False) -> None:
            self.close_connection = self.close_connection or close
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Pieces are not logged."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pieces", daemon=True).start()
    return server
