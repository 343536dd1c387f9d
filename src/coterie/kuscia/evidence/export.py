"""Writes the file of `evidence_file.py` from a log: all of it, or some events with their proofs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceError, EvidenceEvent
from coterie.kuscia.evidence import evidence_file, tlog_proof
from coterie.kuscia.evidence.evidence_file import FileHeader
from coterie.kuscia.evidence.listing import commitments_of
from coterie.kuscia.evidence.log_file import EvidenceReader
from coterie.kuscia.evidence.signed_notes import NoteKey, SignedNote
from coterie.kuscia.evidence.witness import PinnedLog, witness_key


def header_of(key: NoteKey, domain: str, certificate: str, *, whole: bool) -> FileHeader:
    return FileHeader(origin=key.name, domain=domain, key=str(key), certificate=certificate, whole=whole)


def export_log(
    file: EvidenceReader,
    header: FileHeader,
    *,
    disclose: Collection[str] = (),
    witnesses: Collection[PinnedLog] = (),
) -> Iterator[bytes]:
    """All events and heads. `disclose`: subjects of commitments whose values are shown. `witnesses`: partners' logs; those whose keys cosigned
    heads of the file are named in it."""
    yield evidence_file.write_header(header)
    heads = file.heads()
    if not heads:
        raise EvidenceError("nothing of the evidence log is signed yet")
    yield from _witness_lines([note for _, note in heads], witnesses)
    begin = 0
    for size, note in heads:
        for event in file.events(begin, size):
            yield evidence_file.write_event(event)
        yield evidence_file.write_head(note)
        begin = size
    yield from _disclosures(file, disclose, None)
    for each in file.statements():
        yield evidence_file.write_statement(each)


def export_events(
    file: EvidenceReader,
    header: FileHeader,
    wanted: Callable[[EvidenceEvent], bool],
    *,
    disclose: Collection[str] = (),
    witnesses: Collection[PinnedLog] = (),
) -> Iterator[bytes]:
    """Some events, each with the proof that it is in the log of one head; always with the first, which certifies the key. The head is the newest that a
    partner cosigned and that covers them all, else the last."""
    indexes = [0, *(index for index, event in _decoded_events(file, last_head(file)[0]) if index and wanted(event))]
    size, note = _head_over(file, indexes[-1])
    yield evidence_file.write_header(header)
    yield from _witness_lines([note], witnesses)
    shown: set[str] = set()
    tasks: dict[str, None] = {}
    for stored in (each for index in indexes for each in file.events(index, index + 1)):
        if stored.body is None:
            continue
        event = evidence.decode(stored.body)
        shown.update(commitments_of(event))
        if event.kind == evidence.TASK_STARTED:
            tasks[event.task] = None
        yield evidence_file.write_event(stored)
        yield evidence_file.write_proof(stored.index, file.inclusion(stored.index, size))
    yield evidence_file.write_head(note)
    yield from _disclosures(file, disclose, shown)
    for task in tasks:
        for each in file.statements(task):
            yield evidence_file.write_statement(each)


def export_one(
    file: EvidenceReader,
    header: FileHeader,
    index: int,
    *,
    disclose: Collection[str] = (),
    witnesses: Collection[PinnedLog] = (),
) -> Iterator[bytes]:
    """One event with its proof, and the first one."""
    size, note = _head_over(file, index)
    yield evidence_file.write_header(header)
    yield from _witness_lines([note], witnesses)
    shown: set[str] = set()
    for at in sorted({0, index}):
        for stored in file.events(at, at + 1):
            if stored.body is not None:
                shown.update(commitments_of(evidence.decode(stored.body)))
            yield evidence_file.write_event(stored)
            yield evidence_file.write_proof(at, file.inclusion(at, size))
    yield evidence_file.write_head(note)
    yield from _disclosures(file, disclose, shown)


def tlog_proof_of(file: EvidenceReader, index: int) -> str:
    """One event as C2SP's tlog-proof. EvidenceError when there is no such event."""
    size, note = _head_over(file, index)
    for stored in file.events(index, index + 1):
        if stored.body is not None and index < size:
            return tlog_proof.write_proof(stored.body, index, file.inclusion(index, size), note)
    raise EvidenceError(f"event {index} is not there, was removed by retention, or is not signed yet")


def last_head(file: EvidenceReader) -> tuple[int, str]:
    """Size and note. Raises EvidenceError."""
    heads = file.heads()
    if not heads:
        raise EvidenceError("nothing of the evidence log is signed yet")
    return heads[-1]


def _head_over(file: EvidenceReader, index: int) -> tuple[int, str]:
    """The newest head with cosignatures that covers the event; else the last one. Raises EvidenceError."""
    covering = [(size, note) for size, note in file.heads() if size > index]
    cosigned = [each for each in covering if len(SignedNote.parse(each[1]).signatures) > 1]
    return cosigned[-1] if cosigned else last_head(file)


def _decoded_events(file: EvidenceReader, size: int) -> Iterator[tuple[int, EvidenceEvent]]:
    for stored in file.events(0, size):
        if stored.body is not None:
            yield stored.index, evidence.decode(stored.body)


def _witness_lines(notes: Sequence[str], witnesses: Collection[PinnedLog]) -> Iterator[bytes]:
    if witnesses:
        named = {(each.name, each.key_id) for note in notes for each in SignedNote.parse(note).signatures}
        for each in witnesses:
            key = witness_key(each.key)
            if (key.name, key.id) in named:
                yield evidence_file.write_witness(str(each.key), each.certificate)


def _disclosures(file: EvidenceReader, subjects: Collection[str], shown: set[str] | None) -> Iterator[bytes]:
    if subjects:
        for each in file.disclosures().values():
            if each.subject in subjects and (shown is None or each.commitment in shown):
                yield evidence_file.write_disclosure(each)
