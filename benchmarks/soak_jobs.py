"""Jobs all the time while nodes, gateways, engines and what keeps the pod network are killed at random.

    python -m benchmarks.soak_jobs --seconds 1200

Every job must end, on both sides alike: as Succeeded, or as Failed where an engine of it was killed. At the end nothing may
be left of any: no job, task, summary, pod, service, ConfigMap, group, reservation or process. Exit status 1 when that is not
so; what is left is named with its state.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil

from benchmarks.job_network import PARTIES, JobNetwork, Side, job, job_network, task
from coterie.cli import background
from coterie.kube.agent.runtimes.runp import pause, pod_networks
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.job import (
    KUSCIA_JOB_SUMMARIES,
    KUSCIA_JOBS,
    KUSCIA_TASK_SUMMARIES,
    KUSCIA_TASKS,
    TASK_RESOURCE_GROUPS,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES

_AWAY = (ApiError, TransportError)
_LEFT: tuple[Kind[Object], ...] = tuple(
    kind.as_dynamic
    for kind in (
        *(KUSCIA_JOBS, KUSCIA_TASKS, KUSCIA_JOB_SUMMARIES, KUSCIA_TASK_SUMMARIES),
        *(PODS, SERVICES, CONFIG_MAPS, TASK_RESOURCE_GROUPS, TASK_RESOURCES),
    )
)
_TASK_UID = "kuscia.secretflow/task-uid"
_PATIENCE = 180.0


class Soak:
    def __init__(self, net: JobNetwork, seed: int) -> None:
        self.net = net
        self.random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._number = 0

    # Jobs.

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            self._number += 1
            await self._one(f"soak-{self._number}")

    async def _one(self, name: str) -> None:
        steps = [task("a"), task("b", "a"), task("c", "a", image="sample"), task("d", "bc")]
        made = job(name, steps[: self.random.randint(1, 4)], maxParallelism=2)
        await self._try(lambda: self.net.alice.submit(made))
        names = {name}
        for side in self.net.sides.values():
            await asyncio.wait_for(side.until(names), _PATIENCE)
        phases = {side.phase(name) for side in self.net.sides.values()}
        self.ends[" and ".join(sorted(phases))] += 1
        if phases not in ({"Succeeded"}, {"Failed"}):
            self.wrong.append(f"{name} ended as {phases}")
        await self._try(lambda: self.net.alice.remove(name))
        for side in self.net.sides.values():
            await asyncio.wait_for(side.until(names, gone=True), _PATIENCE)

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """Again and again, since the node may be dead just now. What was carried out unnoticed is refused the next time."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                await step()
                return
            except _AWAY as problem:
                if isinstance(problem, ApiError) and problem.code in (404, 409):
                    return
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    # Kills.

    async def kill(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(0.5, 4.0))
            side = self.net.sides[self.random.choice(PARTIES)]
            what = self.random.choice(("node", "envoy", "engine", "both", "supervisor", "holder"))
            self.kills[what] += 1
            await getattr(self, f"_{what}")(side)

    async def _node(self, side: Side) -> None:
        pid = side.pid
        if not pid:
            words = side.paths.log("coterie").read_text(errors="replace").splitlines()[-3:]
            self.wrong.append(f"the node of {side.domain} ended by itself: {' | '.join(words)}")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in range(500):
            if not side.pid:
                break
            await asyncio.sleep(0.02)
        background.start(side.paths, os.environ)

    async def _envoy(self, side: Side) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(side.envoy, signal.SIGKILL)

    async def _supervisor(self, side: Side) -> None:
        where = str(side.paths.home / "var" / "run" / "runp")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if where in process.cmdline():
                    process.kill()

    async def _holder(self, side: Side) -> None:
        facts = pod_networks.read_facts(str(side.paths.home / "var" / "run" / "runp"))
        _kill(int(facts.get("holder", 0)) if facts is not None else 0)

    async def _both(self, side: Side) -> None:
        await self._envoy(side)
        await self._node(side)

    async def _engine(self, side: Side) -> None:
        for process in containers(side)[:1]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    # The end.

    async def left(self) -> list[str]:
        found = []
        for side in self.net.sides.values():
            for kind in _LEFT:
                for each in (await side.client.list(kind)).items:
                    meta = each["metadata"]
                    if kind.resource.group or _TASK_UID in (meta.get("labels") or {}):
                        found.append(f"{side.domain}: {kind} {named(each)}")
            found += [f"{side.domain}: process {each.pid}" for each in containers(side)]
            found += [f"{side.domain}: job {name}" for name in sorted(side.names)]
        return found

    async def nothing_left(self) -> list[str]:
        deadline = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(*_AWAY):
                found = await self.left()
                if not found or time.monotonic() > deadline:
                    return found
            await asyncio.sleep(0.3)


def named(obj: Object) -> str:
    """An object with what says why it is still there."""
    meta, status = obj["metadata"], obj.get("status") or {}
    facts = {
        "phase": status.get("phase"),
        "deleted": meta.get("deletionTimestamp"),
        "finalizers": ",".join(meta.get("finalizers") or ()),
        "node": (obj.get("spec") or {}).get("nodeName"),
    }
    told = ", ".join(f"{key} {value}" for key, value in facts.items() if value)
    return f"{meta.get('namespace', '')}/{meta['name']}" + (f" ({told})" if told else "")


def containers(side: Side) -> list[psutil.Process]:
    where = str(side.paths.home / "var" / "run" / "runp")
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if where in process.cmdline():
                # The process that holds the pod network is no container.
                found += [each for each in process.children(recursive=True) if each.cmdline() != [pause.NAME]]
    return found


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def soak(root: Path, seconds: float, workers: int, seed: int) -> int:
    async with job_network(root) as net:
        soaking = Soak(net, seed)
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(soaking.work(until), name=f"jobs {number}")
            group.create_task(soaking.kill(until), name="kills")
        left = await soaking.nothing_left()
        memory = {side.domain: f"{side.memory():.0f} MiB" for side in net.sides.values()}
        print(f"seed {seed}, {seconds:.0f} s: kills {dict(soaking.kills)}, jobs {dict(soaking.ends)}, memory {memory}")
        for line in (*soaking.wrong, *(f"left: {each}" for each in left)):
            print(line, flush=True)
    return 1 if soaking.wrong or left else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.soak_jobs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=4, help="jobs at once")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers; 0: another one each time")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="coterie-soak-") as place:
        seed = args.seed or random.SystemRandom().randint(1, 1 << 31)
        return asyncio.run(soak(Path(place) / "net", args.seconds, args.workers, seed))


if __name__ == "__main__":
    sys.exit(main())
