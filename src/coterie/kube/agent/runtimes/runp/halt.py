"""End all containers of a node whose agent is gone: `coterie down`.

Containers outlive their agent by design, so somebody has to tell the supervisor when they are not to. What ran is stopped
and stays in the records: the next agent sees how it ended and restarts what is to run always, as after a reboot.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.agent.runtimes.runp import cgroups, pod_networks, wire
from coterie.kube.agent.runtimes.runp.client import ConnectionLost, SupervisorClient, group_of
from coterie.kube.network.overlay import cleanup as overlay_cleanup

_STOP_TIMEOUT = 10.0
"""Seconds beyond the grace for the supervisor to kill, to answer and to go."""
_POLL_SECONDS = 0.02
_GROUP_TRIES = 100
_ATTEMPTS = 3


async def halt(directory: Path, node: str, grace: float, *, forget: bool = False) -> int:
    """Stop what runs, then the supervisor; answers how many pods ran. `forget` drops records and control groups as well.

    Raises RuntimeProblem when the supervisor cannot be reached or does not come to an end.
    """
    group = group_of(node, directory)
    for attempt in range(_ATTEMPTS):
        if not _anything_in(directory):
            pod_networks.release(str(directory))
            overlay_cleanup.clean(directory)
            if forget:
                await _remove_groups(group)
            return 0
        try:
            return await _halt_once(directory, group, grace, forget=forget)
        except (ConnectionLost, OSError) as problem:
            # A supervisor that has nothing to keep goes by itself, maybe just now; what it left is seen the next time.
            if attempt == _ATTEMPTS - 1:
                raise RuntimeFailure("RuntimeNotReady", "the process that keeps containers went away") from problem
        except TimeoutError as problem:
            raise RuntimeFailure(
                "RuntimeNotReady", "the process that keeps containers does not come to an end"
            ) from problem
    return 0


async def dismiss(directory: Path, node: str) -> None:
    """End a supervisor that has nothing to keep, and its pod network with it; one whose containers run is left alone."""
    if not _anything_in(directory):
        pod_networks.release(str(directory))
        overlay_cleanup.clean(directory)
        return
    client = _client(directory, group_of(node, directory))
    try:
        async with asyncio.timeout(_STOP_TIMEOUT):
            hello = await client.connect()
            if (await client.ask("quit", release=True)).result:
                overlay_cleanup.clean(directory)
                await _until_gone(hello["pid"])
    except (ConnectionLost, RuntimeFailure, OSError, TimeoutError):
        return  # it goes by itself, or stays for its containers
    finally:
        client.close()
        client.release()


async def _halt_once(directory: Path, group: str, grace: float, *, forget: bool) -> int:
    client = _client(directory, group)
    try:
        async with asyncio.timeout(grace + _STOP_TIMEOUT):
            hello = await client.connect()
            running = [(pod["uid"], run["name"]) for pod in hello["pods"] for run in pod["runs"] if _runs(run)]
            await _each(client, "stop", [{"uid": uid, "name": name, "grace": grace} for uid, name in running])
            if forget:
                await _each(client, "remove", [{"uid": pod["uid"]} for pod in hello["pods"]])
            await client.ask("quit", release=True)
            overlay_cleanup.clean(directory)
            await _until_gone(hello["pid"])
            if forget:
                await _remove_groups(hello["group"])
    finally:
        client.close()
        client.release()
    return len({uid for uid, _ in running})


def _client(directory: Path, group: str) -> SupervisorClient:
    return SupervisorClient(directory, group, without=(), on_event=lambda event: None, on_lost=lambda: None)


def _anything_in(directory: Path) -> bool:
    """Without records there is nothing to stop; without a socket nobody listens. A supervisor is started for neither."""
    with contextlib.suppress(FileNotFoundError):
        if (directory / wire.SOCKET_NAME).exists() or pod_networks.connected_files(str(directory)):
            return True
        return any((directory / "state").iterdir())
    return False


def _runs(run: dict[str, Any]) -> bool:
    return not run["finished_at"]


async def _each(client: SupervisorClient, op: str, orders: list[dict[str, Any]]) -> None:
    await asyncio.gather(*(client.ask(op, **order) for order in orders))


async def _remove_groups(group: str) -> None:
    """The kernel takes a moment to let go of a process that has ended."""
    for _ in range(_GROUP_TRIES):
        if cgroups.remove_node(group):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _until_gone(pid: int) -> None:
    while _alive(pid):  # noqa: ASYNC110 - a process that is not our child tells nobody of its end
        await asyncio.sleep(_POLL_SECONDS)


def _alive(pid: int) -> bool:
    """A process that has ended but was not reaped yet (a container's init may take its time) counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
