"""Grants that end, logs that are given and received, protections that are switched off: what becomes an event. Pure."""

from __future__ import annotations

import pytest

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api import evidence
from coterie.kuscia.api.grants import EXPIRED
from coterie.kuscia.api.types.data import UNAVAILABLE, DomainDataGrant, DomainDataGrantSpec, DomainDataGrantStatus
from coterie.kuscia.api.types.log_request import LogExcerpt, LogRequest, LogRequestSpec, LogRequestStatus
from coterie.kuscia.controllers.logrequest.plan import recorded_events
from coterie.kuscia.evidence import job_events
from coterie.kuscia.evidence.access_follower import expired, key_of, received


def grant(namespace: str, message: str) -> DomainDataGrant:
    return DomainDataGrant(
        metadata=ObjectMeta(name="g", namespace=namespace),
        spec=DomainDataGrantSpec(author="alice", domain_data_id="salaries", grant_domain="bob"),
        status=DomainDataGrantStatus(phase=UNAVAILABLE, message=message),
    )


def test_a_grant_that_ended_is_an_event_of_its_author() -> None:
    found = expired(grant("alice", EXPIRED))
    assert found is not None
    assert (found.event.kind, found.event.partner, found.event.grant[0]) == (evidence.GRANT_EXPIRED, "bob", "g")
    assert found.tables == ("salaries",)
    assert key_of(found.event) == key_of(evidence.decode(evidence.encode(found.event)))
    assert expired(grant("bob", EXPIRED)) is None
    assert expired(grant("alice", "UseCount is exhausted")) is None


def log_request(namespace: str, phase: str) -> LogRequest:
    return LogRequest(
        metadata=ObjectMeta(name="r", namespace=namespace, uid="12345678-9"),
        spec=LogRequestSpec(requester="bob", owner="alice", job="j", reason="it failed", requested_by="carl"),
        status=LogRequestStatus(phase=phase, digest="d" * 64 if phase == "Answered" else ""),
    )


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("AwaitingApproval", "Answered", [evidence.LOGS_APPROVED, evidence.LOGS_GIVEN]),
        ("AwaitingApproval", "Rejected", [evidence.LOGS_DENIED]),
        ("Answered", "Revoked", [evidence.LOGS_DENIED]),
        ("Answered", "Answered", []),
        ("", "AwaitingApproval", []),
        ("Answered", "Expired", []),
    ],
)
def test_the_owner_records_what_it_decides(before: str, after: str, kinds: list[str]) -> None:
    status = LogRequestStatus(phase=after, decided_by="anna", digest="d" * 64, answer=LogExcerpt(lines=3))
    found = recorded_events(log_request("alice", before), status)
    assert [each.event.kind for each in found] == kinds
    assert all((each.person, each.event.partner) == ("anna", "bob") for each in found)
    for each in found:
        if each.event.kind == evidence.LOGS_GIVEN:
            assert (each.event.count, each.event.more) == (3, {"digest": "d" * 64, "run": "12345678/dddddddd"})


def test_what_is_given_is_recorded_once_after_a_crash_and_anew_when_it_is_something_else() -> None:
    request = log_request("alice", "AwaitingApproval")

    def keys(digest: str) -> set[object]:
        status = LogRequestStatus(phase="Answered", decided_by="anna", digest=digest * 64, answer=LogExcerpt(lines=3))
        return {job_events.key_of(each.event) for each in recorded_events(request, status)}

    assert keys("d") == keys("d") and len(keys("d")) == 2
    assert len(keys("d") & keys("e")) == 1, "it was approved once"


def test_the_requester_records_the_digest_of_what_it_got() -> None:
    found = received(log_request("bob", "Answered"))
    assert found is not None
    assert (found.event.kind, found.event.partner, found.event.more["digest"]) == ("logs.received", "alice", "d" * 64)
    assert received(log_request("alice", "Answered")) is None
    assert received(log_request("bob", "Rejected")) is None
