"""One evidence log for several members of a control plane: who leads holds it, the others record through the store, and partners see one story."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from witness_kit import CALLER, CREATED, WitnessingDomain, WitnessNet

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.http.messages import Request
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.evidence_exchange import ADD_CHECKPOINT_PATH, INTRODUCE_PATH
from coterie.kuscia.evidence import domain_log, shared_log
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.evidence.shared_log import HEAD, PENDING, SharedEvidence
from coterie.kuscia.evidence.shared_log_term import SharedLogTerm
from coterie.kuscia.evidence.witness import SPLIT_VIEW, LogFinding
from coterie.kuscia.evidence.witness_inbox import PartnerLogs, WitnessInbox
from coterie.kuscia.evidence.witness_store import WitnessStore
from coterie.kuscia.identity import domain_identity


class Member:
    """One member; `lead` and `resign` as its election would."""

    def __init__(self, service: EvidenceService, shared: SharedEvidence) -> None:
        self.service, self.shared = service, shared
        self._term: SharedLogTerm | None = None
        self._task: asyncio.Future[None] | None = None

    async def lead(self) -> None:
        self._term = SharedLogTerm(self.service, self.shared)
        self._task = asyncio.ensure_future(self._term.run())
        await asyncio.wait_for(self._term.ready.wait(), 30)

    async def resign(self) -> None:
        if self._term is not None and self._task is not None:
            self._term.stop()
            await asyncio.wait_for(self._task, 30)
            self._term = None

    @property
    def origin(self) -> str:
        return self.service.log.origin if self.service.log is not None else ""

    def events(self) -> list[evidence.EvidenceEvent]:
        assert self.service.log is not None
        return [evidence.decode(each.body or b"") for each in self.service.log.file.events()]


@asynccontextmanager
async def members(root: Path, store: MemoryStore, *names: str) -> AsyncIterator[list[Member]]:
    """With the same domain key, each with a disk of its own."""
    made, tasks = [], []
    first = DomainPaths.of(root / names[0], "alice").prepare()
    domain_identity.ensure(first, "alice", None, SYSTEM_CLOCK.now())
    for name in names:
        paths = DomainPaths.of(root / name, "alice").prepare()
        if paths != first:
            shutil.copytree(first.certs, paths.certs, dirs_exist_ok=True)
        service, shared = (
            EvidenceService(paths, "alice", root / f"{name}.s", SYSTEM_CLOCK),
            SharedEvidence(store, SYSTEM_CLOCK),
        )
        service.share(shared)
        made.append(Member(service, shared))
        tasks.append(asyncio.ensure_future(service.run()))
        await asyncio.wait_for(service.ready.wait(), 30)
    try:
        yield made
    finally:
        for each in made:
            await each.resign()
            each.service.stop()
        for task in tasks:
            await asyncio.wait_for(task, 30)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore()
    await made.open()
    yield made
    await made.close()


async def test_members_record_in_the_log_of_who_leads(tmp_path: Path, store: MemoryStore):
    async with members(tmp_path, store, "a", "b") as (a, b):
        await a.lead()
        assert b.service.log is None
        await asyncio.gather(b.service.record(CREATED), b.service.record(CREATED, CREATED), a.service.record(CREATED))
        assert [each.kind for each in a.events()] == [evidence.LOG_OPENED] + [evidence.JOB_CREATED] * 4
        assert (await store.scan(PENDING)).records == []


async def test_what_waits_is_recorded_by_the_next_leader(tmp_path: Path, store: MemoryStore):
    async with members(tmp_path, store, "a", "b") as (a, b):
        waiting = asyncio.ensure_future(b.service.record(CREATED))
        while not (await store.scan(PENDING)).records:
            await asyncio.sleep(0.01)
        await a.lead()
        await asyncio.wait_for(waiting, 30)
        assert [each.kind for each in a.events()] == [evidence.LOG_OPENED, evidence.JOB_CREATED]


async def test_without_a_leader_nothing_is_done_that_must_be_recorded(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_log, "WAIT_SECONDS", 0.1)
    async with members(tmp_path, store, "a") as (a,):
        with pytest.raises(EvidenceError, match="no member of the control plane recorded it"):
            await a.service.record(CREATED)
        assert (await store.scan(PENDING)).records == []


async def test_a_refusal_of_the_holder_is_told(tmp_path: Path, store: MemoryStore):
    async with members(tmp_path, store, "a", "b") as (a, b):
        await a.lead()
        assert a.service.log is not None
        await a.service.log.file.close()  # as a disk that is gone
        with pytest.raises(EvidenceError):
            await b.service.record(CREATED)
        assert (await store.scan(PENDING)).records == []


async def test_each_takeover_begins_the_next_log_where_the_last_one_was_signed(tmp_path: Path, store: MemoryStore):
    async with members(tmp_path, store, "a", "b") as (a, b):
        await a.lead()
        await a.service.record(CREATED)
        first = a.origin
        await a.resign()
        assert a.service.log is None
        await b.lead()
        assert (domain_log.number_of(first), domain_log.number_of(b.origin)) == (1, 2)
        opened = b.events()[0]
        assert opened.checkpoint[:2] == (first, "2")
        await b.resign()
        # The same member again: its own log goes on.
        await b.lead()
        assert domain_log.number_of(b.origin) == 2
        await b.resign()
        await a.lead()
        assert domain_log.number_of(a.origin) == 3
        assert a.events()[0].checkpoint[0].endswith("/2")


async def test_a_leader_of_before_signs_nothing_more(tmp_path: Path, store: MemoryStore):
    """It was paused, and wakes up with a log that it believes to hold."""
    async with members(tmp_path, store, "a", "b") as (a, b):
        await a.lead()
        await b.lead()
        await a.service.record(CREATED)
        with pytest.raises(EvidenceError, match="another member"):
            await a.service.sign()
        head = await store.get(HEAD)
        assert head is not None and b.origin in head.value.decode()


async def test_partners_see_one_story(tmp_path: Path, store: MemoryStore):
    """A partner that was away for two changes of the leader, and one that saw each of them, find nothing wrong."""
    net = WitnessNet(tmp_path / "net")
    async with members(tmp_path, store, "a", "b") as (a, b), net.running("bob", "carol") as (bob, carol):
        key = domain_identity.load(a.service.paths, "alice").key.public_key()
        net.keys["alice"] = key
        for turn, leader in enumerate((a, b, a, b)):
            await leader.lead()
            alice = net._domain("alice", leader.service)
            await leader.service.record(CREATED)
            assert await alice.exchange.exchange("bob") == ""
            if turn in (0, 3):
                assert await alice.exchange.exchange("carol") == ""
            assert _pinned(bob) == leader.origin
            alice.store.close()
            await leader.resign()
        assert _pinned(carol) == "alice.coterie/evidence/4"
        assert bob.found == carol.found == []


def _pinned(partner: WitnessingDomain) -> str:
    found = partner.store.current("alice")
    return found.origin if found is not None else ""


# What members know as witnesses of partners.


async def witness_of(net: WitnessNet, bob: WitnessingDomain, store: MemoryStore, file: Path) -> WitnessStore:
    """Partners that ask bob reach this member from now on."""
    rows = SharedEvidence(store, SYSTEM_CLOCK).witness_rows()
    made = await asyncio.to_thread(WitnessStore, file, rows)
    logs = PartnerLogs(bob.service, made, net.keys.get, net.clock, on_finding=bob.found.append)
    bob.inbox = WitnessInbox(logs, bob.service, CALLER, net.clock)
    return made


async def test_the_next_leader_knows_what_was_cosigned(tmp_path: Path, store: MemoryStore):
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        a = await witness_of(net, bob, store, tmp_path / "a" / "witness.db")
        inbox_of_a = bob.inbox
        assert await alice.exchange.exchange("bob") == ""
        first = await asyncio.to_thread(a.current, "alice")
        await alice.add()
        # a is lost, b leads: with an empty file of its own.
        b = await witness_of(net, bob, store, tmp_path / "b" / "witness.db")
        assert first is not None
        assert await asyncio.to_thread(b.current, "alice") == first
        shown = str(await alice.log.checkpoint())
        asked = Request("POST", ADD_CHECKPOINT_PATH, headers={CALLER: "alice"}, body=f"old 0\n\n{shown}".encode())
        answer = await bob.inbox.handle(asked)
        assert (answer.status, answer.body) == (409, b"%d\n" % first.size), "two views are not cosigned by two members"
        net.sent.clear()
        assert await alice.exchange.exchange("bob") == ""
        assert INTRODUCE_PATH not in {path for _, _, path, _ in net.sent}
        # a was only paused, and wakes up.
        bob.inbox = inbox_of_a
        await alice.add()
        assert "503" in await alice.exchange.exchange("bob"), "what it knows is of the past"
        assert await alice.exchange.exchange("bob") == "", "it looks again"
        assert await asyncio.to_thread(b.current, "alice") != await asyncio.to_thread(a.current, "alice")
        assert bob.found == []
        for each in (a, b):
            await asyncio.to_thread(each.close)


async def test_findings_and_their_acceptance_are_those_of_all_members(tmp_path: Path, store: MemoryStore):
    async def opened(name: str) -> WitnessStore:
        rows = SharedEvidence(store, SYSTEM_CLOCK).witness_rows()
        return await asyncio.to_thread(WitnessStore, tmp_path / name / "witness.db", rows)

    a = await opened("a")
    finding = LogFinding("alice", "alice.coterie/evidence/1", SPLIT_VIEW, "two stories", "one", "two")
    assert await asyncio.to_thread(a.keep_finding, finding, 1)
    b = await opened("b")
    assert [each.finding for each in await asyncio.to_thread(b.findings)] == [finding]
    assert not await asyncio.to_thread(b.keep_finding, finding, 2), "it is known"
    assert await asyncio.to_thread(b.accept, "alice") == 1
    await asyncio.to_thread(a.close)
    again = await opened("a")
    assert [each.accepted for each in await asyncio.to_thread(again.findings)] == [True]
    for each in (b, again):
        await asyncio.to_thread(each.close)


async def test_what_cannot_be_shared_is_not_kept(tmp_path: Path, store: MemoryStore):
    made = SharedEvidence(store, SYSTEM_CLOCK).witness_rows()
    a = await asyncio.to_thread(WitnessStore, tmp_path / "witness.db", made)
    finding = LogFinding("alice", "o", SPLIT_VIEW, "s", "1", "2")
    await store.close()
    with pytest.raises(EvidenceError, match="cannot be kept in the store"):
        await asyncio.to_thread(a.keep_finding, finding, 1)
    await asyncio.to_thread(a.close)
    plain = WitnessStore(tmp_path / "witness.db")
    assert plain.findings() == []
    plain.close()


async def test_what_one_member_knew_before_it_was_shared_is_kept(tmp_path: Path, store: MemoryStore):
    """Of an older version, or of a node that had no other members."""
    net = WitnessNet(tmp_path)
    async with net.running("alice", "bob") as (alice, bob):
        assert await alice.exchange.exchange("bob") == ""
        before = bob.store.current("alice")
        file = bob.store.path
        a = await witness_of(net, bob, store, file)
        assert await asyncio.to_thread(a.current, "alice") == before
        await alice.add()
        assert await alice.exchange.exchange("bob") == ""
        b = await witness_of(net, bob, store, tmp_path / "b" / "witness.db")
        assert await asyncio.to_thread(b.current, "alice") == await asyncio.to_thread(a.current, "alice") != before
        for each in (a, b):
            await asyncio.to_thread(each.close)
