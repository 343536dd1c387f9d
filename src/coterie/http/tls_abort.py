"""A repair of asyncio in Python before 3.11.7: aborting a TLS connection that is closed already raised AttributeError, in
aiohttp's connections and in ours. Later versions do nothing then, and so does this."""

from __future__ import annotations

from asyncio import sslproto
from typing import Any


def repair() -> None:
    """Once; a second time changes nothing."""
    transport: Any = sslproto._SSLProtocolTransport
    original = transport.abort
    if getattr(original, "repaired", False):
        return

    def abort(self: Any) -> None:
        if self._ssl_protocol is None:
            self._closed = True
        else:
            original(self)

    transport.abort = abort
    transport.abort.repaired = True
