"""Bodies of long lists, written piece by piece at the speed of their reader.

A list holds references to entries that never change, so what is sent is one snapshot, and no more than a piece of it
exists a second time. Protobuf needs the length of the whole before the first item: such lists are encoded twice, the
first time only to measure.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Sink
from coterie.http.server import Tasks
from coterie.http.streamed_body import StreamedBody
from coterie.kube.apiserver.state.entry import ObjectEntry

if TYPE_CHECKING:
    from coterie.kube.api.wire import encode as protobuf
else:
    protobuf = lazy_import("coterie.kube.api.wire.encode")

STREAM_ABOVE = 1024 * 1024
"""Bytes of objects above which a list is not built as a whole."""
PIECE = 256 * 1024
_ENTRIES = 64
"""Fewer entries are never worth it: an object is small, and whoever made it large made it one request."""
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_LEVEL = 1

ItemEncoder = Callable[[ObjectEntry], bytes]


def is_long(entries: Sequence[ObjectEntry]) -> bool:
    return len(entries) > _ENTRIES and sum([len(entry.raw) for entry in entries]) > STREAM_ABOVE


class ListStream:
    """A `Stream` of a list's pieces; `compress` may be called before it is opened."""

    def __init__(self, pieces: AsyncGenerator[bytes], tasks: Tasks) -> None:
        self._pieces = pieces
        self._tasks = tasks
        self._body: StreamedBody | None = None

    def compress(self) -> None:
        self._pieces = _compressed(self._pieces)

    def opened(self, sink: Sink) -> None:
        self._body = StreamedBody(self._pieces, self._tasks, "list")
        self._body.opened(sink)

    def closed(self) -> None:
        if self._body is not None:
            self._body.closed()


async def json_pieces(head: bytes, entries: Sequence[ObjectEntry], item: ItemEncoder) -> AsyncGenerator[bytes]:
    """`head` ends where the first item stands."""
    parts, size = [head], len(head)
    separator = b""
    for entry in entries:
        body = item(entry)
        parts.append(separator)
        parts.append(body)
        separator = b","
        size += len(body) + 1
        if size >= PIECE:
            yield b"".join(parts)
            await asyncio.sleep(0)  # a reader as fast as we are must not keep the others waiting
            parts, size = [], 0
    parts.append(b"]}\n")
    yield b"".join(parts)


async def stored_pieces(head: bytes, entries: Sequence[ObjectEntry]) -> AsyncGenerator[bytes]:
    """As `json_pieces`, of objects as they are stored: many bytes, little work."""
    raws: list[bytes] = []
    size = 0
    for entry in entries:
        raw = entry.raw
        raws.append(raw)
        size += len(raw)
        if size >= PIECE:
            raws[0] = head + raws[0]
            yield b",".join(raws)
            await asyncio.sleep(0)
            head, raws, size = b",", [], 0
    # All items may have been sent: then there is no comma left to write.
    yield (head if raws or head != b"," else b"") + b",".join(raws) + b"]}\n"


def stored_length(head: bytes, entries: Sequence[ObjectEntry]) -> int:
    return len(head) + sum([len(entry.raw) for entry in entries]) + max(len(entries) - 1, 0) + len(b"]}\n")


async def protobuf_pieces(
    envelope_head: bytes, metadata: bytes, entries: Sequence[ObjectEntry], item: ItemEncoder
) -> AsyncGenerator[bytes]:
    """`metadata` is the first field of the list; each item is the second."""
    total, since_pause = len(metadata), 0
    for entry in entries:
        size = len(_item_field(item(entry)))
        total += size
        since_pause += size
        if since_pause >= PIECE:
            await asyncio.sleep(0)
            since_pause = 0
    parts = [envelope_head, protobuf.varint(total), metadata]
    size = 0
    for entry in entries:
        field = _item_field(item(entry))
        parts.append(field)
        size += len(field)
        if size >= PIECE:
            yield b"".join(parts)
            await asyncio.sleep(0)
            parts, size = [], 0
    yield b"".join(parts)


def protobuf_list(envelope_head: bytes, metadata: bytes, entries: Sequence[ObjectEntry], item: ItemEncoder) -> bytes:
    """A short list as a whole."""
    raw = b"".join([metadata, *[_item_field(item(entry)) for entry in entries]])
    return b"%b%b%b" % (envelope_head, protobuf.varint(len(raw)), raw)


def _item_field(body: bytes) -> bytes:
    return b"\x12%b%b" % (protobuf.varint(len(body)), body)


def compressed(body: bytes) -> bytes:
    return zlib.compress(body, _GZIP_LEVEL, _GZIP)


async def _compressed(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    try:
        async for piece in pieces:
            packed = packer.compress(piece)
            if packed:
                yield packed
        yield packer.flush()
    finally:
        await pieces.aclose()
