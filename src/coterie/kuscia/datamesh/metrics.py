"""What the data mesh counts, by the domain that began the job: rows and bytes, uses and refusals of grants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.base.exposition import Family, Row, labels

READ, WRITE = "read", "write"
_MAX_PARTNERS = 200
_OTHER = "other"


@dataclass(slots=True)
class StreamCounts:
    """Of one direction and one partner."""

    streams: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class MeshMetrics:
    _streams: dict[tuple[str, str], StreamCounts] = field(default_factory=dict)
    _uses: dict[str, int] = field(default_factory=dict)
    _refusals: dict[str, int] = field(default_factory=dict)

    def stream(self, direction: str, partner: str) -> StreamCounts:
        """A stream begins; who carries it counts rows and bytes."""
        found = self._streams.get((direction, partner))
        if found is None:
            if len(self._streams) >= 2 * _MAX_PARTNERS:
                partner = _OTHER
            found = self._streams.setdefault((direction, partner), StreamCounts())
        found.streams += 1
        return found

    def used(self, partner: str) -> None:
        _count(self._uses, partner)

    def refused(self, partner: str) -> None:
        _count(self._refusals, partner)

    def families(self) -> Sequence[Family]:
        streams = [
            (labels(direction=direction, partner=partner), each) for (direction, partner), each in self._streams.items()
        ]
        return [
            Family(
                "coterie_datamesh_streams_total",
                "Tables that engines read or wrote, by the domain that began the job.",
                "counter",
                [(where, each.streams) for where, each in streams],
            ),
            Family(
                "coterie_datamesh_rows_total",
                "Rows that engines read or wrote.",
                "counter",
                [(where, each.rows) for where, each in streams],
            ),
            Family(
                "coterie_datamesh_bytes_total",
                "Bytes that engines read or wrote, in Arrow's format.",
                "counter",
                [(where, each.bytes) for where, each in streams],
            ),
            Family("coterie_grant_uses_total", "Reads by grants.", "counter", _by_partner(self._uses)),
            Family(
                "coterie_grant_refusals_total",
                "Uses of data that no grant allows.",
                "counter",
                _by_partner(self._refusals),
            ),
        ]


def _count(counts: dict[str, int], partner: str) -> None:
    if partner not in counts and len(counts) >= _MAX_PARTNERS:
        partner = _OTHER
    counts[partner] = counts.get(partner, 0) + 1


def _by_partner(counts: dict[str, int]) -> list[Row]:
    return [(labels(partner=partner), count) for partner, count in counts.items()]
