"""Two domains with evidence logs, for tests of files, verification and comparison."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceEvent, RecordedEngine
from coterie.kuscia.evidence import domain_log, export
from coterie.kuscia.evidence.domain_log import DomainLog
from coterie.kuscia.evidence.signed_notes import Checkpoint, SignedNote, WitnessSigner
from coterie.kuscia.evidence.witness import WITNESS_SUFFIX

_KEYS = {name: rsa.generate_private_key(65537, 2048) for name in ("alice", "bob")}


@dataclass
class LoggingDomain:
    name: str
    log: DomainLog
    certificate: str
    witness: WitnessSigner

    @classmethod
    async def make(cls, home: Path, name: str) -> LoggingDomain:
        certs = home / name / "certs"
        certs.mkdir(parents=True)
        key = _KEYS[name]
        certificate = pki.certificate_pem(pki.self_signed_ca(name, key, now=SYSTEM_CLOCK.now()).certificate).decode()
        log = await domain_log.open_log(home / name / "evidence", certs, name, key, SYSTEM_CLOCK)
        witness = WitnessSigner(name + WITNESS_SUFFIX, domain_log.load_key(certs / domain_log.KEY_FILE))
        return cls(name, log, certificate, witness)

    @property
    def public_key(self) -> rsa.RSAPublicKey:
        return _KEYS[self.name].public_key()

    async def head_for(self, partner: LoggingDomain) -> SignedNote:
        """A checkpoint that the partner cosigns and writes down."""
        note = await self.log.checkpoint()
        said = Checkpoint.parse(note.text)
        await partner.log.record(
            EvidenceEvent(
                kind=evidence.CHECKPOINT_RECEIVED,
                partner=self.name,
                checkpoint=(said.origin, str(said.size), said.root.hex()),
            )
        )
        cosigned = note.with_signatures([partner.witness.cosign(note.text, 1_790_000_000)])
        await self.log.file.keep_head(said.size, str(cosigned))
        return cosigned

    def whole(self, **options: tuple[str, ...]) -> bytes:
        header = export.header_of(self.log.key, self.name, self.certificate, whole=True)
        return b"".join(export.export_log(self.log.file, header, **options))

    def some(self, job: str, **options: tuple[str, ...]) -> bytes:
        header = export.header_of(self.log.key, self.name, self.certificate, whole=False)
        return b"".join(export.export_events(self.log.file, header, lambda event: event.job == job, **options))


def task_started(task: str, agree: str = "a" * 64, engine: str = "e" * 64) -> EvidenceEvent:
    return EvidenceEvent(
        kind=evidence.TASK_STARTED,
        job="job-1",
        task=task,
        parties=("alice", "bob"),
        agree=agree,
        engines={"alice": RecordedEngine(engine, "1.0"), "bob": RecordedEngine("f" * 64, "1.0")},
    )


async def two_domains(home: Path) -> tuple[LoggingDomain, LoggingDomain]:
    """A job with two tasks, heads exchanged before and after."""
    alice, bob = await LoggingDomain.make(home, "alice"), await LoggingDomain.make(home, "bob")
    person = alice.log.file.commit("user:carol", "person")
    await alice.log.record(
        EvidenceEvent(kind=evidence.JOB_CREATED, job="job-1", who=person.commitment), disclosures=[person]
    )
    await alice.head_for(bob)
    await bob.head_for(alice)
    for side in (alice, bob):
        for task in ("psi", "train"):
            await side.log.record(task_started(task))
        await side.log.record(EvidenceEvent(kind=evidence.JOB_ENDED, job="job-1", outcome="Succeeded"))
        await side.log.record(EvidenceEvent(kind=evidence.JOB_CREATED, job="job-2"))
    await alice.head_for(bob)
    await bob.head_for(alice)
    await alice.log.checkpoint()
    return alice, bob


def opened(content: bytes) -> io.BytesIO:
    return io.BytesIO(content)
