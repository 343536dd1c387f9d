"""HTTP calls passed on between a program and its partners, after a look at each.

    program ──> relay on loopback ──> gateways ──> relay of the partner ──> its program on loopback

So a program never listens where partners reach it, and only calls that its launcher knows come through.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

SOURCE_HEADER = "Kuscia-Origin-Source"
"""Set by the gateways: the domain that a call comes from. They replace what a program wrote there itself."""
LIMIT = 256 << 20
"""Bytes of one call; each is in memory as a whole."""
_SECONDS = 120.0
_NOT_PASSED_ON = {
    "connection",
    "content-length",
    "date",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


class HttpCall(NamedTuple):
    method: str
    path: str
    source: str
    """The domain that it comes from; empty: from this pod."""
    headers: dict[str, str]
    body: bytes


class HttpReply(NamedTuple):
    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012  never written


class NotReached(Exception):
    """No answer; the text says why."""


def serve(host: str, port: int, answer: Callable[[HttpCall], HttpReply]) -> ThreadingHTTPServer:
    """Take calls from now on, each in a thread."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _take(self) -> None:
            length = self.headers.get("Content-Length") or "0"
            if not length.isdigit() or int(length) > LIMIT or self.headers.get("Transfer-Encoding"):
                self.close_connection = True
                self._send(HttpReply(413 if length.isdigit() else 400))
                return
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self.close_connection = True
                return
            headers = {key: value for key, value in self.headers.items() if key.lower() not in _NOT_PASSED_ON}
            source = self.headers.get(SOURCE_HEADER) or ""
            self._send(answer(HttpCall(self.command, self.path, source, headers, body)))

        do_GET = do_POST = _take

        def _send(self, reply: HttpReply) -> None:
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                if key.lower() not in _NOT_PASSED_ON:
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Calls are not logged."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="relay", daemon=True).start()
    return server


class RelayTarget:
    """Where calls are passed on to: a connection for each thread."""

    def __init__(self, endpoint: str, *, partner: bool) -> None:
        """`partner`: it is reached as partners are, through the proxy of the environment where there is one."""
        self._endpoint = endpoint
        proxy = os.environ.get("http_proxy", "") if partner else ""
        self._proxy = proxy.removeprefix("http://").rstrip("/")
        self._kept = threading.local()

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> HttpReply:
        used = getattr(self._kept, "connection", None) is not None
        try:
            return self._call(method, path, body, headers or {})
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as problem:
            if not used:  # else it was closed while it was not in use
                raise NotReached(str(problem) or type(problem).__name__) from problem
        except (OSError, http.client.HTTPException) as problem:
            raise NotReached(str(problem) or type(problem).__name__) from problem
        try:
            return self._call(method, path, body, headers or {})
        except (OSError, http.client.HTTPException) as problem:
            raise NotReached(str(problem) or type(problem).__name__) from problem

    def _call(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> HttpReply:
        connection: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        self._kept.connection = None
        if connection is None:
            host, _, port = (self._proxy or self._endpoint).partition(":")
            connection = http.client.HTTPConnection(host, int(port or 80), timeout=_SECONDS)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            target = f"http://{self._endpoint}{path}" if self._proxy else path
            connection.request(method, target, body, {**headers, "Host": self._endpoint})
            answer = connection.getresponse()
            found = HttpReply(answer.status, answer.read(), dict(answer.getheaders()))
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._kept.connection = connection
        return found
