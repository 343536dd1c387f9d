"""Requests and responses as the API server sees them, whoever carries them: a TLS socket or a caller in-process.

A handler is called with a `Request` and answers with a `Response`, at once or by an awaitable. What has no end yet
(a watch, a followed log) is a `Response` with a `stream`; what stops being HTTP (exec, port-forward) has an `upgrade`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from urllib.parse import parse_qsl

from coterie.http.errors import HttpProblem, bad_request

_MAX_PARAMS = 1000
_SHORT_QUERY = 128
"""Bytes of a query that is remembered: programs send the same few with every write."""


def _pairs(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, keep_blank_values=True)


_short_query = lru_cache(maxsize=128)(_pairs)


@dataclass(frozen=True, slots=True)
class UserInfo:
    """Who is asking. `extra` holds such facts as the pod a token is bound to."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Peer:
    """The other end of a connection. One object for all requests of that connection."""

    __slots__ = ("address", "certificate_until", "certificate_user", "connected", "encrypted", "port")

    def __init__(
        self,
        address: str = "",
        *,
        certificate_user: UserInfo | None = None,
        certificate_until: float = float("inf"),
        encrypted: bool = False,
        connected: bool = False,
        port: int = 0,
    ) -> None:
        self.address = address
        self.port = port
        self.connected = connected
        """There is a socket between us, so a long body is better sent in pieces than as a whole."""
        self.certificate_user = certificate_user
        self.certificate_until = certificate_until
        """Seconds since 1970 until which the certificate is valid: a connection may live longer."""
        self.encrypted = encrypted


class Request:
    """`path` is percent-decoded, `query` is raw; header names are lower-case; of equal ones the last wins, but
    lists (accept, sub-protocols) are joined by a comma and impersonation headers by a line feed."""

    __slots__ = (
        "_params", "annotations", "audit", "body", "headers", "impersonator", "method", "path", "peer", "query", "user",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        peer: Peer | None = None,
        user: UserInfo | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers if headers is not None else {}
        self.body = body
        self.peer = peer if peer is not None else Peer()
        self.user = user
        self.impersonator: UserInfo | None = None
        """Who really asks, when `user` is somebody else."""
        self.annotations: dict[str, str] | None = None
        """For the audit log: what was found out while it was answered."""
        self.audit: object = None
        """What the audit of the server keeps with the request."""
        self._params: dict[str, list[str]] | None = None

    @property
    def params(self) -> dict[str, list[str]]:
        """Query parameters, parsed when first used. Raises HttpProblem when there are too many."""
        if self._params is None:
            params: dict[str, list[str]] = {}
            if self.query.count("&") >= _MAX_PARAMS:
                raise bad_request(f"the query has more than {_MAX_PARAMS} parameters")
            pairs = _short_query(self.query) if len(self.query) <= _SHORT_QUERY else _pairs(self.query)
            for key, value in pairs:
                params.setdefault(key, []).append(value)
            self._params = params
        return self._params

    def annotate(self, key: str, text: str) -> None:
        if self.annotations is None:
            self.annotations = {}
        self.annotations[key] = text

    def param(self, name: str, default: str = "") -> str:
        values = self.params.get(name)
        return values[0] if values else default


class Sink(Protocol):
    """Where a stream writes. Writing never blocks; whoever writes without end must look at `pending`."""

    @property
    def pending(self) -> int:
        """Bytes accepted here but not yet taken by the client."""

    def write(self, chunk: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the client has taken enough that more may be written."""

    def close(self) -> None:
        """The stream is complete; the connection may carry the next request."""

    def abort(self) -> None:
        """The stream broke; the client must not take it for complete."""


class Stream(Protocol):
    """A body that is produced over time. `opened` must not block; `closed` is called exactly once."""

    def opened(self, sink: Sink) -> None: ...

    def closed(self) -> None:
        """The client went away, the server stops, or the sink was closed."""


class TunnelSink(Sink, Protocol):
    """The client's end of a tunnel; it can also be told to send no more for a while."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Tunnel(Protocol):
    """What takes the connection over after a `101 Switching Protocols`, byte by byte."""

    def opened(self, sink: TunnelSink) -> None: ...

    def received(self, data: bytes) -> None: ...

    def closed(self) -> None: ...


@dataclass(slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: Stream | None = None
    upgrade: Tunnel | None = None
    verbatim: bool = False
    """The answer of another server: it is passed on as it is."""
    stream_length: int = -1
    """Bytes of the stream, where they are known before it is read: it is sent without being cut into chunks."""


Handler = Callable[[Request], Response | Awaitable[Response]]
ProblemResponse = Callable[[HttpProblem], Response]


def plain_problem_response(problem: HttpProblem) -> Response:
    """For servers without an error format of their own: the sentence as text."""
    headers = [("Retry-After", str(problem.retry_after))] if problem.retry_after else []
    return Response(problem.status, f"{problem.message}\n".encode(), "text/plain", headers)
