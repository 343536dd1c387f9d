"""EvidenceService on a log with events: pages, one event, proofs, files, and whether the log is in order."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kusciaapi_kit import World, here

from coterie.base.clock import SYSTEM_CLOCK
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.evidence import tlog_proof, verification
from coterie.kuscia.evidence.service import open_domain_log
from coterie.kuscia.evidence.signed_notes import NoteKey
from coterie.kuscia.kusciaapi import evidence as evidence_operations


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path) as world:
        log = await open_domain_log(world.here.paths, world.here.domain, SYSTEM_CLOCK)
        for number in range(5):
            event = EvidenceEvent(kind=evidence.GRANT_USED, job=f"job-{number % 2}", partner="bob")
            await log.record_requests([EventRequest(event=event, person="carol", tables=("salaries",))])
        await log.checkpoint()
        await log.file.close()
        yield world


async def ask(world: World, method: str, **request: Any) -> Any:
    answer = await world.call(evidence_operations.OPERATIONS, method, **request)
    assert answer.status.code == 0, answer.status.message
    return answer.data


async def test_pages_of_events_and_one_of_them(alice: World) -> None:
    first = await ask(alice, "ListEvidence", limit=2)
    assert (first.size, [each.index for each in first.events]) == (6, [5, 4])
    assert (first.events[0].who, first.events[0].about) == ("carol", "salaries")
    rest = await ask(alice, "ListEvidence", before=4, filter={"job_id": "job-1"})
    assert [each.index for each in rest.events] == [2]
    one = await ask(alice, "QueryEvidence", index=3)
    assert json.loads(one.content)["job"] == "job-0"
    assert [each.kind for each in (await ask(alice, "ListEvidence", filter={"kind": "log."})).events] == ["log.opened"]


async def test_proofs_and_files_are_those_of_the_command(alice: World) -> None:
    proof = await ask(alice, "ProveEvidence", index=2, format="tlog-proof")
    assert tlog_proof.read_proof(proof.content, NoteKey.parse(proof.log_key)).index == 2
    one = await ask(alice, "ProveEvidence", index=2, disclose=["table"])
    report = verification.verify(io.BytesIO(one.content.encode()))
    assert (report.ok, set(report.disclosed.values())) == (True, {"salaries"})
    whole = await ask(alice, "ExportEvidence")
    assert verification.verify(io.BytesIO(whole.content.encode())).events == 6
    some = await ask(alice, "ExportEvidence", filter={"job_id": "job-1"})
    assert verification.verify(io.BytesIO(some.content.encode())).events == 3
    rows = await ask(alice, "ExportEvidence", format="json")
    assert len(rows.content.splitlines()) == 6


async def test_the_state_of_the_log(alice: World) -> None:
    state = await ask(alice, "QueryEvidenceState", verify=True)
    assert (state.size, state.signed_size, list(state.logs), state.verified, state.fault) == (6, 6, [1], True, "")
    assert state.checkpoint.startswith("alice.coterie/evidence/1\n6\n")
    with sqlite3.connect(alice.here.paths.storage / "evidence/1/evidence.db") as connection:
        connection.execute("UPDATE leaves SET body = (SELECT body FROM leaves WHERE id = 1) WHERE id = 2")
    state = await ask(alice, "QueryEvidenceState", verify=True)
    assert not state.verified
    assert "event 2 is not the one that was hashed" in state.fault


@pytest.mark.parametrize(
    ("method", "request_", "code", "words"),
    [
        ("QueryEvidence", {"index": 99}, 13920, "no event 99"),
        ("ListEvidence", {"log": 7}, 13920, "no evidence log 7"),
        ("ListEvidence", {"limit": 5000}, 11100, "limit"),
        ("ListEvidence", {"filter": {"since": "yesterday"}}, 11100, "since"),
        ("ProveEvidence", {"index": 1, "format": "pdf"}, 11100, "format"),
        ("ProveEvidence", {"index": 1, "format": "tlog-proof", "disclose": ["table"]}, 11100, "disclose"),
        ("ExportEvidence", {"disclose": ["secrets"]}, 11100, "none of person"),
        ("ExportEvidence", {"format": "csv", "disclose": ["table"]}, 11100, "disclose"),
    ],
)
async def test_evidence_refusals(alice: World, method: str, request_: dict[str, Any], code: int, words: str) -> None:
    answer = await alice.call(evidence_operations.OPERATIONS, method, **request_)
    assert answer.status.code == code
    assert words in answer.status.message
