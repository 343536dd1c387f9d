"""An evidence log of this machine, as others read it: the file itself, and the node for what has to be signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.files import read_bytes_or_none
from coterie.base.paths import DomainPaths
from coterie.http.plain_client import HttpFailure, NotConnected, Pool
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.evidence import domain_log, export
from coterie.kuscia.evidence.evidence_file import FileHeader
from coterie.kuscia.evidence.log_file import EvidenceReader
from coterie.kuscia.evidence.service import LOCATION_FILE, SIGN_PATH, evidence_directory, open_domain_log
from coterie.kuscia.evidence.signed_notes import NoteKey
from coterie.kuscia.evidence.witness import PinnedLog
from coterie.kuscia.evidence.witness_store import WITNESS_FILE, WitnessReader

_ANSWER_LIMIT = 1 << 20


class NoSuchLog(EvidenceError):
    """The domain has no log, or none with this number."""


@dataclass(frozen=True, slots=True)
class LocalLog:
    domain: str
    paths: DomainPaths
    number: int

    @classmethod
    def find(cls, paths: DomainPaths, number: int = 0) -> LocalLog:
        """The newest one, or one with this number. Raises NoSuchLog."""
        numbers = log_numbers(paths)
        if not numbers or (number and number not in numbers):
            raise NoSuchLog(f"{paths.home.name} has no evidence log" + (f" {number}" if number else ""))
        return cls(paths.home.name, paths, number or numbers[-1])

    @property
    def reader(self) -> EvidenceReader:
        return EvidenceReader(evidence_directory(self.paths) / str(self.number) / domain_log.LOG_FILE)

    @property
    def key(self) -> NoteKey:
        return domain_log.recorded_key(self.reader)

    @property
    def witnesses(self) -> list[PinnedLog]:
        """Partners' logs that were introduced to ours."""
        return WitnessReader(evidence_directory(self.paths) / WITNESS_FILE).logs()

    def header(self, *, whole: bool) -> FileHeader:
        kept = self.reader.path.with_name(domain_log.CERTIFICATE_FILE)
        certificate = (kept if kept.exists() else self.paths.domain_certificate).read_text()
        return export.header_of(self.key, self.domain, certificate, whole=whole)

    async def call_node(self, path: str, body: object = None) -> Any:
        """EvidenceError when the node refuses; NotConnected when it does not run."""
        location = read_bytes_or_none(self.paths.run / LOCATION_FILE)
        if location is None:
            raise NotConnected(f'the node of "{self.domain}" does not run')
        pool = Pool(Path(location.decode()), keep=0.0)
        try:
            answer = await pool.request("POST", path, {"host": "evidence"}, msgspec.json.encode(body))
            content = await answer.read(_ANSWER_LIMIT)
        except NotConnected:
            raise
        except HttpFailure as problem:
            raise EvidenceError(f"the node does not answer: {problem}") from problem
        finally:
            await pool.close()
        if answer.status != 200:
            raise EvidenceError(content.decode(errors="replace"))
        return msgspec.json.decode(content)

    async def sign(self) -> None:
        """All events that are there are signed; by the node, or by us when it does not run. Raises EvidenceError."""
        try:
            await self.call_node(SIGN_PATH)
            return
        except NotConnected:
            pass
        log = await open_domain_log(self.paths, self.domain, SYSTEM_CLOCK)
        try:
            await log.checkpoint()
        finally:
            await log.file.close()


def log_numbers(paths: DomainPaths) -> list[int]:
    """The oldest first."""
    return domain_log.log_numbers(evidence_directory(paths))
