"""`get -w` and `status` against servers that behave strangely, played by a function."""

from __future__ import annotations

import json

import pytest

from coterie.kube.api import errors
from coterie.kube.client.fake import FakeStream, FakeTransport, json_reply, stream_reply
from coterie.kube.client.transport import Disconnected, NotSent, TransportRequest, TransportResponse

DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "resources": [
            {
                "name": "pods",
                "singularName": "pod",
                "namespaced": True,
                "kind": "Pod",
                "verbs": ["get", "list", "watch"],
            }
        ],
    },
}
COLUMNS = [{"name": "Name", "format": "name"}, {"name": "Status"}]


def row(name: str, status: str, version: str) -> dict[str, object]:
    return {"cells": [name, status], "object": {"metadata": {"name": name, "resourceVersion": version}}}


def table(*rows: dict[str, object], version: str = "5", columns: bool = True) -> dict[str, object]:
    out: dict[str, object] = {"kind": "Table", "metadata": {"resourceVersion": version}, "rows": list(rows)}
    return out | ({"columnDefinitions": COLUMNS} if columns else {})


def event(kind: str, obj: object) -> dict[str, object]:
    return {"type": kind, "object": obj}


class Server:
    """Answers discovery, then lists and watches from the given scripts; a watch too many is a refused connection."""

    def __init__(self, lists, watches) -> None:
        self.lists = list(lists)
        self.watches = list(watches)
        self.transport = FakeTransport(self.answer)

    def answer(self, call: TransportRequest) -> TransportResponse:
        if call.path in DISCOVERY:
            return json_reply(DISCOVERY[call.path])
        if not call.stream:
            return json_reply(self.lists.pop(0))
        if not self.watches:
            raise NotSent("the test is over")
        return stream_reply(self.watches.pop(0))

    @property
    def watched_from(self) -> list[str]:
        asked = [
            dict(pair.split("=") for pair in call.query.split("&")) for call in self.transport.calls if call.stream
        ]
        return [query["resourceVersion"] for query in asked]


def stream(*events: dict[str, object]) -> FakeStream:
    return FakeStream(events).end()


def test_changes_stand_below_the_list(fake):
    changes = stream(event("MODIFIED", table(row("a", "Running", "7"))), event("ADDED", table(row("long-name", "Pending", "8"), columns=False)))  # fmt: skip
    server = Server([table(row("a", "Pending", "5"))], [changes])
    told = fake(server.transport)("get", "pods", "-w")
    assert told.lines[:3] == ["NAME   STATUS", "a      Pending", "a      Running"]
    assert told.lines[3].split() == ["long-name", "Pending"]
    assert told.code == 1  # only because the test's server went away


def test_the_header_comes_with_the_first_row(fake):
    server = Server([table()], [stream(event("ADDED", table(row("a", "Pending", "6"))))])
    assert fake(server.transport)("get", "pods", "-w").lines == ["NAME   STATUS", "a      Pending"]


def test_a_watch_that_ends_goes_on_where_it_was(fake):
    bookmark = event("BOOKMARK", table(version="9"))
    server = Server(
        [table(version="5")], [stream(event("ADDED", table(row("a", "x", "7")))), stream(bookmark), stream()]
    )
    fake(server.transport)("get", "pods", "-w")
    assert server.watched_from == ["5", "7", "9", "9"]


def test_a_watch_that_breaks_goes_on_too(fake):
    broken = FakeStream([event("ADDED", table(row("a", "x", "7")))])
    broken.fail(Disconnected("cut"))
    server = Server([table(version="5")], [broken])
    fake(server.transport)("get", "pods", "-w")
    assert server.watched_from == ["5", "7"]


def test_history_that_is_gone_is_listed_again(fake):
    gone = stream(event("ERROR", errors.Expired("too old resource version").status()))
    server = Server([table(row("a", "x", "5")), table(row("a", "y", "50"), version="50")], [gone])
    told = fake(server.transport)("get", "pods", "-w", "--no-headers")
    assert [line.split() for line in told.lines] == [["a", "x"], ["a", "y"]]
    assert "listing again" in told.err
    assert server.watched_from == ["5", "50"]


def test_watching_whole_objects_and_names(fake):
    def pod(version: str) -> dict[str, object]:
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "resourceVersion": version}}

    listed = {"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a"}}]}
    server = Server([listed], [stream(event("MODIFIED", pod("6")))])
    assert fake(server.transport)("get", "pods", "-w", "-o", "name").lines == ["pod/a", "pod/a"]
    server = Server([pod("5")], [stream(event("DELETED", pod("6")))])
    assert fake(server.transport)("get", "pod", "a", "-w", "-o", "yaml").out.count("---\n") == 2


def test_a_server_without_tables_still_gets_a_table(fake):
    items = [{"metadata": {"name": "a", "creationTimestamp": "2020-01-01T00:00:00Z"}}, {"metadata": {"name": "b"}}]
    server = Server([{"kind": "PodList", "metadata": {}, "items": items}], [])
    header, first, second = fake(server.transport)("get", "pods").lines
    assert header.split() == ["NAME", "AGE"]
    assert first.split()[0] == "a"
    assert second.split() == ["b", "<unknown>"]


@pytest.mark.parametrize("form", ["table", "json"])
def test_status_of_a_server_that_is_not_ready(fake, form):
    transport = FakeTransport(lambda call: TransportResponse(503, {}, b"the server is starting or stopping\n"))
    told = fake(transport)("status", "-o", form)
    assert told.code == 1
    assert "starting or stopping" in told.out
    assert told.err == "Error: the control plane answers but is not ready; wait a little, then look into its log\n"
    if form == "json":
        assert json.loads(told.out)["ready"] is False


def test_version_says_the_clients_even_without_a_server(fake):
    def nobody(call: TransportRequest) -> TransportResponse:
        raise NotSent("refused")

    told = fake(FakeTransport(nobody))("version")
    assert told.code == 1
    assert told.out.startswith("Client: coterie ")
    assert "no control plane answers at https://fake.test:6443" in told.err
