"""Parties say what they bring to a job and agree on it before a task of it begins; what they do is recorded before it happens."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import pytest
from interconn_kit import Network, network
from job_world import JOB, TASK, JobWorld, a_job, a_task
from msgspec.structs import replace

from coterie.kube.api.errors import ServiceUnavailable
from coterie.kube.api.meta import Object
from coterie.kube.store.protocol import StoreEvent
from coterie.kuscia.api.evidence import NOT_RECORDED, EventRequest, EvidenceError, commitment
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS
from coterie.kuscia.api.types.job import KusciaJobStatus
from coterie.kuscia.controllers.kusciajob.controller import KusciaJobReconciler
from coterie.kuscia.interconn import job_mirror

DATA, GRANT = DOMAIN_DATAS.as_dynamic, DOMAIN_DATA_GRANTS.as_dynamic


class RecordedEvents:
    """A log in memory."""

    def __init__(self, name: str) -> None:
        self.verifier_key = f"{name}.coterie/evidence/1+00000000+key"
        self.requests: list[EventRequest] = []
        self.broken = ""
        self.dies: list[str] = []
        """Of the next writes: "before" or "after" the event is written the control plane dies; "" it does not."""
        self._salt = hashlib.sha256(name.encode()).digest()

    def commitments(self, tables: Sequence[str]) -> tuple[str, ...]:
        if self.broken:
            raise EvidenceError(self.broken)
        return tuple(commitment(self._salt, each) for each in tables)

    async def ensure(self, requests: Iterable[EventRequest]) -> None:
        fresh = [each for each in requests if each.event not in self.events]
        if fresh and self.broken:
            raise EvidenceError(self.broken)
        death = self.dies.pop(0) if fresh and self.dies else ""
        if death == "before":
            raise ConnectionResetError("killed before the event")
        self.requests += fresh
        if death == "after":
            raise ConnectionResetError("killed between event and effect")

    @property
    def events(self) -> list[Any]:
        return [each.event for each in self.requests]

    def of(self, kind: str) -> list[Any]:
        return [each for each in self.events if each.kind == kind]


class EffectsAreRecorded:
    """Looks at each write of a control plane: no task without its event, no approval told without its event."""

    def __init__(self, log: RecordedEvents) -> None:
        self._log = log
        self.tasks = 0
        self.unrecorded: list[str] = []

    def __call__(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            kind, name = event.key.split("/")[3], event.key.rpartition("/")[2]
            if kind == "kusciatasks":
                self.tasks += 1
                if name not in {each.task for each in self._log.of("task.started")}:
                    self.unrecorded.append(event.key)


async def add_table(plane: JobWorld, owner: str, name: str, grantee: str = "") -> None:
    spec = {"relativeURI": f"{name}.csv", "author": owner, "name": name, "type": "table", "dataSource": "local"}
    await plane.client.create(DATA, {"metadata": {"name": name, "namespace": owner}, "spec": spec})
    if grantee:
        given = {"author": owner, "domainDataID": name, "grantDomain": grantee}
        await plane.client.create(GRANT, {"metadata": {"name": f"g-{name}", "namespace": owner}, "spec": given})


def logs(*names: str) -> dict[str, RecordedEvents]:
    return {name: RecordedEvents(name) for name in names}


def with_logs(found: dict[str, RecordedEvents], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"evidence": log, **more.get(name, {})} for name, log in found.items()}


def waiting(status: Object) -> str:
    return next((each["reason"] for each in status.get("conditions", ()) if each["type"] == "Waiting"), "")


async def test_both_sides_record_the_same_agreement_and_learn_commitments_only() -> None:
    found = logs("alice", "bob")
    async with network("alice", "bob", jobs=with_logs(found)) as net:
        await add_table(net["alice"], "alice", "income")
        await add_table(net["bob"], "bob", "health", "alice")
        named = '{"tables": ["income", "health"]}'
        await net["alice"].client.create(JOB, a_job(a_task("a", taskInputConfig=named)))
        for status in await net.until_phase("Succeeded"):
            assert set(status["partyStatements"]) == {"alice", "bob"}
            for party in ("alice", "bob"):
                (stated,) = status["partyStatements"][party]["tasks"].values()
                assert len(stated["inputs"]) == 1
                assert len(stated.get("grants", ())) == (party == "bob")
                assert "health" not in str(stated) and "income" not in str(stated)
        (one,), (two,) = (log.of("task.started") for log in found.values())
        assert one.agree == two.agree != ""
        assert one.engines == two.engines
        assert one.inputs != two.inputs
        assert len(two.grant) == 1
        for name, log in found.items():
            kinds = [each.kind for each in log.events]
            assert kinds.index("job.approved") < kinds.index("task.started") < kinds.index("job.ended"), name
            before = log.events[: kinds.index("task.started")]
            assert {each.partner for each in before if each.kind == "job.approved"} == {"alice", "bob"}, name
            assert [each.agree for each in log.of("task.ended")] == [one.agree]
        given = [table for each in found["bob"].requests for table in each.tables]
        assert [each.partition("@")[0] for each in given] == ["health"]


async def test_a_changed_parameter_fails_the_job_at_both_sides_and_is_named() -> None:
    found = logs("alice", "bob")
    async with network("alice", "bob", jobs=with_logs(found, bob={"requires_approval": True})) as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("AwaitingApproval")
        job = await net["alice"].job()
        changed = [{**task, "taskInputConfig": '{"n": 2}'} for task in job["spec"]["tasks"]]
        await net["alice"].client.patch(JOB, "j", "cross-domain", {"spec": {"tasks": changed}})
        await approve(net["bob"])
        for status in await net.until_phase("Failed"):
            assert status["reason"] == "AgreementDiffers"
            assert "has other parameters than" in status["message"]
        assert not [task for plane in net.planes.values() for task in await plane.list(TASK, "cross-domain")]
        assert not any(log.of("task.started") for log in found.values())
        assert [log.of("job.ended")[0].outcome for log in found.values()] == ["Failed", "Failed"]


async def approve(plane: JobWorld) -> None:
    accepted = {"status": {"approveStatus": {"bob": "JobAccepted"}}}
    await plane.client.patch_status(JOB, "j", "cross-domain", accepted)


async def test_the_approval_of_a_person_travels_with_the_statement() -> None:
    found = logs("alice", "bob")
    async with network("alice", "bob", jobs=with_logs(found, bob={"requires_approval": True})) as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.until_phase("AwaitingApproval")
        found["bob"].broken = "the disk is full"
        await approve(net["bob"])
        await net.settle(5)
        status = await net["alice"].job_status()
        assert "bob" not in status["approveStatus"], "what is not recorded has no effect"
        bobs = await net["bob"].job_status()
        assert waiting(bobs) == "Evidence"
        assert "the disk is full" in bobs["message"]
        found["bob"].broken = ""
        await net.until_phase("Succeeded")


@pytest.mark.parametrize("name", ["alice", "bob"])
async def test_a_full_disk_stops_tasks_and_they_go_on_by_themselves(name: str) -> None:
    found = logs("alice", "bob")
    async with network("alice", "bob", jobs=with_logs(found)) as net:
        found[name].broken = "the disk is full"
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        await net.settle(20)
        assert not await net[name].list(TASK, "cross-domain")
        status = await net[name].job_status()
        assert waiting(status) == "Evidence"
        assert "the disk is full" in status["message"]
        found[name].broken = ""
        await net.until_phase("Succeeded")


@pytest.mark.parametrize("name", ["alice", "bob"])
async def test_a_death_between_event_and_effect_leaves_no_effect_without_event(name: str) -> None:
    """At every event of a job the control plane dies before it, and again behind it."""
    found = logs("alice", "bob")
    found[name].dies = ["before", "after"] * 4
    async with network("alice", "bob", jobs=with_logs(found)) as net:
        seen = {each: EffectsAreRecorded(found[each]) for each in net.planes}
        for each, plane in net.planes.items():
            plane.server.state.store.subscribe(seen[each])
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        for left in (6, 3):
            await restart_after_deaths(net, found[name], name, left)
        await net.until_phase("Succeeded")
        for each in seen.values():
            assert each.tasks
            assert not each.unrecorded


async def restart_after_deaths(net: Network, log: RecordedEvents, name: str, left: int) -> None:
    async def died() -> bool:
        return len(log.dies) <= left

    await net.until(died)
    await net[name].stop()
    await net[name].start()


async def test_a_partner_that_claims_another_agreement_stops_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    member_status = job_mirror.member_status

    def as_liar(*args: Any, **options: Any) -> KusciaJobStatus:
        status = member_status(*args, **options)
        statements = {
            party: replace(
                each, tasks={alias: replace(task, agreement="00" * 32) for alias, task in each.tasks.items()}
            )
            if party == "bob" and each.tasks
            else each
            for party, each in (status.party_statements or {}).items()
        }
        return replace(status, party_statements=statements or None)

    monkeypatch.setattr(job_mirror, "member_status", as_liar)
    found = logs("alice", "bob")
    async with network("alice", "bob", jobs=with_logs(found)) as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))
        (alices,) = await net.until_phase("Failed", "alice")
        assert alices["reason"] == "AgreementDiffers"
        assert "bob" in alices["message"]
        assert not await net["alice"].list(TASK, "cross-domain")


class SilentPartners:
    """Witnesses of which one must cosign and does not, until `answers`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], str]] = []
        self.answers = False

    async def at_task(self, task: str, parties: Collection[str], when: Literal["start", "end"]) -> str | None:
        self.asked.append((task, tuple(sorted(parties)), when))
        return None if self.answers else "bob did not cosign our log: no answer within 2 s"


async def test_a_task_waits_for_a_witness_that_the_policy_requires() -> None:
    found, silent = logs("alice", "bob"), SilentPartners()
    async with network("alice", "bob", jobs=with_logs(found, alice={"witnesses": silent})) as net:
        await net["alice"].client.create(JOB, a_job(a_task("a")))

        async def waits() -> bool:
            return waiting(await net["alice"].job_status()) == "Witness"

        await net.until(waits)
        await net.settle(5)
        status = await net["alice"].job_status()
        assert waiting(status) == "Witness"
        assert "before task a begins: bob did not cosign our log" in status["message"]
        assert not await net["alice"].list(TASK, "cross-domain")
        (started,) = found["alice"].of("task.started")
        assert len(silent.asked) > 1, "it is asked again"
        assert set(silent.asked) == {(started.task, ("alice", "bob"), "start")}
        silent.answers = True
        for each in await net.until_phase("Succeeded"):
            assert waiting(each) == ""
        assert len(found["alice"].of("task.started")) == 1


async def test_three_parties_agree() -> None:
    found = logs("alice", "bob", "carol")
    async with network("alice", "bob", "carol", jobs=with_logs(found)) as net:
        await net["alice"].client.create(JOB, a_job(a_task("a", parties=("alice", "bob", "carol"))))
        await net.until_phase("Succeeded")
        digests = {log.of("task.started")[0].agree for log in found.values()}
        assert len(digests) == 1


async def test_a_job_says_so_when_the_api_server_cannot_record_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with network("alice", "bob", jobs=with_logs(logs("alice", "bob"))) as net:

        async def refused(*_: Any) -> Any:
            raise ServiceUnavailable(f"{NOT_RECORDED}: the disk is full", retry_after=5)

        with monkeypatch.context() as broken:
            broken.setattr(KusciaJobReconciler, "_mark", refused)
            await net["alice"].client.create(JOB, a_job(a_task("a")))
            await net.settle(5)
            status = await net["alice"].job_status()
            assert waiting(status) == "Evidence"
            assert "cannot be written: the disk is full" in status["message"]
        await net.until_phase("Succeeded")
