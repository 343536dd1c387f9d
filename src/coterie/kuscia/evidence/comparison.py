"""Two domains' logs side by side: do they tell the same story? Pure; for a third person who trusts neither.

- Heads that one side says it got from the other must be heads of the other's log: else the other showed two faces or rolled back.
- Cosignatures of one side on the other's heads must be right.
- A task that both ran has the same parties, engines and agreement on both sides, and each side knows of it.
- The key by which one side knows the other's log is the one in the other's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent, RecordedEngine
from coterie.kuscia.evidence.signed_notes import NoteError, NoteKey
from coterie.kuscia.evidence.verification import Fault, LogReport, verify
from coterie.kuscia.evidence.witness import witness_key

_WANTED = frozenset(
    (
        evidence.CHECKPOINT_RECEIVED,
        evidence.PARTNER_INTRODUCED,
        evidence.PARTNER_REOPENED,
        evidence.TASK_STARTED,
    )
)
_LONGEST_SIZE = 18
"""Digits."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    sentence: str
    indexes: tuple[tuple[str, int], ...] = ()
    """(domain, event): where to look."""


@dataclass(slots=True)
class ComparisonReport:
    first: LogReport
    second: LogReport
    contradictions: list[Contradiction] = field(default_factory=list)
    agreed_tasks: int = 0
    shared_heads: int = 0
    """Heads of one that the other recorded, and that are in the other's log."""

    @property
    def ok(self) -> bool:
        return self.first.ok and self.second.ok and not self.contradictions


def compare(
    first: Callable[[], BinaryIO],
    second: Callable[[], BinaryIO],
    *,
    trusted: Mapping[str, RSAPublicKey] | None = None,
) -> ComparisonReport:
    """Each file is read twice: the first time tells which heads of the other one have to be looked up. `trusted`: keys of domains by name; without,
    anybody may have written the files."""
    one, two = _read(first), _read(second)
    witnesses = _witnesses(one, two)
    one = _read(first, witnesses, _sizes(two, one.header.origin), trusted)
    two = _read(second, witnesses, _sizes(one, two.header.origin), trusted)
    report = ComparisonReport(one, two)
    if one.header.origin and one.header.domain == two.header.domain:
        report.contradictions.append(Contradiction("both files are of the same domain"))
    for side, other in ((one, two), (two, one)):
        _known_keys(report, side, other)
        _received_heads(report, side, other)
    _tasks(report, one, two)
    return report


def _read(
    open_file: Callable[[], BinaryIO],
    witnesses: Iterable[NoteKey] = (),
    sizes: Iterable[int] = (),
    trusted: Mapping[str, RSAPublicKey] | None = None,
) -> LogReport:
    with open_file() as file:
        return verify(file, trusted=trusted, witnesses=tuple(witnesses), sizes=frozenset(sizes), kinds=_WANTED)


def _witnesses(*reports: LogReport) -> list[NoteKey]:
    found = []
    for each in reports:
        try:
            found.append(witness_key(NoteKey.parse(each.header.key)))
        except NoteError as problem:
            each.fault = each.fault or Fault(0, str(problem))
    return found


def _sizes(report: LogReport, origin: str) -> list[int]:
    return [int(event.checkpoint[1]) for _, event in _received(report, origin)]


def _received(report: LogReport, origin: str) -> list[tuple[int, EvidenceEvent]]:
    return [
        (index, event)
        for index, event in report.kept
        if event.kind == evidence.CHECKPOINT_RECEIVED
        and len(event.checkpoint) == 3
        and event.checkpoint[0] == origin
        and event.checkpoint[1].isdecimal()
        and len(event.checkpoint[1]) <= _LONGEST_SIZE
    ]


def _known_keys(report: ComparisonReport, side: LogReport, other: LogReport) -> None:
    """A log of somebody else under the other's name, or one that the other shows to nobody but the auditor."""
    for index, event in side.kept:
        if event.kind not in (evidence.PARTNER_INTRODUCED, evidence.PARTNER_REOPENED):
            continue
        known = event.more.get("key", "")
        if known.partition("+")[0] == other.header.origin and known != other.header.key:
            sentence = (
                f"{side.header.domain} knows {other.header.origin} by another key than the one in this file: it is not the log "
                f"that {other.header.domain} showed to {side.header.domain}"
            )
            report.contradictions.append(Contradiction(sentence, ((side.header.domain, index),)))


def _received_heads(report: ComparisonReport, side: LogReport, other: LogReport) -> None:
    """What `side` says it got from `other`."""
    if not other.header.whole:
        return
    for index, event in _received(side, other.header.origin):
        size, root = int(event.checkpoint[1]), event.checkpoint[2]
        found = other.roots.get(size)
        where = ((side.header.domain, index),)
        if found is None:
            report.contradictions.append(
                Contradiction(
                    f"{side.header.domain} got a head of size {size} from {other.header.domain}, whose log has only "
                    f"{other.events} events: it was cut off or rolled back, or the file is older",
                    where,
                )
            )
        elif found.hex() != root:
            report.contradictions.append(
                Contradiction(
                    f"{other.header.domain} showed {side.header.domain} another log than this one: "
                    f"the first {size} events differ",
                    where,
                )
            )
        else:
            report.shared_heads += 1


def _tasks(report: ComparisonReport, one: LogReport, two: LogReport) -> None:
    first, second = _starts(one), _starts(two)
    for task in sorted(first.keys() | second.keys()):
        mine, theirs = first.get(task, {}), second.get(task, {})
        if not mine or not theirs:
            has, lacks = (one, two) if not theirs else (two, one)
            index, event = next(iter((mine or theirs).values()))
            if lacks.header.domain in event.parties and lacks.header.whole and not lacks.removed:
                sentence = (
                    f"{has.header.domain} started task {task}, {lacks.header.domain} has no event of it{_beyond(lacks)}"
                )
                report.contradictions.append(Contradiction(sentence, ((has.header.domain, index),)))
            continue
        if mine.keys() == theirs.keys():
            report.agreed_tasks += 1
            continue
        # What only one side recorded; where that is nothing of one of them, any of its starts shows the difference.
        index, ours = next((mine[key] for key in mine if key not in theirs), next(iter(mine.values())))
        other_index, other = next((theirs[key] for key in theirs if key not in mine), next(iter(theirs.values())))
        differences = [
            word
            for word, same in (
                ("parties", set(ours.parties) == set(other.parties)),
                ("engines", ours.engines == other.engines),
                ("agreement", ours.agree == other.agree),
            )
            if not same
        ]
        sentence = (
            f"task {task}: {one.header.domain} and {two.header.domain} recorded different {', '.join(differences)}"
        )
        where = ((one.header.domain, index), (two.header.domain, other_index))
        report.contradictions.append(Contradiction(sentence, where))


def _beyond(lacks: LogReport) -> str:
    """Where else the event may be: a file has one log of a domain, which may have several."""
    before = lacks.opened.checkpoint[0] if lacks.opened is not None and lacks.opened.checkpoint else ""
    return f" in {lacks.header.origin}; it follows {before}: compare that one, too" if before else ""


StartKey = tuple[frozenset[str], tuple[tuple[str, RecordedEngine], ...], str]


def _starts(report: LogReport) -> dict[str, dict[StartKey, tuple[int, EvidenceEvent]]]:
    """By task, what was recorded of its starts: a task that is begun again has several."""
    found: dict[str, dict[StartKey, tuple[int, EvidenceEvent]]] = {}
    for index, event in report.kept:
        if event.kind == evidence.TASK_STARTED:
            key = (frozenset(event.parties), tuple(sorted(event.engines.items())), event.agree)
            found.setdefault(event.task, {})[key] = (index, event)
    return found
