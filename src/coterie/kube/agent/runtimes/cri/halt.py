"""End all pods on containerd of a node whose agent is gone, and containerd itself: for `coterie down`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from coterie.kube.agent.runtimes.cri import cni_plugin
from coterie.kube.agent.runtimes.cri.cni_plugin import ConnectRefused
from coterie.kube.agent.runtimes.cri.daemon import ContainerdDaemon, ContainerPrograms, find_programs
from coterie.kube.agent.runtimes.cri.runtime import CriRuntime
from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.protocol import PodNetworkClass, PodSandbox
from coterie.kube.agent.runtimes.runp import pod_networks


async def halt(settings: CriSettings, supervisor: Path, grace: float, *, forget: bool) -> int:
    """Answers how many pods ran. `supervisor`: directory of the pod supervisor; `forget` drops the pods' records as well.

    Raises RuntimeFailure when containerd cannot be used.
    """
    if not any(settings.records.glob("*.json")) and not ContainerdDaemon(settings, ContainerPrograms(), None).pid:
        return 0
    programs = find_programs()
    network = _SupervisorOnly(supervisor)
    runtime = CriRuntime(settings, network, programs)
    await runtime.open()
    try:
        running = [pod.uid for pod in runtime.pods() if any(state.running for state in pod.containers)]
        for pod in runtime.pods():
            await runtime.stop_pod(pod.uid, grace)
        await runtime.stop_sandboxes()
        for pod in runtime.pods():
            if forget:
                await runtime.remove_pod(pod.uid)
            else:
                await network.disconnect_pod(pod.uid)
        await runtime.end_daemon()
    finally:
        await runtime.close()
    return len(running)


class _SupervisorOnly:
    """The pod network without an agent: pods leave it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def network_directory(self) -> Path | None:
        return self._directory if (self._directory / pod_networks.FACTS_FILE).exists() else None

    async def expect_pod(self, sandbox: PodSandbox) -> None:
        return

    async def disconnect_pod(self, pod_uid: str) -> None:
        try:
            cni_plugin.request(str(self._directory), {"op": "disconnect", "uid": pod_uid})
        except (OSError, ConnectRefused):
            # No supervisor runs: what it would read when it starts is removed.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._directory / pod_networks.CONNECTED / f"{pod_uid}.json")

    async def dial_connected(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise NotImplementedError

    def assign_address(self, pod_uid: str, network: PodNetworkClass) -> str:
        raise NotImplementedError

    def pod_ip(self, pod_uid: str) -> str:
        return ""
