"""Whatever keeps the pod network is killed while engines talk through it: they keep their address, network and user, go
on talking, and new pods start. In the end nothing of the domains is left on the machine.

Both domains have the same range of addresses, on the same machine.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count

import kubectl_runner
import pytest
from jobs_kit import Domain, Net, job, network, task
from talkers import TALKER, Talkers

from coterie.kube.agent.runtimes.runp import pod_networks
from leftovers_kit import DomainTraces

pytestmark = [
    pytest.mark.xdist_group("fault-jobs"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]
AB = ("alice", "bob")
_LONG = os.environ.get("COTERIE_FAULTS") == "long"
_numbers = count(1)


@pytest.fixture(scope="module")
def talkers() -> Iterator[Talkers]:
    with Talkers() as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, talkers: Talkers) -> Iterator[Net]:
    root = tmp_path_factory.mktemp("fault-pods") / "net"
    same = {"network": {"podCIDR": "100.96.0.0/16", "serviceCIDR": "100.112.0.0/16"}}
    with network(root, "p2p", *AB, kubectl=kubectl_runner.chosen()[-1], settings={"": same}) as net:
        if any(pod_networks.read_facts(str(each.runp)).get("problem") for each in net.domains.values()):  # type: ignore[union-attr]
            pytest.skip("this machine allows no pod networks")
        talkers.register(net)
        yield net


@pytest.fixture
def net(running: Net) -> Iterator[Net]:
    yield running
    if running.root.exists():
        running.remove_jobs()


@pytest.fixture
def name() -> str:
    return f"talk-{next(_numbers)}"


# What is killed. Each answers what brings it back, where that is not done by others.


def _nothing() -> None:
    pass


def _node(victim: Domain) -> Callable[[], None]:
    victim.kill()
    return lambda: (victim.start(), victim.until_up())[-1]


def _supervisor(victim: Domain) -> Callable[[], None]:
    os.kill(victim.supervisor, signal.SIGKILL)
    return _nothing


def _holder(victim: Domain) -> Callable[[], None]:
    os.kill(victim.holder, signal.SIGKILL)
    return _nothing


def _envoy(victim: Domain) -> Callable[[], None]:
    os.kill(victim.envoy, signal.SIGKILL)
    return _nothing


def _relay(victim: Domain) -> Callable[[], None]:
    os.kill(victim.relay, signal.SIGKILL)
    return _nothing


KILLS: dict[str, Callable[[Domain], Callable[[], None]]] = {
    "node": _node,
    "supervisor": _supervisor,
    "holder": _holder,
    "envoy": _envoy,
    **({"relay": _relay} if os.getuid() else {}),
}
PAIRS = list(itertools.combinations(KILLS, 2))


def _talking(net: Net, talkers: Talkers, name: str) -> dict[str, list[object]]:
    """A job whose engines talk; their places."""
    talkers.hold(name)
    steps = (task("a", *AB, image=TALKER), task("b", *AB, image=TALKER, after="a"))
    net.at("alice").submit(job(name, "alice", *steps))
    talkers.until_started(name, 2)
    reports = talkers.until_talking(name, *AB)
    return {domain: reports[domain][-1].place for domain in AB}


def _go_on(net: Net, talkers: Talkers, name: str, places: dict[str, list[object]]) -> None:
    """The engines are where they were, were never refused, and talk; the next ones start; all ends well."""
    reports = talkers.until_talking(name, *AB)
    for domain in AB:
        assert all(each.place == places[domain] for each in reports[domain])
        refused = [each.calls["403"] for each in reports[domain] if "403" in each.calls]
        assert not refused, f"the gateway did not know the engine of {domain}: {reports[domain]}"
    talkers.release(name)
    for domain in AB:
        net.at(domain).until_phase(name, "Succeeded", "Failed")
        assert net.at(domain).phase(name) == "Succeeded", net.at(domain).told(name)
    assert len(talkers.starts(name)) == 4
    assert talkers.once_each(name), talkers.starts(name)
    net.until_clean()


def test_two_domains_with_the_same_addresses_run_a_job(net: Net, talkers: Talkers, name: str) -> None:
    ranges = {pod_networks.read_facts(str(each.runp))["cidr"] for each in net.domains.values()}  # type: ignore[index]
    assert len(ranges) == 1
    places = _talking(net, talkers, name)
    assert places["alice"][0] == places["bob"][0], "both had their first engine's address to give away"
    _go_on(net, talkers, name, places)


@pytest.mark.parametrize("what", KILLS)
@pytest.mark.parametrize("whose", AB)
def test_engines_talk_on_after_a_kill(net: Net, talkers: Talkers, name: str, whose: str, what: str) -> None:
    places = _talking(net, talkers, name)
    KILLS[what](net.domains[whose])()
    _go_on(net, talkers, name, places)


@pytest.mark.parametrize(
    ("seed", "pair"),
    [(seed, pair) for seed in range(3 if _LONG else 1) for pair in PAIRS],
    ids=lambda each: "-".join(each) if isinstance(each, tuple) else str(each),
)
def test_engines_talk_on_after_two_kills(
    net: Net, talkers: Talkers, name: str, seed: int, pair: tuple[str, str]
) -> None:
    """Each of a party by lot, in an order by lot, without waiting in between."""
    chance = random.Random(f"{seed} {pair}")
    places = _talking(net, talkers, name)
    comebacks = [KILLS[what](net.domains[chance.choice(AB)]) for what in chance.sample(pair, 2)]
    for comeback in comebacks:
        comeback()
    _go_on(net, talkers, name, places)


@pytest.mark.parametrize("whose", AB)
def test_a_node_that_is_stopped_in_order_finds_its_pods_again(
    net: Net, talkers: Talkers, name: str, whose: str
) -> None:
    """Its gateway ends with it, so calls fail meanwhile; but nobody is refused, neither before nor after."""
    places = _talking(net, talkers, name)
    net.domains[whose].kill(signal.SIGTERM)
    net.domains[whose].start()
    net.domains[whose].until_up()
    _go_on(net, talkers, name, places)


def test_nothing_is_left_on_the_machine(net: Net, talkers: Talkers, name: str) -> None:
    """The last test here: it takes the network away, with engines that still run."""
    traces = DomainTraces(net.root)
    _talking(net, talkers, name)
    traces.note()
    assert {each.partition(" ")[0] for each in traces.left()} >= {"process", "files"}
    for each in net.domains.values():
        each.forget()
    command = [sys.executable, "-m", "coterie", "down", "--root", str(net.root), "--grace", "1", "--purge"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    traces.assert_gone()
