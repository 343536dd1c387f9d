"""Real servers for other people's programs to speak with."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kept_nodes import KeptNodes
from server_process import ServerPair, ServerProcess
from store_servers_kit import lasting_cluster, lasting_server

NODE = "edge-1"
STORE_VARIABLE = "COTERIE_CONFORMANCE_STORE"
"""postgresql or etcd (three members): each server is two members on one such store, and commands go to them in turn (`make stores`)."""


_numbers = itertools.count()


def _store(kind: str) -> str:
    if kind == "etcd":
        return f"{lasting_cluster().url}/s{next(_numbers)}"
    return f"{lasting_server(kind).url}?sslmode=disable&schema=s{next(_numbers)}"


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ServerProcess]]:
    """Servers by name, each started when first asked for; all are stopped when the tests of this worker end."""
    running: dict[str, ServerProcess] = {}

    def named(name: str) -> ServerProcess:
        if name not in running:
            root, kind = tmp_path_factory.mktemp(f"server-{name}"), os.environ.get(STORE_VARIABLE, "")
            running[name] = ServerPair(root, _store(kind)).start() if kind else ServerProcess(root).start()
        return running[name]

    yield named
    for server in running.values():
        server.stop()


@pytest.fixture(scope="session")
def server(servers: Callable[[str], ServerProcess]) -> ServerProcess:
    """The server that tests of this worker share when they do not ask for one of their own."""
    return servers("shared")


@pytest.fixture(scope="session")
def kept_nodes(servers: Callable[[str], ServerProcess]) -> Iterator[Callable[[str], KeptNodes]]:
    """The nodes beside a named server that have no agent of ours."""
    keepers: dict[str, KeptNodes] = {}

    def beside(name: str) -> KeptNodes:
        if name not in keepers:
            keepers[name] = KeptNodes(servers(name))
        return keepers[name]

    yield beside
    for keeper in keepers.values():
        keeper.stop()


@pytest.fixture(scope="session")
def agents(
    servers: Callable[[str], ServerProcess], kept_nodes: Callable[[str], KeptNodes]
) -> Iterator[Callable[[str], str]]:
    """Starts the stand-in for a node agent beside a named server and registers its node; returns the node's name."""
    running: dict[str, subprocess.Popen[str]] = {}

    def beside(name: str) -> str:
        if name not in running:
            server = servers(name)
            work = server.root / "agent"
            work.mkdir()
            command = [sys.executable, str(Path(__file__).with_name("fake_agent.py")), str(server.pki), str(work)]
            running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            kept_nodes(name).register(NODE, int(_first_line(running[name])))
        return NODE

    yield beside
    for process in running.values():
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Beside a failure stands what the servers it used had to say."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, ServerProcess):
                report.sections.append(("server log", value.log_tail()))
    return report
