"""Sees that the pod network has a process that holds it, also while no supervisor runs.

A supervisor replaces its holder itself. A node without pods has no supervisor: then a holder that is killed is noticed here,
and a supervisor is started, which enters the network by the descriptors that the agent has.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from coterie.base.log import logger
from coterie.kube.agent.runtimes.runp import pod_networks

_log = logger("runp")
_POLL_SECONDS = 0.1


class HolderMonitor:
    def __init__(
        self, directory: Path, wake: Callable[[], Awaitable[None]], renewed: Callable[[], None] = lambda: None
    ) -> None:
        """`wake` sees that there is a supervisor; `renewed` is called when the network is another one than before."""
        self._directory = str(directory)
        self._wake = wake
        self._renewed = renewed
        self._inode = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="runp-holder")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            facts = pod_networks.read_facts(self._directory)
            if facts is not None and pod_networks.holder_alive(facts):
                before, self._inode = self._inode, facts["inode"]
                if before not in (0, self._inode):
                    self._renewed()
                await self._ended(facts["holder"])
                _log.warning("The process that holds the pod network ended; another one takes its place")
                await asyncio.sleep(_POLL_SECONDS)  # until then the file may still name it
            else:
                await self._wake()
                await asyncio.sleep(_POLL_SECONDS)

    async def _ended(self, pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return  # it has ended
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
