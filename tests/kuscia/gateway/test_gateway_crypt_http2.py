"""The small gRPC server against somebody else's HTTP/2: flow control, cutting, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from coterie.kuscia.gateway.crypt.http2 import FRAME_BYTES, PREFACE, STREAM_WINDOW, GrpcConnection

HEADERS = [(":method", "POST"), (":scheme", "http"), (":authority", "crypt"), (":path", "/p"), ("te", "trailers")]


def twice(message: memoryview) -> list[bytes]:
    if bytes(message[:3]) == b"bad":
        raise ValueError("as asked")
    return [bytes(message)] * 2


class Client:
    """Reads only when told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.data: dict[int, bytearray] = {}
        self.ended: dict[int, str] = {}
        self.acknowledge = True

    async def begin(self) -> None:
        self.link.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        self.writer.write(self.link.data_to_send())
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def open(self) -> int:
        number = self.link.get_next_available_stream_id()
        self.link.send_headers(number, HEADERS)
        self.data[number] = bytearray()
        await self.flush()
        return number

    async def send(self, number: int, data: bytes, *, end: bool = False) -> None:
        """As fast as the window allows."""
        while len(data) > (room := self.link.local_flow_control_window(number)):
            room = min(room, self.link.max_outbound_frame_size)
            if room == 0:
                await self.read()
                continue
            self.link.send_data(number, data[:room])
            data = data[room:]
            await self.flush()
        while len(data) > self.link.max_outbound_frame_size:
            self.link.send_data(number, data[: self.link.max_outbound_frame_size])
            data = data[self.link.max_outbound_frame_size :]
        self.link.send_data(number, data, end_stream=end)
        await self.flush()

    async def read(self) -> None:
        data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
        if not data:
            raise ConnectionError("closed")
        for event in self.link.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self.data[event.stream_id] += event.data
                if self.acknowledge:
                    self.link.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                self.ended[event.stream_id] = dict(event.headers)["grpc-status"]
            elif isinstance(event, h2.events.StreamReset):
                self.ended[event.stream_id] = "reset"
        await self.flush()

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            await self.read()


def framed(data: bytes) -> bytes:
    return b"\x00" + len(data).to_bytes(4, "big") + data


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    connections: set[GrpcConnection] = set()
    path = str(tmp_path / "s")
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: GrpcConnection(lambda: twice, connections), path
    )
    yield path
    server.close()
    for each in list(connections):
        each.close()


@pytest.fixture
async def client(address: str) -> AsyncIterator[Client]:
    made = Client(*await asyncio.open_unix_connection(address))
    await made.begin()
    yield made
    made.writer.close()


async def test_messages_are_answered_one_by_one(client: Client) -> None:
    number = await client.open()
    for each in (b"one", b"", b"three"):
        before = len(client.data[number])
        await client.send(number, framed(each))
        await client.until(lambda before=before, each=each: len(client.data[number]) == before + 2 * len(framed(each)))  # type: ignore[misc]
        assert client.data[number][before:] == framed(each) * 2
    await client.send(number, b"", end=True)
    await client.until(lambda: number in client.ended)
    assert client.ended[number] == "0"


async def test_messages_may_come_in_any_pieces(client: Client) -> None:
    number = await client.open()
    whole = b"".join(framed(bytes([each]) * each * 50) for each in range(20))
    for at in range(0, len(whole), 97):
        await client.send(number, whole[at : at + 97])
    await client.send(number, b"", end=True)
    await client.until(lambda: number in client.ended)
    assert client.data[number] == b"".join(framed(bytes([each]) * each * 50) * 2 for each in range(20))


async def test_much_more_than_a_window_passes(client: Client) -> None:
    number = await client.open()
    body = bytes(range(256)) * 256
    for _ in range(3 * STREAM_WINDOW // len(body)):
        await client.send(number, framed(body))
    await client.send(number, b"", end=True)
    await client.until(lambda: number in client.ended)
    assert client.data[number] == framed(body) * 2 * (3 * STREAM_WINDOW // len(body))


async def test_a_client_that_gives_no_window_is_given_none(client: Client) -> None:
    """What it does not take is not asked for, so nothing piles up here; another stream is not held up."""
    client.acknowledge = False
    client.link.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    await client.flush()
    stalled = await client.open()
    await client.until(lambda: client.link.remote_settings.initial_window_size == STREAM_WINDOW)
    sent = 0
    piece = framed(bytes(8000))
    while client.link.local_flow_control_window(stalled) >= len(piece):
        await client.send(stalled, piece)
        sent += len(piece)
    assert STREAM_WINDOW - len(piece) < sent <= STREAM_WINDOW
    await client.until(lambda: len(client.data[stalled]) == 1000)
    other = await client.open()
    await client.send(other, framed(b"still here"), end=True)
    await client.until(lambda: other in client.ended)
    assert client.data[other] == framed(b"still here") * 2
    # No window came for the stalled one in all that time; once it reads, all of it arrives.
    assert client.link.local_flow_control_window(stalled) < len(piece)
    client.acknowledge = True
    client.link.acknowledge_received_data(1000, stalled)
    await client.flush()
    await client.until(lambda: len(client.data[stalled]) == 2 * sent)
    await client.send(stalled, b"", end=True)
    await client.until(lambda: stalled in client.ended)


async def test_a_faulty_message_ends_its_stream_only(client: Client) -> None:
    good, bad = await client.open(), await client.open()
    await client.send(bad, framed(b"bad"))
    await client.send(bad, framed(b"more of it"))
    await client.send(good, framed(b"good"), end=True)
    await client.until(lambda: {good, bad} <= set(client.ended))
    assert client.ended == {good: "0", bad: "reset"}
    assert client.data[bad] == b""


async def test_a_stream_that_is_reset_is_forgotten(client: Client) -> None:
    gone = await client.open()
    await client.send(gone, framed(b"x")[:3])
    client.link.reset_stream(gone)
    number = await client.open()
    await client.send(number, framed(b"y"), end=True)
    await client.until(lambda: number in client.ended)
    assert client.data[number] == framed(b"y") * 2


async def test_pings_are_answered(client: Client) -> None:
    client.link.ping(b"12345678")
    await client.flush()
    seen: list[object] = []
    while not any(isinstance(each, h2.events.PingAckReceived) for each in seen):
        seen += client.link.receive_data(await asyncio.wait_for(client.reader.read(1 << 16), 10))


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">BHBBL", len(content) >> 16, len(content) & 0xFFFF, kind, flags, stream) + content


RUDE = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: crypt\r\n\r\n",
    "a frame too long": PREFACE + struct.pack(">BHBBL", (FRAME_BYTES + 1) >> 16, 1, 0, 0, 1),
    "an even stream": PREFACE + frame(1, 4, 2),
    "a stream twice": PREFACE + frame(1, 4, 3) + frame(1, 4, 1),
    "headers interrupted": PREFACE + frame(1, 0, 1) + frame(0, 0, 1),
    # It takes nothing itself, so it is given nothing.
    "more than the window": PREFACE
    + frame(4, 0, 0, struct.pack(">HL", 4, 0))
    + frame(1, 4, 1)
    + frame(0, 0, 1, framed(bytes(FRAME_BYTES - 5)))
    + frame(0, 0, 1, b"\x00"),
}


@pytest.mark.parametrize("data", RUDE.values(), ids=list(RUDE))
async def test_whoever_breaks_the_protocol_is_cut_off(address: str, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(address)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 10)
    writer.close()
    # Others are served as before.
    client = Client(*await asyncio.open_unix_connection(address))
    await client.begin()
    number = await client.open()
    await client.send(number, framed(b"x"), end=True)
    await client.until(lambda: number in client.ended)
    client.writer.close()
