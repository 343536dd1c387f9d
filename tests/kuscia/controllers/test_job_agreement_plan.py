"""When a task begins: what parties state, whom a control plane waits for, and how a difference is named."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from coterie.kuscia.api import labels
from coterie.kuscia.api.job_agreement import check_agreement, task_agreement, with_agreements
from coterie.kuscia.api.job_statements import OfferedEngine, PartyStatement, TaskStatement
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import ACCEPTED, JobPhase, KusciaJob, KusciaJobStatus
from coterie.kuscia.controllers.kusciajob.plan import AGREEMENT_DIFFERS, JobView, plan

ENGINE = OfferedEngine(version="1.0", digest="sha256:" + "ee" * 32)
NOW, LATER = "2026-11-18T10:00:00Z", "2026-11-18T10:06:00Z"


def a_statement(*inputs: str) -> PartyStatement:
    return PartyStatement(tasks={"a": TaskStatement(engines=(ENGINE,), inputs=tuple(each * 64 for each in inputs))})


def a_running_job(statements: dict[str, PartyStatement] | None, **annotations: str) -> KusciaJob:
    parties = [{"domainID": "alice"}, {"domainID": "bob"}]
    task = {"alias": "a", "taskID": "t", "appImage": "engine", "taskInputConfig": "{}", "parties": parties}
    plain = {
        "metadata": {"name": "j", "namespace": "cross-domain", "uid": "0123456789", "annotations": annotations},
        "spec": {"initiator": "alice", "tasks": [task]},
    }
    status = KusciaJobStatus(
        phase=JobPhase.RUNNING, approve_status={"alice": ACCEPTED, "bob": ACCEPTED}, party_statements=statements
    )
    return replace(msgspec.convert(plain, KusciaJob), status=status)


def a_view(job: KusciaJob, *, ours: str, now: str = NOW) -> JobView:
    domains = {
        name: msgspec.convert({"metadata": {"name": name}, "spec": {} if name == ours else {"role": "partner"}}, Domain)
        for name in ("alice", "bob")
    }
    return JobView(
        job=job, domains=domains, images={}, ungranted=(), tasks={}, foreign_tasks=frozenset(), age=0.0, now=now
    )


def agreed(*own: str, **statements: PartyStatement) -> dict[str, PartyStatement]:
    out = with_agreements("j", a_running_job(None).spec, statements, own)
    assert out is not None
    return out


def waits(made: Any) -> str:
    return f"{made.waiting.reason} {made.waiting.who}" if made.waiting is not None else ""


def test_both_sides_compute_the_same_digest_from_the_same_facts() -> None:
    statements = {"alice": a_statement("a", "b"), "bob": a_statement("c")}
    spec = a_running_job(None).spec
    one = task_agreement("j", spec, spec.tasks[0], statements)
    two = task_agreement("j", spec, spec.tasks[0], dict(reversed(statements.items())))
    assert one == two
    assert task_agreement("other", spec, spec.tasks[0], statements).digest != one.digest
    assert set(one.parts) == {
        *("job", "parties", "parameters"),
        *(f"{what} of {party}" for what in ("engine", "inputs", "grants") for party in ("alice", "bob")),
    }


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (
            PartyStatement(tasks={"a": TaskStatement(engines=(replace(ENGINE, digest="x"),))}),
            "engine of bob, inputs of bob",
        ),
        (a_statement("d"), "inputs of bob"),
    ],
)
def test_the_part_that_differs_is_named(theirs: PartyStatement, named: str) -> None:
    ours = agreed("alice", alice=a_statement("a"), bob=a_statement("c"))
    there = agreed("bob", alice=a_statement("a"), bob=theirs)
    mixed = {"alice": ours["alice"], "bob": replace(there["bob"], tasks={"a": replace(there["bob"].tasks["a"])})}
    spec = a_running_job(None).spec
    mine = task_agreement("j", spec, spec.tasks[0], {"alice": a_statement("a"), "bob": a_statement("c")})
    found = check_agreement(mine, spec.tasks[0], mixed, awaited=("alice", "bob"))
    assert found.differs == (f"the parties do not agree about task a: bob has other {named} than this control plane")


def test_an_initiator_begins_when_everybody_says_the_same() -> None:
    statements = agreed("alice", "bob", alice=a_statement("a"), bob=a_statement("c"))
    made = plan(a_view(a_running_job(statements), ours="alice"))
    assert [task.alias for task in made.create] == ["a"]


def test_an_initiator_waits_for_a_digest_that_is_missing_and_not_for_ever() -> None:
    statements = agreed("alice", alice=a_statement("a"), bob=a_statement("c"))
    job = a_running_job(statements)
    made = plan(a_view(job, ours="alice"))
    assert waits(made) == "Agreement bob"
    assert not made.create
    assert made.after == 300
    late = plan(a_view(replace(job, status=made.status), ours="alice", now=LATER))
    assert (late.status.phase, late.status.reason) == (JobPhase.FAILED, AGREEMENT_DIFFERS)
    assert late.status.message == "bob did not say within 300 seconds what it agrees to"


def test_a_member_takes_the_digest_from_the_task_of_its_host() -> None:
    statements = agreed("bob", alice=a_statement("a"), bob=a_statement("c"))
    digest = statements["bob"].tasks["a"].agreement
    assert waits(plan(a_view(a_running_job(statements), ours="bob"))) == "Agreement alice"
    shown = msgspec.json.encode({"t": digest}).decode()
    job = a_running_job(statements, **{labels.COTERIE_HOST_AGREEMENTS: shown})
    assert [task.alias for task in plan(a_view(job, ours="bob")).create] == ["a"]
    other = msgspec.json.encode({"t": "00" * 32}).decode()
    job = a_running_job(statements, **{labels.COTERIE_HOST_AGREEMENTS: other})
    made = plan(a_view(job, ours="bob"))
    assert (made.status.phase, made.status.reason) == (JobPhase.FAILED, AGREEMENT_DIFFERS)


@pytest.mark.parametrize("ours", ["alice", "bob"])
def test_a_partner_without_statements_is_not_waited_for(ours: str) -> None:
    statements = agreed(ours, **{ours: a_statement("a")})
    assert plan(a_view(a_running_job(statements), ours=ours)).create
    assert plan(a_view(a_running_job(None), ours=ours)).create


def test_a_statement_that_could_not_be_used_stops_the_job() -> None:
    statements = agreed("alice", alice=a_statement("a"))
    statements["bob"] = PartyStatement(problem="the inputs of task a cannot be used")
    made = plan(a_view(a_running_job(statements), ours="alice"))
    assert made.status.message == (
        "the statement of bob about task a cannot be used: the inputs of task a cannot be used"
    )
    assert with_fields(made, waiting=None).create == ()
