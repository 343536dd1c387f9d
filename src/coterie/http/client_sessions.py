"""Sessions of aiohttp that end at once, so that a program may end right after: no socket is left behind.

A connection that is closed in TLS waits for the other side's farewell, which need not come, and aiohttp forgets about
it meanwhile. Where Python waits long, aiohttp can be told to cut such connections off.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

_CLOSE_TIMEOUT = 2.0
_PARTS_SLOWLY = (3, 13, 0) <= sys.version_info < (3, 13, 1) or sys.version_info < (3, 12, 8)


class _Connector(aiohttp.TCPConnector):
    """Knows the sockets it opened, also those that aiohttp has forgotten: of calls that were given up half-way."""

    def __init__(self, **options: Any) -> None:
        self.opened: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        super().__init__(enable_cleanup_closed=_PARTS_SLOWLY, socket_factory=self._open, **options)

    def _open(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self.opened.add(made)
        return made

    async def wait_closed(self) -> None:
        """Until the last of them is closed, or the other side's farewell has been awaited long enough."""
        pause, waited = 0.0, 0.0
        while any(each.fileno() >= 0 for each in self.opened) and waited < _CLOSE_TIMEOUT:
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause + 0.001, 0.05)


def tcp_connector(**options: Any) -> aiohttp.TCPConnector:
    """One whose session `close_session` can end."""
    return _Connector(**options)


async def close_session(session: aiohttp.ClientSession) -> None:
    connector = session.connector
    await session.close()
    if isinstance(connector, _Connector):
        await connector.wait_closed()


@asynccontextmanager
async def short_lived_session(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """For one or two calls. `options`: of an aiohttp session."""
    session = aiohttp.ClientSession(connector=tcp_connector(force_close=True), **options)
    try:
        yield session
    finally:
        await close_session(session)
