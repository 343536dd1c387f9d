"""The evidence log of a domain: its key, its checkpoints, and the guard against a log that was rolled back.

    record ─▶ log_file.py (durable)          checkpoint(): root from the bytes on disk ─▶ signed ─▶ kept in the file
                                                            └─▶ `evidence-head` beside the keys, never smaller than before

The log has an Ed25519 key of its own, because C2SP's checkpoints know no RSA; its first event contains that key, signed with the
domain's RSA key, so whoever knows the domain's certificate can check everything.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from msgspec import structs

from coterie.base import files, signatures
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.evidence.log_file import Disclosure, EvidenceFile, EvidenceReader
from coterie.kuscia.evidence.merkle import RunningRoot
from coterie.kuscia.evidence.signed_notes import (
    Checkpoint,
    LogSigner,
    NoteError,
    NoteKey,
    NoteSignature,
    SignedNote,
    open_checkpoint,
)

log = logger("evidence")

LOG_FILE, KEY_FILE, HEAD_FILE = "evidence.db", "evidence.key", "evidence-head"
CERTIFICATE_FILE = "domain.crt"
"""Beside the log: the certificate of the domain when it was begun. Another one begins another log."""
NEXT_KEY_FILE = "evidence.key.next"
"""Of a rotation that goes on: it takes the place of the key when the old log is closed."""
_CERTIFIED = b"coterie evidence key v1\n"
_ROTATED = "coterie evidence key rotation v1\n{old}\n{new}\n"
_ORIGIN = re.compile(r"(?P<domain>[a-z0-9][-.a-z0-9]*)\.coterie/evidence/(?P<number>[1-9][0-9]{0,8})")


def origin_of(domain: str, number: int) -> str:
    """Of the domain's log with this number; a log that was opened anew has the next one."""
    return f"{domain}.coterie/evidence/{number}"


def domain_of(origin: str) -> str:
    """NoteError when it is no origin of ours."""
    if found := _ORIGIN.fullmatch(origin):
        return found["domain"]
    raise NoteError(f'"{origin[:100]}" is not the origin of an evidence log')


def number_of(origin: str) -> int:
    domain_of(origin)
    return int(origin.rpartition("/")[2])


def key_certificate(key: NoteKey, domain_key: RSAPrivateKey) -> str:
    return base64.b64encode(signatures.sign(_CERTIFIED + str(key).encode(), domain_key)).decode()


def check_key_certificate(key: NoteKey, certificate: str, domain_key: RSAPublicKey) -> None:
    """That the domain made this key the one of its log. Raises NoteError."""
    try:
        signature = base64.b64decode(certificate, validate=True)
    except ValueError:
        raise NoteError("the certificate of the log's key is not base64") from None
    if not signatures.is_valid(signature, _CERTIFIED + str(key).encode(), domain_key):
        raise NoteError(f'the key of the log "{key.name}" is not certified by its domain')


def sign_rotation(old: NoteKey, new: NoteKey, key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.sign(_ROTATED.format(old=old, new=new).encode())).decode()


def check_rotation(old: NoteKey, new: NoteKey, signature: str, signer: NoteKey) -> None:
    """That `signer`, one of the two, agreed that `new` follows `old`. Raises NoteError."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        raise NoteError("the signature of a key's rotation is not base64") from None
    signer.verify(raw, _ROTATED.format(old=old, new=new).encode())


class DomainLog:
    def __init__(self, file: EvidenceFile, signer: LogSigner, head_file: Path, clock: Clock) -> None:
        self.file = file
        self.origin = signer.key.name
        self._signer = signer
        self._head_file = head_file
        self._clock = clock
        self._checked = RunningRoot()
        """The tree of the events whose bytes on disk were compared with their hashes."""
        self._signing = asyncio.Lock()
        self._head: SignedNote | None = None
        self.publish: Callable[[SignedNote], Awaitable[None]] | None = None
        """Told of each head before anybody else is; what it raises, the checkpoint raises."""

    @property
    def key(self) -> NoteKey:
        return self._signer.key

    @property
    def signer(self) -> LogSigner:
        return self._signer

    @property
    def head(self) -> SignedNote | None:
        """The last checkpoint that was signed."""
        return self._head

    async def record(self, *events: EvidenceEvent, disclosures: Sequence[Disclosure] = ()) -> int:
        """On disk when it returns; only then may happen what they record. Raises EvidenceError."""
        return await self.file.append(*events, disclosures=disclosures)

    async def record_requests(self, requests: Sequence[EventRequest]) -> int:
        """As `record`, for events whose values are committed to first."""
        shown: list[Disclosure] = []
        events = [self._committed(each, shown) for each in requests]
        return await self.record(*events, disclosures=shown)

    def _committed(self, request: EventRequest, shown: list[Disclosure]) -> EvidenceEvent:
        def commit(value: str, subject: str) -> str:
            made = self.file.commit(value, subject)
            shown.append(made)
            return made.commitment

        event = request.event
        if request.person:
            event = structs.replace(event, who=commit(request.person, evidence.PERSON))
        if request.tables:
            event = structs.replace(event, inputs=tuple(commit(each, evidence.TABLE) for each in request.tables))
        if request.results:
            event = structs.replace(event, outputs=tuple(commit(each, evidence.TABLE) for each in request.results))
        if request.object_name:
            kind, *rest = event.object or ("",)
            event = structs.replace(event, object=(kind, commit(request.object_name, evidence.OBJECT), *rest))
        return event

    async def checkpoint(self) -> SignedNote:
        """Over all events that are on disk. Raises EvidenceError when the bytes there are not what was written."""
        async with self._signing:
            size = self.file.size
            if self._head is not None and Checkpoint.parse(self._head.text).size == size:
                return self._head
            self._checked = await asyncio.to_thread(self.file.recomputed, self._checked, size)
            checkpoint = Checkpoint(self.origin, size, self._checked.root())
            if await asyncio.to_thread(self.file.root, size) != checkpoint.root:
                raise EvidenceError(
                    "the hashes of the evidence log do not fit its events: the file is damaged or was changed"
                )
            note = self._signer.sign(checkpoint)
            # First outside of the file: a file that is put back later must be found out.
            await asyncio.to_thread(files.write_atomic, self._head_file, str(note))
            if self.publish is not None:
                await self.publish(note)
            await self.file.keep_head(size, str(note))
            self._head = note
            return note

    async def close(self, next_key: Ed25519PrivateKey | None = None) -> SignedNote:
        """For ever: the next log begins where this one ends. `next_key`: the one with which the next log is signed. The last checkpoint."""
        events = [EvidenceEvent(kind=evidence.LOG_CLOSED)]
        if next_key is not None:
            new = LogSigner(origin_of(domain_of(self.origin), number_of(self.origin) + 1), next_key).key
            signed = {
                "key": str(new),
                "by-old": sign_rotation(self.key, new, self._signer.private),
                "by-new": sign_rotation(self.key, new, next_key),
            }
            events.insert(0, EvidenceEvent(kind=evidence.KEY_ROTATED, more=signed))
        await self.record(*events)
        note = await self.checkpoint()
        await self.file.close()
        return note

    async def add_cosignatures(self, size: int, signatures: Sequence[NoteSignature]) -> None:
        """To the checkpoint of this size. Raises EvidenceError."""

        def merge(connection: sqlite3.Connection) -> str:
            row = connection.execute("SELECT note FROM heads WHERE size = ?", (size,)).fetchone()
            if row is None:
                raise EvidenceError(f"there is no checkpoint of size {size}")
            merged = str(SignedNote.parse(row[0]).with_signatures(signatures))
            connection.execute("UPDATE heads SET note = ? WHERE size = ?", (merged, size))
            return merged

        async with self._signing:
            merged = SignedNote.parse(await self.file.execute(merge))
            if self._head is not None and self._head.text == merged.text:
                self._head = merged

    async def contradicts(self, note: SignedNote) -> bool:
        """Whether a checkpoint that we signed is not one of this log: it was rolled back since."""
        seen = Checkpoint.parse(note.text)
        if seen.size > self.file.size:
            return True
        return await asyncio.to_thread(self.file.root, seen.size) != seen.root

    async def start(self) -> None:
        """Compares the file with the last head that was signed. Raises EvidenceError when it was rolled back or changed."""
        kept = await asyncio.to_thread(files.read_bytes_or_none, self._head_file)
        if kept is None:
            return
        try:
            last, note = open_checkpoint(kept.decode(), self.key)
        except (NoteError, UnicodeDecodeError) as problem:
            raise EvidenceError(
                f"{self._head_file} cannot be read ({problem}); restore it, or `coterie audit reopen`"
            ) from None
        if last.size > self.file.size:
            raise EvidenceError(
                f"the evidence log has {self.file.size} events but {last.size} were signed: an older copy was restored. "
                "Put the newer file back, or begin a new log with `coterie audit reopen`"
            )
        self._checked = await asyncio.to_thread(self.file.recomputed, RunningRoot(), last.size)
        if self._checked.root() != last.root:
            raise EvidenceError(
                f"the first {last.size} events of the evidence log are not those that were signed: the file was changed. "
                "Restore it, or begin a new log with `coterie audit reopen`"
            )
        self._head = note


def load_key(path: Path) -> Ed25519PrivateKey:
    """Made where it is missing; mode 0600. EvidenceError when it cannot be read."""
    content = files.read_bytes_or_none(path)
    if content is None:
        made = Ed25519PrivateKey.generate()
        raw = made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        if files.create_exclusive(path, raw):
            return made
        content = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(content, None)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise EvidenceError(f"{path} is no Ed25519 key")
    return key


def make_next_key(certs: Path) -> Ed25519PrivateKey:
    """On disk, beside the one that is used."""
    (certs / NEXT_KEY_FILE).unlink(missing_ok=True)
    return load_key(certs / NEXT_KEY_FILE)


def recorded_key(reader: EvidenceReader) -> NoteKey:
    """The key of a log, from its first event. Raises EvidenceError."""
    for stored in reader.events(0, 1):
        if stored.body is not None:
            try:
                return NoteKey.parse(evidence.decode(stored.body).more.get("key", ""))
            except ValueError as problem:
                raise EvidenceError(
                    f"the first event of the evidence log {reader.path} is damaged: {problem}"
                ) from None
    raise EvidenceError(f"the evidence log {reader.path} is empty")


def log_numbers(directory: Path) -> list[int]:
    """Of the logs that were begun, the oldest first."""
    if not directory.is_dir():
        return []
    return sorted(int(each.name) for each in directory.iterdir() if each.name.isdecimal())


def _lost_log(directory: Path, certs: Path, numbers: Sequence[int]) -> tuple[int, str] | None:
    """Number and last head of a log that was signed and whose file is not there at all: a lost disk. A file that is only older is for a
    person to look at."""
    signed = sorted(int(each.suffix[1:]) for each in certs.glob(f"{HEAD_FILE}.*") if each.suffix[1:].isdecimal())
    if not signed or max(numbers, default=0) > signed[-1] or (directory / str(signed[-1]) / LOG_FILE).exists():
        return None
    return signed[-1], (certs / f"{HEAD_FILE}.{signed[-1]}").read_text()


@dataclass(frozen=True, slots=True)
class _ClosedLog:
    """The newest log, when it ended for good and no other follows it yet."""

    head: str
    key: NoteKey
    rotation: EvidenceEvent | None


def _closed_log(directory: Path, certs: Path, number: int) -> _ClosedLog | None:
    path = directory / str(number) / LOG_FILE
    head = files.read_bytes_or_none(certs / f"{HEAD_FILE}.{number}")
    if head is None or not path.exists():
        return None
    reader = EvidenceReader(path)
    last = [evidence.decode(each.body) for each in islice(reader.newest_events(), 2) if each.body is not None]
    if not last or last[0].kind != evidence.LOG_CLOSED:
        return None
    key = recorded_key(reader)
    try:
        checkpoint, _ = open_checkpoint(head.decode(), key)
    except (NoteError, UnicodeDecodeError):
        return None
    if checkpoint.size != reader.size:
        return None
    rotation = last[1] if len(last) > 1 and last[1].kind == evidence.KEY_ROTATED else None
    if rotation is not None and (certs / NEXT_KEY_FILE).exists():
        (certs / NEXT_KEY_FILE).replace(certs / KEY_FILE)
    return _ClosedLog(head.decode(), key, rotation)


async def open_log(
    directory: Path,
    certs: Path,
    domain: str,
    domain_key: RSAPrivateKey,
    clock: Clock,
    *,
    reopened_after: str = "",
    certificate: str = "",
) -> DomainLog:
    """The domain's newest log below `directory`, made where there is none, where it was closed, or where the domain has another key now.
    `reopened_after`: begin a new one, which names the head of the old one in its first event. `certificate`: of the domain, PEM. Raises
    EvidenceError."""
    opened = await _open_newest(directory, certs, domain, domain_key, clock, reopened_after)
    if not await asyncio.to_thread(_certified_by, opened.file, domain_key.public_key()):
        log.warning("The domain has another key: its evidence log is closed and the next one begun", log=opened.origin)
        await opened.record(EvidenceEvent(kind=evidence.CERTIFICATE_CHANGED, object=("domain",)))
        await opened.close()
        opened = await _open_newest(directory, certs, domain, domain_key, clock)
    kept = opened.file.path.with_name(CERTIFICATE_FILE)
    if certificate and not kept.exists():
        await asyncio.to_thread(files.write_atomic, kept, certificate)
    return opened


def _certified_by(reader: EvidenceReader, domain_key: RSAPublicKey) -> bool:
    for stored in reader.events(0, 1):
        first = evidence.decode(stored.body or b"{}").more
        try:
            check_key_certificate(NoteKey.parse(first.get("key", "")), first.get("certificate", ""), domain_key)
        except NoteError:
            return False
    return True


async def _open_newest(
    directory: Path, certs: Path, domain: str, domain_key: RSAPrivateKey, clock: Clock, reopened_after: str = ""
) -> DomainLog:
    numbers = await asyncio.to_thread(log_numbers, directory)
    if not reopened_after and (lost := await asyncio.to_thread(_lost_log, directory, certs, numbers)):
        number, reopened_after = lost
        log.error(
            "The evidence log is gone, but not what was signed of it: a new log is begun, which names the old one's last head",
            lost=origin_of(domain, number),
        )
        numbers.append(number)
    closed = await asyncio.to_thread(_closed_log, directory, certs, numbers[-1]) if numbers else None
    if closed is not None:
        reopened_after = reopened_after or closed.head
    if reopened_after:
        # Also above the log that it goes on from, which may be one of another member of the control plane.
        numbers.append(number_of(Checkpoint.parse(SignedNote.parse(reopened_after).text).origin))
    number = max(numbers, default=0) + (1 if reopened_after or not numbers else 0)
    key = await asyncio.to_thread(load_key, certs / KEY_FILE)
    signer = LogSigner(origin_of(domain, number), key)
    home = directory / str(number)
    file = await asyncio.to_thread(EvidenceFile, home / LOG_FILE, clock)
    opened_log = DomainLog(file, signer, certs / f"{HEAD_FILE}.{number}", clock)
    try:
        await opened_log.start()
        if file.size == 0:
            certificate = await asyncio.to_thread(key_certificate, signer.key, domain_key)
            more = {"key": str(signer.key), "certificate": certificate}
            if closed is not None and closed.rotation is not None:
                more |= {"previous-key": str(closed.key), "by-previous": closed.rotation.more.get("by-old", "")}
            before: tuple[str, ...] = ()
            if reopened_after:
                old = Checkpoint.parse(SignedNote.parse(reopened_after).text)
                before = (old.origin, str(old.size), old.root.hex())
            await opened_log.record(EvidenceEvent(kind=evidence.LOG_OPENED, checkpoint=before, more=more))
    except BaseException:
        await file.close()
        raise
    return opened_log
