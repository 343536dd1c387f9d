"""Many pods come and go: nothing of them is left, and no address is given to another pod at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from runp_kit import RunpHarness
from test_runp_network import NETWORK, NetworkHarness

from coterie.kube.agent.runtimes.protocol import PodKind
from coterie.kube.agent.runtimes.runp import cgroups, network_access, pod_networks, wire
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.halt import dismiss
from leftovers_kit import (
    DomainTraces,
    devices_of,
    group_directories,
    handles_of,
    mounts_below,
    process_ids,
    user_ranges_below,
)

_PODS = 1000 if os.environ.get("COTERIE_FAULTS") == "long" else 300
_AT_ONCE = 20
_KINDS = (PodKind.ORDINARY, PodKind.ENGINE, PodKind.GUEST)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a node has on the machine."""

    devices: tuple[str, ...]
    firewall: tuple[str, ...]
    groups: tuple[str, ...]
    mounts: int
    users: tuple[str, ...]
    supervisor_handles: int
    agent_handles: int
    namespaces: int
    children: int
    files: tuple[str, ...]


def counts(network: NetworkHarness) -> Counts:
    runp, supervisor = network.runp, network.runp.shepherd
    directory = runp.settings.directory
    return Counts(
        devices=tuple(devices_of(supervisor)),
        firewall=tuple(_elements(supervisor)),
        groups=tuple(group_directories(runp.group)),
        mounts=sum(len(mounts_below(pid, str(runp.root))) for pid in (supervisor, os.getpid())),
        users=tuple(user_ranges_below(str(directory))),
        supervisor_handles=len(handles_of(supervisor)),
        agent_handles=len(handles_of(os.getpid())),
        namespaces=sum(each.startswith("net:") for pid in (supervisor, os.getpid()) for each in handles_of(pid)),
        children=len([pid for pid in process_ids() if _parent(pid) == supervisor and pid != _holder(directory)]),
        files=tuple(sorted(str(path.relative_to(runp.root)) for path in _files(runp.root))),
    )


def _files(root: Path) -> Iterator[Path]:
    for name in ("pods", "runp"):
        yield from (root / name).rglob("*")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _holder(directory: Path) -> int:
    """Of the domain's namespace: a child of the supervisor that started it, and of none after that one's death."""
    facts = pod_networks.read_facts(str(directory))
    return int(facts["holder"]) if facts is not None else 0


def _elements(pid: int) -> list[str]:
    """What stands in the sets of the domain's firewall; nothing where there is no `nft` to ask."""
    try:
        command = ["nsenter", f"--net=/proc/{pid}/ns/net", "nft", "list", "table", "inet", "coterie"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line.strip() for line in said.splitlines() if "counter" not in line]


@pytest.fixture
async def network(tmp_path: Path):
    try:
        facts = network_access.ensure(tmp_path / "runp", group_of("test", tmp_path / "runp"), NETWORK)
    except network_access.NotFenced as problem:
        pytest.skip(f"this machine allows no pod networks: {problem}")
    async with RunpHarness.opened(tmp_path, network=NETWORK) as harness:
        yield NetworkHarness(harness, facts)


async def come_and_go(network: NetworkHarness, uid: str, kind: PodKind, *, killed: bool) -> str:
    runp = network.runp
    address = await network.pod(uid, kind, f"task-{uid[-1]}" if kind is not PodKind.ORDINARY else "")
    await runp.start("sleep 600" if killed else "exit 0", uid=uid)
    if not killed:
        await runp.ended(uid=uid, seconds=60)
    await runp.runtime.remove_pod(uid)
    return address


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_is_left_of_many_pods(network):
    """Some end by themselves, some are killed with their pod; of all kinds, many at once."""
    for number in range(3):  # what is opened once, with the first pod
        await come_and_go(network, f"first-{number}", _KINDS[number % 3], killed=False)
    before = await _settled(network)
    addresses: list[str] = []
    for batch in range(0, _PODS, _AT_ONCE):
        addresses += await asyncio.gather(
            *(
                come_and_go(network, f"uid-{number}", _KINDS[number % 3], killed=number % 4 == 0)
                for number in range(batch, batch + _AT_ONCE)
            )
        )
    assert len(set(addresses)) == _PODS, "an address was given out twice within a thousand pods"
    await _until_equal(network, before)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_left_of_pods_whose_supervisor_is_killed_again_and_again(network):
    await come_and_go(network, "first", PodKind.ENGINE, killed=False)
    before = await _settled(network)
    working = asyncio.gather(
        *(
            come_and_go(network, f"uid-{number}", _KINDS[number % 3], killed=number % 2 == 0)
            for number in range(_AT_ONCE)
        ),
        return_exceptions=True,
    )
    for _ in range(6):
        await asyncio.sleep(0.15)
        victim = network.runp.shepherd
        if victim:
            os.kill(victim, signal.SIGKILL)
    outcomes = await working
    for number in range(_AT_ONCE):  # one that was refused in between is removed as the agent would
        await network.runp.runtime.remove_pod(f"uid-{number}")
    assert not [each for each in outcomes if isinstance(each, AssertionError)]
    await _until_equal(network, before)


@pytest.mark.slow
async def test_nothing_is_left_of_a_node_that_is_gone(network):
    traces = DomainTraces(network.runp.root)
    for number in range(3):
        await network.pod(f"uid-{number}", PodKind.ENGINE, "task")
        await network.runp.start("sleep 600", uid=f"uid-{number}")
    traces.note()
    for number in range(3):
        await network.runp.runtime.remove_pod(f"uid-{number}")
    await network.runp.runtime.close()
    left: list[str] = []

    def gone() -> bool:
        left[:] = [each for each in traces.left() if not each.startswith(("files", "control group"))]
        return not left

    try:
        await network.runp.until(gone, 20)
    except AssertionError as problem:
        raise AssertionError("\n".join(left)) from problem


async def _settled(network: NetworkHarness) -> Counts:
    """What is there when the devices of the pods that were removed are gone too."""
    await network.runp.until(lambda: counts(network).devices == ("lo",), 30)
    return counts(network)


async def _until_equal(network: NetworkHarness, before: Counts) -> None:
    """Devices go some moments after their namespaces."""
    try:
        await network.runp.until(lambda: counts(network) == before, 30)
    except AssertionError:
        assert counts(network) == before


async def test_a_supervisor_is_dismissed_only_when_nothing_runs(network):
    runp = network.runp
    await network.pod("uid-1", PodKind.ORDINARY, "")
    await runp.start("sleep 600")
    await runp.runtime.close()
    await dismiss(runp.settings.directory, runp.settings.node)
    await runp.restart()
    assert runp.state().running
    await runp.runtime.remove_pod("uid-1")
    await runp.runtime.close()
    await dismiss(runp.settings.directory, runp.settings.node)
    assert not (runp.settings.directory / wire.SOCKET_NAME).exists()
    assert pod_networks.read_facts(str(runp.settings.directory)) is None


async def test_what_an_earlier_supervisor_left_of_a_pod_goes_with_the_pod(network):
    """It was killed while it removed the pod: its record is gone, its directory or its group is not."""
    runp = network.runp
    await network.pod("uid-1", PodKind.ORDINARY, "")
    groups = cgroups.detect(group_of("test", runp.settings.directory))
    if groups is None:
        pytest.skip("no cgroups may be made here")
    groups.create("uid-2", 0, 2, 0, 10)
    left = runp.settings.directory / "state" / "uid-2"
    left.mkdir()
    (left / "main.0.out").touch()
    await runp.runtime.remove_pod("uid-2")
    await runp.until(lambda: not groups.exists("uid-2") and not left.exists(), 10)
