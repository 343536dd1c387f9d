"""Calls that were given up: on `<action>_DLQ` until somebody replays or drops them.

A topic only grows; a record without content says that the letter of its key is gone. What is too old is dropped with the topic's records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from coterie.base.log import logger
from coterie.functions.bus.protocol import Bus, Entry, UnknownTopic
from coterie.functions.dispatcher.answers import invoke_entry
from coterie.functions.messages import GivenUpCall, body_of, dead_letter_key, dead_letter_topic

log = logger("functions.dead_letters")

KEEP_MILLISECONDS = 14 * 24 * 3600 * 1000
_PAGE = 20
T = TypeVar("T")
_decode = msgspec.json.Decoder(GivenUpCall).decode


@dataclass(frozen=True, slots=True)
class DeadCall:
    """For a DeadLetter object."""

    action: str
    request_uid: str
    hop: int
    reason: str
    attempts: int
    size: int
    content_type: str
    time: int
    """Milliseconds since 1970."""


def dead_call(action: str, letter: GivenUpCall) -> DeadCall:
    invoke = letter.invoke
    size = len(body_of(invoke))
    return DeadCall(
        action, invoke.request_uid, invoke.hop, letter.reason, letter.attempts, size, invoke.content_type, letter.time
    )


class DeadLetterBox:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def calls(self, action: str) -> dict[str, DeadCall]:
        """By `dead_letter_key`, without their bodies, which may be larger than the memory."""
        return await self._read(action, lambda _, letter: dead_call(action, letter))

    async def _letter(self, action: str, key: str) -> GivenUpCall | None:
        return (await self._read(action, lambda each, letter: letter if each == key else None)).get(key)

    async def _read(self, action: str, kept: Callable[[str, GivenUpCall], T | None]) -> dict[str, T]:
        topic = dead_letter_topic(action)
        found: dict[str, T] = {}
        try:
            ends = await self._bus.ends(topic)
        except UnknownTopic:
            return {}
        for partition, end in ends.items():
            offset = 0
            while offset < end:
                records = await self._bus.read(topic, partition, offset, _PAGE)
                if not records:
                    break
                for record in records:
                    offset = record.offset + 1
                    found.pop(record.key, None)
                    if record.value:
                        try:
                            letter = kept(record.key, _decode(record.value))
                        except msgspec.DecodeError as problem:
                            log.error("A dead letter cannot be read", action=action, key=record.key, error=problem)
                            continue
                        if letter is not None:
                            found[record.key] = letter
        return found

    async def replay(self, action: str, request_uid: str, hop: int) -> bool:
        """The call goes back to its action. Whoever waited had an answer already, so the new one is a result only."""
        key = dead_letter_key(request_uid, hop)
        letter = await self._letter(action, key)
        if letter is None:
            return False
        again = msgspec.structs.replace(letter.invoke, return_topic="", deadline=0, attempt=0)
        await self._bus.publish([invoke_entry(again), Entry(dead_letter_topic(action), key, b"")])
        return True

    async def drop(self, action: str, request_uid: str, hop: int) -> bool:
        key = dead_letter_key(request_uid, hop)
        if await self._letter(action, key) is None:
            return False
        await self._bus.publish([Entry(dead_letter_topic(action), key, b"")])
        return True
