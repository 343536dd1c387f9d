"""A change is sent once: when its connection breaks, nobody knows whether it was carried out, and the caller is told so."""

from __future__ import annotations

import asyncio

import pytest

from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.transport import Disconnected, NotSent, TransportRequest, TransportResponse

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class _Flaky:
    """Answers the first request of each connection, then breaks it in the middle of the second."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            self.seen.append(head.split(b" ")[0].decode())
            if number == 0:
                writer.write(_OK)
        writer.close()


async def _after_a_break(method: str, *, refuse: bool) -> tuple[TransportResponse | Exception, list[str]]:
    flaky = _Flaky()
    server = await asyncio.start_server(flaky.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = HttpTransport(ClusterConnection(server=f"http://127.0.0.1:{port}"))
    try:
        await transport.send(TransportRequest("GET", "/first"))
        if refuse:
            server.close()
        return await transport.send(TransportRequest(method, "/second")), flaky.seen
    except (Disconnected, NotSent) as error:
        return error, flaky.seen
    finally:
        await transport.close()
        server.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("refuse", [False, True], ids=["server-still-there", "server-gone"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "PATCH"])
async def test_a_broken_change_is_not_sent_again(method: str, refuse: bool) -> None:
    answer, seen = await _after_a_break(method, refuse=refuse)
    assert isinstance(answer, Disconnected)
    assert seen == ["GET", method]


async def test_a_broken_question_is_asked_again() -> None:
    answer, seen = await _after_a_break("GET", refuse=False)
    assert isinstance(answer, TransportResponse)
    assert seen == ["GET", "GET", "GET"]
