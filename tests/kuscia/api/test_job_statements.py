"""Statements of parties: what is taken of a partner's, and what is not."""

from __future__ import annotations

import pytest

from coterie.kuscia.api.job_statements import (
    LONGEST_STATEMENT,
    OfferedEngine,
    PartyStatement,
    TaskStatement,
    statements_taken,
    without_agreements,
)

DIGEST = "ab" * 32
GOOD = TaskStatement(
    engines=(OfferedEngine(version="1.2", digest="sha256:" + DIGEST, speaks=">=1", protocols=("spu-link/2",)),),
    inputs=(DIGEST,),
    grants=("cd" * 32,),
)


def taken(theirs: PartyStatement, known: PartyStatement | None = None) -> PartyStatement:
    out = statements_taken({"bob": known} if known else None, {"bob": theirs}, ["bob"], {"a", "b"})
    assert out is not None
    return out["bob"]


def test_a_good_statement_is_taken_as_it_is() -> None:
    theirs = PartyStatement(tasks={"a": GOOD}, verifier_key="bob.coterie/evidence/1+abcd+key")
    assert taken(theirs) == theirs


def test_only_named_parties_speak() -> None:
    own = PartyStatement(tasks={"a": GOOD})
    theirs = {"alice": PartyStatement(), "bob": PartyStatement(tasks={"b": GOOD})}
    out = statements_taken({"alice": own}, theirs, ["bob"], {"a", "b"})
    assert out == {"alice": own, "bob": theirs["bob"]}
    assert statements_taken(None, None, ["bob"], ()) is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (TaskStatement(inputs=("alice/income",)), "the inputs of task b cannot be used"),
        (TaskStatement(inputs=(DIGEST,) * 17), "the inputs of task b cannot be used"),
        (TaskStatement(grants=("x" * 64,)), "the grants of task b cannot be used"),
        (TaskStatement(engines=(OfferedEngine(version="1" * 1000),)), "the engines of task b cannot be used"),
        (TaskStatement(engines=(OfferedEngine(digest="a b"),)), "the engines of task b cannot be used"),
        (TaskStatement(engines=(OfferedEngine(protocols=("x",) * 17),)), "the engines of task b cannot be used"),
        (TaskStatement(engines=(OfferedEngine(version="1\n2"),)), "the engines of task b cannot be used"),
        (TaskStatement(agreement="yes"), "the agreement of task b cannot be used"),
        (TaskStatement(parts={"x": "long" * 99}), "the agreement of task b cannot be used"),
    ],
)
def test_garbage_is_left_out_by_name(bad: TaskStatement, why: str) -> None:
    assert taken(PartyStatement(tasks={"a": GOOD, "b": bad})) == PartyStatement(tasks={"a": GOOD}, problem=why)


def test_tasks_that_are_not_in_the_job_are_named_shortly() -> None:
    out = taken(PartyStatement(tasks={f"t{number}": GOOD for number in range(9)}))
    assert out.tasks is None
    assert out.problem == "the job has no task 't0'; the job has no task 't1'; the job has no task 't2', and 6 more"


def test_a_huge_statement_is_left_out_whole() -> None:
    out = taken(PartyStatement(verifier_key="x" * LONGEST_STATEMENT))
    assert out == PartyStatement(problem=f"the statement has more than {LONGEST_STATEMENT} bytes")


def test_what_was_said_once_stays_and_only_a_missing_agreement_is_added() -> None:
    known = PartyStatement(tasks={"a": GOOD})
    changed = TaskStatement(inputs=("ef" * 32,), agreement=DIGEST, parts={"parameters": "01234567"})
    completed = taken(PartyStatement(tasks={"a": changed, "b": GOOD}), known)
    assert completed.tasks is not None
    assert list(completed.tasks) == ["a"]
    assert completed.tasks["a"].inputs == GOOD.inputs
    assert completed.tasks["a"].agreement == DIGEST
    again = taken(PartyStatement(tasks={"a": TaskStatement(agreement="00" * 32)}), completed)
    assert again == completed
    assert without_agreements({"bob": completed}) == {"bob": known}
