"""The console's process: asleep until somebody connects, back after its death, gone with its node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml

from coterie.base import pki_files
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.console.process import ConsoleProcess
from coterie.console.settings import ConsoleLocation, ConsoleSettings
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.node.parts.console import usual_or_any_port


class Nobody:
    """The node's own rights are never used."""

    async def send(self, call: TransportRequest) -> TransportResponse:
        raise AssertionError(f"the console asked the node for {call.path}")

    async def close(self) -> None:
        return


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not question():
            await asyncio.sleep(0.02)


def kubeconfig(folder: Path) -> Path:
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    made = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(made))
    return path


@asynccontextmanager
async def running(
    folder: Path, idle: float = 300.0, tls: pki_files.Pair | None = None
) -> AsyncIterator[ConsoleProcess]:
    paths = DomainPaths.of(folder, "alice")
    paths.prepare()
    run = folder / "run"
    run.mkdir(mode=0o700)
    settings = ConsoleSettings("alice", "autonomy", "127.0.0.1", 0, kubeconfig(folder))
    if tls is not None:
        settings = ConsoleSettings(
            "alice", "autonomy", "127.0.0.1", 0, kubeconfig(folder), tls.certificate_path, tls.key_path
        )
    made = ConsoleProcess(settings, paths, run, Client(Nobody()), SYSTEM_CLOCK, idle)
    life = asyncio.ensure_future(made.run())
    await made.ready.wait()
    try:
        yield made
    finally:
        made.stop()
        await asyncio.wait_for(life, 20)


async def page(made: ConsoleProcess) -> int:
    async with aiohttp.ClientSession() as http, http.get(made.settings.url) as answer:
        return answer.status


def location(folder: Path) -> ConsoleLocation:
    found = ConsoleLocation.read(DomainPaths.of(folder, "alice"))
    assert found is not None
    return found


async def link(folder: Path) -> str:
    """As `coterie console` asks for one."""
    connector = aiohttp.UnixConnector(str(location(folder).control_socket))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.post("http://console/codes", json={"account": "ops/anna", "token": "t"}) as answer,
    ):
        url: str = json.loads(await answer.read())["url"]
        return url


async def test_it_sleeps_until_called_and_comes_back_from_the_dead(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        assert made.pid is None, "no process before the first connection"
        assert made.settings.port, "0 means any port, and the process knows which"
        found = location(tmp_path)
        assert found.url == made.settings.url, "and so does whoever must not start it"
        assert stat.S_IMODE(found.control_socket.stat().st_mode) == 0o600
        assert await page(made) == 200
        before = made.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: made.pid not in (None, before))
        assert (await link(tmp_path)).startswith(f"{made.settings.url}/#login=")
        last = made.pid
        assert last is not None
    assert not psutil.pid_exists(last), "it does not outlive its node"
    assert ConsoleLocation.read(DomainPaths.of(tmp_path, "alice")) is None


async def test_a_login_keeps_it_awake_and_idleness_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path, idle=1.0) as made:
        code = (await link(tmp_path)).partition("#login=")[2]
        first = made.pid
        assert first is not None
        await asyncio.sleep(1.5)  # longer than it may idle: a link waits to be used
        assert made.pid == first
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            asked = {"Origin": made.settings.url}
            async with http.post(f"{made.settings.url}/login", json={"code": code}, headers=asked) as answer:
                assert answer.status == 200
                csrf = (await answer.json())["csrf"]
                cookie = answer.headers["Set-Cookie"].partition(";")[0]
            asked |= {"Cookie": cookie, "X-Coterie-CSRF": csrf}
            async with http.post(f"{made.settings.url}/logout", headers=asked) as answer:
                assert answer.status == 200
        await until(lambda: made.pid is None)
        with pytest.raises(OSError, match="in use"):
            socket.create_server((made.settings.address, made.settings.port))
        assert await page(made) == 200, "and it starts again"


async def test_with_a_certificate_it_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    now = SYSTEM_CLOCK.now()
    authority = pki_files.ensure_authority(tmp_path / "ca", "alice", now=now)
    pair = pki_files.ensure_server(tmp_path / "ca", "console", authority, names=("127.0.0.1",), now=now)
    async with running(tmp_path, tls=pair) as made:
        assert made.settings.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.crt"))
        async with aiohttp.ClientSession() as http:
            async with http.get(made.settings.url, ssl=trust) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await http.get(made.settings.url.replace("https", "http"))


def test_a_port_that_somebody_has_is_replaced_by_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with usual_or_any_port("127.0.0.1", port) as made:
            assert made.getsockname()[1] not in (0, port)
    with usual_or_any_port("127.0.0.1", port) as made:
        assert made.getsockname()[1] == port
    with pytest.raises(OSError, match="assign"):
        usual_or_any_port("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("address", "port", "names", "tls", "hosts"),
    [
        ("127.0.1.2", 8088, (), False, ("127.0.1.2:8088", "localhost:8088")),
        ("::1", 8088, (), False, ("[::1]:8088", "localhost:8088")),
        ("10.0.0.5", 8088, ("console.example",), True, ("10.0.0.5:8088", "console.example:8088")),
        ("10.0.0.5", 443, ("console.example",), True, ("10.0.0.5", "console.example")),
        ("0.0.0.0", 8088, ("console.example",), True, ("console.example:8088",)),
    ],
)
def test_under_which_names_it_answers(
    address: str, port: int, names: tuple[str, ...], tls: bool, hosts: tuple[str, ...]
) -> None:
    pair = Path("/pair") if tls else None
    made = ConsoleSettings("alice", "autonomy", address, port, Path("/nowhere"), pair, pair, names=names)
    assert made.hosts == hosts
    assert made.url == f"{'https' if tls else 'http'}://{hosts[0]}"
