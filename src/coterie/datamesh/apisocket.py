"""The way of the serving process to the API: the socket of its node (see `apidoor`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import aiohttp
from yarl import URL

from coterie.client.transport import Call, Disconnected, NoAnswerInTime, NotSent, Reply
from coterie.datamesh.apidoor import READY

_TIMEOUT = 30.0


class SocketTransport:
    """A Transport. Watches are not carried."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call) -> Reply:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._path), limit=0))
        path = quote(call.path)
        url = URL(f"http://node{path}?{call.query}" if call.query else f"http://node{path}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=call.timeout or _TIMEOUT)
        try:
            async with self._session.request(
                call.method, url, headers=dict(call.headers), data=call.body or None, timeout=timeout
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status, headers, await response.read())
        except aiohttp.ClientConnectorError as problem:
            raise NotSent(f"the node does not answer: {problem.os_error or problem}") from problem
        except TimeoutError as problem:
            raise NoAnswerInTime(f"{call.method} {call.path}: no answer in time") from problem
        except (aiohttp.ClientError, ConnectionError) as problem:
            raise Disconnected(f"{call.method} {call.path}: {problem or type(problem).__name__}") from problem

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def announce(transport: SocketTransport) -> None:
    """Tell the node that the ports are open."""
    async with asyncio.timeout(_TIMEOUT):
        await transport.send(Call("POST", READY))
