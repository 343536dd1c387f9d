"""The evidence log: what an event costs, alone and together with others, how large it is, and how fast a file is verified.

python -m benchmarks.bench_evidence /var/tmp
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec import structs

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent, RecordedEngine
from coterie.kuscia.evidence import domain_log, export, verification

WRITERS = 64
_PARTIES = ("alice", "bob")


def _digest(number: int, what: str) -> str:
    return hashlib.sha256(f"{what} {number}".encode()).hexdigest()


def event(number: int) -> EventRequest:
    """Of usual size: a task with its engines, agreement and inputs."""
    made = EvidenceEvent(
        kind=evidence.TASK_STARTED,
        job=f"job-{number // 12}",
        task=f"job-{number // 12}-psi",
        parties=_PARTIES,
        agree=_digest(number, "agree"),
        engines={party: RecordedEngine(_digest(number, party), "1.0.2") for party in _PARTIES},
    )
    return EventRequest(event=made, person="carol", tables=("customers",))


def events_of_job(number: int) -> list[list[EventRequest]]:
    """What a job of two parties with one task and one granted table leaves in the log of a party, in the steps that wait for it."""
    job, parties = f"job-{number}", _PARTIES
    head = ("bob.coterie/evidence/1", str(number * 14), _digest(number, "head"))

    def of(kind: str, person: str = "", tables: tuple[str, ...] = (), **fields: Any) -> EventRequest:
        return EventRequest(event=EvidenceEvent(kind=kind, job=job, **fields), person=person, tables=tables)

    created = EventRequest(
        event=EvidenceEvent(
            kind=evidence.JOB_CREATED, job=job, verb="create", object=("kuscia.secretflow/kusciajobs",)
        ),
        person="carol",
        object_name=f"cross-domain/{job}#{_digest(number, 'body')}",
    )
    return [
        [created],
        [of(evidence.JOB_APPROVED, "carol", partner=party, parties=parties) for party in parties],
        [EventRequest(event=structs.replace(event(number).event, job=job, task=f"{job}-psi"), tables=("customers",))],
        [of(evidence.CHECKPOINT_RECEIVED, partner="bob", checkpoint=head)],
        [of(evidence.GRANT_USED, tables=("customers", "customers.id"), partner="bob", grant=("g", _digest(1, "grant")), count=number)],
        [of(evidence.TASK_ENDED, task=f"{job}-psi", parties=parties, outcome="Succeeded")],
        [of(evidence.JOB_ENDED, parties=parties, outcome="Succeeded")],
        [of(evidence.CHECKPOINT_RECEIVED, partner="bob", checkpoint=head)],
    ]  # fmt: skip


async def jobs(folder: Path, count: int) -> list[Row]:
    """Two checkpoints a job, as partners cosign them; the way to the partner is not in it."""
    certs = folder / "jobs-certs"
    certs.mkdir()
    key = rsa.generate_private_key(65537, 2048)
    log = await domain_log.open_log(folder / "jobs", certs, "alice", key, SYSTEM_CLOCK)
    waited: list[float] = []
    for number in range(count):
        before = time.perf_counter()
        for step in events_of_job(number):
            await log.record_requests(step)
            if step[0].event.kind == evidence.CHECKPOINT_RECEIVED:
                await log.checkpoint()
        waited.append(time.perf_counter() - before)
    await log.file.close()
    size = sum(each.stat().st_size for each in (folder / "jobs" / "1").iterdir()) / count
    return [
        Row("evidence: a job waits for its events", median(waited) * 1e3, "ms", lower_is_better=True,
            note="9 events in 8 steps, 2 checkpoints"),
        Row("evidence: growth by 1,000 jobs", size * 1000 / 1e6, "MB", lower_is_better=True, note=f"measured with {count}"),
    ]  # fmt: skip


async def measure(folder: Path, seconds: float, events: int) -> list[Row]:
    key = rsa.generate_private_key(65537, 2048)
    certs = folder / "certs"
    certs.mkdir()
    log = await domain_log.open_log(folder / "evidence", certs, "alice", key, SYSTEM_CLOCK)
    alone: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        before = time.perf_counter()
        await log.record_requests([event(len(alone))])
        alone.append(time.perf_counter() - before)
    count, cpu, began = 0, time.process_time(), time.perf_counter()

    async def writer() -> None:
        nonlocal count
        while time.perf_counter() < began + seconds:
            await log.record_requests([event(count)])
            count += 1

    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    took, used = time.perf_counter() - began, time.process_time() - cpu
    while log.file.size < events:
        await log.record_requests([event(number) for number in range(min(5000, events - log.file.size))])
    await log.checkpoint()
    await log.file.close()
    size = sum(each.stat().st_size for each in (folder / "evidence" / "1").iterdir()) / log.file.size
    certificate = pki.certificate_pem(pki.self_signed_ca("alice", key, now=SYSTEM_CLOCK.now()).certificate).decode()
    path = folder / "alice.evidence"
    header = export.header_of(log.key, "alice", certificate, whole=True)
    with path.open("wb") as file:
        file.writelines(export.export_log(log.file, header))
    before = time.perf_counter()
    with path.open("rb") as file:
        report = verification.verify(file)
    verified = time.perf_counter() - before
    assert report.ok, report.fault
    return [
        Row("evidence: an event, alone", median(alone) * 1e6, "µs", lower_is_better=True, note="durable, p50"),
        Row(f"evidence: an event, {WRITERS} writers", took / count * 1e6, "µs", used / count * 1e6, lower_is_better=True),
        Row("evidence: size of an event on disk", size, "B", lower_is_better=True, note="body, hashes, indexes"),
        Row(
            "evidence: verify a million events", verified / report.events * 1e6, "s", lower_is_better=True,
            note=f"measured with {report.events}",
        ),
        *await jobs(folder, max(20, events // 200)),
    ]  # fmt: skip


def rows(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(measure(Path(place), bench.plan.seconds, 100_000 if bench.plan.seconds >= 1 else 1000))


def main(folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for row in asyncio.run(measure(Path(place), 3.0, 200_000)):
            print(
                f"{row.what:<45} {row.value:>10,.4g} {row.unit:<3} {row.note}"
                + (f" CPU {row.cpu:.1f} µs" if row.cpu else "")
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
