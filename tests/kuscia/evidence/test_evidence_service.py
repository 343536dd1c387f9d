"""The log as a part of a node: children write over its socket, a broken log refuses and says why, salts and bodies go on demand."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.base.paths import DomainPaths
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.control.evidence_recorder import EvidenceSocket
from coterie.kuscia.evidence import domain_log, export, verification
from coterie.kuscia.evidence.log_file import EvidenceReader, StoredEvent
from coterie.kuscia.evidence.service import EvidenceService, evidence_directory
from coterie.kuscia.evidence.signed_notes import NoteError
from coterie.kuscia.identity import domain_identity

USED = EventRequest(
    event=EvidenceEvent(kind=evidence.GRANT_USED, job="j", partner="bob"), person="carol", tables=("salaries",)
)


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[EvidenceService]:
    paths = DomainPaths.of(home, "alice")
    paths.prepare()
    domain_identity.ensure(paths, "alice", None, SYSTEM_CLOCK.now())
    service = EvidenceService(paths, "alice", home / "s", SYSTEM_CLOCK)
    task = asyncio.ensure_future(service.run())
    await asyncio.wait_for(service.ready.wait(), 30)
    try:
        yield service
    finally:
        service.stop()
        await asyncio.wait_for(task, 30)


async def test_a_child_writes_and_its_values_are_committed_to(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        child = EvidenceSocket(service.socket)
        await child.record(USED, USED)
        await child.close()
        assert service.log is not None
        bodies = [each.body or b"" for each in service.log.file.events()]
        assert len(bodies) == 3
        assert not [body for body in bodies if b"carol" in body or b"salaries" in body]
        shown = {each.value for each in service.log.file.disclosures().values()}
        assert shown == {"carol", "salaries"}
        assert await service.erase(evidence.PERSON, "carol") == 1
        assert {each.value for each in service.log.file.disclosures().values()} == {"salaries"}
        assert (service.socket.stat().st_mode & 0o77) == 0


async def test_the_end_of_a_node_signs_what_is_there(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
        assert service.log is not None
        log = service.log
    assert log.file.heads()[-1][0] == log.file.size


async def test_a_damaged_log_refuses_until_it_is_opened_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
    file = evidence_directory(service.paths) / "1" / domain_log.LOG_FILE
    older = file.read_bytes()
    async with running(tmp_path) as service:
        await service.record(USED)
    file.write_bytes(older)
    async with running(tmp_path) as again:
        assert again.log is None
        child = EvidenceSocket(again.socket)
        with pytest.raises(EvidenceError, match="older copy was restored"):
            await child.record(USED)
        assert await again.reopen() == "alice.coterie/evidence/2"
        await child.record(USED)
        await child.close()
        assert again.log is not None
        first = next(again.log.file.events())
        assert evidence.decode(first.body or b"").checkpoint[0] == "alice.coterie/evidence/1"


async def test_a_lost_disk_begins_a_new_log_that_names_the_old_one(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
    shutil.rmtree(evidence_directory(service.paths))
    async with running(tmp_path) as again:
        await again.record(USED)
        assert again.log is not None
        assert again.log.origin == "alice.coterie/evidence/2"
        first = next(again.log.file.events())
        assert evidence.decode(first.body or b"").checkpoint[:2] == ("alice.coterie/evidence/1", "2")
    async with running(tmp_path) as third:
        assert third.log is not None
        assert third.log.origin == "alice.coterie/evidence/2"


async def test_retention_keeps_the_first_event_and_all_hashes(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED, USED)
        assert await service.retain(0.0) == 2
        assert service.log is not None
        await service.sign()
        kinds = [evidence.decode(each.body).kind if each.body else "" for each in service.log.file.events()]
        assert kinds == [evidence.LOG_OPENED, "", "", evidence.BODIES_REMOVED]


async def test_a_log_is_followed_by_the_next_one(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
        writing = [asyncio.ensure_future(service.record(USED)) for _ in range(20)]
        assert await service.rotate(False) == "alice.coterie/evidence/2"
        writing += [asyncio.ensure_future(service.record(USED)) for _ in range(20)]
        await asyncio.gather(*writing)
        assert service.log is not None
        old = EvidenceReader(evidence_directory(service.paths) / "1" / domain_log.LOG_FILE)
        assert [kind_of(each) for each in old.events()][-1] == evidence.LOG_CLOSED
        assert old.heads()[-1][0] == old.size
        assert old.size + service.log.file.size == 41 + 3
        first = evidence.decode(next(service.log.file.events()).body or b"")
        assert first.checkpoint[:2] == ("alice.coterie/evidence/1", str(old.size))
        assert await service.erase(evidence.PERSON, "carol") == 2, "in both logs"
        assert await service.erase(evidence.PERSON, "carol") == 0
        assert not [each for each in old.disclosures().values() if each.value == "carol"]
        assert await service.retain(0.0) >= 41
        assert [each.body is None for each in old.events()][:2] == [False, True]


@pytest.mark.parametrize("crash", ["", "before the new key is in place", "before the new log is begun"])
async def test_both_keys_sign_a_rotation(tmp_path: Path, crash: str) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
        assert service.log is not None
        old = service.log
        if not crash:
            await service.rotate(True)
        else:
            certs = service.paths.certs
            await old.close(await asyncio.to_thread(domain_log.make_next_key, certs))
            if "log" in crash:
                (certs / domain_log.NEXT_KEY_FILE).replace(certs / domain_log.KEY_FILE)
            service._log = None
    async with running(tmp_path) as again:
        assert again.log is not None
        new = again.log
        assert new.origin == "alice.coterie/evidence/2"
        assert new.key.public != old.key.public
        said = evidence.decode(next(new.file.events()).body or b"").more
        assert said["previous-key"] == str(old.key)
        domain_log.check_rotation(old.key, new.key, said["by-previous"], old.key)
        with pytest.raises(NoteError):
            domain_log.check_rotation(old.key, new.key, said["by-previous"], new.key)
        rotated = evidence.decode(list(old.file.events())[-2].body or b"")
        assert (rotated.kind, rotated.more["key"]) == (evidence.KEY_ROTATED, str(new.key))
        domain_log.check_rotation(old.key, new.key, rotated.more["by-new"], new.key)
        assert not (again.paths.certs / domain_log.NEXT_KEY_FILE).exists()


async def test_a_new_year_begins_a_new_log(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service._rotate_with_the_year()
        assert service.log is not None
        assert service.log.origin == "alice.coterie/evidence/1"
        service._clock = VirtualClock(SYSTEM_CLOCK.now() + timedelta(days=366))
        await service._rotate_with_the_year()
        assert service.log.origin == "alice.coterie/evidence/2"


def kind_of(stored: StoredEvent) -> str:
    return evidence.decode(stored.body).kind if stored.body else ""


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"event": {}}]', b"\xff" * 100])
async def test_garbage_on_the_socket(tmp_path: Path, body: bytes) -> None:
    async with running(tmp_path) as service:
        reader, writer = await asyncio.open_unix_connection(str(service.socket))
        writer.write(b"POST /record HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        assert b" 400 " in await reader.readline()
        writer.close()
        await service.record(USED)


async def test_what_is_switched_off_stands_before_everything_else(tmp_path: Path) -> None:
    off = EventRequest(event=EvidenceEvent(kind=evidence.SECURITY_WEAKENED, reason="protocol: NOTLS"))
    paths = DomainPaths.of(tmp_path, "alice")
    paths.prepare()
    domain_identity.ensure(paths, "alice", None, SYSTEM_CLOCK.now())
    service = EvidenceService(paths, "alice", tmp_path / "s", SYSTEM_CLOCK, announced=lambda: [off])
    task = asyncio.ensure_future(service.run())
    await service.record(USED)
    assert service.log is not None
    kinds = [kind_of(each) for each in service.log.file.events()]
    assert kinds == [evidence.LOG_OPENED, evidence.SECURITY_WEAKENED, evidence.GRANT_USED]
    service.stop()
    await asyncio.wait_for(task, 30)


async def test_another_key_of_the_domain_begins_another_log(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
        old_certificate = service.paths.domain_certificate.read_text()
    shutil.rmtree(service.paths.certs / "engine", ignore_errors=True)
    for each in ("domain.key", "domain.crt", "ca.key", "ca.crt", "token"):
        (service.paths.certs / each).unlink(missing_ok=True)
    async with running(tmp_path) as again:
        assert again.log is not None
        assert again.log.origin == "alice.coterie/evidence/2"
        old = evidence_directory(again.paths) / "1"
        kinds = [kind_of(each) for each in EvidenceReader(old / domain_log.LOG_FILE).events()]
        assert kinds[-2:] == [evidence.CERTIFICATE_CHANGED, evidence.LOG_CLOSED]
        assert (old / domain_log.CERTIFICATE_FILE).read_text() == old_certificate
        kept = again.log.file.path.with_name(domain_log.CERTIFICATE_FILE).read_text()
        assert kept == again.paths.domain_certificate.read_text() != old_certificate


async def test_a_clock_that_moves_changes_no_order(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        assert service.log is not None
        service.log.file._clock = VirtualClock(SYSTEM_CLOCK.now() - timedelta(days=4000))
        await service.record(USED)
        service.log.file._clock = SYSTEM_CLOCK
        await service.record(USED)
        await service.sign()
        await service._rotate_with_the_year()
        assert service.log.origin == "alice.coterie/evidence/1"
        header = export.header_of(service.log.key, "alice", service.paths.domain_certificate.read_text(), whole=True)
        report = verification.verify(verification.streamed(export.export_log(service.log.file, header)))
        assert (report.ok, report.events) == (True, 3)


async def test_successive_logs_are_checked_to_follow_each_other(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.record(USED)
        certificate = service.paths.domain_certificate.read_text()
        await service.rotate(True)
        assert service.log is not None
        reports = []
        for number in (1, 2):
            reader = EvidenceReader(evidence_directory(service.paths) / str(number) / domain_log.LOG_FILE)
            header = export.header_of(domain_log.recorded_key(reader), "alice", certificate, whole=True)
            reports.append(verification.verify(verification.streamed(export.export_log(reader, header))))
        assert all(each.ok for each in reports)
        assert verification.gaps_between(reports) == []
        reports[0].heads.pop()
        reports[0].heads.append(reports[1].heads[-1])
        assert "says that it follows" in verification.gaps_between(reports)[0]
