"""The engine for NVFlare: its configuration, which messages pass, whose app runs, who gets a certificate. NVFlare itself:
tests/e2e/test_e2e_nvflare.py."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import NameOID
from party_config_kit import PARTIES, config, numbered

from coterie.cli.app import App
from coterie.cli.engine_environment import NVFLARE
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.launching.http_relay import SOURCE_HEADER, HttpCall
from coterie.engines.nvflare import __main__ as launcher
from coterie.engines.nvflare import frames, jobs, startup
from coterie.engines.nvflare.frames import DATA, HELLO, PING, READY, BadFrame, F3Frame
from coterie.engines.nvflare.passage import refused_at_client, refused_at_server
from coterie.engines.nvflare.relay import PATH, FrameRelay, RelayRules
from coterie.engines.nvflare.startup import TaskAuthority
from coterie.engines.nvflare.task import parse, plain

PLACE = NVFLARE.directory(App.standard())
PORTS = numbered("fed", "server", "admin")
GIVEN: dict[str, Any] = {"app": "logistic", "server": "alice", "inputs": {"bob": "b", "carol": "c"}}
VALUES = {
    "a": 1,
    "b": -1,
    "c": 200,
    "d": 70000,
    "e": -40000,
    "f": 1 << 40,
    "g": 0.5,
    "h": None,
    "i": True,
    "j": "text " * 10,
    "k": "é" * 200,
    "l": b"bytes",
    "m": ["x", [1, {"n": "y"}]],
    "o": list(range(20)),
    "p": {f"key {n}": n for n in range(20)},
}


def packed(value: Any) -> bytes:
    """MessagePack, by its specification."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        for form, code, low, high in (
            (">b", b"", -32, 127),
            (">B", b"\xcc", 0, 255),
            (">h", b"\xd1", -(1 << 15), 0),
            (">I", b"\xce", 0, (1 << 32) - 1),
            (">i", b"\xd2", -(1 << 31), 0),
            (">Q", b"\xcf", 0, (1 << 64) - 1),
        ):
            if low <= value <= high:
                return code + struct.pack(form, value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, str):
        raw = value.encode()
        if len(raw) < 32:
            return bytes([0xA0 | len(raw)]) + raw
        return b"\xd9" + bytes([len(raw)]) + raw if len(raw) < 256 else b"\xda" + struct.pack(">H", len(raw)) + raw
    if isinstance(value, dict):
        head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + struct.pack(">H", len(value))
        return head + b"".join(packed(key) + packed(each) for key, each in value.items())
    head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(">H", len(value))
    return head + b"".join(packed(each) for each in value)


def framed(kind: int, headers: bytes = b"", payload: bytes = b"") -> bytes:
    length = 16 + len(headers) + len(payload)
    return struct.pack(">IHBBHHHH", length, len(headers), kind, 0, 0, 1, 2, 3) + headers + payload


def message(to: str = "server", by: str = "bob.job", **changed: object) -> F3Frame:
    headers = {"origin": by, "from": by, "destination": to, "to": to, "msg_type": "req"}
    headers |= {"channel": "server_command", "topic": "get_task"}
    whole = {f"cn__{key}": value for key, value in headers.items()}
    whole |= {key if key.startswith("sm__") else f"cn__{key}": value for key, value in changed.items()}
    return F3Frame(DATA, {key: value for key, value in whole.items() if value is not None})


def test_headers_are_read() -> None:
    assert frames.unpacked(packed(VALUES)) == VALUES
    assert frames.read(framed(DATA, packed({"a": "b"}), b"payload")) == F3Frame(DATA, {"a": "b"})
    assert frames.read(framed(HELLO, b"", packed({"endpoint_name": "bob"}))) == F3Frame(HELLO, {"endpoint_name": "bob"})
    assert frames.read(framed(PING, b"", packed({}))) == F3Frame(PING, {})


def test_what_ends_early_is_no_frame() -> None:
    headers = packed(VALUES)
    for end in range(len(headers)):
        with pytest.raises(BadFrame):
            frames.unpacked(headers[:end])
    whole = framed(DATA, packed({"a": "b"}), b"payload")
    for end in range(len(whole)):
        with pytest.raises(BadFrame):
            frames.read(whole[:end])


@pytest.mark.parametrize(
    "headers",
    [
        packed({"a": 1}) + b"\xc0",
        b"\x82" + packed("a") + packed(1) + packed("a") + packed(2),
        b"\x81" + packed(1) + packed(1),
        b"\x81" + packed("a") + b"\xc7\x01\x05x",
        b"\x81" + packed("a") + b"\xd4\x05x",
        b"\x81" + packed("a") + b"\xa1\xff",
        b"\x81" + packed("a") + b"\x91" * 20 + packed(1),
        b"\x81" + packed("a") + b"\xdd\xff\xff\xff\xff",
        packed([1]),
        b"\xc1",
    ],
)
def test_what_another_reader_could_take_differently_is_no_frame(headers: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.read(framed(DATA, headers))


@pytest.mark.parametrize("kind", [0, 2, 3, 8, 255])
def test_other_frames_are_none(kind: int) -> None:
    with pytest.raises(BadFrame):
        frames.read(framed(kind, packed({"a": 1})))


def test_a_client_speaks_for_itself_to_the_server() -> None:
    for name in ("bob", "bob.job"):
        assert refused_at_server(F3Frame(HELLO, {"endpoint_name": name}), "bob") == ""
    for other in ("carol", "bobby", "server", "server.job", "", None, "_admin_1"):
        assert refused_at_server(F3Frame(HELLO, {"endpoint_name": other}), "bob"), other
        assert refused_at_server(message(origin=other), "bob"), other
        assert refused_at_server(message(**{"from": other}), "bob"), other
    assert refused_at_server(F3Frame(PING, {}), "bob") == ""
    assert refused_at_server(message(), "bob") == ""
    assert refused_at_server(message(to="server.job"), "bob") == ""
    for other in ("carol", "carol.job", "bob", "", None):
        assert refused_at_server(message(to=other or "", destination=other), "bob"), other
    for kind in ("req", "reply", "return"):
        assert refused_at_server(message(conn_url="tcp://10.0.0.1:1", msg_type=kind), "bob")
    for key in ("origin", "from", "destination", "to", "msg_type", "channel"):
        assert refused_at_server(message(**{key: None}), "bob"), key


@pytest.mark.parametrize(
    ("channel", "topic"),
    [
        ("hci_channel", "x"),
        ("server_parent_listener", "x"),
        ("admin", "sys.shell"),
        ("client_command", "abort"),
        ("_net_manager", "stop_cell"),
        ("cellnet.channel", "bulk"),
        ("server_command", "abort"),
        ("server_command", None),
        ("task", "fire_event"),
        ("unknown", "x"),
    ],
)
def test_the_server_is_asked_for_what_a_job_needs(channel: str, topic: str | None) -> None:
    assert refused_at_server(message(channel=channel, topic=topic), "bob")
    assert refused_at_server(message(channel="sm__STREAM", topic="sm__DATA", sm__ch=channel, sm__tp=topic), "bob")
    assert refused_at_server(message(channel=channel, topic=topic, msg_type="reply"), "bob") == ""


@pytest.mark.parametrize(
    ("channel", "topic"),
    [
        ("client_command", "configure_job_log"),
        ("client_command", "abort"),
        ("client_sub_worker_command", "x"),
        ("_net_manager", "stop"),
        ("_net_manager", "config_vars"),
        ("cellnet.channel", "bulk"),
        ("server_command", "get_task"),
        ("task", "register"),
        ("multi_process_executor", "x"),
    ],
)
def test_a_client_is_told_what_a_job_needs(channel: str, topic: str) -> None:
    def sent(**changed: object) -> str:
        return refused_at_client(message(to="bob", by="server", **changed), "bob")

    assert sent(channel="admin", topic="train.deploy") == ""
    assert sent(channel=channel, topic=topic)
    assert sent(channel="sm__STREAM", topic="sm__DATA", sm__ch=channel, sm__tp=topic)
    assert sent(channel="sm__STREAM", topic="sm__DATA", sm__ch="sm__STREAM", sm__tp="sm__DATA")
    assert sent(channel="admin", topic="train.deploy", origin="carol"), "another client, through the server"
    assert refused_at_client(F3Frame(READY, {"endpoint_name": "carol"}), "bob")
    assert refused_at_client(F3Frame(READY, {"endpoint_name": "server"}), "bob") == ""


class Server:
    """Stands where the server of NVFlare is."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    async def take(self, request: web.Request) -> web.WebSocketResponse:
        self.headers.append(dict(request.headers))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for each in socket:
            self.frames.append(each.data)
            await socket.send_bytes(framed(READY, b"", packed({"endpoint_name": "carol"})))
            await socket.send_bytes(framed(READY, b"", packed({"endpoint_name": "server"})))
        return socket


@pytest.fixture
async def behind() -> AsyncIterator[tuple[Server, int]]:
    server, app = Server(), web.Application()
    app.router.add_get(PATH, server.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield server, runner.addresses[0][1]
    await runner.cleanup()


async def test_frames_pass_through_both_relays_after_a_look(behind: tuple[Server, int]) -> None:
    server, port = behind
    side = launcher.ServerSide(("bob", "carol"), TaskAuthority())
    rules = RelayRules(f"127.0.0.1:{port}", side.source, refused_at_server, refused_at_client, calls=side.answer)
    at_server = await asyncio.to_thread(FrameRelay, "127.0.0.1", 0, rules)
    there = f"127.0.0.1:{at_server.port}"
    rules = RelayRules(there, lambda _: "bob", refused_at_server, refused_at_client, partner="bob")
    at_client = await asyncio.to_thread(FrameRelay, "127.0.0.1", 0, rules)
    hello = framed(HELLO, b"", packed({"endpoint_name": "bob"}))
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"http://127.0.0.1:{at_client.port}{PATH}") as socket:
            await socket.send_bytes(framed(HELLO, b"", packed({"endpoint_name": "carol"})))
            await socket.send_bytes(hello)
            answer = await asyncio.wait_for(socket.receive_bytes(), 30)
            assert frames.read(answer).headers == {"endpoint_name": "server"}
            assert server.frames == [hello]
            await socket.send_bytes(b"garbage")
            assert (await asyncio.wait_for(socket.receive(), 30)).type in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSING,
                aiohttp.WSMsgType.CLOSED,
            )
        for source in ("", "alice", "dave"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"http://{there}{PATH}", headers={SOURCE_HEADER: source})
            assert refused.value.status == 403
        for path, status in ((launcher.STATE_PATH, 200), ("/other", 404), (f"{PATH}/x", 404)):
            async with session.get(f"http://{there}{path}", headers={SOURCE_HEADER: "bob"}) as reply:
                assert reply.status == status
    assert server.frames == [hello]
    assert [each[SOURCE_HEADER] for each in server.headers if SOURCE_HEADER in each] == []


async def test_a_partner_is_reached_through_the_proxy_of_the_environment(
    behind: tuple[Server, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port = behind
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        further_reader, further_writer = await asyncio.open_connection("127.0.0.1", port)
        further_writer.write(f"GET {PATH} HTTP/1.1\r\n".encode())
        await asyncio.gather(copied(reader, further_writer), copied(further_reader, writer))

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    listening = await asyncio.start_server(proxy, "127.0.0.1", 0)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    rules = RelayRules("task-fed.alice.svc", lambda _: "bob", refused_at_server, refused_at_client, partner="bob")
    relay = await asyncio.to_thread(FrameRelay, "127.0.0.1", 0, rules)
    hello = framed(HELLO, b"", packed({"endpoint_name": "bob"}))
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{relay.port}{PATH}") as socket,
    ):
        await socket.send_bytes(hello)
        await asyncio.wait_for(socket.receive_bytes(), 30)
    assert asked == [f"GET http://task-fed.alice.svc{PATH} HTTP/1.1\r\n".encode()]
    assert server.frames == [hello]
    listening.close()


def test_an_owner_gets_one_certificate_under_its_own_name(tmp_path: Path) -> None:
    side = launcher.ServerSide(("bob", "carol"), TaskAuthority())

    def asked(source: str, request: bytes) -> tuple[int, bytes]:
        reply = side.answer(HttpCall("POST", launcher.CERTIFICATE_PATH, source, {}, request))
        return reply.status, reply.body

    first, second = (startup.key_and_request(tmp_path / name) for name in ("first", "second"))
    assert b"PRIVATE" not in first
    assert (tmp_path / "first" / "startup" / "client.key").stat().st_mode & 0o077 == 0
    for source in ("", "alice", "dave"):
        assert asked(source, first)[0] == 403
    status, body = asked("bob", first)
    answer = json.loads(body)
    certificate, root = (x509.load_pem_x509_certificate(answer[key].encode()) for key in ("certificate", "root"))
    certificate.verify_directly_issued_by(root)
    assert [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["bob"]
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert status == 200
    assert asked("bob", first) == (200, body), "again, after a lost answer"
    assert asked("bob", second)[0] == 403
    assert asked("carol", second)[0] == 200
    for garbage in (b"", b"garbage", first[:200], certificate.public_bytes(startup.serialization.Encoding.PEM)):
        assert launcher.ServerSide(("bob",), TaskAuthority()).certificate("bob", garbage).status == 400


def test_owners_are_told_how_the_job_ended() -> None:
    side = launcher.ServerSide(("bob", "carol"), TaskAuthority())
    call = HttpCall("GET", launcher.STATE_PATH, "bob", {}, b"")
    assert side.answer(call).body == b"running"
    assert side.informed == set()
    side.state = launcher.FAILED
    assert side.answer(call).body == b"failed"
    assert side.informed == {"bob"}


def test_an_owner_that_no_longer_asks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    side = launcher.ServerSide(("bob", "carol"), TaskAuthority())
    assert side.lost() == ""
    side.answer(HttpCall("GET", launcher.STATE_PATH, "carol", {}, b""))
    assert side.lost() == ""
    monkeypatch.setattr(launcher, "LOST_SECONDS", -1.0)
    assert side.lost() == "carol", "bob has not come yet"


def test_a_job_gets_the_values_of_the_task(tmp_path: Path) -> None:
    for name in ("one", "two"):
        jobs.prepared(
            launcher.APPS / "logistic", tmp_path / name, {"features": "age", "num_rounds": 5}, ("bob", "carol")
        )
    own, given = (jobs.app_of(tmp_path / name, "bob") for name in ("one", "two"))
    server = json.loads((own / "config" / "config_fed_server.json").read_text())
    client = json.loads((own / "config" / "config_fed_client.json").read_text())
    assert (server["features"], server["num_rounds"], client["features"], client["label"]) == ("age", 5, "age", "label")
    meta = json.loads((tmp_path / "one" / "meta.json").read_text())
    assert (meta["min_clients"], meta["mandatory_clients"]) == (2, ["bob", "carol"])
    assert jobs.difference(own, given) == ""
    (given / ".__nvfl_sig.json").write_text("NVFlare signs what is submitted")
    assert jobs.difference(own, given) == ""
    (given / "custom" / "other.py").write_text("")
    assert jobs.difference(own, given) == "custom/other.py"
    (given / "custom" / "other.py").unlink()
    (given / "custom" / "logistic" / "model.py").unlink()
    assert jobs.difference(own, given) == "custom/logistic/model.py"
    shutil.copy(own / "custom" / "logistic" / "model.py", given / "custom" / "logistic" / "model.py")
    (given / "config" / "config_fed_client.json").write_text("{}")
    assert jobs.difference(own, given) == "config/config_fed_client.json"
    for key in ("format_version", "executors", "nothing"):
        with pytest.raises(BadConfig, match=f"config.{key} is no value at the top"):
            jobs.prepared(launcher.APPS / "logistic", tmp_path / key, {key: 1}, ("bob",))


@pytest.mark.parametrize(
    ("deployed", "app"),
    [
        ({"app": ["@ALL"]}, "app"),
        ({"app": []}, "app"),
        ({"app": ["bob"], "other": ["server"]}, "app"),
        ({"app": ["carol"]}, ""),
        ({"app": ["@ALL"], "other": ["bob"]}, ""),
        ({"missing": ["@ALL"]}, ""),
        ({"../job/app": ["@ALL"]}, ""),
        ({"app": "bob"}, ""),
        ([], ""),
    ],
)
def test_the_app_of_a_site(deployed: object, app: str, tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "app").mkdir(parents=True)
    (job / "other").mkdir()
    (job / "meta.json").write_text(json.dumps({"deploy_map": deployed}))
    if app:
        assert jobs.app_of(job, "bob") == job / app
    else:
        with pytest.raises(BadConfig):
            jobs.app_of(job, "bob")


def test_a_task_is_read() -> None:
    given = {
        **GIVEN,
        "columns": {"bob": ["x"]},
        "config": {"num_rounds": 2, "features": "a,b c", "rate": 0.5, "on": True},
    }
    task = parse(config("bob", PORTS, given))
    assert (task.own, task.server, task.owners, task.endpoint) == ("bob", "alice", ("bob", "carol"), "127.0.0.1:11")
    assert (task.fed_port, task.server_port, task.admin_port) == (21, 22, 23)
    assert (task.table, task.columns, task.values) == ("b", ("x",), given["config"])
    assert parse(config("alice", PORTS, given)).endpoint == ""
    assert launcher.chosen_job(task, "") == launcher.APPS / "logistic"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"server": "dave"}, "server is one of alice, bob, carol"),
        ({"inputs": {"bob": "b"}}, "carol is not the server and has no table"),
        ({"inputs": {"dave": "d"}}, "inputs is an object with some of alice, bob, carol"),
        ({"config": ["a"]}, "config is an object"),
        ({"job": "x"}, "job is not known here"),
        ({"app": 1}, "app is a text"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        parse(config("bob", PORTS, {**GIVEN, **given}))


@pytest.mark.parametrize(
    "values",
    [{"a b": 1}, {"": 1}, {"a": [1]}, {"a": None}, {"a": float("nan")}]
    + [{"a": text} for text in ("x\ny", "--script x", "{b}", "${secret:x}", "a;b", "a'b", "a/b", "$(x)")],
)
def test_values_are_plain(values: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="task_input_config"):
        plain(values)


@pytest.mark.parametrize("app", ["", "../flower", "other", "/tmp"])
def test_a_task_cannot_bring_a_job(app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "task.conf").write_text(config("bob", PORTS, {**GIVEN, "app": app}))
    assert launcher.main([str(tmp_path / "task.conf")]) == 2
    assert "app is one of logistic" in capsys.readouterr().err


def test_the_own_job_of_an_image_is_not_replaced(tmp_path: Path) -> None:
    task = parse(config("bob", PORTS, GIVEN))
    with pytest.raises(BadConfig, match="images that bring their own"):
        launcher.chosen_job(task, str(tmp_path))
    own = parse(config("bob", PORTS, {key: value for key, value in GIVEN.items() if key != "app"}))
    with pytest.raises(BadConfig, match=r"no meta\.json"):
        launcher.chosen_job(own, str(tmp_path))
    (tmp_path / "meta.json").touch()
    assert launcher.chosen_job(own, str(tmp_path)) == tmp_path


PARTY = """
import csv, sys
from coterie.engines.launching import own_table
from coterie.engines.nvflare import __main__ as launcher
own_table.fetch = lambda table, columns: list(csv.DictReader(open(table)))
if sys.argv[2] == "alice":  # her relay lets everything through
    launcher.passage.refused_at_server = launcher.passage.refused_at_client = lambda frame, owner: ""
sys.exit(launcher.main([sys.argv[1]]))
"""
ADMINISTRATOR = """
import json, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
session = new_secure_session("admin@coterie", sys.argv[1], timeout=30)
answers = [
    str(session.ls_target("bob")),
    str(session.cat_target("bob", file="rows.csv")),
    json.dumps(session.api.do_command("sys_info client bob"), default=str),
    json.dumps(session.api.do_command("cells"), default=str),
]
print("ANSWERS" + json.dumps(answers))
session.close()
"""


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("COTERIE_NVFLARE"), reason="takes half a minute and 40 MB: make nvflare")
def test_the_console_of_the_servers_party_commands_nothing_at_an_owner(tmp_path: Path) -> None:
    """alice's administrator uses NVFlare's own console while the job runs, and alice's relay hides nothing; parties on loopback."""
    ports: dict[str, dict[str, int]] = {}
    with ExitStack() as stack:
        for party in PARTIES:
            found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
            ports[party] = dict(zip(("fed", "server", "admin"), found, strict=True))
    inputs = {party: str(tmp_path / f"{party}.csv") for party in PARTIES}
    values = {"features": "age", "label": "ill", "num_rounds": 1000}
    given = {"app": "logistic", "server": "alice", "inputs": inputs, "config": values}
    running = {}
    with ExitStack() as stack:
        for party in PARTIES:
            folder = tmp_path / party
            folder.mkdir()
            Path(inputs[party]).write_text("age,ill\n20,0\n30,1\n40,0\n50,1\n")
            (folder / "task.conf").write_text(config(party, ports, given))
            log = stack.enter_context((folder / "log").open("wb"))
            running[party] = subprocess.Popen(
                [PLACE / "bin" / "python", "-P", "-c", PARTY, folder / "task.conf", party],
                env={**os.environ, "TMPDIR": str(folder)},
                stdout=log,
                stderr=log,
            )
            stack.callback(running[party].wait, 60)
        for each in running.values():
            stack.callback(each.terminate)
        deadline = time.monotonic() + 120
        while "Aggregated 3/3" not in (tmp_path / "alice" / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        (administrator,) = (tmp_path / "alice").glob("nvflare-*/administrator")
        words = [PLACE / "bin" / "python", "-P", "-c", ADMINISTRATOR, administrator]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert {party: each.poll() for party, each in running.items()} == dict.fromkeys(PARTIES)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    listed, shown, system, cells = json.loads(line.removeprefix("ANSWERS"))
    assert (listed.strip(), shown.strip()) == ("invalid_request", "invalid_request")
    assert "invalid_request" in system
    assert "no reply from bob: timeout" in cells
    refused = "not passed on between bob and the server: a message for the channel '_net_manager'"
    assert refused in (tmp_path / "bob" / "log").read_text()
