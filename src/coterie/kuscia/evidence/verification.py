"""Checks an evidence file offline: nothing but the file, and the certificates that the checker trusts. Pure.

What it proves: the events are those that the domain signed, in this order, none missing, and partners saw these heads at these times. What it
cannot prove: that an event was written at all. For that, compare the files of both sides (`comparison.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from coterie.base import pki
from coterie.base.pki import PkiError
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent
from coterie.kuscia.evidence import domain_log, evidence_file, merkle, task_statements
from coterie.kuscia.evidence.evidence_file import (
    DisclosureLine,
    EventLine,
    FileHeader,
    FormatError,
    HeadLine,
    ProofLine,
    StatementLine,
    WitnessLine,
)
from coterie.kuscia.evidence.merkle import ProofError, RunningRoot
from coterie.kuscia.evidence.signed_notes import Checkpoint, NoteError, NoteKey, SignedNote, open_checkpoint
from coterie.kuscia.evidence.task_statements import CheckedStatement
from coterie.kuscia.evidence.witness import witness_key

_STARTED = evidence.TASK_STARTED.encode()


@dataclass(frozen=True, slots=True)
class Fault:
    offset: int
    """Of the first byte of the file that is wrong."""
    sentence: str

    def __str__(self) -> str:
        return f"byte {self.offset}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class VerifiedHead:
    checkpoint: Checkpoint
    cosigned: Mapping[str, int]
    """Seconds since 1970 by witness: only those whose key is known and whose signature is right."""
    unknown: tuple[str, ...] = ()
    """Witnesses whose key is not known."""


@dataclass(slots=True)
class LogReport:
    """What was found out about one file."""

    header: FileHeader
    fault: Fault | None = None
    """The first; nothing behind it was looked at."""
    events: int = 0
    removed: int = 0
    """By retention: only their hashes are there."""
    heads: list[VerifiedHead] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=dict)
    """Of the sizes that were asked for."""
    kept: list[tuple[int, EvidenceEvent]] = field(default_factory=list)
    """Events that the caller wanted to see."""
    disclosed: dict[str, str] = field(default_factory=dict)
    """Values by commitment; each was checked."""
    statements: list[CheckedStatement] = field(default_factory=list)
    """Of tasks; each signature was checked."""
    trusted: bool = False
    """The domain's certificate is one that the checker trusts, not only the one in the file."""
    opened: EvidenceEvent | None = None
    """The first event."""
    unsigned: int = 0
    """Events behind the last head: nobody signed them yet."""

    @property
    def ok(self) -> bool:
        return self.fault is None


def verify(
    file: BinaryIO,
    *,
    trusted: Mapping[str, RSAPublicKey] | None = None,
    witnesses: Collection[NoteKey] = (),
    sizes: Collection[int] = (),
    kinds: Collection[str] = (),
) -> LogReport:
    """`trusted`: keys of domains by name; `witnesses`: keys of partners; `sizes`: of which the roots are wanted; `kinds`: of events that are
    wanted. Never raises for what is in the file: the report says what is wrong, and where."""
    try:
        header = evidence_file.read_header(file)
    except FormatError as problem:
        return LogReport(
            FileHeader(origin="", domain="", key="", certificate=""), Fault(problem.offset, problem.sentence)
        )
    report = LogReport(header)
    try:
        _Verification(report, trusted or {}, witnesses, frozenset(sizes), frozenset(kinds)).read(file)
    except FormatError as problem:
        report.fault = Fault(problem.offset, problem.sentence)
    return report


def gaps_between(reports: Sequence[LogReport]) -> list[str]:
    """Of logs of one domain that should follow each other: what one says of the one before must be what that is. Sentences."""
    by_origin = {each.header.origin: each for each in reports if each.ok}
    found = []
    for report in by_origin.values():
        named = report.opened.checkpoint if report.opened is not None else ()
        before = by_origin.get(named[0]) if len(named) == 3 else None
        if before is None or not before.header.whole:
            continue
        last = before.heads[-1].checkpoint
        if named[1:] != (str(last.size), last.root.hex()):
            found.append(
                f"{report.header.origin} says that it follows {named[0]} after {named[1]} events; "
                f"the file of that log ends with a head of size {last.size}, or has other events"
            )
        previous = report.opened.more.get("previous-key", before.header.key) if report.opened is not None else ""
        if previous != before.header.key:
            found.append(f"{report.header.origin} names another key of {named[0]} than the one in its file")
    return found


class _StreamedLines(RawIOBase):
    """Lines as a file, without keeping them."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._rest = b""
        self._given = 0

    def tell(self) -> int:
        return self._given

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            line = next(self._lines, None)
            if line is None:
                return 0
            self._rest = line
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        self._given += len(part)
        return len(part)


def streamed(lines: Iterable[bytes]) -> BinaryIO:
    """What `export.py` writes, to be verified at once."""
    return BufferedReader(_StreamedLines(lines), 1 << 16)


class _Verification:
    def __init__(
        self,
        report: LogReport,
        trusted: Mapping[str, RSAPublicKey],
        witnesses: Collection[NoteKey],
        sizes: frozenset[int],
        kinds: frozenset[str],
    ) -> None:
        self._report = report
        self._header = report.header
        self._trusted = trusted
        self._witnesses = {(each.name, each.id): each for each in witnesses}
        self._sizes = sizes
        self._kinds = kinds
        self._tree = RunningRoot()
        self._agreed: dict[str, set[str]] = {}
        """By task, of the events of its starts."""
        self._single: dict[int, EventLine] = {}
        self._proofs: dict[int, ProofLine] = {}
        at = len(evidence_file.MAGIC)
        try:
            self._key = NoteKey.parse(self._header.key)
            if self._key.name != self._header.origin or domain_log.domain_of(self._key.name) != self._header.domain:
                raise NoteError("origin, domain and key of the header do not belong together")
            self._domain_key = self._certified(trusted)
        except (NoteError, PkiError) as problem:
            raise FormatError(at, str(problem)) from None

    def _certified(self, trusted: Mapping[str, RSAPublicKey]) -> RSAPublicKey:
        key = pki.public_key_of(pki.load_certificate(self._header.certificate.encode()))
        if not isinstance(key, RSAPublicKey):
            raise NoteError("the domain's certificate has no RSA key")
        known = trusted.get(self._header.domain)
        if known is not None and known.public_numbers() != key.public_numbers():
            raise NoteError(f'the certificate in the file is not the one that is trusted for "{self._header.domain}"')
        self._report.trusted = known is not None
        return key

    def read(self, file: BinaryIO) -> None:
        if 0 in self._sizes:
            self._report.roots[0] = merkle.EMPTY_ROOT
        signed_until = covered = file.tell()
        for line in evidence_file.read_lines(file):
            if isinstance(line, EventLine):
                self._event(line)
            elif isinstance(line, HeadLine):
                self._head(line, signed_until)
                signed_until = line.offset
            elif isinstance(line, WitnessLine):
                self._witness(line)
            elif isinstance(line, ProofLine):
                self._proofs[line.index] = line
            elif isinstance(line, DisclosureLine):
                self._disclosure(line)
            else:
                assert isinstance(line, StatementLine)
                self._statement(line)
            covered = line.offset
        if not self._report.heads:
            raise FormatError(covered, "the file has no signed head: nothing proves its events")
        last = self._report.heads[-1].checkpoint
        if self._header.whole:
            self._report.unsigned = self._tree.size - last.size
        else:
            self._check_single(last)

    def _event(self, line: EventLine) -> None:
        self._report.events += 1
        if line.body is None:
            self._report.removed += 1
        elif merkle.leaf_hash(line.body) != line.hash:
            raise FormatError(line.offset, f"event {line.index} is not the one that was hashed")
        elif line.index == 0 or self._kinds:
            self._look(line)
        if line.body is not None and _STARTED in line.body:
            self._look_for_start(line)
        if not self._header.whole:
            if line.index in self._single:
                raise FormatError(line.offset, f"event {line.index} is in the file twice")
            self._single[line.index] = line
            return
        if line.index != self._tree.size:
            raise FormatError(line.offset, f"event {self._tree.size} is missing: here is event {line.index}")
        if line.index == 0 and line.body is None:
            raise FormatError(line.offset, "the first event, which certifies the key, is never removed")
        self._tree.add(line.hash)
        if self._tree.size in self._sizes:
            self._report.roots[self._tree.size] = self._tree.root()

    def _look_for_start(self, line: EventLine) -> None:
        assert line.body is not None
        try:
            event = evidence.decode(line.body)
        except ValueError as problem:
            raise FormatError(line.offset, f"event {line.index} cannot be read: {problem}") from None
        if event.kind == evidence.TASK_STARTED:
            self._agreed.setdefault(event.task, set()).add(event.agree)

    def _look(self, line: EventLine) -> None:
        assert line.body is not None
        try:
            event = evidence.decode(line.body)
        except ValueError as problem:
            raise FormatError(line.offset, f"event {line.index} cannot be read: {problem}") from None
        if line.index == 0:
            self._report.opened = event
            try:
                if event.kind != evidence.LOG_OPENED or event.more.get("key") != self._header.key:
                    raise NoteError("the first event does not open the log with this key")
                domain_log.check_key_certificate(self._key, event.more.get("certificate", ""), self._domain_key)
                if previous := event.more.get("previous-key"):
                    old = NoteKey.parse(previous)
                    domain_log.check_rotation(old, self._key, event.more.get("by-previous", ""), old)
            except NoteError as problem:
                raise FormatError(line.offset, str(problem)) from None
        if event.kind in self._kinds:
            self._report.kept.append((line.index, event))

    def _head(self, line: HeadLine, signed_until: int) -> None:
        try:
            checkpoint, note = open_checkpoint(line.note, self._key)
        except NoteError as problem:
            raise FormatError(line.offset, str(problem)) from None
        if self._header.whole:
            if checkpoint.size != self._tree.size:
                raise FormatError(
                    line.offset,
                    f"a head of size {checkpoint.size} stands behind {self._tree.size} events: some are missing",
                )
            if checkpoint.root != self._tree.root():
                before = self._report.heads[-1].checkpoint.size if self._report.heads else 0
                raise FormatError(
                    signed_until, f"events {before} to {checkpoint.size - 1} are not those that the domain signed"
                )
        self._report.heads.append(self._cosigned(checkpoint, note, line))

    def _witness(self, line: WitnessLine) -> None:
        """Counts where the checker trusts the partner's certificate: anybody can write a key into a file. A key that an older certificate
        of the partner certified is not proven."""
        try:
            key = NoteKey.parse(line.key)
            domain = domain_log.domain_of(key.name)
        except NoteError as problem:
            raise FormatError(line.offset, str(problem)) from None
        if (known := self._trusted.get(domain)) is not None:
            with contextlib.suppress(NoteError):
                domain_log.check_key_certificate(key, line.certificate, known)
                cosigning = witness_key(key)
                self._witnesses[cosigning.name, cosigning.id] = cosigning

    def _cosigned(self, checkpoint: Checkpoint, note: SignedNote, line: HeadLine) -> VerifiedHead:
        seen: dict[str, int] = {}
        unknown = []
        for each in note.signatures:
            if each.name == self._key.name:
                continue
            key = self._witnesses.get((each.name, each.key_id))
            if key is None:
                unknown.append(each.name)
                continue
            try:
                when = note.cosigned(key)
            except NoteError as problem:
                raise FormatError(line.offset, str(problem)) from None
            if when is not None:
                seen[each.name] = when
        return VerifiedHead(checkpoint, seen, tuple(unknown))

    def _check_single(self, head: Checkpoint) -> None:
        for index, line in self._single.items():
            proof = self._proofs.get(index)
            if proof is None:
                raise FormatError(line.offset, f"event {index} has no proof")
            try:
                merkle.verify_inclusion(line.hash, index, head.size, proof.hashes, head.root)
            except ProofError as problem:
                raise FormatError(proof.offset, f"event {index} is not in the log: {problem}") from None
        if 0 not in self._single:
            raise FormatError(0, "the first event, which certifies the key, is missing")

    def _statement(self, line: StatementLine) -> None:
        try:
            found = task_statements.check_statement(line.envelope)
        except NoteError as problem:
            raise FormatError(line.offset, f"a task statement is not valid: {problem}") from None
        says = found.predicate
        if self._key.name not in found.signed or found.keys[self._key.name] != self._key:
            raise FormatError(line.offset, f"the statement of task {says.task} is not signed by this domain")
        agreed = self._agreed.get(says.task)
        if agreed is not None and says.agreement not in agreed:
            raise FormatError(
                line.offset, f"the statement of task {says.task} has another agreement than the event of its start"
            )
        unproven = []
        for name in found.signed:
            known = witness_key(found.keys[name])
            if name != self._key.name and self._witnesses.get((known.name, known.id)) != known:
                unproven.append(name)
        self._report.statements.append(replace(found, unproven=tuple(unproven)))

    def _disclosure(self, line: DisclosureLine) -> None:
        content = line.disclosure
        try:
            right = evidence.commitment(content.salt, content.value) == content.commitment
        except ValueError:
            right = False
        if not right:
            raise FormatError(line.offset, "a commitment does not stand for the value that is shown")
        self._report.disclosed[content.commitment] = content.value
