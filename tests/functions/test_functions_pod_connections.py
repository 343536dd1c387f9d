"""Sockets to pods."""

from __future__ import annotations

import asyncio

import pytest

from coterie.functions.pod_connections import PodConnections
from coterie.http.messages import Request, Response
from coterie.http.plain_client import NotConnected, Pool
from coterie.http.server import HttpServer


async def test_a_pool_connects_through_it() -> None:
    async def answer(request: Request) -> Response:
        return Response(200, request.path.encode())

    server = HttpServer(answer)
    _, port = await server.listen("127.0.0.1", 0)
    pool = Pool(("127.0.0.1", port), connect=PodConnections().connect)
    try:
        async with asyncio.timeout(10):
            assert await (await pool.request("GET", "/x", {"Host": "a"})).read() == b"/x"
    finally:
        await pool.close()
        await server.stop()


async def test_a_pod_that_does_not_listen_is_not_connected() -> None:
    with pytest.raises(NotConnected):
        await Pool(("127.0.0.1", 1), connect=PodConnections().connect).request("GET", "/", {"Host": "a"})
