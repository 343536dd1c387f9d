"""How far whoever reads a streamed answer has come, so that an actor does not write faster than a client reads."""

from __future__ import annotations

import asyncio

PARTS_AHEAD = 8
"""Parts on the way to a client."""
MAX_PART = 256 * 1024


class StreamWindows:
    """Gateways tell which part was taken (`taken`); who publishes parts waits for room."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def open(self, request_uid: str) -> None:
        self._taken[request_uid] = 0
        self._changed[request_uid] = asyncio.Event()

    def taken(self, request_uid: str, part: int) -> None:
        if part > self._taken.get(request_uid, part):
            self._taken[request_uid] = part
            self._changed[request_uid].set()

    async def room(self, request_uid: str, part: int) -> None:
        """Until part number `part` may be published."""
        while part - self._taken[request_uid] > PARTS_AHEAD:
            changed = self._changed[request_uid]
            changed.clear()
            await changed.wait()

    def close(self, request_uid: str) -> None:
        self._taken.pop(request_uid, None)
        self._changed.pop(request_uid, None)
