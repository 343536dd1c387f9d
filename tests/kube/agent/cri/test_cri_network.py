"""Pods on containerd are on the node's pod network like those of RunP: same rules, same ways in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cri_kit import CriHarness, needs_containerd
from runp_kit import RunpHarness

from coterie.kube.agent.runtimes.by_handler import RuntimesByHandler
from coterie.kube.agent.runtimes.cri import cni_plugin
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass, PodSandbox
from coterie.kube.agent.runtimes.runp import network_access, pod_networks
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.settings import PodNetworkSettings

pytestmark = needs_containerd
NETWORK = PodNetworkSettings(ports=(("udp", 53),))
SERVER = "while :; do echo hello from $HOSTNAME | nc -l -p 9000; done"


@pytest.fixture
async def runp(tmp_path: Path) -> AsyncIterator[RunpHarness]:
    directory = tmp_path / "runp"
    network_access.ensure(directory, group_of("test", directory), NETWORK)
    async with RunpHarness.opened(tmp_path, network=NETWORK) as harness:
        yield harness


@pytest.fixture
async def cri(tmp_path: Path, daemon_settings: CriSettings, runp: RunpHarness) -> AsyncIterator[CriHarness]:
    # Its plugin belongs to this test's supervisor, so it has a containerd of its own.
    settings = CriSettings(
        tmp_path / "cri", tmp_path / "containerd", daemon_settings.images, "test", f"{daemon_settings.group}-net", tmp_path / "log"
    )  # fmt: skip
    async with CriHarness.opened(tmp_path, settings, runp.runtime) as harness:
        yield harness


async def pod(cri: CriHarness, uid: str, kind: PodKind = PodKind.ORDINARY, group: str = "") -> str:
    address = cri.runtime.assign_address(uid, PodNetworkClass(kind, group))
    await cri.prepare(uid, address=address, kind=kind, group=group)
    await cri.start(SERVER, "server", uid)
    return address


async def call(cri: CriHarness, uid: str, address: str) -> str:
    session = await cri.runtime.exec(
        uid, "server", ["sh", "-c", f"nc -w 2 {address} 9000 </dev/null || echo refused"], stdin=False, tty=False
    )
    said = b""
    while data := await asyncio.wait_for(session.read_stdout(), 10):
        said += data
    await session.close()
    return said.decode().strip()


async def until_serving(cri: CriHarness, uid: str) -> bytes:
    for _ in range(100):
        try:
            reader, writer = await cri.runtime.dial(uid, 9000)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        said = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        if said:
            return said
    raise AssertionError("nobody serves")


async def test_pods_on_the_pod_network(cri: CriHarness, runp: RunpHarness) -> None:
    engine = PodKind.ENGINE
    one, two, apart, plain = await asyncio.gather(
        pod(cri, "one", engine, "task-1"), pod(cri, "two", engine, "task-1"), pod(cri, "apart", engine, "task-2"), pod(cri, "plain")
    )  # fmt: skip
    native = runp.runtime.assign_address("native", PodNetworkClass())
    assert len({one, two, apart, plain, native}) == 5
    # Probes and port-forward go into the pod's own network.
    for uid in ("one", "two", "apart", "plain"):
        assert await until_serving(cri, uid) == f"hello from pod-{uid}\n".encode()
    # The rules of the pod network.
    assert await call(cri, "one", two) == "hello from pod-two"
    assert await call(cri, "one", apart) == "refused"
    assert await call(cri, "one", plain) == "refused"
    # With pods of RunP.
    await runp.runtime.prepare_pod(
        PodSandbox("native", "alice", "native", "native", runp.root / "pods/native", address=native)
    )
    await runp.start(f"while :; do python3 -m http.server 9000 --bind {native}; done", "server", uid="native")
    for _ in range(100):
        said = await call(cri, "plain", native)
        if said != "refused":
            break
        await asyncio.sleep(0.05)
    assert said != "refused"
    # Without supervisor and agent the network stays; the next agent dials through it.
    await cri.runtime.close()
    await runp.runtime.close()
    assert pod_networks.connected_files(str(runp.settings.directory))
    facts = pod_networks.read_facts(str(runp.settings.directory))
    assert facts is not None and pod_networks.holder_alive(facts)
    await runp.restart()
    cri.network = runp.runtime
    await cri.restart()
    assert await until_serving(cri, "one") == b"hello from pod-one\n"
    assert runp.runtime.assign_address("later", PodNetworkClass(engine, "task-1")) not in {one, two, apart}
    assert await call(cri, "one", two) == "hello from pod-two"
    # Only what is expected is connected, and never the machine's own network.
    directory = str(runp.settings.directory)
    with pytest.raises(cni_plugin.ConnectRefused, match="no pod nobody"):
        cni_plugin.connect(directory, "nobody", "/proc/self/ns/net")
    with pytest.raises(cni_plugin.ConnectRefused, match="not a namespace of a pod"):
        cni_plugin.connect(directory, "plain", "/proc/self/ns/net")
    assert await call(cri, "plain", native) != "refused", "a refused request changes nothing"
    # A removed pod leaves nothing on the network.
    await asyncio.gather(*(cri.runtime.remove_pod(uid) for uid in ("one", "two", "apart", "plain")))
    assert not pod_networks.connected_files(directory)


async def test_handlers_choose_the_runtime(cri: CriHarness, runp: RunpHarness) -> None:
    both = RuntimesByHandler((runp.runtime, cri.runtime), {"runc": cri.runtime})
    assert {handler.name for handler in both.handlers() if handler.available} >= {"runp", "runc"}
    address = both.assign_address("routed", PodNetworkClass())
    sandbox = PodSandbox(
        "routed", "alice", "routed", "routed", cri.root / "pods/routed", address=address, handler="runc"
    )
    await both.prepare_pod(sandbox)
    assert [pod.uid for pod in cri.runtime.pods()] == ["routed"] and not runp.runtime.pods()
    assert both.resize_problem("routed") == ""
    await both.remove_pod("routed")
    assert both.pod_ip("routed") == ""
