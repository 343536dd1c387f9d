"""`coterie service`: units by their text and by systemd's own checker; installing, upgrading and going back with a scripted
`systemctl`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.base.service_notice import READY, STOPPING, ServiceNotice
from coterie.cli.service_unit import NodeService, config_of, python_of, unit_text

SYSTEMCTL = """#!{python}
import json, os, sys
from pathlib import Path
words = [each for each in sys.argv[1:] if each not in ("--user", "--no-pager", "--no-block")]
state, units = Path({state!r}), Path({units!r})
known = json.loads(state.read_text()) if state.exists() else {{"pid": 100, "calls": [], "units": {{}}}}
known["calls"].append(" ".join(words))
verb, unit = words[0], words[1] if len(words) > 1 else ""
if verb == "is-system-running":
    print(os.environ.get("SCRIPTED_STATE", "running"))
elif verb == "restart":
    text = (units / unit).read_text()
    known["pid"] += 1
    ends, broken = "/bad/" in text, (state.parent / "broken").exists()
    known["units"][unit] = {{"ActiveState": "failed" if broken else "activating" if ends else "active",
                            "SubState": "auto-restart" if ends else "",
                            "Result": "exit-code" if ends or broken else "success",
                            "MainPID": "0" if ends or broken else str(known["pid"])}}
elif verb == "enable":
    known["units"].setdefault(unit, {{}})["UnitFileState"] = "enabled"
elif verb == "stop":
    known["units"].setdefault(unit, {{}}).update(ActiveState="inactive", MainPID="0")
elif verb == "show":
    for name, value in known["units"].get(unit, {{"ActiveState": "inactive"}}).items():
        print(f"{{name}}={{value}}")
state.write_text(json.dumps(known))
"""


class Machine:
    """A user's systemd that does what its script says."""

    def __init__(self, folder: Path, cli: Any) -> None:
        self.folder = folder
        self.units = folder / "config" / "systemd" / "user"
        self.state = folder / "systemd.json"
        programs = folder / "programs"
        programs.mkdir()
        program = programs / "systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, state=str(self.state), units=str(self.units)))
        program.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self.cli = cli
        self.cli.environ = {**cli.environ, "PATH": path, "XDG_CONFIG_HOME": str(folder / "config")}
        self.config = folder / "alice.yaml"
        self.config.write_text("mode: autonomy\ndomainID: alice\n")
        self.config.chmod(0o600)

    @property
    def unit(self) -> Path:
        return self.units / "coterie-alice.service"

    @property
    def calls(self) -> list[str]:
        return list(json.loads(self.state.read_text())["calls"])

    def install(self) -> None:
        told = self.cli("service", "install", "-c", "alice.yaml", "--root", "root", "--user")
        assert told.code == 0, told.err

    def python(self, name: str) -> Path:
        """Another environment: the same interpreter elsewhere."""
        made = self.folder / name / "python"
        made.parent.mkdir()
        made.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        made.chmod(0o755)
        return made


@pytest.fixture
def machine(tmp_path: Path, cli: Any) -> Machine:
    return Machine(tmp_path, cli)


def service(**changes: object) -> NodeService:
    given = {
        "domain": "alice",
        "python": "/opt/coterie/bin/python",
        "config": Path("/etc/coterie/alice.yaml"),
        "root": Path("/srv/coterie"),
        "log": Path("/srv/coterie/alice/var/logs/coterie.log"),
        "runs_pods": True,
        "user": False,
    }
    return NodeService(**{**given, **changes})  # type: ignore[arg-type]


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_pods_and_the_gateway_outlive_the_process_of_the_unit() -> None:
    text = lines(unit_text(service()))
    assert {"KillMode=process", "Delegate=yes", "Type=notify", "OOMPolicy=continue"} <= set(text)
    own_mounts = ("ProtectSystem", "PrivateTmp", "ProtectHome", "ReadWritePaths", "PrivateDevices", "PrivateMounts")
    assert not [each for each in text if each.startswith(own_mounts)], "the next process would not see mounts of pods"


def test_a_node_without_pods_is_confined() -> None:
    text = lines(unit_text(service(runs_pods=False)))
    assert {"ProtectSystem=strict", "NoNewPrivileges=yes", "RestrictNamespaces=yes"} <= set(text)
    assert "ReadWritePaths=/srv/coterie /tmp" in text and "KillMode=process" in text


def test_a_unit_of_a_user() -> None:
    text = lines(unit_text(service(user=True)))
    assert "WantedBy=default.target" in text and not [each for each in text if each.startswith("Capability")]


@pytest.mark.parametrize("odd", ["/a b/c", "/100%/x", "/cost$HOME", '/quo"te', "/back\\slash"], ids=range(5))
def test_paths_of_every_kind_are_read_back(odd: str) -> None:
    text = unit_text(service(python=f"{odd}/python", config=Path(odd), root=Path(odd)))
    assert (python_of(text), config_of(text)) == (f"{odd}/python", (odd, odd))
    assert config_of("ExecStart=/usr/bin/other -c x\n") == ("", "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("pods", [True, False], ids=["pods", "no-pods"])
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path, pods: bool) -> None:
    path = tmp_path / "coterie-alice.service"
    made = service(python=sys.executable, root=tmp_path / "a b%c", log=tmp_path / "a b%c" / "log", runs_pods=pods)
    path.write_text(unit_text(made))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, [each for each in lines(done.stderr) if "coterie-alice" in each]) == (0, [])


def test_install_starts_and_waits(machine: Machine) -> None:
    machine.install()
    calls = machine.calls
    assert calls.index("daemon-reload") < calls.index("enable coterie-alice.service")
    assert calls.index("enable coterie-alice.service") < calls.index("restart coterie-alice.service")
    assert config_of(machine.unit.read_text()) == (str(machine.config), str(machine.folder / "root"))
    assert (machine.folder / "root" / "alice" / "var" / "logs").is_dir(), "systemd opens the log"
    again = machine.cli("service", "install", "-c", "alice.yaml", "--user")
    assert again.code == 1 and "coterie service upgrade" in again.err


def test_a_node_that_does_not_start_leaves_no_service(machine: Machine) -> None:
    (machine.folder / "broken").touch()
    told = machine.cli("service", "install", "-c", "alice.yaml", "--root", "root", "--user")
    assert told.code == 1 and "it failed (exit-code); the service was removed again" in told.err
    assert not machine.unit.exists() and "disable coterie-alice.service" in machine.calls
    assert (machine.folder / "root" / "alice").is_dir()


def test_upgrade_uses_the_new_environment(machine: Machine) -> None:
    machine.install()
    new = machine.python("new")
    told = machine.cli("service", "upgrade", "--user", "--python", str(new))
    assert told.code == 0 and "runs Coterie" in told.out
    assert python_of(machine.unit.read_text()) == str(new)
    assert "stop coterie-alice.service" not in machine.calls


def test_upgrade_goes_back_when_the_node_does_not_become_ready(machine: Machine) -> None:
    machine.install()
    before = machine.unit.read_text()
    told = machine.cli("service", "upgrade", "--user", "--python", str(machine.python("bad")))
    assert told.code == 1 and "it ended (exit-code); the one before runs again" in told.err
    assert machine.unit.read_text() == before
    shown = json.loads(machine.cli("service", "status", "--user", "-o", "json").out)["services"][0]
    assert (shown["domain"], shown["state"], shown["python"]) == ("alice", "active", sys.executable)


@pytest.mark.parametrize(
    ("script", "why"),
    [("exit 3", "refuses"), ("echo coterie 9; test $2 = coterie", "refuses")],
    ids=["no-coterie", "configuration"],
)
def test_upgrade_changes_nothing_for_a_version_that_cannot_run(machine: Machine, script: str, why: str) -> None:
    machine.install()
    before, calls = machine.unit.read_text(), len(machine.calls)
    other = machine.folder / "python"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    told = machine.cli("service", "upgrade", "--user", "--python", str(other))
    assert told.code == 1 and why in told.err and "nothing was changed" in told.err
    assert machine.unit.read_text() == before
    assert not [each for each in machine.calls[calls:] if each.startswith(("restart", "daemon-reload"))]


def test_uninstall_leaves_the_files_unless_they_are_to_go(machine: Machine) -> None:
    machine.install()
    told = machine.cli("service", "uninstall", "--user")
    assert told.code == 0 and not machine.unit.exists() and (machine.folder / "root" / "alice").is_dir()
    assert "stop coterie-alice.service" in machine.calls
    machine.install()
    assert machine.cli("service", "uninstall", "--user", "--purge", "--keep-pods").code == 2
    told = machine.cli("service", "uninstall", "--user", "--purge")
    assert told.code == 0 and not (machine.folder / "root" / "alice").exists()


def test_where_no_systemd_runs_that_is_said(machine: Machine) -> None:
    machine.cli.environ = {**machine.cli.environ, "SCRIPTED_STATE": "offline"}
    told = machine.cli("service", "install", "-c", "alice.yaml", "--user")
    assert told.code == 1 and "does not run here" in told.err and "--print" in told.err
    told = machine.cli("service", "install", "-c", "alice.yaml", "--user", "--print")
    assert told.code == 0 and "[Service]" in told.out and not machine.unit.exists()


def test_the_service_manager_hears_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        notice = ServiceNotice.taken()
        assert "NOTIFY_SOCKET" not in os.environ, "no pod may speak for the node"
        notice.send(READY)
        notice.send(STOPPING)
        assert [heard.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]
    notice.send(READY)  # nobody is there any more
    ServiceNotice("").send(READY)
