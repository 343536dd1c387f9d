"""The walk with two machines, typed as the README has it, on two machines that are joined by a cable."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kit import until
from machines_kit import Machine, Site, processes_in, user_namespaces_allowed
from network_kit import PATIENCE

from root_kit import IS_ROOT

pytestmark = [pytest.mark.xdist_group("e2e-network"), pytest.mark.timeout(600)]

README = Path(__file__).parents[2] / "README.md"
TITLE = "## Two organisations, two machines"
_DOCUMENTED = {"alice": "10.0.0.1", "bob": "10.0.0.2"}
_START_SECONDS = 90.0


def section() -> list[list[str]]:
    """The blocks of commands in that section."""
    text = README.read_text().partition(TITLE)[2].partition("\n## ")[0]
    return [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]


class Organisation:
    """Somebody who types at the machine of an organisation."""

    def __init__(self, machine: Machine, domain: str) -> None:
        self.machine, self.domain = machine, domain
        self.process: subprocess.Popen[bytes] | None = None
        self.log = machine.home / "start.log"

    def type(self, line: str) -> None:
        words = shlex.split(line.partition(" #")[0])
        assert words.pop(0) == "coterie"
        target = ""
        if ">" in words:
            words, target = words[: words.index(">")], words[-1]
        if words[0] == "start":
            self.start(words)
            return
        out = self.machine(*words)
        if target:
            (self.machine.home / target).write_text(out)

    def start(self, words: list[str]) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.machine.command("coterie", *words),
                cwd=self.machine.home,
                env=self.machine.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until(f"{self.domain} is up", self.up, _START_SECONDS)

    def up(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        return self.machine.try_("status").returncode == 0

    def reaches(self, other: str) -> bool:
        answer = self.machine.try_("route", "check", self.domain, other, "-o", "json")
        return answer.returncode == 0 and all(each["verdict"] == "ok" for each in json.loads(answer.stdout)["steps"])

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            finally:
                self.process.kill()
                self.process.wait()
            self.process = None


Organisations = dict[str, Organisation]


@contextlib.contextmanager
def organisations(home: Path, *, ordinary: bool, forbidden: tuple[str, ...] = ()) -> Iterator[Organisations]:
    """Both started, as the first block has it. `forbidden`: whose machine has no namespaces for ordinary users."""
    places = [_DOCUMENTED[each] for each in forbidden]
    site = Site(list(_DOCUMENTED.values()), ordinary=ordinary, forbidden=places)
    with contextlib.ExitStack() as stack:
        stack.callback(site.close)
        made = {
            domain: Organisation(Machine(*numbers, home / domain), domain)
            for domain, numbers in zip(_DOCUMENTED, site.machines, strict=True)
        }
        for each in made.values():
            stack.callback(each.machine.try_, "down", "--purge", "--grace", "1")
            stack.callback(each.stop)
        for each in made.values():
            for line in section()[0]:
                each.type(line.replace("alice", each.domain))
        yield made


def introduce(made: Organisations) -> None:
    """All but the first block."""
    _, certificate, at_alice, at_bob, check = section()
    for name, each in made.items():
        for line in certificate:
            each.type(line.replace("alice", name))
    alice, bob = made["alice"].machine.home, made["bob"].machine.home
    (bob / "alice.crt").write_text((alice / "alice.crt").read_text())
    (alice / "bob.crt").write_text((bob / "bob.crt").read_text())
    for line in at_alice:
        made["alice"].type(line)
    for line in at_bob:
        made["bob"].type(line)
    assert check == ["coterie route check alice bob"]
    for source, destination in (("alice", "bob"), ("bob", "alice")):
        until(f"{source} reaches {destination}", lambda s=source, d=destination: made[s].reaches(d), PATIENCE)


def kill_what_lives_inside(alice: Organisation) -> None:
    """First the process that holds the namespaces of the domain, then what was started in them: it comes back there."""
    file = alice.machine.home / ".coterie" / "alice" / "var" / "run" / "runp" / "network.json"
    facts = json.loads(file.read_text())
    os.kill(facts["holder"], signal.SIGKILL)
    inside = {pid: command for pid, command in processes_in(facts["inode"]).items() if pid != facts["holder"]}
    assert any("envoy" in command for command in inside.values()), inside
    for pid in inside:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def envoy_is_back() -> bool:
        return any("envoy" in command for pid, command in processes_in(facts["inode"]).items() if pid not in inside)

    until("Envoy is inside again", envoy_is_back, PATIENCE)
    assert json.loads(file.read_text())["inode"] == facts["inode"], "it is the same network"


@pytest.mark.parametrize(
    "user",
    [
        pytest.param("root", marks=pytest.mark.skipif(not IS_ROOT, reason="needs root: makes network namespaces")),
        pytest.param(
            "ordinary",
            marks=pytest.mark.skipif(not user_namespaces_allowed(), reason="user namespaces are forbidden here"),
        ),
    ],
)
def test_two_machines_as_the_readme_has_it(user: str, tmp_path: Path) -> None:
    with organisations(tmp_path, ordinary=user == "ordinary") as made:
        introduce(made)
        # From the other side there is less to see, and nothing wrong.
        answer = made["bob"].machine.try_("route", "check", "alice", "bob", "-o", "json")
        assert "wrong" not in {each["verdict"] for each in json.loads(answer.stdout)["steps"]}
        made["alice"].machine("job", "run", "--engine", "sample", "--parties", "alice,bob", "--timeout", "60s")
        if user == "ordinary":
            kill_what_lives_inside(made["alice"])
            until("alice reaches bob again", lambda: made["alice"].reaches("bob"), PATIENCE)
            made["alice"].machine("job", "run", "--engine", "sample", "--parties", "alice,bob", "--timeout", "60s")
        for each in made.values():
            each.stop()
        for each in made.values():
            until("nothing is left", lambda each=each: not each.machine.processes(), PATIENCE)
