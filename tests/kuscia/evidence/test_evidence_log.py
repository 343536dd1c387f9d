"""The log of a domain: durable, checked before it is signed, never rolled back."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceError, EvidenceEvent
from coterie.kuscia.evidence import domain_log, merkle
from coterie.kuscia.evidence.domain_log import DomainLog
from coterie.kuscia.evidence.log_file import EvidenceFile
from coterie.kuscia.evidence.signed_notes import Checkpoint, NoteError, NoteKey, open_checkpoint

KEY = rsa.generate_private_key(65537, 2048)


async def opened(home: Path, **more: str) -> DomainLog:
    certs = home / "certs"
    certs.mkdir(parents=True, exist_ok=True)
    return await domain_log.open_log(home / "evidence", certs, "alice", KEY, SYSTEM_CLOCK, **more)


def event(number: int) -> EvidenceEvent:
    return EvidenceEvent(kind=evidence.JOB_CREATED, job=f"job-{number}", parties=("alice", "bob"))


async def test_events_are_there_after_a_restart_and_proofs_hold(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await asyncio.gather(*(log.record(event(number)) for number in range(50)))
    note = await log.checkpoint()
    await log.file.close()
    again = await opened(tmp_path)
    checkpoint, _ = open_checkpoint(str(note), again.key)
    assert (checkpoint.size, again.file.size) == (51, 51)
    for each in again.file.events():
        assert each.body is not None
        assert merkle.leaf_hash(each.body) == each.hash
        merkle.verify_inclusion(each.hash, each.index, 51, again.file.inclusion(each.index, 51), checkpoint.root)
    await again.record(event(99))
    later, _ = open_checkpoint(str(await again.checkpoint()), again.key)
    merkle.verify_consistency(51, 52, again.file.consistency(51, 52), checkpoint.root, later.root)
    await again.file.close()


async def test_the_first_event_certifies_the_key(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    first = next(log.file.events())
    assert first.body is not None
    said = evidence.decode(first.body)
    assert said.kind == evidence.LOG_OPENED
    key = NoteKey.parse(said.more["key"])
    assert key == log.key
    domain_log.check_key_certificate(key, said.more["certificate"], KEY.public_key())
    with pytest.raises(NoteError, match="not certified"):
        other = rsa.generate_private_key(65537, 2048).public_key()
        domain_log.check_key_certificate(key, said.more["certificate"], other)
    assert (tmp_path / "certs" / domain_log.KEY_FILE).stat().st_mode & 0o77 == 0
    assert log.file.path.stat().st_mode & 0o77 == 0
    await log.file.close()


def put_back(path: Path, content: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(content)


async def test_an_older_copy_is_found_out_and_opened_anew_honestly(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.record(event(1))
    await log.file.close()
    older = log.file.path.read_bytes()
    log = await opened(tmp_path)
    await log.record(event(2))
    head = await log.checkpoint()
    await log.file.close()
    put_back(log.file.path, older)
    with pytest.raises(EvidenceError, match="older copy was restored"):
        await opened(tmp_path)
    new = await opened(tmp_path, reopened_after=str(head))
    assert new.origin == "alice.coterie/evidence/2"
    first = next(new.file.events())
    assert first.body is not None
    last = Checkpoint.parse(head.text)
    assert evidence.decode(first.body).checkpoint == (last.origin, str(last.size), last.root.hex())
    await new.file.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE leaves SET body = (SELECT body FROM leaves WHERE id = 3) WHERE id = 2",
        "UPDATE leaves SET body = x'01ff' WHERE id = 2",
        "UPDATE leaves SET body = substr(body, 1, length(body) - 1) WHERE id = 2",
        "UPDATE leaves SET hash = zeroblob(32) WHERE id = 2",
        "UPDATE leaves SET id = id + 100 WHERE id = 2",
        "DELETE FROM leaves WHERE id = 2",
    ],
)
async def test_what_was_changed_on_disk_is_not_signed(tmp_path: Path, change: str) -> None:
    log = await opened(tmp_path)
    for number in range(4):
        await log.record(event(number))
    with sqlite3.connect(log.file.path) as connection:
        connection.execute(change)
    with pytest.raises(EvidenceError, match=r"damaged|changed"):
        await log.checkpoint()
    await log.file.close()


async def test_another_file_in_its_place_is_what_is_read(tmp_path: Path) -> None:
    log, other = await opened(tmp_path), await opened(tmp_path / "other")
    for number in range(4):
        await log.record(event(number))
        await other.record(event(number + 10))
        if number == 1:
            await log.checkpoint()
    await other.file.close()
    for each in ("-wal", "-shm"):
        log.file.path.with_name(log.file.path.name + each).unlink()
    other.file.path.replace(log.file.path)
    with pytest.raises(EvidenceError, match="damaged or was changed"):
        await log.checkpoint()
    await log.file.close()


async def test_a_full_disk_stops_what_must_be_recorded_and_it_goes_on_later(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.record(event(1))
    with sqlite3.connect(log.file.path, isolation_level=None) as blocker:
        pages = blocker.execute("PRAGMA page_count").fetchone()[0]

    def limit(connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await log.file.execute(limit)
    with pytest.raises(EvidenceError, match="full"):
        for number in range(500):
            await log.record(EvidenceEvent(kind=evidence.API_WRITE, verb="x" * 500, count=number))
    size = log.file.size
    await log.record(event(2))  # the writer opened the file anew, without the limit
    assert log.file.size == size + 1
    await log.checkpoint()
    await log.file.close()


async def test_commitments_are_the_same_until_their_salt_is_erased(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    one = log.file.commit("user:carol", "person")
    await log.record(EvidenceEvent(kind=evidence.JOB_APPROVED, who=one.commitment), disclosures=[one])
    assert log.file.commit("user:carol", "person") == one
    assert evidence.commitment(one.salt, "user:carol") == one.commitment
    assert "carol" not in repr(one)
    assert log.file.disclosures()[one.commitment].value == "user:carol"
    assert await log.file.erase("user:carol", "person") == 1
    assert log.file.disclosures() == {}
    await log.file.close()
    raw = b"".join(each.read_bytes() for each in log.file.path.parent.iterdir())
    assert b"user:carol" not in raw
    assert one.salt not in raw
    again = EvidenceFile(log.file.path, SYSTEM_CLOCK)
    assert again.commit("user:carol", "person").commitment != one.commitment
    await again.close()


async def test_bodies_may_go_and_the_tree_stays(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    for number in range(6):
        await log.record(event(number))
    kept, gone = log.file.commit("kept", "person"), log.file.commit("gone", "person")
    await log.record(EvidenceEvent(kind=evidence.JOB_APPROVED, who=kept.commitment), disclosures=[kept, gone])
    before = open_checkpoint(str(await log.checkpoint()), log.key)[0]
    assert await log.file.remove_bodies(4) == 3
    assert {each.value for each in log.file.disclosures().values()} == {"kept"}
    await log.file.close()
    again = await opened(tmp_path)
    assert [each.body is None for each in again.file.events()] == [False, True, True, True, False, False, False, False]
    await again.record(event(7))
    after = open_checkpoint(str(await again.checkpoint()), again.key)[0]
    merkle.verify_consistency(8, 9, again.file.consistency(8, 9), before.root, after.root)
    await again.file.close()


@pytest.mark.parametrize(
    "bad",
    [
        EvidenceEvent(kind="no.such"),
        EvidenceEvent(kind=evidence.API_WRITE, verb="x" * 20_000),
    ],
)
async def test_bad_events_are_refused(tmp_path: Path, bad: EvidenceEvent) -> None:
    log = await opened(tmp_path)
    with pytest.raises(ValueError, match=r"no kind|at most"):
        await log.record(bad)
    assert log.file.size == 1
    await log.file.close()


_WRITER = """
import asyncio, sys
from pathlib import Path
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api.evidence import EvidenceError, EvidenceEvent
from coterie.kuscia.evidence.log_file import EvidenceFile

async def main():
    file = EvidenceFile(Path(sys.argv[1]), SYSTEM_CLOCK)
    async def one(start):
        for number in range(start, 100000, 8):
            index = await file.append(EvidenceEvent(kind="job.created", job=f"job-{number}"))
            print(index, f"job-{number}", flush=True)
    await asyncio.gather(*(one(start) for start in range(8)))

asyncio.run(main())
"""


def killed_after(path: Path, count: int) -> list[list[str]]:
    """(index, job) of what a writer acknowledged before it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if len(lines) == count:
            child.send_signal(signal.SIGKILL)
    child.wait(30)
    child.stdout.close()
    return [line.split() for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("after", [3, 40, 200])
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, after: int) -> None:
    path = tmp_path / "evidence.db"
    acknowledged = await asyncio.to_thread(killed_after, path, after)
    assert len(acknowledged) >= after
    file = EvidenceFile(path, SYSTEM_CLOCK)
    jobs = {each.index: evidence.decode(each.body or b"").job for each in file.events()}
    for index, job in acknowledged:
        assert jobs[int(index)] == job
    file.recomputed(merkle.RunningRoot(), file.size)
    await file.close()


async def test_a_file_of_the_version_before_is_brought_over(tmp_path: Path) -> None:
    path = tmp_path / "evidence.db"
    salt, body = b"s" * 32, evidence.encode(event(1))
    with sqlite3.connect(path, isolation_level=None) as old:
        old.executescript(
            "CREATE TABLE leaves (id INTEGER PRIMARY KEY, body BLOB, hash BLOB NOT NULL);"
            "CREATE TABLE disclosures (commitment TEXT PRIMARY KEY, salt BLOB NOT NULL, value TEXT NOT NULL, subject TEXT NOT NULL) WITHOUT ROWID;"
            "CREATE INDEX disclosures_by_value ON disclosures (subject, value);"
        )
        old.execute("INSERT INTO leaves VALUES (0, ?, ?)", (body, merkle.leaf_hash(body)))
        old.execute(
            "INSERT INTO disclosures VALUES (?, ?, 'carol', 'person')", (evidence.commitment(salt, "carol"), salt)
        )
    file = EvidenceFile(path, SYSTEM_CLOCK)
    assert [each.body for each in file.events()] == [body]
    assert file.commit("carol", "person").salt == salt
    await file.append(event(2))
    assert file.recomputed(merkle.RunningRoot(), 2).root() == file.root(2)
    await file.close()
    with sqlite3.connect(path, isolation_level=None) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(EvidenceError, match="version 99"):
        EvidenceFile(path, SYSTEM_CLOCK)


async def test_values_are_found_by_their_commitments(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    shown = [log.file.commit(f"alice/table-{number}#{'ab' * 32}", "object") for number in range(5)]
    await log.record(event(1), disclosures=shown)
    found = log.file.disclosed([*(each.commitment for each in shown[:2]), "0" * 64, "no commitment"])
    assert found == {each.commitment: each.value for each in shown[:2]}
    assert [each.index for each in log.file.newest_events()] == [1, 0]
    await log.file.close()
    with pytest.raises(EvidenceError, match="was closed"):
        await log.record(event(2))
