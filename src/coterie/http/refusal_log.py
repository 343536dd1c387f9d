"""Who was turned away at a door: a line in the log for each, as far as strangers do not choose how long the log is.

The loop says nothing about a TLS handshake that fails, so the object that carries it out does.
"""

from __future__ import annotations

import ssl

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimitedLog
from coterie.http.messages import Request

UNAUTHORIZED = 401
_LONGEST_PATH = 200
_GOES_ON = (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""It waits for more, or the other side just went away, as who only looks whether a port is open does."""


class RefusalLog:
    def __init__(self, port: int) -> None:
        self._rate_limited_log = RateLimitedLog(logger("http").bind(port=port), SYSTEM_CLOCK)

    def request(self, request: Request) -> None:
        self._rate_limited_log.warn(
            "Request refused: authentication failed",
            method=request.method,
            path=request.path[:_LONGEST_PATH],
            peer=request.peer.address,
        )

    def crowd(self, address: str) -> None:
        self._rate_limited_log.warn("Connection refused: too many of one address without credentials", peer=address)

    def connection(self, problem: ssl.SSLError) -> None:
        why = getattr(problem, "verify_message", "") or problem.reason or str(problem)
        self._rate_limited_log.warn("TLS handshake failed", why=why)

    def watch(self, tls: ssl.SSLContext) -> None:
        """Hear of handshakes that fail with this context, which is for one door only."""
        callback = self.connection

        class Watched(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except _GOES_ON:
                    raise
                except ssl.SSLError as problem:
                    callback(problem)
                    raise

        tls.sslobject_class = Watched
