"""The engine for Flower: its configuration, which calls pass, and whose code runs. Flower itself: tests/e2e/test_e2e_flower.py."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from party_config_kit import config, numbered

from coterie.engines.flower import __main__ as launcher
from coterie.engines.flower.fleet import COMPLETED, FAILED, FLEET_PATH, STATE_PATH, LinkSide, NodeSide
from coterie.engines.flower.task import parse, toml
from coterie.engines.launching import http_relay
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.launching.http_relay import HttpCall, HttpReply, RelayTarget
from coterie.engines.psi import protobytes

PORTS = numbered("fleet", "superlink", "supernode")
GIVEN: dict[str, Any] = {"app": "logistic", "server": "alice", "inputs": {"bob": "b", "carol": "c"}}
FAB = b"an app"


class Link:
    """Stands where the SuperLink is."""

    def __init__(self) -> None:
        self.calls: list[HttpCall] = []
        self.reply = HttpReply(200, protobytes.message((1, 7)), {"X-Kept": "1"})
        self.server = http_relay.serve("127.0.0.1", 0, self._answer)
        self.upstream = RelayTarget(f"127.0.0.1:{self.server.server_address[1]}", partner=False)

    def _answer(self, call: HttpCall) -> HttpReply:
        self.calls.append(call)
        return self.reply


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.server.shutdown()
    made.server.server_close()


def post(path: str, body: bytes = b"", source: str = "bob") -> HttpCall:
    return HttpCall("POST", path, source, {"X-Own": "2", "kuscia-origin-source": source}, body)


REGISTER, ACTIVATE = FLEET_PATH + "register-node", FLEET_PATH + "activate-node"


def node(number: int) -> bytes:
    """The first field of most requests."""
    return protobytes.message((1, protobytes.message((1, number))))


def arrive(side: LinkSide, link: Link, owner: str, number: int) -> None:
    link.reply = HttpReply(200, protobytes.message((1, number)), {"X-Kept": "1"})
    for path in (REGISTER, ACTIVATE):
        assert side.from_partner(post(path, protobytes.message((1, owner)), owner)).status == 200


def test_partners_reach_the_fleet_api_and_nothing_else(link: Link) -> None:
    side = LinkSide(link.upstream, ("bob", "carol"))
    for path in ("/v1/control/start-run", "/v1/runtime/pull-task", "/", "/v1/fleet", "/v1/fleet/get-run?x=1"):
        assert side.from_partner(post(path)).status == 404, path
    for path in ("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet//x"):
        assert side.from_partner(post(path)).status == 400, path
    assert side.from_partner(HttpCall("GET", FLEET_PATH + "get-run", "bob", {}, b"")).status == 404
    for source in ("", "alice", "dave"):
        assert side.from_partner(post(FLEET_PATH + "get-run", source=source)).status == 403
        assert side.from_partner(HttpCall("GET", STATE_PATH, source, {}, b"")).status == 403
    assert link.calls == []
    arrive(side, link, "bob", 7)
    link.calls.clear()
    passed = side.from_partner(post(FLEET_PATH + "get-run", node(7)))
    assert (passed.status, passed.body, passed.headers["X-Kept"]) == (200, link.reply.body, "1")
    (call,) = link.calls
    assert (call.path, call.body, call.headers["X-Own"], call.source) == (FLEET_PATH + "get-run", node(7), "2", "")


def test_an_owner_has_one_supernode(link: Link) -> None:
    side = LinkSide(link.upstream, ("bob", "carol"))
    first, second = (protobytes.message((1, each)) for each in (b"key", b"second"))
    assert side.from_partner(post(REGISTER, first)).status == 200
    assert side.from_partner(post(REGISTER, first)).status == 200, "again, after a lost answer"
    assert side.from_partner(post(REGISTER, second)).status == 403
    assert side.from_partner(post(REGISTER, first, "carol")).status == 403, "bob's"
    assert side.from_partner(post(REGISTER, second, "carol")).status == 200
    assert side.arrived == set()
    assert side.from_partner(post(ACTIVATE, second)).status == 403
    assert side.from_partner(post(ACTIVATE, first)).status == 200
    link.reply = HttpReply(403)
    assert side.from_partner(post(ACTIVATE, second, source="carol")).status == 403
    assert side.arrived == {"bob"}


def test_an_owner_speaks_for_its_own_supernode_only(link: Link) -> None:
    side = LinkSide(link.upstream, ("bob", "carol"))
    assert side.from_partner(post(FLEET_PATH + "pull-messages", node(7))).status == 403, "nobody has come"
    arrive(side, link, "bob", 7)
    arrive(side, link, "carol", 8)
    link.calls.clear()
    others = ("pull-messages", "send-node-heartbeat", "push-object", "pull-object", "confirm-message-received")
    twice = node(7) + node(8)
    within = protobytes.message((1, protobytes.message((1, 7), (1, 8))))
    for action in (*others, "get-run", "get-fab", "push-messages", "whatever"):
        for body in (node(8), b"", twice, within, protobytes.message((1, b"")), protobytes.message((1, 7))):
            assert side.from_partner(post(FLEET_PATH + action, body)).status == 403, (action, body)
        assert side.from_partner(post(FLEET_PATH + action, node(7)[:-1])).status == 400, action
    for action in ("deactivate-node", "unregister-node"):
        for body in (protobytes.message((1, 8)), node(7), protobytes.message((1, 7), (1, 8)), b""):
            assert side.from_partner(post(FLEET_PATH + action, body)).status == 403, (action, body)
    for source in (protobytes.message((2, "id")), protobytes.message((3, 8)), protobytes.message((3, 7), (3, 8))):
        pushed = node(7) + protobytes.message((2, protobytes.message((1, source))))
        assert side.from_partner(post(FLEET_PATH + "push-messages", pushed)).status == 403
    assert link.calls == []
    mine = protobytes.message((2, protobytes.message((1, protobytes.message((3, 7))))))
    assert side.from_partner(post(FLEET_PATH + "push-messages", node(7) + mine)).status == 200
    assert side.from_partner(post(FLEET_PATH + "push-messages", node(7) + mine + mine)).status == 200
    assert side.from_partner(post(FLEET_PATH + "pull-messages", node(8), "carol")).status == 200
    assert side.from_partner(post(FLEET_PATH + "unregister-node", protobytes.message((1, 7)))).status == 200


def test_owners_are_told_how_the_run_ended(link: Link) -> None:
    side = LinkSide(link.upstream, ("bob", "carol"))
    asked = HttpCall("GET", STATE_PATH, "bob", {}, b"")
    assert side.from_partner(asked).body == b'{"state": "running"}'
    assert side.informed == set()
    for state in (FAILED, COMPLETED):
        side.state = state
        assert side.from_partner(asked).body == f'{{"state": "{state}"}}'.encode()
    assert side.informed == {"bob"}


def test_a_supernode_gets_the_code_of_its_own_image_only(link: Link) -> None:
    side = NodeSide("bob", link.upstream, FAB)
    digest = hashlib.sha256(FAB).hexdigest()
    given = side.answer(post(FLEET_PATH + "get-fab", protobytes.message((2, digest), (3, 7))))
    assert given.status == 200
    assert link.calls == [], "what a partner would send is not asked for"
    ((_, fab),) = protobytes.fields(given.body)
    assert isinstance(fab, bytes)
    assert list(protobytes.fields(fab)) == [(1, digest.encode()), (2, FAB)]
    assert not side.other_app.is_set()
    other = hashlib.sha256(b"another app").hexdigest()
    assert side.answer(post(FLEET_PATH + "get-fab", protobytes.message((2, other)))).status == 403
    assert side.other_app.is_set()


def test_a_supernode_is_sent_nowhere_else(link: Link) -> None:
    side = NodeSide("bob", link.upstream, FAB)
    link.reply = HttpReply(307, b"", {"Location": "http://127.0.0.1:1/"})
    assert side.answer(post(FLEET_PATH + "get-run")).status == 502
    assert side.answer(post("/v1/control/start-run")).status == 404
    assert [call.source for call in link.calls] == ["bob"]
    nobody = NodeSide("bob", RelayTarget("127.0.0.1:1", partner=False), FAB)
    assert nobody.answer(post(FLEET_PATH + "get-run")).status == 503, "Flower tries again"


def test_a_task_is_read() -> None:
    given = {**GIVEN, "columns": {"bob": ["x"]}, "config": {"num-server-rounds": 2, "label": 'a"b\\c', "fast": True}}
    task = parse(config("bob", PORTS, given))
    assert (task.own, task.server, task.owners, task.endpoint) == ("bob", "alice", ("bob", "carol"), "127.0.0.1:11")
    assert (task.fleet_port, task.superlink_port, task.supernode_port) == (21, 22, 23)
    assert (task.table, task.columns) == ("b", ("x",))
    assert tomllib.loads(task.run_config) == given["config"]
    assert parse(config("alice", PORTS, given)).endpoint == ""
    assert (
        tomllib.loads((launcher.chosen_app(task, "") / "pyproject.toml").read_text())["project"]["name"] == "logistic"
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"server": "dave"}, "server is one of alice, bob, carol"),
        ({"server": None}, "server is one of alice, bob, carol"),
        ({"inputs": {"bob": "b"}}, "carol is not the server and has no table"),
        ({"inputs": {"bob": "b", "carol": ""}}, "ids of tables"),
        ({"inputs": {"dave": "d"}}, "inputs is an object with some of alice, bob, carol"),
        ({"config": ["a"]}, "config is an object"),
        ({"apps": "x"}, "apps is not known here"),
        ({"app": 1}, "app is a text"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        parse(config("bob", PORTS, {**GIVEN, **given}))


@pytest.mark.parametrize("values", [{"a b": 1}, {"": 1}, {"a": [1]}, {"a": None}, {"a": "x\ny"}, {"a": float("inf")}])
def test_a_run_configuration_is_plain(values: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="task_input_config"):
        toml(values)


@pytest.mark.parametrize("app", ["", "../mpyc", "other", "/tmp"])
def test_a_task_cannot_bring_an_app(app: str) -> None:
    task = parse(config("bob", PORTS, {**GIVEN, "app": app}))
    with pytest.raises(BadConfig, match="app is one of logistic"):
        launcher.chosen_app(task, "")


def test_the_own_app_of_an_image_is_not_replaced(tmp_path: Path) -> None:
    task = parse(config("bob", PORTS, GIVEN))
    with pytest.raises(BadConfig, match="images that bring their own"):
        launcher.chosen_app(task, str(tmp_path))
    own = parse(config("bob", PORTS, {key: value for key, value in GIVEN.items() if key != "app"}))
    with pytest.raises(BadConfig, match=r"no pyproject\.toml"):
        launcher.chosen_app(own, str(tmp_path))
    (tmp_path / "pyproject.toml").touch()
    assert launcher.chosen_app(own, str(tmp_path)) == tmp_path
