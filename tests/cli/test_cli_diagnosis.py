"""What the measurements of links and the answers of parties mean."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coterie.cli.diagnosis.judge import link_findings, party_findings
from coterie.cli.diagnosis.model import (
    GraphResult,
    JobNeeds,
    Link,
    LinkFacts,
    LinkResult,
    LinkThresholds,
    Measured,
    PartyAnswer,
    PartyNeeds,
    PartyResult,
    every_pair,
    needs_of_job,
)
from coterie.cli.diagnosis.view import graph_text
from coterie.kuscia.api.types.job import AppImage, KusciaJob
from coterie.kuscia.gateway.diagnosis.messages import EngineFacts, LinkReport, PartyFacts, ProbePlan
from coterie.kuscia.gateway.diagnosis.party_facts import fits
from coterie.kuscia.routes.facts import CheckOutcome, Finding

PAIR = every_pair(("alice", "bob"))
SOUND = LinkReport(
    reached=True,
    endpoint="coterie",
    status=200,
    protocol="HTTP/2",
    fingerprint="f" * 64,
    rtt_ms=3.0,
    clock_offset=0.1,
    grpc=True,
    grpc_streams=True,
    body_passed=16 << 20,
    sent_bits_per_second=1e9,
    received_bits_per_second=1e9,
    chunks_apart=0.95,
    idle_held=10.0,
)
WRONG, WARNING, UNKNOWN = CheckOutcome.WRONG, CheckOutcome.WARNING, CheckOutcome.UNKNOWN


def bad(needs: JobNeeds = PAIR, own: str = "", **changes: Any) -> dict[str, CheckOutcome]:
    report = msgspec.structs.replace(SOUND, **changes)
    facts = LinkFacts(Link("alice", "bob"), Measured.HERE, report, fingerprint=own)
    found = link_findings(facts, needs, ProbePlan(), LinkThresholds())
    # Everything that is not well says what to do, unless the other side just does not tell.
    assert all(each.advice for each in found if each.verdict in (WRONG, WARNING))
    return {each.step: each.verdict for each in found if each.verdict is not CheckOutcome.OK}


def test_a_sound_link() -> None:
    assert bad(own="f" * 64) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"grpc": False, "grpc_problem": "UNAVAILABLE"}, {"grpc": WRONG}),
        ({"grpc_streams": False}, {"grpc": WRONG}),
        ({"grpc": None}, {"grpc": UNKNOWN}),
        ({"protocol": "HTTP/1.1"}, {"http": WARNING}),
        ({"fingerprint": ""}, {"mtls": WARNING}),
        ({"rtt_ms": 80.0}, {"rtt": WARNING}),
        ({"received_bits_per_second": 2e6}, {"bandwidth": WARNING}),
        ({"body_passed": 900_000, "body_refused": 1 << 20, "body_problem": "status 413"}, {"body": WRONG}),
        ({"body_passed": 3 << 20, "body_refused": 4 << 20, "body_problem": "status 413"}, {"body": WARNING}),
        ({"chunks_apart": 0.01}, {"buffering": WRONG}),
        ({"idle_held": None, "idle_cut": 60.0, "idle_problem": "status 504"}, {"idle": WRONG}),
        ({"clock_offset": 90.0}, {"clock": WARNING}),
        ({"clock_offset": -400.0}, {"clock": WRONG}),
        ({"endpoint": "", "status": 403}, {"endpoint": UNKNOWN}),
        ({"reached": False, "status": 401}, {"reach": WRONG}),
        ({"reached": False, "status": 502}, {"reach": WRONG}),
        (
            {"endpoint": "kuscia", "protocol": "", "fingerprint": "", "grpc": None, "clock_offset": None},
            {"mtls": UNKNOWN, "grpc": UNKNOWN, "clock": UNKNOWN},
        ),
    ],
)
def test_what_is_wrong_with_a_link(changes: dict[str, Any], expected: dict[str, CheckOutcome]) -> None:
    assert bad(**changes) == expected


def test_another_certificate_than_the_sources() -> None:
    assert bad(own="a" * 64) == {"mtls": WARNING}


def test_grpc_matters_only_where_an_engine_uses_it() -> None:
    unary = JobNeeds(("alice", "bob"), PAIR.links, by_party={"alice": PartyNeeds()})
    assert bad(unary, grpc=False, grpc_problem="x") == {"grpc": WARNING}


def test_a_link_that_nobody_measures_is_unknown_and_no_failure() -> None:
    facts = LinkFacts(Link("bob", "carol"))
    found = link_findings(facts, PAIR, ProbePlan(), LinkThresholds())
    assert [each.verdict for each in found] == [UNKNOWN]
    assert GraphResult((LinkResult(facts, tuple(found)),), ()).ok


def test_a_route_that_is_wrong_fails_the_link() -> None:
    route = (Finding("tcp", WRONG, "nothing answers", "is a firewall between?"),)
    facts = LinkFacts(Link("alice", "bob"), Measured.HERE, LinkReport(status=503), route)
    found = link_findings(facts, PAIR, ProbePlan(), LinkThresholds())
    result = GraphResult((LinkResult(facts, tuple(found)),), ())
    assert not result.ok
    text = graph_text(result, lambda words, style: f"<{style}>{words}", colour=True)
    assert "\x1b[31mFailed" in text
    assert "<red>wrong    alice -> bob: tcp: nothing answers" in text
    assert "next: is a firewall between?" in text


def test_what_a_partner_writes_does_not_steer_the_terminal() -> None:
    facts = LinkFacts(
        Link("bob", "alice"), Measured.SOURCE, LinkReport(status=503, problem="\x1b[2Jgone\r\n\x07" + "x" * 9000)
    )
    found = link_findings(facts, PAIR, ProbePlan(), LinkThresholds())
    text = graph_text(GraphResult((LinkResult(facts, tuple(found)),), ()), lambda words, style: words, colour=False)
    assert "?[2Jgone???" in text
    assert len(text) < 2000


# Parties.


OURS = (EngineFacts("psi", True, "psi:1.0", "sha256:aaa"),)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (EngineFacts("psi", True, "psi:1.0", "sha256:aaa"), CheckOutcome.OK),
        (EngineFacts("psi", True, "psi:1.0", "sha256:bbb"), WRONG),
        (EngineFacts("psi", True, "psi:2.0"), WARNING),
        (EngineFacts("psi", True, "registry/psi:1.0"), CheckOutcome.OK),
        (EngineFacts("psi"), WRONG),
        (None, UNKNOWN),
    ],
)
def test_engines_of_both_sides(there: EngineFacts | None, expected: CheckOutcome) -> None:
    facts = PartyFacts("1", (there,) if there is not None else (), True)
    found = party_findings(PartyAnswer("bob", facts), PartyNeeds(engines=("psi",)), OURS)
    assert {each.step: each.verdict for each in found}["engine"] is expected


def test_a_party_that_does_not_answer_is_unknown() -> None:
    found = party_findings(PartyAnswer("bob"), PartyNeeds(engines=("psi",)), OURS)
    assert [each.verdict for each in found] == [UNKNOWN]
    assert PartyResult("bob", tuple(found)).status == "Partial"


def test_capacity() -> None:
    def node(name: str, ready: str = "True", **more: Any) -> dict[str, Any]:
        status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"cpu": "4", "memory": "8Gi"}}
        return {"metadata": {"name": name}, "spec": more, "status": status}

    def pod(name: str, phase: str = "Running") -> dict[str, Any]:
        resources = {"requests": {"cpu": "3", "memory": "1Gi"}}
        return {
            "metadata": {"name": name},
            "spec": {"nodeName": "one", "containers": [{"name": "main", "resources": resources}]},
            "status": {"phase": phase},
        }

    assert fits([node("one")], [pod("a")], 1000, 7 << 30)
    assert not fits([node("one")], [pod("a")], 1001, 0)
    assert not fits([node("one")], [pod("a")], 0, (7 << 30) + 1)
    assert fits([node("one")], [pod("a", "Succeeded")], 4000, 0)
    assert fits([node("one"), node("two")], [pod("a")], 4000, 0)
    assert not fits([node("one", "False"), node("two", unschedulable=True)], [], 0, 0)


# Jobs.


def job(*tasks: dict[str, Any]) -> KusciaJob:
    spec = {"initiator": "alice", "tasks": [{"taskInputConfig": "{}", **each} for each in tasks]}
    return msgspec.convert({"metadata": {"name": "j"}, "spec": spec}, KusciaJob)


def image(protocol: str, scope: str = "Cluster") -> AppImage:
    ports = [{"name": "p", "protocol": protocol, "scope": scope}]
    template = {"name": "t", "spec": {"containers": [{"name": "main", "ports": ports}]}}
    return msgspec.convert(
        {"metadata": {"name": "psi"}, "spec": {"image": {"name": "psi", "tag": "1"}, "deployTemplates": [template]}},
        AppImage,
    )


def test_what_a_job_needs() -> None:
    asked = {"requests": {"cpu": "2", "memory": "1Gi"}}
    found = needs_of_job(
        job(
            {
                "alias": "a",
                "appImage": "psi",
                "parties": [{"domainID": "alice"}, {"domainID": "bob", "resources": asked}],
            },
            {"alias": "b", "appImage": "other", "parties": [{"domainID": "bob"}, {"domainID": "carol"}]},
        ),
        {"psi": image("GRPC")},
    )
    assert {str(each) for each in found.links} == {"alice -> bob", "bob -> alice", "bob -> carol", "carol -> bob"}
    assert found.by_party["bob"] == PartyNeeds(2000, 1 << 30, ("psi", "other"))
    assert found.grpc


@pytest.mark.parametrize(("protocol", "scope", "expected"), [("GRPC", "Local", False), ("HTTP", "Cluster", False)])
def test_only_ports_that_partners_call_count(protocol: str, scope: str, expected: bool) -> None:
    task = {"alias": "a", "appImage": "psi", "parties": [{"domainID": "alice"}, {"domainID": "bob"}]}
    assert needs_of_job(job(task), {"psi": image(protocol, scope)}).grpc is expected
