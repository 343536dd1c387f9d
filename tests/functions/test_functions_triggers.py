"""What triggers decide."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coterie.functions.bus.protocol import Record
from coterie.functions.triggers import (
    call_of_record,
    changed_tables,
    generations,
    http_routes,
    request_uid,
    scheduled_time,
    topic_fault,
)
from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api.functions.types import HttpTrigger, Trigger, TriggerSpec, TriggerStatus
from coterie.kuscia.api.types.data import DomainData, DomainDataSpec

NOW = datetime(2026, 1, 2, 3, 4, 30, tzinfo=UTC)


def trigger(name: str = "t", last: str | None = None, created: str = "2026-01-02T03:00:10Z", **spec: object) -> Trigger:
    return Trigger(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", creation_timestamp=created),
        spec=TriggerSpec(**{"action": "a", **spec}),  # type: ignore[arg-type]
        status=TriggerStatus(last_call_time=last),
    )


@pytest.mark.parametrize(
    ("last", "due"),
    [
        pytest.param(None, "2026-01-02T03:04:00+00:00", id="missed-runs-are-one"),
        pytest.param("2026-01-02T03:03:00Z", "2026-01-02T03:04:00+00:00", id="due"),
        pytest.param("2026-01-02T03:04:00Z", None, id="done"),
    ],
)
def test_schedule(last: str | None, due: str | None) -> None:
    found = scheduled_time(trigger(schedule="* * * * *", last=last), NOW)
    assert (found.isoformat() if found else None) == due


def test_a_cause_has_one_request_id() -> None:
    assert request_uid(trigger(), "x") == request_uid(trigger(), "x")
    assert len({request_uid(trigger(), "x"), request_uid(trigger(), "y"), request_uid(trigger("u"), "x")}) == 3


@pytest.mark.parametrize(
    ("topic", "ok"),
    [
        ("orders", True),
        ("other_DLQ", True),
        ("a_DLQ", False),
        ("a_TOPIC", False),
        ("b_TOPIC", False),
        ("action-monitor", False),
        ("action-results", False),
        ("outbox-bob", False),
        ("ReturnGateway-1", False),
        ("partner-calls", False),
    ],
)
def test_topics_of_functions_themselves_are_not_read(topic: str, ok: bool) -> None:
    assert (topic_fault(trigger(topic=topic)) == "") is ok


def test_a_record_is_a_call_with_its_key_and_body() -> None:
    call = call_of_record(trigger(topic="orders", params={"p": "1"}), Record("orders", 2, 7, "k", b"\xff", 0))
    assert (call.action, call.key, call.payload_base64, call.params) == ("a", "k", "/w==", {"p": "1"})
    long = [call_of_record(trigger(), Record("orders", 0, 0, each * 100_000, b"", 0)).key for each in "aab"]
    assert long[0] == long[1] != long[2] and len(long[0]) == 64


def table(name: str, generation: int) -> DomainData:
    meta = ObjectMeta(name=name, uid=f"uid-{name}", generation=generation)
    spec = DomainDataSpec(name=name, type="table", author="alice", relative_uri="x", data_source="s")
    return DomainData(metadata=meta, spec=spec)


def test_tables_that_changed() -> None:
    seen = generations([table("a", 1), table("b", 1)], "")
    changes = changed_tables(seen, [table("a", 1), table("b", 2), table("c", 1)], "")
    assert [(each.metadata.name, event) for each, event in changes] == [("b", "updated"), ("c", "created")]
    assert not changed_tables(seen, [table("b", 2)], "a")


def test_routes_of_two_triggers_for_one_path_are_the_older_ones() -> None:
    http = HttpTrigger(path="/p", methods=("get",), key="k")
    newer = trigger("newer", created="2026-01-02T03:00:11Z", action="b", http=http)
    older = trigger("older", http=http)
    suspended = trigger("suspended", http=HttpTrigger(path="/q"), suspend=True)
    unknown = trigger("unknown", action="nobody", http=HttpTrigger(path="/r"))
    found = http_routes([newer, older, suspended, unknown], {"a", "b"})
    assert [(each.path, each.action, each.methods, each.key) for each in found] == [("/p", "a", ("GET",), "k")]
