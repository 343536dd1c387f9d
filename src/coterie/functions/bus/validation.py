"""What every bus refuses before it writes anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

from coterie.functions.bus.protocol import VALUE_LIMIT, BusError, Commit, Entry

PARTITION_LIMIT = 1000
OFFSET_LIMIT = 1 << 40
NOTE_LIMIT = 4096
_TOPIC = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Kafka's alphabet; its limit of 249 leaves room for a prefix."""


def check_topic(name: str, partitions: int) -> None:
    if not _TOPIC.fullmatch(name):
        raise BusError(
            f"{name[:64]!r} is no name of a topic: 1 to 200 letters, digits, '.', '_' and '-', no '.' in front"
        )
    if not 1 <= partitions <= PARTITION_LIMIT:
        raise BusError(f"topic {name} cannot have {partitions} partitions: 1 to {PARTITION_LIMIT}")


def check_publish(entries: Sequence[Entry], commits: Sequence[Commit]) -> None:
    for entry in entries:
        if len(entry.value) > VALUE_LIMIT:
            raise BusError(
                f"a value of {len(entry.value)} bytes for topic {entry.topic} is too large: at most {VALUE_LIMIT}"
            )
        if not entry.key.isascii():
            check_text(entry.key, "a key")
    for commit in commits:
        if not 0 <= commit.offset < OFFSET_LIMIT:
            raise BusError(f"offset {commit.offset} of topic {commit.topic} cannot be committed")
        if len(commit.note) > NOTE_LIMIT or not commit.note.isascii():
            raise BusError(
                f"the note of an offset of topic {commit.topic} must be ASCII, at most {NOTE_LIMIT} characters"
            )
        check_text(commit.group, "the name of a group")


def check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BusError(f"{what} must be valid Unicode text") from error


def check_partition(topic: str, partition: int, partitions: int) -> None:
    if not 0 <= partition < partitions:
        raise BusError(f"topic {topic} has no partition {partition}: it has {partitions}")
