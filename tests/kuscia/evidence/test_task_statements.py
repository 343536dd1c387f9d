"""Statements of tasks: other people's libraries read and check them, and nothing in them can be changed."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from evidence_world import LoggingDomain, task_started, two_domains
from google.protobuf import json_format
from in_toto_attestation.v1 import statement as in_toto
from in_toto_attestation.v1 import statement_pb2
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from coterie.kuscia.evidence import export, task_statements, verification
from coterie.kuscia.evidence.signed_notes import Checkpoint, LogSigner, NoteError, NoteKey
from coterie.kuscia.evidence.task_statements import (
    PAYLOAD_TYPE,
    StatementEnvelope,
    StatementPart,
    check_statement,
    key_id,
    signed_by,
    unsigned,
)

AGREED = "ab" * 32
SIGNERS = {
    name: LogSigner(f"{name}.coterie/evidence/1", Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
    for number, name in enumerate(("alice", "bob"), 1)
}


def a_part(name: str, *results: str) -> StatementPart:
    signer = SIGNERS[name]
    note = signer.sign(Checkpoint(signer.key.name, 7, bytes(32)))
    return StatementPart(key=str(signer.key), checkpoint=str(note), outcome="Succeeded", results=results)


def a_statement(*results: str) -> StatementEnvelope:
    return unsigned("job", "task-1", AGREED, {"alice": a_part("alice"), "bob": a_part("bob", *results)})


def both(*results: str) -> StatementEnvelope:
    return signed_by(signed_by(a_statement(*results), SIGNERS["alice"]), SIGNERS["bob"])


def library_key(key: NoteKey) -> Any:
    return SSlibKey(key_id(key), "ed25519", "ed25519", {"public": key.public.hex()})


def test_securesystemslib_accepts_both_signatures() -> None:
    envelope = Envelope.from_dict(json.loads(both("cd" * 32).encode()))
    keys = [library_key(each.key) for each in SIGNERS.values()]
    assert len(envelope.verify(keys, threshold=2)) == 2
    assert envelope.payload_type == PAYLOAD_TYPE
    changed = Envelope.from_dict(json.loads(both("cd" * 32).encode()))
    changed.payload += b" "
    with pytest.raises(VerificationError):
        changed.verify(keys, threshold=1)


@pytest.mark.parametrize("results", [(), ("cd" * 32, "ef" * 32)])
def test_in_toto_reads_the_statement(results: tuple[str, ...]) -> None:
    payload = base64.b64decode(both(*results).payload)
    read = json_format.Parse(payload.decode(), statement_pb2.Statement())
    in_toto.Statement.copy_from_pb(read).validate()
    digests = [each.digest["sha256"] for each in read.subject]
    assert digests == (list(results) or [AGREED])
    assert read.predicate_type == task_statements.PREDICATE_TYPE


def test_who_signed_and_who_did_not() -> None:
    one = check_statement(signed_by(a_statement(), SIGNERS["alice"]).encode())
    assert (one.signed, one.missing) == (("alice.coterie/evidence/1",), ("bob.coterie/evidence/1",))
    assert check_statement(both().encode()).missing == ()


def test_nothing_of_it_can_be_changed() -> None:
    good = both("cd" * 32).encode()
    check_statement(good)
    outer = json.loads(good)
    payload = base64.b64decode(outer["payload"])
    for index in range(len(payload)):
        flipped = payload[:index] + bytes([payload[index] ^ 1]) + payload[index + 1 :]
        outer["payload"] = base64.b64encode(flipped).decode()
        with pytest.raises(NoteError):
            check_statement(json.dumps(outer).encode())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda outer: outer | {"payloadType": "text/plain"}, "no statement"),
        (lambda outer: outer | {"payload": "???"}, "not base64"),
        (lambda outer: outer | {"payload": "e30="}, "cannot be read"),
        (lambda outer: outer | {"signatures": [{"keyid": "eve", "sig": ""}]}, "no party"),
        (lambda outer: outer | {"signatures": [outer["signatures"][0] | {"sig": "AAAA"}]}, "is wrong"),
        (lambda outer: outer | {"more": "x" * task_statements.MAX_ENVELOPE}, "too long"),
    ],
)
def test_garbage_is_refused(change: Any, why: str) -> None:
    outer = json.loads(both().encode())
    with pytest.raises(NoteError, match=why):
        check_statement(json.dumps(change(outer)).encode())


async def exported(alice: LoggingDomain, envelope: bytes) -> verification.LogReport:
    await alice.log.file.keep_statement("task-1", envelope)
    await alice.log.checkpoint()
    return verification.verify(io.BytesIO(alice.whole()))


def of_logs(*domains: LoggingDomain, agreed: str) -> StatementEnvelope:
    parts = {
        each.name: StatementPart(key=str(each.log.key), checkpoint=str(each.log.head), outcome="Succeeded")
        for each in domains
    }
    return unsigned("job-1", "task-1", agreed, parts)


async def test_an_exported_log_has_its_statements_and_they_are_checked(tmp_path: Path) -> None:
    alice, bob = await two_domains(tmp_path)
    await alice.log.record(task_started("task-1", agree=AGREED))
    made = of_logs(alice, bob, agreed=AGREED)
    good = signed_by(signed_by(made, alice.log.signer), bob.log.signer)
    report = await exported(alice, good.encode())
    assert report.ok
    assert [each.signed for each in report.statements] == [(alice.log.origin, bob.log.origin)]
    header = export.header_of(alice.log.key, "alice", alice.certificate, whole=False)
    lines = export.export_events(alice.log.file, header, lambda event: event.job == "job-1")
    assert b"\ns {" in b"".join(lines)
    assert alice.log.file.statements("another") == []
    assert [each.unproven for each in report.statements] == [(bob.log.origin,)]
    eve = LogSigner(alice.log.origin, Ed25519PrivateKey.generate())
    forged = {
        "alice": StatementPart(
            key=str(eve.key), checkpoint=str(eve.sign(Checkpoint(eve.key.name, 1, bytes(32)))), outcome="Succeeded"
        )
    }
    report = await exported(alice, signed_by(unsigned("job-1", "task-1", AGREED, forged), eve).encode())
    assert report.fault is not None
    assert "is not signed by this domain" in report.fault.sentence

    # A stranger's key under the name of alice's log signs, and her own stands beside it.
    for names in (("a", "b"), ("b", "a")):
        own = StatementPart(key=str(alice.log.key), checkpoint=str(alice.log.head), outcome="Succeeded")
        parts = dict(zip(names, (forged["alice"], own), strict=True))
        report = await exported(alice, signed_by(unsigned("job-1", "task-1", AGREED, parts), eve).encode())
        assert report.fault is not None
        assert "two keys of one log" in report.fault.sentence

    report = await exported(alice, signed_by(made, bob.log.signer).encode())
    assert report.fault is not None
    assert "is not signed by this domain" in report.fault.sentence
    other = of_logs(alice, bob, agreed="00" * 32)
    await alice.log.record(task_started("task-1", agree=AGREED))
    report = await exported(alice, signed_by(other, alice.log.signer).encode())
    assert report.fault is not None
    assert "another agreement" in report.fault.sentence
    for each in (alice, bob):
        await each.log.file.close()
