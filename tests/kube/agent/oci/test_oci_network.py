"""Pods of OCI runtimes on the pod network: their own addresses, each other, and whoever knocks from the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from oci_kit import OciHarness
from runp_kit import log_text

from coterie.kube.agent.runtimes.protocol import PodNetworkClass, PodSandbox
from coterie.kube.agent.runtimes.runp import network_access
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.settings import PodNetworkSettings

NETWORK = PodNetworkSettings(ports=(("udp", 53),))


@pytest.fixture
async def networked(tmp_path: Path, handler: str, images: Path) -> AsyncIterator[OciHarness]:
    try:
        network_access.ensure(tmp_path / "runp", group_of("test", tmp_path / "runp"), NETWORK)
    except network_access.NotFenced as problem:
        pytest.skip(f"this machine allows no pod networks: {problem}")
    async with OciHarness.opened(tmp_path, handler, images=images, network=NETWORK) as harness:
        yield harness


async def test_pods_have_addresses_and_reach_each_other(networked: OciHarness) -> None:
    box = networked
    addresses = {}
    for uid in ("uid-1", "uid-2"):
        addresses[uid] = box.runtime.assign_address(uid, PodNetworkClass())
        directory = box.root / "pods" / uid
        await box.runtime.prepare_pod(
            PodSandbox(uid, "alice", uid, uid, directory, address=addresses[uid], handler=box.handler)
        )
    await box.start("while true; do echo served | nc -l -p 9000; done", "server")
    for _ in range(200):
        try:
            reader, writer = await box.runtime.dial("uid-1", 9000)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            assert await asyncio.wait_for(reader.read(6), 10) == b"served"
            writer.close()
            break
    session = await box.runtime.exec("uid-1", "server", ["cat", "/proc/net/dev"], stdin=False, tty=False)
    assert b"eth0" in await session.read_stdout() and await session.wait() == 0
    await session.close()
    script = f"sleep 0.2; nc {addresses['uid-1']} 9000 </dev/null; cat /proc/net/dev; nc -w 1 127.0.0.1 9000 </dev/null || echo own"
    spec = await box.start(script, "client", uid="uid-2")
    assert (await box.ended("client", "uid-2")).exit_code == 0
    text = log_text(spec.log_path)
    assert "served" in text and "eth0" in text and "own" in text, "a pod's loopback is its own"
    await asyncio.wait_for(box.runtime.stop_container("uid-1", "server", 60), 30)
    assert box.state("server").exit_code == 143
