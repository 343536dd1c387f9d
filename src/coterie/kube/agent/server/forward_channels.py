"""port-forward over a plain WebSocket: two channels for each port, `data` (even numbers) and `error` (odd ones).

The first message of each channel is the port's number in two bytes, the lower one first. With base64 the channel is a digit and
the data is text. There is no half-closing: a channel whose connection has ended says no more, and the socket is closed
with the last of them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

from coterie.http.websocket import WebSocket
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.agent.server.forward import Dial

PLAIN, BASE64 = "v4.channel.k8s.io", "v4.base64.channel.k8s.io"
MAX_PORTS = 100
_CHUNK = 64 * 1024
_WAITING_MESSAGES = 64
_DIGIT = ord("0")


class ForwardChannels:
    def __init__(self, socket: WebSocket, *, encoded: bool) -> None:
        self._socket = socket
        self._encoded = encoded

    async def send(self, channel: int, data: bytes) -> None:
        if self._encoded:
            self._socket.send_text(bytes((_DIGIT + channel,)) + base64.b64encode(data))
        else:
            self._socket.send(bytes((channel,)) + data)
        await self._socket.drain()

    async def receive(self) -> tuple[int, bytes] | None:
        """The next (channel, data) that can be read; None when the client has left."""
        while (message := await self._socket.receive()) is not None:
            if not message:
                continue
            if not self._encoded:
                return message[0], message[1:]
            try:
                return message[0] - _DIGIT, base64.b64decode(message[1:], validate=True)
            except binascii.Error:
                continue
        return None


async def serve(socket: WebSocket, ports: Sequence[int], dial: Dial, *, encoded: bool) -> None:
    """One connection to each port, until the client leaves or all of them have ended."""
    channels = ForwardChannels(socket, encoded=encoded)
    inputs: list[asyncio.Queue[bytes]] = [asyncio.Queue(_WAITING_MESSAGES) for _ in ports]
    connections = [
        asyncio.create_task(_connection(channels, number, port, inputs[number], dial), name=f"port-forward {port}")
        for number, port in enumerate(ports)
    ]
    sorting = asyncio.create_task(_sort(channels, inputs), name="port-forward input")
    waiting: list[asyncio.Future[Any]] = [asyncio.gather(*connections, return_exceptions=True), sorting]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sorting, *connections):
            task.cancel()
        await asyncio.gather(sorting, *connections, return_exceptions=True)
        socket.close()


async def _sort(channels: ForwardChannels, inputs: list[asyncio.Queue[bytes]]) -> None:
    while (message := await channels.receive()) is not None:
        channel, data = message
        if data and channel % 2 == 0 and 0 <= channel // 2 < len(inputs):
            await inputs[channel // 2].put(data)


async def _connection(
    channels: ForwardChannels, number: int, port: int, sent: asyncio.Queue[bytes], dial: Dial
) -> None:
    data, error = 2 * number, 2 * number + 1
    announced = port.to_bytes(2, "little")
    await channels.send(data, announced)
    await channels.send(error, announced)
    try:
        reader, writer = await dial(port)
    except (OSError, RuntimeFailure) as problem:
        await channels.send(error, f"cannot reach port {port} of the pod: {problem}".encode())
        return
    sending = asyncio.create_task(_to_pod(sent, writer), name=f"port-forward {port} to the pod")
    try:
        while received := await reader.read(_CHUNK):
            await channels.send(data, received)
    except OSError as problem:
        await channels.send(error, f"the connection to port {port} broke: {problem}".encode())
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def _to_pod(sent: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(await sent.get())
        await writer.drain()
