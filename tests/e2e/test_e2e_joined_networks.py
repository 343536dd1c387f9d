"""Two networks with a master each, joined with each other and with a domain of its own control plane: jobs over all three.

east (master)  alice (lite)        west (master)  bob (lite)        carol (autonomy)

With COTERIE_AWAY_SECONDS=60 (`make joined`) a master is away for that long; otherwise until the others have noticed nothing of
it but its silence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import Domain, Net, job, task, until
from network_kit import Hand
from puppets import Puppets

from coterie.cli import network as layout
from coterie.kuscia.routes import model
from coterie.node.config import NetworkConfig

pytestmark = [pytest.mark.xdist_group("e2e-joined-networks"), pytest.mark.timeout(600)]
PARTIES = {"alice": "east", "bob": "west", "carol": "carol"}
"""Each with the control plane that serves it."""
MASTERS = tuple(PARTIES.values())
AWAY = float(os.environ.get("COTERIE_AWAY_SECONDS", "0"))
SECONDS = 120.0


class Joined:
    def __init__(self, home: Path, nets: dict[str, Net]) -> None:
        self.nets = nets
        self.hands = {master: Hand(home / master, "--root", str(net.root)) for master, net in nets.items()}

    def plane(self, master: str) -> Domain:
        return self.nets[master].domains[master]

    def endpoint(self, domain: str) -> str:
        node = self.nets[PARTIES.get(domain, domain)].domains[domain]
        found = model.endpoint_of(node.settings.gateway)
        assert found is not None
        return model.url_of(found)

    def introduce(self) -> None:
        """As docs/guide/joined-networks.md has it: certificates first, then domains, then routes, at each control plane."""
        written = {}
        for domain, master in ({each: each for each in MASTERS} | PARTIES).items():
            written[domain] = self.hands[master].home / f"{domain}.crt"
            written[domain].write_text(self.hands[master]("domain", "cert", domain).out)
        for own, other in permutations(MASTERS, 2):
            hand = self.hands[own]
            hand("domain", "add", other, "--partner", "--cert", str(written[other]))
            hand("policy", "allow", other)
        for domain, master in PARTIES.items():
            for own in MASTERS:
                if own not in (master, domain) and domain != master:
                    self.hands[own]("domain", "add", domain, "--master", master, "--cert", str(written[domain]))
        for ours, theirs in permutations(PARTIES, 2):
            for one, other in {(PARTIES[ours], PARTIES[theirs]), (ours, theirs)}:
                hand = self.hands[PARTIES[ours]]
                hand("route", "add", one, other, "--endpoint", self.endpoint(other), "--both")

    def reached(self) -> None:
        for ours, theirs in permutations(PARTIES, 2):
            for one, other in {(PARTIES[ours], PARTIES[theirs]), (ours, theirs)}:
                self.hands[PARTIES[ours]].reaches(one, other)

    def view(self, master: str, name: str) -> tuple[str, dict[str, str]]:
        """A job as one control plane sees it: its phase, and that of each party's part."""
        plane = self.plane(master)
        tasks = plane.tasks(name)
        statuses = tasks["a"]["status"].get("partyTaskStatus") or () if "a" in tasks else ()
        return plane.phase(name), {each["domainID"]: each.get("phase", "") for each in statuses}

    def until_seen(self, name: str, phase: str, **parts: str) -> None:
        """At every control plane."""
        for master in MASTERS:
            look = lambda master=master: self.view(master, name) == (phase, parts)  # noqa: E731
            try:
                until(f"{name} is {phase} with {parts} at {master}", look, SECONDS)
            except AssertionError as problem:
                told = "\n".join(f"{each}: {self.plane(each).told(name)}" for each in MASTERS)
                raise AssertionError(f"{problem}\n{told}") from problem


@pytest.fixture(scope="module")
def puppets() -> Iterator[Puppets]:
    with Puppets() as made:
        yield made


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory, puppets: Puppets) -> Iterator[Joined]:
    home = tmp_path_factory.mktemp("joined-networks")
    kubectl = kubectl_runner.chosen()[-1]
    nets = {}
    for number, (domain, master) in enumerate(PARTIES.items()):
        lite = master != domain
        nets[master] = Net(
            home / f"of-{master}", "center" if lite else "p2p", [domain], kubectl, master=master if lite else ""
        )
        nets[master].configure(domain, _ranges(number + 4, lite=lite))
    with ThreadPoolExecutor(len(nets)) as pool:
        try:
            list(pool.map(Net.up, nets.values()))
            for net in nets.values():
                puppets.watch(net.root)
                net.register(puppets.image())
            made = Joined(home, nets)
            made.introduce()
            made.reached()
            yield made
            assert [line for net in nets.values() for each in net.domains.values() for line in each.complaints()] == []
        finally:
            list(pool.map(Net.down, nets.values()))


def _ranges(number: int, *, lite: bool) -> dict[str, Any]:
    """Addresses of pods that none of the other networks has: they are made before any of them runs."""
    pods = layout.pod_range(number)
    if lite:
        return {"agent": {"podCIDR": NetworkConfig(pods).first_node}}
    return {"network": {"podCIDR": pods, "serviceCIDR": layout.service_range(number)}}


def test_parties_of_all_three_compute_together(joined: Joined, puppets: Puppets) -> None:
    for master, initiator in (("east", "alice"), ("carol", "carol")):
        joined.plane(master).apply(job(f"of-{initiator}", initiator, task("a", *PARTIES)))
        joined.until_seen(f"of-{initiator}", "Succeeded", **dict.fromkeys(PARTIES, "Succeeded"))
    for initiator in ("alice", "carol"):
        assert sorted(each.domain for each in puppets.starts(f"of-{initiator}")) == sorted(PARTIES)


def test_a_lite_with_a_partner_of_its_own_control_plane(joined: Joined, puppets: Puppets) -> None:
    joined.plane("west").apply(job("of-bob", "bob", task("a", "bob", "carol")))
    for master in ("west", "carol"):
        joined.plane(master).until_phase("of-bob", "Succeeded", seconds=SECONDS)
    assert joined.plane("east").job("of-bob") is None, "who takes no part does not hear of it"


def test_route_check_names_the_control_planes(joined: Joined) -> None:
    """The routes between the masters are what jobs need: without them calls pass and jobs do not."""
    hand = joined.hands["east"]
    assert hand.steps("alice", "bob")["masters"] == "ok"
    assert "masters" not in hand.steps("east", "west"), "that is the route itself"
    assert hand.steps("alice", "carol")["masters"] == "ok"
    listed = {each["name"]: (each["role"], each["master"]) for each in hand.json("domain", "ls")}
    assert listed["bob"] == ("partner", "west") and listed["west"] == ("partner", "")


def test_a_master_that_is_away_comes_back_to_its_part(joined: Joined, puppets: Puppets) -> None:
    """Its lite's engine goes on meanwhile, what ended is told afterwards, and a job that began meanwhile waits for it."""
    puppets.hold("away")
    joined.plane("east").apply(job("away", "alice", task("a", *PARTIES)))
    puppets.until_started("away", 3, SECONDS)
    joined.until_seen("away", "Running", **dict.fromkeys(PARTIES, "Running"))
    west = joined.plane("west")
    west.kill()
    gone = time.monotonic()
    puppets.release("away")
    joined.plane("east").apply(job("meanwhile", "alice", task("a", *PARTIES)))
    joined.plane("carol").until_phase("meanwhile", "AwaitingApproval", "Pending", seconds=SECONDS)
    until("alice's part is over at east", lambda: joined.view("east", "away")[1].get("alice") == "Succeeded", SECONDS)
    while time.monotonic() < gone + AWAY:
        time.sleep(0.5)
    assert joined.view("east", "away") == ("Running", {"alice": "Succeeded", "bob": "Running", "carol": "Succeeded"})
    assert joined.plane("east").phase("meanwhile") in ("AwaitingApproval", "Pending")
    west.start()
    west.until_up()
    for name in ("away", "meanwhile"):
        joined.until_seen(name, "Succeeded", **dict.fromkeys(PARTIES, "Succeeded"))
        assert puppets.once_each(name), "no engine was started twice"
