"""Sessions of aiohttp that end at once, so that a program may end right after: no socket is left behind.

A connection that is closed in TLS waits for the other side's farewell, which need not come, and aiohttp forgets about it
meanwhile. Where Python waits long, aiohttp can be told to cut such connections off.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

_PARTS_SLOWLY = (3, 13, 0) <= sys.version_info < (3, 13, 1) or sys.version_info < (3, 12, 8)


def tcp_connector(**options: Any) -> aiohttp.TCPConnector:
    """One whose session `part` can end."""
    return aiohttp.TCPConnector(enable_cleanup_closed=_PARTS_SLOWLY, **options)


async def part(session: aiohttp.ClientSession) -> None:
    await session.close()
    await asyncio.sleep(0)  # what was cut off is closed in the next turn of the loop


@asynccontextmanager
async def brief_session(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """For one or two calls. `options`: of an aiohttp session."""
    session = aiohttp.ClientSession(connector=tcp_connector(force_close=True), **options)
    try:
        yield session
    finally:
        await part(session)
