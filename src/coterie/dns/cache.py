"""What other servers said, for as long as they said, and never longer than a minute or so."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from coterie.dns.model import Answer, Code, Question, Record, Type

_NEGATIVE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: Answer
    stored: float
    expires: float


class AnswerCache:
    def __init__(self, entries: int, seconds: int) -> None:
        self._most = entries
        self._longest = seconds
        self._entries: OrderedDict[Question, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, question: Question, now: float) -> Answer | None:
        entry = self._entries.get(question)
        if entry is None:
            return None
        if entry.expires <= now:
            del self._entries[question]
            return None
        return _older(entry.answer, int(now - entry.stored))

    def put(self, question: Question, answer: Answer, now: float) -> None:
        seconds = min(lifetime(answer), self._longest)
        if seconds <= 0:
            return
        self._entries.pop(question, None)
        self._entries[question] = _Entry(answer, now, now + seconds)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)


def lifetime(answer: Answer) -> int:
    """Seconds for which an answer holds; 0: it must not be kept."""
    if answer.code not in (Code.NOERROR, Code.NXDOMAIN):
        return 0
    if answer.answers and answer.code == Code.NOERROR:
        return min(record.ttl for record in answer.answers)
    for record in answer.authority:
        if record.type == Type.SOA:
            minimum = int.from_bytes(record.data[-4:], "big")
            return min(record.ttl, minimum, _NEGATIVE_SECONDS, *(each.ttl for each in answer.answers))
    return 0


def _older(answer: Answer, seconds: int) -> Answer:
    if not seconds:
        return answer
    return replace(answer, answers=_aged(answer.answers, seconds), authority=_aged(answer.authority, seconds))


def _aged(records: tuple[Record, ...], seconds: int) -> tuple[Record, ...]:
    return tuple(replace(record, ttl=max(record.ttl - seconds, 0)) for record in records)
