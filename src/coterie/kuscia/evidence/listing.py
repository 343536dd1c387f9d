"""Events as people read them: which ones, and with what their commitments stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent
from coterie.kuscia.evidence.log_file import EvidenceReader, StoredEvent

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Empty: all of them."""

    job: str = ""
    kind: str = ""
    """Or the beginning of kinds: `grant.`."""
    partner: str = ""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def empty(self) -> bool:
        return self == EventFilter()

    def matches(self, event: EvidenceEvent) -> bool:
        when = datetime.fromtimestamp(event.time / 1000, UTC)
        return (
            (not self.job or event.job == self.job)
            and event.kind.startswith(self.kind)
            and (not self.partner or event.partner == self.partner or self.partner in event.parties)
            and (self.since is None or when >= self.since)
            and (self.until is None or when < self.until)
        )


@dataclass(frozen=True, slots=True)
class ShownEvent:
    index: int
    event: EvidenceEvent | None
    """None: removed by retention."""
    disclosed: Mapping[str, str]

    def value(self, commitment: str) -> str:
        return self.disclosed.get(commitment) or (f"({commitment[:12]})" if commitment else "")

    def as_json(self) -> dict[str, Any]:
        if self.event is None:
            return {"index": self.index, "removed": True}
        content: dict[str, Any] = {"index": self.index, **msgspec.to_builtins(self.event)}
        shown = {each: self.disclosed[each] for each in commitments_of(self.event) if each in self.disclosed}
        return {**content, "disclosed": shown} if shown else content

    @property
    def time(self) -> str:
        if self.event is None:
            return ""
        return datetime.fromtimestamp(self.event.time / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")

    @property
    def who(self) -> str:
        return self.value(self.event.who) if self.event is not None else ""

    @property
    def parties(self) -> str:
        return (self.event.partner or ",".join(self.event.parties)) if self.event is not None else ""

    @property
    def about(self) -> str:
        """What it was about, in one line."""
        event = self.event
        if event is None:
            return ""
        written = event.object[:1]
        if len(event.object) > 1:
            written = (event.object[0], self.value(event.object[1]).partition("#")[0])
        head = f"head {event.checkpoint[1]}" if len(event.checkpoint) == 3 else ""
        inputs = " ".join(map(self.value, event.inputs))
        return " ".join(
            filter(None, (event.verb, *written, *event.grant[:1], inputs, event.outcome, event.reason, head))
        )


def commitments_of(event: EvidenceEvent) -> tuple[str, ...]:
    return (event.who, *event.inputs, *event.outputs, *event.object[1:2])


def shown_events(reader: EvidenceReader, chosen: EventFilter) -> Iterator[ShownEvent]:
    """From the first on."""
    yield from _shown(reader, _chosen(reader.events(), chosen))


def newest_shown(
    reader: EvidenceReader, chosen: EventFilter, limit: int, before: int | None = None
) -> list[ShownEvent]:
    """At most so many, the newest first; `before`: only those with a smaller index."""
    return list(_shown(reader, islice(_chosen(reader.newest_events(before), chosen), limit)))


def shown_event(reader: EvidenceReader, index: int) -> ShownEvent | None:
    return next(_shown(reader, _chosen(reader.events(index, index + 1), EventFilter())), None)


def _chosen(events: Iterator[StoredEvent], chosen: EventFilter) -> Iterator[tuple[int, EvidenceEvent | None]]:
    for stored in events:
        if stored.body is None:
            if chosen.empty:
                yield stored.index, None
            continue
        event = evidence.decode(stored.body)
        if chosen.matches(event):
            yield stored.index, event


def _shown(reader: EvidenceReader, events: Iterator[tuple[int, EvidenceEvent | None]]) -> Iterator[ShownEvent]:
    while batch := list(islice(events, _AT_ONCE)):
        wanted = [each for _, event in batch if event is not None for each in commitments_of(event)]
        values = reader.disclosed(wanted)
        yield from (ShownEvent(index, event, values) for index, event in batch)
