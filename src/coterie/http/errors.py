"""The errors of the HTTP layer. It knows no API: whoever serves one decides what a refusal looks like in a body."""

from __future__ import annotations


class HttpProblem(Exception):
    """A request that is refused before any handler understands it, or one that made its handler fail.

    `reason` is one CamelCase word for programs, `message` a sentence for people.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds after which the client may try again; 0 when that is not known."""


class ProtocolError(ConnectionError):
    """The other side of an upgraded connection violates the protocol (WebSocket, SPDY)."""


def bad_request(message: str) -> HttpProblem:
    return HttpProblem(400, "BadRequest", message)


def too_large(message: str, status: int = 413) -> HttpProblem:
    return HttpProblem(status, "RequestEntityTooLarge", message)
