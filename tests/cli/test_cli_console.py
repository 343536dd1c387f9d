"""`coterie console`, and the links of `coterie up` and `coterie demo`: for whom they are, and what is said without one."""

from __future__ import annotations

import io
import os
import signal
import tempfile
import webbrowser
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from coterie.base.paths import DomainPaths
from coterie.cli import background, console_link, network
from coterie.cli.app import App
from coterie.cli.demo_script import DemoScript
from coterie.console import process
from coterie.kube.client.client import Client
from coterie.kube.client.fake import FakeTransport
from coterie.kube.client.transport import TransportRequest
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.registration.registration_files import registration_file


def write_node(root: Path, domain: str, **settings: Any) -> None:
    file = background.config_file(DomainPaths.of(root, domain))
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump({"domainID": domain, **settings}))


def test_a_lite_says_whose_console_shows_its_objects(cli):
    write_node(cli.folder / ".coterie", "alice", mode="lite", masterEndpoint="https://10.0.0.1:1080")
    for words in ((), ("--domain", "alice")):
        refused = cli("console", *words)
        assert (refused.code, refused.err) == (
            1,
            "Error: alice is a lite and has no console; that of its master shows its jobs, pods and tables: "
            "run `coterie console` on the machine of the master (10.0.0.1), or ask its operator for an account\n",
        )


def test_a_lite_that_was_started_with_a_file_elsewhere_is_known_by_its_registration(cli):
    file = registration_file(DomainPaths.of(cli.folder / ".coterie", "alice"))
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    refused = cli("console")
    assert (refused.code, "alice is a lite and has no console" in refused.err) == (1, True)


def test_a_node_that_joined_names_the_machine_of_its_control_plane(cli):
    write_node(cli.folder / ".coterie", "alice", mode="lite", join="/etc/join.yaml")
    refused = cli("console", "--domain", "alice")
    assert (refused.code, "`coterie node add` made its join file" in refused.err) == (1, True)


def test_a_control_plane_without_console_on_this_machine(cli, tmp_path):
    (tmp_path / "kubeconfig").write_text("{}")
    refused = cli("--kubeconfig", str(tmp_path / "kubeconfig"), "console")
    assert (refused.code, "run `coterie console` on the machine of the master" in refused.err) == (1, True)
    assert cli("console", "--account", "anna").code == 2


def unexpected(call: TransportRequest) -> NoReturn:
    raise AssertionError(f"nobody asks for {call.path}")


class Codes:
    """In place of the console: every code that was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[dict[str, object]] = []
        self.opened: list[str] = []
        monkeypatch.setattr(console_link, "_link", self._link)
        monkeypatch.setattr(console_link, "_token", self._token)
        monkeypatch.setattr(webbrowser, "open", self.opened.append)

    async def _token(self, *_: object) -> str:
        return "t"

    async def _link(self, _: Path, asked: dict[str, object]) -> str:
        self.asked.append(asked)
        return f"http://127.0.0.1:8088/#login=code-{len(self.asked)}"


@pytest.mark.parametrize(
    ("environ", "browser", "opened"),
    [
        ({"DISPLAY": ":0"}, True, True),
        ({"WAYLAND_DISPLAY": "w"}, True, True),
        ({"DISPLAY": ":0"}, False, False),
        ({}, True, False),
    ],
)
async def test_a_browser_gets_a_code_that_only_its_own_user_can_use(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], browser: bool, opened: bool
) -> None:
    """Everybody on the machine sees with which arguments a browser is started."""
    codes = Codes(monkeypatch)
    app = App(io.StringIO(), io.StringIO(), environ)
    client = Client(FakeTransport(unexpected))
    url = await console_link.show_link(app, client, Path("/s"), ("ops", "anna"), browser=browser)
    assert url.endswith("code-1")
    assert codes.opened == (["http://127.0.0.1:8088/#login=code-2"] if opened else [])
    printed = {"account": "ops/anna", "token": "t"}
    assert codes.asked == ([printed, {**printed, "uid": os.getuid()}] if opened else [printed])


def test_a_demo_with_console_stays_until_ctrl_c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pressed() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(signal, "pause", pressed)
    links = {"alice": "http://127.0.1.1:8088/#login=a", "bob": "http://127.0.1.2:8088/#login=b"}
    monkeypatch.setattr(console_link, "links_of_all", lambda app, nodes, browser: links)
    out = io.StringIO()
    DemoScript(App(out, io.StringIO(), {})).show_console([], tmp_path, wait=True)
    lines = out.getvalue().splitlines()
    assert "  bob     http://127.0.1.2:8088/#login=b" in lines
    assert f"`coterie console --domain NAME --root {tmp_path}`" in lines
    assert "Everything stays until you press Ctrl-C, and is removed then." in lines


def test_console_of_the_demo_is_not_for_scripts(cli):
    refused = cli("demo", "psi", "--console", "-o", "json")
    assert (refused.code, "--console" in refused.err) == (2, True)


def test_up_says_why_a_control_plane_has_no_link_and_goes_on(tmp_path: Path) -> None:
    place = network.NodeAddresses("127.0.1.9", network.API_PORT, network.AGENT_PORT)
    node = network.write(tmp_path, "p2p", "alice", place)
    err = io.StringIO()
    assert console_link.links_of_all(App(io.StringIO(), err, {}), [node]) == {}
    assert err.getvalue().startswith("alice: ")


def test_sockets_of_a_deep_root_fit_whatever_the_temporary_directory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = Path("/" + "d" * 100)
    for temporary, expected in (("/var/tmp", "/var/tmp"), (str(deep), "/tmp")):
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        run = GatewayPaths.of(DomainPaths.of(deep, "alice")).run
        assert run.parent == Path(expected) and len(str(run / "console-api.sock")) < 108


@pytest.mark.parametrize("depth", range(40, 110))
def test_sockets_fit_at_every_depth_of_the_root(depth: int) -> None:
    run = GatewayPaths.of(DomainPaths.of(Path("/" + "d" * depth), "alice")).run
    longest = max((process._CONTROL_SOCKET, process._NODE_SOCKET, "handshake.sock", "reporter.sock"), key=len)
    assert len(str(run / longest)) <= 107
