"""What other servers said, for as long as they said, and never longer than a minute or so.

Whoever owns a name decides how long its answer is, so the number of answers alone would bound nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from coterie.kube.network.dns.model import DnsAnswer, DnsQuestion, RecordType, ResourceRecord, ResponseCode

_NEGATIVE_SECONDS = 10
_OCTETS_PER_ENTRY = 512
"""What all answers together may hold, on average: most are far shorter."""
_RECORD_OCTETS = 150
"""A record weighs more in memory than its data."""


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: DnsAnswer
    stored: float
    expires: float
    weight: int


class AnswerCache:
    def __init__(self, entries: int, seconds: int) -> None:
        self._most = entries
        self._heaviest = entries * _OCTETS_PER_ENTRY
        self._longest = seconds
        self._entries: OrderedDict[DnsQuestion, _Entry] = OrderedDict()
        self.weight = 0
        """Octets, about."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, question: DnsQuestion, now: float) -> DnsAnswer | None:
        entry = self._entries.get(question)
        if entry is None:
            return None
        if entry.expires <= now:
            self._drop(question)
            return None
        return _older(entry.answer, int(now - entry.stored))

    def put(self, question: DnsQuestion, answer: DnsAnswer, now: float) -> None:
        seconds = min(lifetime(answer), self._longest)
        if seconds <= 0:
            return
        self._drop(question)
        entry = _Entry(answer, now, now + seconds, _weight(answer))
        self._entries[question] = entry
        self.weight += entry.weight
        while len(self._entries) > self._most or self.weight > self._heaviest:
            self._drop(next(iter(self._entries)))

    def _drop(self, question: DnsQuestion) -> None:
        entry = self._entries.pop(question, None)
        self.weight -= entry.weight if entry is not None else 0


def lifetime(answer: DnsAnswer) -> int:
    """Seconds for which an answer holds; 0: it must not be kept."""
    if answer.code not in (ResponseCode.NOERROR, ResponseCode.NXDOMAIN):
        return 0
    if answer.answers and answer.code == ResponseCode.NOERROR:
        return min(record.ttl for record in answer.answers)
    for record in answer.authority:
        if record.type == RecordType.SOA:
            minimum = int.from_bytes(record.data[-4:], "big")
            return min(record.ttl, minimum, _NEGATIVE_SECONDS, *(each.ttl for each in answer.answers))
    return 0


def _weight(answer: DnsAnswer) -> int:
    return sum(_RECORD_OCTETS + len(each.data) for each in (*answer.answers, *answer.authority))


def _older(answer: DnsAnswer, seconds: int) -> DnsAnswer:
    if not seconds:
        return answer
    return replace(answer, answers=_aged(answer.answers, seconds), authority=_aged(answer.authority, seconds))


def _aged(records: tuple[ResourceRecord, ...], seconds: int) -> tuple[ResourceRecord, ...]:
    return tuple(replace(record, ttl=max(record.ttl - seconds, 0)) for record in records)
