"""What a tab gets of lists that change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.console.live import MAX_PENDING, EncodedRow, RowKind, RowSubscription
from coterie.console.rows import row_of
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.resources import Resource

KIND = RowKind.of(Resource("kuscia.secretflow", "v1alpha1", "kusciajobs", "KusciaJob", True))


def job(name: str, phase: str = "Running", **more: Any) -> dict[str, Any]:
    task = {"parties": [{"domainID": "bob"}, {"domainID": "alice"}]}
    return {
        "metadata": {"name": name, "namespace": "cross-domain", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"initiator": "alice", "tasks": [task], **more},
        "status": {"phase": phase, "taskStatus": {"t": "Succeeded"}},
    }


def row(name: str, phase: str = "Running", **more: Any) -> EncodedRow:
    return KIND.decode(json.dumps(job(name, phase, **more)).encode())


def taken(one: RowSubscription) -> list[dict[str, Any]]:
    out = []
    while (message := one.next_message()) is not None:
        out.append(json.loads(message))
        for each in out[-1].get("rows", ()):
            assert "name" not in each, "the page has it from the id"
            each["name"] = each["id"].partition("/")[2]
    return out


def test_everything_comes_first_in_pages_and_then_the_newest_of_each() -> None:
    woken: list[int] = []
    one = RowSubscription(7, lambda: woken.append(1))
    one.replace([row(f"j{number}") for number in range(1200)])
    messages = taken(one)
    assert [len(message["rows"]) for message in messages] == [500, 500, 200]
    assert messages[0]["reset"] is True and "reset" not in messages[1] and woken
    assert taken(one) == []
    for phase in ("Running", "Failed", "Succeeded"):
        one.changed("MODIFIED", row("j1", phase))
    (message,) = taken(one)
    assert [each["phase"] for each in message["rows"]] == ["Succeeded"], (
        "a slow browser skips what it did not see in time"
    )
    one.changed("DELETED", row("j1"))
    one.lost(ObjectKey("cross-domain", "j2"))
    assert taken(one) == [{"id": 7, "rows": [], "gone": ["cross-domain/j1", "cross-domain/j2"]}]


def test_a_list_of_one_phase_has_no_other_rows() -> None:
    one = RowSubscription(1, lambda: None, "AwaitingApproval")
    one.replace([row("a", "AwaitingApproval"), row("b", "Running")])
    assert [each["name"] for each in taken(one)[0]["rows"]] == ["a"]
    one.changed("MODIFIED", row("b", "Succeeded"))
    assert taken(one) == [], "the page does not know it"
    one.changed("MODIFIED", row("a", "Running"))
    assert taken(one) == [{"id": 1, "rows": [], "gone": ["cross-domain/a"]}]
    one.changed("ADDED", row("c", "AwaitingApproval"))
    assert [each["name"] for each in taken(one)[0]["rows"]] == ["c"]


def test_objects_of_other_phases_are_not_even_read() -> None:
    kind = RowKind.of(KIND.resource, "AwaitingApproval")
    other = kind.decode(json.dumps(job("a", "Running") | {"spec": 7}).encode())
    assert (other.key.name, other.key.namespace, other.phase, other.body) == ("a", "cross-domain", "", b"")
    assert kind.decode(json.dumps(job("b", "AwaitingApproval")).encode()).phase == "AwaitingApproval"
    pending = job("c") | {"status": {}}
    assert RowKind.of(KIND.resource, "Pending").decode(json.dumps(pending).encode()).phase == "Pending"


def test_an_empty_list_is_said_too() -> None:
    one = RowSubscription(1, lambda: None)
    one.replace([])
    assert taken(one) == [{"id": 1, "rows": [], "reset": True}]


def test_problems_are_passed_on_and_end() -> None:
    one = RowSubscription(1, lambda: None)
    one.failed(None, "forbidden")  # type: ignore[arg-type]
    assert taken(one) == [{"id": 1, "problem": "forbidden"}]
    one.recovered(None)  # type: ignore[arg-type]
    assert taken(one) == [{"id": 1, "problem": ""}]


def test_rows_are_sent_while_the_rest_of_the_list_still_comes() -> None:
    one = RowSubscription(1, lambda: None)
    first, second = [row(f"a{number}") for number in range(700)], [row(f"b{number}") for number in range(10)]
    one.begin()
    one.part(first, consistent=True)
    (message,) = taken(one)
    assert len(message["rows"]) == 500 and message["reset"], "whole messages only, while it goes on"
    one.part(second, consistent=True)
    one.replace(first + second)
    (message,) = taken(one)
    assert len(message["rows"]) == 210 and "reset" not in message and "more" not in message
    one.begin()
    one.part(first[:500], consistent=True)
    assert one.next_message() is not None and one.next_message() is None
    one.replace(first[:500])
    assert taken(one) == [{"id": 1, "rows": []}], "the page waits for the end"
    one.begin()
    one.part(first, consistent=True)
    taken(one)
    one.part(first[:1], consistent=False)
    one.replace(second)
    (message,) = taken(one)
    assert message["reset"] and len(message["rows"]) == 10, "something was removed meanwhile: all of it again"


def test_a_browser_that_does_not_read_costs_no_memory() -> None:
    behind: list[int] = []

    def overflowed(one: RowSubscription) -> None:
        behind.append(one.number)
        one.clear()

    one = RowSubscription(3, lambda: None, overflowed=overflowed)
    one.replace([row(f"j{number}") for number in range(10)])
    for number in range(20_000):
        one.changed("MODIFIED", row(f"j{number % 9000}"))
        assert one._bytes <= MAX_PENDING
    assert behind and set(behind) == {3}, "the list comes again as a whole"


def test_messages_are_bounded_however_large_rows_are() -> None:
    one = RowSubscription(1, lambda: None)
    wide = RowKind.of(Resource("", "v1", "domaindatas", "", True))
    table = {"metadata": {"name": "t"}, "spec": {"columns": [{"name": "x" * 100, "type": "y" * 100}] * 10_000}}
    one.replace([wide.decode(json.dumps(table).encode())] * 40)
    sizes = []
    while (message := one.next_message()) is not None:
        sizes.append(len(message))
    assert len(sizes) > 1 and max(sizes) < 512 << 10


def test_a_row_has_what_a_list_shows_and_is_bounded() -> None:
    row = row_of("kusciajobs", job("j", "Failed") | {"status": {"phase": "Failed", "message": "x" * 10_000_000}})
    assert row["parties"] == ["alice", "bob"] and row["tasks"] == 1 and row["phase"] == "Failed"
    assert len(row["message"]) == 400 and "spec" not in row
    assert row_of("unknown", {"metadata": {"name": "n"}})["name"] == "n"


def test_rows_of_objects_without_anything_in_them() -> None:
    for resource in (
        "kusciajobs",
        "kusciatasks",
        "pods",
        "nodes",
        "clusterdomainroutes",
        "domains",
        "domaindatas",
        "domaindatagrants",
        "events",
        "actions",
        "triggers",
        "actiongrants",
        "deadletters",
    ):
        assert row_of(resource, {"metadata": {"name": "n"}})["id"] == "/n"


def test_a_row_of_a_job_says_whose_it_is_and_who_decided() -> None:
    own = job("j")
    assert row_of("kusciajobs", own)["ours"] and "answers" not in row_of("kusciajobs", own)
    foreign = job("j")
    foreign["metadata"]["annotations"] = {"kuscia.secretflow/self-cluster-as-initiator": "false"}
    foreign["status"] |= {
        "approveStatus": {"alice": "JobAccepted"},
        "approvalRecords": {
            "alice": {"by": "ops/anna", "at": "2026-01-01T00:00:00Z"},
            "carol": {"by": "x", "at": "2025"},
        },
    }
    row = row_of("kusciajobs", foreign)
    assert not row["ours"] and row["answers"] == {"alice": "JobAccepted"}
    assert (row["decidedBy"], row["decidedAt"]) == ("ops/anna", "2026-01-01T00:00:00Z")


def test_a_row_of_a_route_has_the_age_of_its_token_and_not_the_token() -> None:
    tokens = [
        {"revision": 6, "revisionTime": "2026-01-01T00:00:00Z", "token": "secret"},
        {
            "revision": 7,
            "revisionTime": "2026-01-02T00:00:00Z",
            "expirationTime": "2026-01-03T00:00:00Z",
            "token": "secret",
        },
    ]
    row = row_of(
        "clusterdomainroutes", {"metadata": {"name": "r"}, "status": {"tokenStatus": {"sourceTokens": tokens}}}
    )
    assert (row["tokenSince"], row["tokenUntil"]) == ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z")
    assert "secret" not in json.dumps(row)


def test_a_row_of_a_task_has_the_state_of_each_party() -> None:
    states = [{"domainID": "bob", "phase": "Failed", "message": "out of memory"}]
    row = row_of("kusciatasks", {"metadata": {"name": "t"}, "status": {"phase": "Failed", "partyTaskStatus": states}})
    assert row["states"] == [{"party": "bob", "phase": "Failed", "message": "out of memory"}]


def test_a_row_of_a_function_has_its_figures_and_not_its_code() -> None:
    failed = {"type": "ReloadFailed", "status": "True", "reason": "SyntaxError", "message": "line 3: invalid syntax"}
    ready = {"type": "Ready", "status": "False", "reason": "ImageMissing"}
    status = {"callsPerMinute": 12, "errorsPerMinute": 1, "coldStarts": 3, "deadLetters": 2, "readyReplicas": 1}
    status |= {"version": "v2", "versions": [{"name": "v2", "percent": 100, "replicas": 1}], "conditions": [failed]}
    spec = {"script": "TOKEN = 'secret'", "next": ["b", "bob/score"], "scaling": {"policy": "Load", "maxReplicas": 5}}
    row = row_of("actions", {"metadata": {"name": "a", "namespace": "alice"}, "spec": spec, "status": status})
    assert (row["calls"], row["errors"], row["cold"], row["dead"], row["ready"]) == (12, 1, 3, 2, 1)
    assert row["next"] == ["b", "bob/score"] and row["phase"] == "Ready" and row["reload"] == "line 3: invalid syntax"
    assert "secret" not in json.dumps(row)
    row = row_of("actions", {"metadata": {"name": "a"}, "status": {"conditions": [ready]}})
    assert (row["phase"], row["message"]) == ("NotReady", "ImageMissing")


@pytest.mark.parametrize(
    ("spec", "by", "what"),
    [
        ({"http": {"path": "/hello", "methods": ["GET"]}}, "http", "/hello"),
        ({"schedule": "*/5 * * * *"}, "schedule", "*/5 * * * *"),
        ({"topic": "news"}, "topic", "news"),
        ({"domainData": {"name": "people"}}, "table", "people"),
        ({"domainData": {}}, "table", ""),
    ],
)
def test_a_row_of_a_trigger_says_what_calls(spec: dict[str, Any], by: str, what: str) -> None:
    row = row_of("triggers", {"metadata": {"name": "t"}, "spec": {"action": "a", **spec}})
    assert (row["action"], row["by"], row["what"], row["suspended"]) == ("a", by, what, False)
