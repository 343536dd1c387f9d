"""Which records of a partition are done, and how often the others were tried.

Calls of a partition end in any order. What is committed is the offset below which all are done, with a note: which ones above it are
done (bits, relative to the offset), and for the others the number of attempts, or that their answer was begun (`s`).

    mark 40, done 42 and 43, 41 failed twice, 44 is being streamed:     offset 40, note "DA==|1:2,4:s"
"""

from __future__ import annotations

import base64
import binascii
import heapq

WINDOW = 4096
"""Offsets above the mark that may be read: their bits fit into a note."""
_STREAMED = "s"


class PartitionProgress:
    """Starts from what was committed."""

    def __init__(self, offset: int = 0, note: str = "") -> None:
        self.mark = offset
        """All below are done."""
        self.position = offset
        """The next to read."""
        self._unfinished: dict[int, None] = {}
        """Read and not done, ascending."""
        self._done, self._attempts, self._streamed = _decode(offset, note)
        self._order = sorted(self._done)

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    @property
    def has_room(self) -> bool:
        return self.position - self.mark < WINDOW

    def read(self, offset: int) -> bool:
        """The record at this offset was read; says whether it is still to be done."""
        self.position = offset + 1
        if offset in self._done:
            self._advance()
            return False
        self._unfinished[offset] = None
        return True

    def finish(self, offset: int) -> None:
        self._unfinished.pop(offset, None)
        self._attempts.pop(offset, None)
        self._streamed.discard(offset)
        if offset not in self._done:
            self._done.add(offset)
            heapq.heappush(self._order, offset)
        self._advance()

    def attempts(self, offset: int) -> int:
        """Attempts that failed."""
        return self._attempts.get(offset, 0)

    def set_attempts(self, offset: int, attempts: int) -> None:
        self._attempts[offset] = attempts

    def is_streamed(self, offset: int) -> bool:
        return offset in self._streamed

    def set_streamed(self, offset: int) -> None:
        """A part of its answer was published: it must not be run again."""
        self._streamed.add(offset)

    def _advance(self) -> None:
        self.mark = next(iter(self._unfinished), self.position)
        while self._order and self._order[0] < self.mark:
            self._done.discard(heapq.heappop(self._order))

    def note(self) -> str:
        """For a commit at `mark`."""
        if not (self._done or self._attempts or self._streamed):
            return ""
        bits = 0
        for offset in self._done:
            bits |= 1 << (offset - self.mark)
        done = base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
        tried = [f"{offset - self.mark}:{count}" for offset, count in self._attempts.items() if offset >= self.mark]
        tried += [f"{offset - self.mark}:{_STREAMED}" for offset in self._streamed if offset >= self.mark]
        return f"{done}|{','.join(tried)}"


def _decode(mark: int, note: str) -> tuple[set[int], dict[int, int], set[int]]:
    """A note that is not ours is ignored: then calls are run again, none is lost."""
    done: set[int] = set()
    attempts: dict[int, int] = {}
    streamed: set[int] = set()
    bitmap, _, tried = note.partition("|")
    try:
        bits = int.from_bytes(base64.b64decode(bitmap, validate=True), "little")
        for entry in filter(None, tried.split(",")):
            at, _, count = entry.partition(":")
            if count == _STREAMED:
                streamed.add(mark + int(at))
            else:
                attempts[mark + int(at)] = int(count)
    except (binascii.Error, ValueError):
        return set(), {}, set()
    while bits:
        lowest = bits & -bits
        done.add(mark + lowest.bit_length() - 1)
        bits ^= lowest
    return done, attempts, streamed
