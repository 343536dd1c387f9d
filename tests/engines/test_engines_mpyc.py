"""The engine for MPyC: its configuration, and programs whose connections go through the tunnel. MPyC itself where it is installed."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.cli.app import App
from coterie.cli.engine_environment import MPYC
from coterie.engines.launching import own_table
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.mpyc import __main__ as launcher
from coterie.engines.mpyc import tunnel
from coterie.engines.mpyc.task import parse
from coterie.engines.mpyc.tunnel import Line

SOURCE = str(Path(coterie.__file__).parents[1])
PLACE = MPYC.directory(App.standard())
PARTIES = ("alice", "bob", "carol")
SECONDS = 50

PLAIN = """
# Connects as MPyC does: to those with a higher index, and waits for the others. Everybody sends everybody a megabyte.
import hashlib, socket, sys
words = sys.argv[1:]
at = words.index("-P")
arguments, options = words[:at], words[at:]
addresses = [options[i + 1].rsplit(":", 1) for i, word in enumerate(options) if word == "-P"]
own = int(options[options.index("-I") + 1])
assert options[options.index("-T") + 1] == "1", options
SIZE = 1_500_000
listener = socket.create_server(("127.0.0.1", int(addresses[own][1])))
peers = []
for host, port in addresses[own + 1:]:
    peers.append(socket.create_connection((host, int(port)), 40))
    peers[-1].sendall(bytes([own]))
for _ in range(own):
    peer, _ = listener.accept()
    assert peer.recv(1) is not None
    peers.append(peer)
for peer in peers:
    peer.sendall(bytes([own + 1]) * SIZE)
    peer.shutdown(socket.SHUT_WR)
found = []
for peer in peers:
    data = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert len(data) == SIZE and len(set(data)) == 1, len(data)
    found.append(data[0])
print(sorted(found), arguments, flush=True)
"""


def config(me: str, ports: dict[str, tuple[int, int]], given: object) -> dict[str, Any]:
    parties = [
        {"name": name, "services": [{"portName": "mpc", "endpoints": [f"127.0.0.1:{port}"]}]}
        for name, (port, _) in ports.items()
    ]
    allocated = [{"name": "mpc", "port": ports[me][0]}, {"name": "program", "port": ports[me][1]}]
    return {
        "task_id": "t",
        "task_input_config": json.dumps(given),
        "task_cluster_def": json.dumps({"parties": parties, "selfPartyIdx": list(ports).index(me)}),
        "allocated_ports": json.dumps({"ports": allocated}),
    }


def free_ports() -> dict[str, tuple[int, int]]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * len(PARTIES))]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return {name: (found[2 * at], found[2 * at + 1]) for at, name in enumerate(PARTIES)}


def run(folder: Path, python: str, program: str, given: object) -> list[tuple[int, str, str]]:
    ports = free_ports()
    (folder / "program.py").write_text(program)
    environ = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    running = []
    try:
        for name in PARTIES:
            path = folder / f"{name}.conf"
            path.write_text(json.dumps(config(name, ports, given)))
            words = [python, "-m", "coterie.engines.mpyc", "--program", str(folder / "program.py"), str(path)]
            running.append(
                subprocess.Popen(
                    words,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**environ, "PYTHONPATH": SOURCE},
                )
            )
        ended = []
        for each in running:
            out, err = each.communicate(timeout=SECONDS)
            ended.append((each.returncode, out, err))
        return ended
    finally:
        for each in running:
            if each.poll() is None:
                each.kill()
                each.communicate()


def test_connections_of_a_program_are_carried(tmp_path: Path) -> None:
    assert run(tmp_path, sys.executable, PLAIN, {"arguments": ["one", "two"]}) == [
        (0, "[2, 3] ['one', 'two']\n", ""),
        (0, "[1, 3] ['one', 'two']\n", ""),
        (0, "[1, 2] ['one', 'two']\n", ""),
    ]


def test_a_program_that_connects_to_nobody_ends(tmp_path: Path) -> None:
    assert run(tmp_path, sys.executable, "print('done')", {}) == [(0, "done\n", "")] * 3


@pytest.mark.skipif(not MPYC.installed(PLACE), reason="the environment of MPyC is not there: make mpyc")
def test_a_program_of_mpyc_runs_unmodified(tmp_path: Path) -> None:
    program = """
from mpyc.runtime import mpc

async def main():
    await mpc.start()
    numbers = mpc.input(mpc.SecInt(32)(mpc.pid + 2))
    print(await mpc.output(mpc.prod(numbers)), await mpc.output(mpc.max(numbers)))
    await mpc.shutdown()

mpc.run(main())
"""
    ended = run(tmp_path, str(PLACE / "bin" / "python"), program, {})
    assert [(status, "24 4" in out.splitlines()) for status, out, _ in ended] == [(0, True)] * 3, ended


@pytest.mark.skipif(not MPYC.installed(PLACE), reason="the environment of MPyC is not there: make mpyc")
def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    ended = run(tmp_path, str(PLACE / "bin" / "python"), "import sys; sys.exit('no luck')", {})
    for name, (status, _, err) in zip(PARTIES, ended, strict=True):
        assert status == 1
        assert err.splitlines() == ["no luck", f"task t failed at {name}: the program ended with status 1"]


def test_calls_of_one_partner_are_not_taken_for_those_of_another() -> None:
    line = Line("bob", "alice", "127.0.0.1:1", 1, lambda _: None)
    server = tunnel.serve(0, {"alice": line})
    try:
        port = server.server_address[1]
        assert call(port, "/end/alice/0", {"Kuscia-Origin-Source": "carol"}) == 403
        assert call(port, "/end/carol/0", {"Kuscia-Origin-Source": "carol"}) == 400
        assert call(port, "/end/alice/1", {"Kuscia-Origin-Source": "alice"}) == 409
        assert call(port, "/end/alice/-1", {}) == 400
        assert call(port, "/other/alice/0", {}) == 400
        assert not line.ended_there.is_set()
        assert call(port, "/end/alice/0", {"Kuscia-Origin-Source": "alice"}) == 200
        assert call(port, "/end/alice/0", {"Kuscia-Origin-Source": "alice"}) == 200, "again, after a lost answer"
        assert line.ended_there.wait(20)
    finally:
        server.shutdown()
        server.server_close()


def call(port: int, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, b"", headers)
        return connection.getresponse().status
    finally:
        connection.close()


PORTS = dict(zip(PARTIES, ((1, 2), (3, 4), (5, 6)), strict=True))


def test_a_task_is_read() -> None:
    given = {
        "program": "column_sums",
        "inputs": {"bob": "visits"},
        "columns": {"bob": ["a", "b"]},
        "arguments": ["a"],
    }
    task = parse(json.dumps(config("bob", PORTS, given)))
    assert (task.own, task.rank, task.threshold, task.port, task.local_port) == ("bob", 1, 1, 3, 4)
    assert (task.table, task.columns, task.arguments) == ("visits", ("a", "b"), ("a",))
    assert task.endpoints == {"alice": "127.0.0.1:1", "carol": "127.0.0.1:5"}
    assert launcher.chosen_program(task, "").is_file()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"arguments": ["-T0"]}, "options are not for partners"),
        ({"arguments": ["--threshold=0"]}, "options are not for partners"),
        ({"arguments": "a"}, "lists of texts"),
        ({"inputs": {"dave": "x"}}, "inputs is an object with some of alice, bob, carol"),
        ({"programme": "x"}, "programme is not known here"),
        ([], "is no JSON object"),
    ],
)
def test_what_cannot_be_used_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        parse(json.dumps(config("bob", PORTS, given)))


def test_two_parties_would_have_no_secrets() -> None:
    two = {name: PORTS[name] for name in ("alice", "bob")}
    with pytest.raises(BadConfig, match="3 or more parties; this task has 2"):
        parse(json.dumps(config("bob", two, {})))


@pytest.mark.parametrize("program", ["", "../task", "other"])
def test_a_task_cannot_bring_a_program(program: str) -> None:
    task = parse(json.dumps(config("bob", PORTS, {"program": program})))
    with pytest.raises(BadConfig, match="program is one of column_sums"):
        launcher.chosen_program(task, "")


def test_the_own_program_of_an_image_is_not_replaced(tmp_path: Path) -> None:
    task = parse(json.dumps(config("bob", PORTS, {"program": "column_sums"})))
    with pytest.raises(BadConfig, match="images that bring their own"):
        launcher.chosen_program(task, str(tmp_path))


def test_rows_are_written_as_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    own_table.write(path, [{"a": 1, "b": 'x,"y'}, {"a": None, "b": ""}], ())
    assert path.read_text() == 'a,b\n1,"x,""y"\n,\n'
    own_table.write(path, [], ("a", "b"))
    assert path.read_text() == "a,b\n"
