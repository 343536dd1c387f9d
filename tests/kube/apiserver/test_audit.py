"""Audit: what is told to sinks, and that a broken sink breaks nothing."""

import json
import logging
from datetime import UTC, datetime

import pytest

from coterie.base.log_rotation import Rotation
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.audit import Audit, AuditEvent, AuditObjectReference, FileSink, MemorySink, SelectedSink

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVENT = AuditEvent(
    time=START,
    user=UserInfo("ann", ("dev",), "7"),
    verb="create",
    path="/api/v1/namespaces/dev/secrets",
    code=201,
    source="10.0.0.1",
    duration=0.0025,
    object=AuditObjectReference(version="v1", resource="secrets", namespace="dev", name="s"),
    user_agent="kubectl",
)


def test_event_in_kubernetes_words():
    shown = EVENT.as_json()
    assert len(shown.pop("auditID")) == 36
    assert shown == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "stage": "ResponseComplete",
        "requestURI": "/api/v1/namespaces/dev/secrets",
        "verb": "create",
        "user": {"username": "ann", "groups": ["dev"], "uid": "7"},
        "sourceIPs": ["10.0.0.1"],
        "userAgent": "kubectl",
        "objectRef": {"resource": "secrets", "namespace": "dev", "name": "s", "apiVersion": "v1"},
        "responseStatus": {"code": 201},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z",
        "durationSeconds": 0.0025,
    }


def test_an_impersonated_change_names_both():
    event = AuditEvent(START, UserInfo("ann"), "delete", "/x", 200, impersonator=UserInfo("boss"), dry_run=True)
    shown = event.as_json()
    assert shown["user"]["username"] == "boss"
    assert shown["impersonatedUser"]["username"] == "ann"
    assert shown["dryRun"] is True


@pytest.mark.parametrize(
    ("verb", "wanted"),
    [("create", True), ("patch", True), ("deletecollection", True), ("get", False), ("list", False), ("watch", False)],
)
def test_only_changes_are_wanted(verb, wanted):
    assert Audit([MemorySink()]).wants(verb) is wanted
    assert not Audit().wants(verb) and not Audit().enabled


@pytest.mark.parametrize("subresource", ["attach", "exec", "portforward", "proxy"])
def test_connections_are_wanted_although_websockets_begin_with_get(subresource):
    assert Audit([MemorySink()]).wants("get", subresource)
    assert not Audit([MemorySink()]).wants("get", "log") and not Audit().wants("get", subresource)


def test_memory_sink_keeps_the_newest():
    sink = MemorySink(limit=3)
    audit = Audit([sink])
    for code in range(5):
        audit.record(AuditEvent(START, UserInfo("a"), "create", "/", code))
    assert [event.code for event in sink.events] == [2, 3, 4]


def test_selected_sink_leaves_out_the_routine_of_programs():
    kept = MemorySink()
    sink = SelectedSink(kept, frozenset({"system:controllers"}))

    def record(user, resource, group="", impersonator=None):
        about = AuditObjectReference(group, "v1", resource, "", "default", "x")
        who = UserInfo(impersonator) if impersonator else None
        sink.record(AuditEvent(START, UserInfo(user), "update", f"/{resource}", 200, object=about, impersonator=who))

    record("system:controllers", "pods")
    record("alice", "events")
    record("alice", "events", "events.k8s.io")
    record("system:node:a", "leases", "coordination.k8s.io")
    assert kept.events == []
    record("alice", "pods")
    record("system:controllers", "secrets", impersonator="mallory")
    assert [event.path for event in kept.events] == ["/pods", "/secrets"]


def test_file_sink_appends_lines_to_a_private_file(tmp_path):
    path = tmp_path / "audit.log"
    with FileSink(path) as sink:
        sink.record(EVENT)
    with FileSink(path) as sink:
        sink.record(EVENT)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["verb"] for line in lines] == ["create", "create"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_sink_moves_a_grown_file_aside(tmp_path):
    path = tmp_path / "audit.log"
    with FileSink(path, Rotation(max_bytes=1000)) as sink:
        for _ in range(3):
            sink.record(EVENT)
    assert len(path.read_text().splitlines()) == 1
    assert len((tmp_path / "audit.log.1").read_text().splitlines()) == 2


class Breakable:
    def __init__(self) -> None:
        self.broken = True
        self.seen = 0

    def record(self, event: AuditEvent) -> None:
        if self.broken:
            raise OSError("disk full")
        self.seen += 1


def test_a_failing_sink_breaks_nothing_and_is_reported_once(caplog):
    sink, good = Breakable(), MemorySink()
    audit = Audit([sink, good])
    with caplog.at_level(logging.INFO, "coterie.apiserver.audit"):
        for _ in range(3):
            audit.record(EVENT)
        sink.broken = False
        audit.record(EVENT)
        sink.broken = True
        audit.record(EVENT)
    assert len(good.events) == 5
    assert sink.seen == 1 and audit.lost == 4
    assert [record.getMessage() for record in caplog.records] == [
        "Audit sink fails",
        "Audit sink works again",
        "Audit sink fails",
    ]


def test_a_file_that_cannot_be_opened_is_such_a_failure(tmp_path):
    audit = Audit([FileSink(tmp_path / "none" / "audit.log")])
    audit.record(EVENT)
    assert audit.lost == 1
