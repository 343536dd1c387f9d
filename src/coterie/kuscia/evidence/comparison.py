"""Two domains' logs side by side: do they tell the same story? Pure; for a third person who trusts neither.

- Heads that one side says it got from the other must be heads of the other's log: else the other showed two faces or rolled back.
- Cosignatures of one side on the other's heads must be right.
- A task that both ran has the same parties, engines and agreement on both sides, and each side knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import BinaryIO

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent
from coterie.kuscia.evidence.signed_notes import NoteError, NoteKey
from coterie.kuscia.evidence.verification import Fault, LogReport, verify
from coterie.kuscia.evidence.witness import witness_key

_WANTED = frozenset(
    (
        evidence.CHECKPOINT_RECEIVED,
        evidence.JOB_ENDED,
        evidence.TASK_STARTED,
        evidence.TASK_ENDED,
    )
)


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


def compare(first: Callable[[], BinaryIO], second: Callable[[], BinaryIO]) -> ComparisonReport:
    """Each file is read twice: the first time tells which heads of the other one have to be looked up."""
    one, two = _read(first), _read(second)
    witnesses = _witnesses(one, two)
    one = _read(first, witnesses, _sizes(two, one.header.origin))
    two = _read(second, witnesses, _sizes(one, two.header.origin))
    report = ComparisonReport(one, two)
    if one.header.origin and one.header.domain == two.header.domain:
        report.contradictions.append(Contradiction("both files are of the same domain"))
    for side, other in ((one, two), (two, one)):
        _received_heads(report, side, other)
    _tasks(report, one, two)
    return report


def _read(open_file: Callable[[], BinaryIO], witnesses: Iterable[NoteKey] = (), sizes: Iterable[int] = ()) -> LogReport:
    with open_file() as file:
        return verify(file, witnesses=tuple(witnesses), sizes=frozenset(sizes), kinds=_WANTED)


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
    ]


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
                    f"{other.events} events: it was cut off or rolled back",
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
    first, second = _by_task(one, evidence.TASK_STARTED), _by_task(two, evidence.TASK_STARTED)
    for task in sorted(first.keys() | second.keys()):
        mine, theirs = first.get(task), second.get(task)
        if mine is None or theirs is None:
            has, lacks = (one, two) if theirs is None else (two, one)
            index, event = mine or theirs or (0, EvidenceEvent(kind=evidence.TASK_STARTED))
            if lacks.header.domain in event.parties and lacks.header.whole and not lacks.removed:
                sentence = f"{has.header.domain} started task {task}, {lacks.header.domain} has no event of it"
                report.contradictions.append(Contradiction(sentence, ((has.header.domain, index),)))
            continue
        where = ((one.header.domain, mine[0]), (two.header.domain, theirs[0]))
        differences = [
            word
            for word, ours, other in (
                ("parties", set(mine[1].parties), set(theirs[1].parties)),
                ("engines", mine[1].engines, theirs[1].engines),
                ("agreement", mine[1].agree, theirs[1].agree),
            )
            if ours != other
        ]
        if differences:
            sentence = (
                f"task {task}: {one.header.domain} and {two.header.domain} recorded different {', '.join(differences)}"
            )
            report.contradictions.append(Contradiction(sentence, where))
        else:
            report.agreed_tasks += 1


def _by_task(report: LogReport, kind: str) -> dict[str, tuple[int, EvidenceEvent]]:
    return {event.task: (index, event) for index, event in report.kept if event.kind == kind}
