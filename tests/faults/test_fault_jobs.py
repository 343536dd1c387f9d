"""Jobs whose nodes, gateways and engines are killed in every phase, and whose partner goes away for a while.

The claim is always the same: the job goes on where it can and says why where it cannot, on both sides alike; no engine
is started twice; nothing stays behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count

import kubectl_runner
import pytest
from jobs_kit import Domain, Net, job, network, task, until
from puppets import Puppets

pytestmark = [
    pytest.mark.xdist_group("fault-jobs"),
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not kubectl_runner.chosen(), reason="no kubectl: run `make setup`"),
]
AB = ("alice", "bob")
_AWAY = 60.0 if os.environ.get("COTERIE_FAULTS") == "long" else 4.0
"""Seconds for which a partner is gone."""
_numbers = count(1)


@pytest.fixture(scope="module")
def puppets() -> Iterator[Puppets]:
    with Puppets() as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, puppets: Puppets) -> Iterator[Net]:
    """Bob's people want to be asked, so that jobs of alice wait for as long as a test likes."""
    root = tmp_path_factory.mktemp("fault-jobs") / "net"
    settings = {"bob": {"enableWorkloadApprove": True}}
    with network(root, "p2p", *AB, kubectl=kubectl_runner.chosen()[-1], settings=settings) as net:
        puppets.watch(net.root)
        net.register(puppets.image())
        yield net


@pytest.fixture
def net(running: Net) -> Iterator[Net]:
    yield running
    _cordon(running, False)
    running.remove_jobs()


@pytest.fixture
def name() -> str:
    return f"job-{next(_numbers)}"


# What is killed.


def _node(victim: Domain) -> None:
    victim.kill()
    victim.start()
    victim.until_up()


def _envoy(*victims: Domain) -> None:
    """Their nodes start others. Nobody is waited for in between, so that both sides' are gone at the same time."""
    before = [each.envoy for each in victims]
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    for each, pid in zip(victims, before, strict=True):
        until(f"another Envoy of {each.name} runs", lambda each=each, pid=pid: each.envoy != pid)


def _all_of_it(victim: Domain) -> None:
    """Both at once, as when memory runs out."""
    envoy = victim.envoy
    victim.kill()
    os.kill(envoy, signal.SIGKILL)
    victim.start()
    victim.until_up()


KILLS: dict[str, Callable[..., None]] = {"node": _node, "envoy": _envoy, "both": _all_of_it}


# In which phase: each brings a job there, and lets it go on from there.


def _cordon(net: Net, closed: bool) -> None:
    net.at("bob").merge("/api/v1/nodes/bob-node", {"spec": {"unschedulable": closed}})


def _submit(net: Net, name: str) -> None:
    net.at("alice").submit(job(name, "alice", task("a", *AB), task("b", *AB, after="a")))


def _accept(net: Net, name: str) -> None:
    net.at("bob").until_phase(name, "AwaitingApproval")
    net.at("bob").decide(name, "JobAccepted")


def _approval(net: Net, puppets: Puppets, name: str) -> Callable[[], None]:
    _submit(net, name)
    net.at("bob").until_phase(name, "AwaitingApproval")
    return lambda: _accept(net, name)


def _accepted(net: Net, puppets: Puppets, name: str) -> Callable[[], None]:
    """Somewhere between the approval and the first engine, wherever the kill hits."""
    _submit(net, name)
    _accept(net, name)
    return lambda: None


def _reserving(net: Net, puppets: Puppets, name: str) -> Callable[[], None]:
    _cordon(net, True)
    _submit(net, name)
    _accept(net, name)
    until("bob looks for room", lambda: "unschedulable" in str(net.at("bob").tasks(name).get("a")))
    return lambda: _cordon(net, False)


def _running(net: Net, puppets: Puppets, name: str) -> Callable[[], None]:
    puppets.hold(name)
    _submit(net, name)
    _accept(net, name)
    puppets.until_started(name, 2)
    return lambda: puppets.release(name)


def _between(net: Net, puppets: Puppets, name: str) -> Callable[[], None]:
    """One engine has ended, the other runs."""
    proceed = _running(net, puppets, name)
    puppets.release(name, domain="bob")
    return proceed


PHASES = {
    "approval": _approval,
    "accepted": _accepted,
    "reserving": _reserving,
    "running": _running,
    "ending": _between,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("whose", "what"),
    # A node that sees its Envoy die again and again waits longer each time; killed in between, it has forgotten that.
    [
        ("alice", "envoy"),
        ("bob", "envoy"),
        ("alice", "node"),
        ("bob", "node"),
        ("bob", "both"),
        ("alice bob", "envoy"),
    ],
)
def test_a_job_goes_on_after_a_kill(net: Net, puppets: Puppets, name: str, phase: str, whose: str, what: str) -> None:
    """Of several at once when `whose` names several."""
    proceed = PHASES[phase](net, puppets, name)
    KILLS[what](*(net.domains[each] for each in whose.split()))
    proceed()
    for domain in AB:
        net.at(domain).until_phase(name, "Succeeded", "Failed")
        assert net.at(domain).phase(name) == "Succeeded", net.at(domain).told(name)
    assert puppets.once_each(name), puppets.starts(name)
    assert len(puppets.starts(name)) == 4
    net.until_clean()


@pytest.mark.parametrize("whose", AB)
@pytest.mark.parametrize("blind", [False, True], ids=["seen", "while-the-node-is-dead"])
def test_a_killed_engine_fails_the_job(net: Net, puppets: Puppets, name: str, whose: str, blind: bool) -> None:
    victim = net.domains[whose]
    _running(net, puppets, name)
    pod = f"{net.at(whose).tasks(name)['a']['metadata']['name']}-0"
    if blind:
        victim.kill()
    victim.kill_engine(pod)
    if blind:
        victim.start()
        victim.until_up()
    for domain in AB:
        ended = net.at(domain).until_phase(name, "Failed")
        assert f"party {whose}: pod {pod}: container main exited with 137" in ended["status"]["message"]
    assert len(puppets.starts(name)) == 2
    until("no engine is left", lambda: not [p for each in net.domains.values() for p in each.containers()])


# A partner that is away.


def _freeze(victim: Domain, number: int) -> None:
    for pid in (victim.pid, victim.envoy):
        os.kill(pid, number)


def test_a_partner_that_is_away_is_waited_for(net: Net, puppets: Puppets, name: str) -> None:
    """Bob freezes while both engines run and end. Meanwhile alice begins a second job, which waits for him too."""
    later = f"{name}-later"
    proceed = _running(net, puppets, name)
    bob = net.domains["bob"]
    _freeze(bob, signal.SIGSTOP)
    try:
        proceed()
        net.at("alice").submit(job(later, "alice", task("a", *AB)))
        net.at("alice").until_phase(later, "AwaitingApproval")
        time.sleep(_AWAY)
        assert net.at("alice").phase(name) == "Running"
        assert net.at("alice").phase(later) == "AwaitingApproval"
    finally:
        _freeze(bob, signal.SIGCONT)
        bob.forget()
    _accept(net, later)
    for each in (name, later):
        for domain in AB:
            net.at(domain).until_phase(each, "Succeeded")
        assert puppets.once_each(each)
    net.until_clean()


def test_an_initiator_that_is_away_is_waited_for(net: Net, puppets: Puppets, name: str) -> None:
    """Alice's node is dead while both engines end; hers too is found again."""
    proceed = _running(net, puppets, name)
    alice = net.domains["alice"]
    alice.kill()
    proceed()
    time.sleep(_AWAY / 2)
    assert net.at("bob").phase(name) == "Running"
    alice.start()
    for domain in AB:
        net.at(domain).until_phase(name, "Succeeded")
    assert puppets.once_each(name)
    net.until_clean()


def test_a_stop_reaches_a_partner_that_was_away(net: Net, puppets: Puppets, name: str) -> None:
    _running(net, puppets, name)
    bob = net.domains["bob"]
    bob.kill()
    net.at("alice").command(name, "Stop")
    net.at("alice").until_phase(name, "Failed")
    bob.start()
    bob.until_up()
    net.at("bob").until_phase(name, "Failed")
    net.until_clean()
    assert len(puppets.starts(name)) == 2
