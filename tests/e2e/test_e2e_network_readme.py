"""The walk with two machines, typed as the README has it: on one machine, with two addresses in place of two machines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kit import until
from network_kit import Hand, listening, processes

from coterie.cli import network
from coterie.kube.agent.runtimes.runp.halt import halt
from coterie.node.config import ports

pytestmark = [
    pytest.mark.xdist_group("e2e-network"),
    pytest.mark.skipif(ports.lowest_port() > 53, reason="the usual ports are not ours to open"),
]

README = Path(__file__).parents[2] / "README.md"
TITLE = "## Two organisations, two machines"
_DOCUMENTED = {"alice": "10.0.0.1", "bob": "10.0.0.2"}
_START_SECONDS = 90.0


def section() -> list[list[str]]:
    """The blocks of commands in that section."""
    text = README.read_text().partition(TITLE)[2].partition("\n## ")[0]
    return [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]


class Machine:
    """An organisation's machine: a home directory and an address of its own."""

    def __init__(self, home: Path, domain: str, address: str) -> None:
        self.domain, self.address = domain, address
        self.hand = Hand(home)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home / "start.log"

    def type(self, line: str, addresses: dict[str, str]) -> str:
        for name, address in addresses.items():
            line = line.replace(_DOCUMENTED[name], address)
        words = shlex.split(line.partition(" #")[0])
        assert words.pop(0) == "coterie"
        target = ""
        if ">" in words:
            words, target = words[: words.index(">")], words[-1]
        if words[0] == "start":
            self.start(words)
            return ""
        out = self.hand(*words).out
        if words[0] == "init":
            self.move(words[-1])
        if target:
            (self.hand.home / target).write_text(out)
        return out

    def move(self, file: str) -> None:
        """What stands in for a machine of its own: all of the node on one address."""
        place = (
            f"\napiServer: {{host: {self.address}}}\nagent: {{address: {self.address}, nodeName: {self.domain}-node}}\n"
        )
        path = self.hand.home / file
        path.write_text(path.read_text() + place)

    def start(self, words: list[str]) -> None:
        environ = {**os.environ, "HOME": str(self.hand.home)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coterie", *words],
                cwd=self.hand.home,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until(f"{self.domain} is up", self.up, _START_SECONDS)

    def up(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        return self.hand.try_("status").code == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            finally:
                self.process.kill()
                self.process.wait()
            self.process = None

    def destroy(self) -> None:
        self.stop()
        pods = self.hand.home / ".coterie" / self.domain / "var" / "run" / "runp"
        asyncio.run(halt(pods, f"{self.domain}-node", 1.0))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """Both started, as the first block has it."""
    made: dict[str, Machine] = {}
    with contextlib.ExitStack() as stack:
        with network.address_lock():
            addresses = [place.address for place in itertools.islice(network.free_addresses(), 2)]
            stack.enter_context(network.reserve_addresses(addresses))
        for domain, address in zip(_DOCUMENTED, addresses, strict=True):
            made[domain] = Machine(tmp_path / domain, domain, address)
            stack.callback(made[domain].destroy)
        for machine in made.values():
            for line in section()[0]:
                machine.type(line.replace("alice", machine.domain), {})
        yield made


def test_two_machines_as_the_readme_has_it(machines: dict[str, Machine], tmp_path: Path) -> None:
    addresses = {name: machine.address for name, machine in machines.items()}
    _, certificate, at_alice, at_bob, check = section()
    for name, machine in machines.items():
        for line in certificate:
            machine.type(line.replace("alice", name), addresses)
    alice, bob = machines["alice"].hand.home, machines["bob"].hand.home
    (bob / "alice.crt").write_text((alice / "alice.crt").read_text())
    (alice / "bob.crt").write_text((bob / "bob.crt").read_text())
    for line in at_alice:
        machines["alice"].type(line, addresses)
    for line in at_bob:
        machines["bob"].type(line, addresses)
    assert check == ["coterie route check alice bob"]
    for source, destination in (("alice", "bob"), ("bob", "alice")):
        machines[source].hand.reaches(source, destination)
    # From the other side there is less to see, and nothing wrong.
    assert "wrong" not in machines["bob"].hand.steps("alice", "bob").values()
    for machine in machines.values():
        machine.stop()
    left = [each for each in processes(str(tmp_path)) if "supervisor" not in each]
    assert (left, [listening(address) for address in addresses.values()]) == ([], [[], []])
