"""What a pod's boundary costs: its own network, users and root.

    a pod start of the runtime          with the boundary / without network and users / with `unshare`, `ip` and `nft`
    calls through the gateways          pod ─> alice ═> bob ─> pod / the same nodes on the machine's network, as before

The kinds take turns, so whatever else the machine does meets them all alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench_pods import Starts
from benchmarks.gateway_nodes import GatewayNode, partners
from benchmarks.load import Load, Outcome, run
from benchmarks.measures import Bench
from benchmarks.node import Pinned, confine, free_port
from benchmarks.table import Row
from coterie.kube.agent.images.store import HOST_IMAGE
from coterie.kube.agent.runtimes.protocol import ContainerSpec, PodNetworkClass, PodSandbox
from coterie.kube.agent.runtimes.runp import network_access
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.halt import halt
from coterie.kube.agent.runtimes.runp.runtime import RunpRuntime
from coterie.kube.agent.runtimes.runp.settings import PodNetworkSettings, RunpSettings
from coterie.kuscia.gateway.addresses import SocketAddress

_NODE = "bench-boundary"
_NETWORK = PodNetworkSettings(ports=(("udp", 53), ("tcp", 80)))
_TOOLS = ("unshare", "nsenter", "ip")
_MANY = 32
_HOST = "echo.bob.svc"


def boundary(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return [
            *asyncio.run(_pod_starts(bench, Path(place) / "starts")),
            *asyncio.run(_gateways(bench, Path(place) / "gateways")),
        ]


# ---- pod starts ----


@contextlib.asynccontextmanager
async def _runtime(root: Path, *, fenced: bool) -> AsyncIterator[RunpRuntime]:
    settings = RunpSettings(
        directory=root / "runp",
        images=root / "images",
        node=_NODE,
        network=_NETWORK if fenced else None,
        without=() if fenced else ("users", "network"),
    )
    if fenced:
        await asyncio.to_thread(
            network_access.ensure, settings.directory, group_of(_NODE, settings.directory), _NETWORK
        )
    runtime = RunpRuntime(settings)
    await runtime.open()
    try:
        yield runtime
    finally:
        await runtime.close()
        await halt(settings.directory, _NODE, 0.0, forget=True)


async def _started(runtime: RunpRuntime, root: Path, uid: str) -> float:
    """Milliseconds from the pod's preparation until its program runs; it is removed again."""
    began = time.perf_counter()
    address = runtime.assign_address(uid, PodNetworkClass())
    await runtime.prepare_pod(PodSandbox(uid, "bench", uid, uid, root / "pods" / uid, address=address))
    log = root / "logs" / f"{uid}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    await runtime.start_container(uid, ContainerSpec("c", 0, HOST_IMAGE, ("sleep", "600"), (), (), "", (), log))
    waited = time.perf_counter() - began
    await runtime.remove_pod(uid)
    return waited * 1e3


async def _pod_starts(bench: Bench, root: Path) -> list[Row]:
    fenced, plain, bare = Starts(), Starts(), Starts()
    tools = all(shutil.which(each) for each in _TOOLS) and os.getuid() == 0
    async with (
        _runtime(root / "fenced", fenced=True) as with_network,
        _runtime(root / "plain", fenced=False) as without,
    ):
        for number in range(bench.plan.pod_starts):
            fenced.waits.append(await _started(with_network, root / "fenced", f"pod-{number}"))
            plain.waits.append(await _started(without, root / "plain", f"pod-{number}"))
            if tools:
                bare.waits.append(await asyncio.to_thread(_by_tools))
    over = fenced.share(0.5) - plain.share(0.5)
    rows = [
        *fenced.rows("pod start of the runtime, own network and users", f"{over:.1f} ms over the one without"),
        *plain.rows("pod start of the runtime, without network and users", ""),
    ]
    return [*rows, *bare.rows("namespaces and a network with unshare and ip", "")] if tools else rows


def _by_tools() -> float:
    """The same namespaces and network, without a root, limits or a firewall."""
    began = time.perf_counter()
    command = ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sleep", "600"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        pid = _child_of(process.pid)
        _batch([], f"link add coteriebench0 type veth peer name eth0 netns {pid}\nlink set coteriebench0 up\n")
        inside = "link set lo up\nlink set eth0 up\naddr add 198.18.0.2/32 dev eth0\nroute add 198.18.0.1 dev eth0\nroute add default via 198.18.0.1\n"  # fmt: skip
        _batch(["nsenter", f"--net=/proc/{pid}/ns/net"], inside)
        return (time.perf_counter() - began) * 1e3
    finally:
        process.kill()
        process.wait()
        subprocess.run(["ip", "link", "del", "coteriebench0"], stderr=subprocess.DEVNULL, check=False)


def _child_of(pid: int) -> int:
    """The one that `unshare` forked, which is in the new namespaces."""
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.0002)
    return int(found[0])


def _batch(prefix: list[str], lines: str) -> None:
    subprocess.run([*prefix, "ip", "-batch", "-"], input=lines.encode(), check=True)


# ---- gateways ----


@dataclass(slots=True)
class Way:
    name: str
    where: SocketAddress
    prefix: tuple[str, ...]
    """Puts the client where it calls from."""
    pids: tuple[int, ...]
    many: list[Outcome] = field(default_factory=list)
    single: list[Outcome] = field(default_factory=list)

    @property
    def best(self) -> Outcome:
        return max(self.many, key=lambda each: each.rate)

    @property
    def quickest(self) -> Outcome:
        return min(self.single, key=lambda each: each.p50)


@contextlib.asynccontextmanager
async def _inside(bench: Bench, folder: Path) -> AsyncIterator[Way]:
    async with partners(folder, bench.bytecode, fenced=True) as (alice, bob):
        caller, callee = await alice.pod("caller"), await bob.pod("callee")
        with _origin(bench, folder, callee.address, 8000, bob.enter(callee)) as where:
            await bob.serve_one("echo", where)
            gateway = SocketAddress(alice.pod_gateway, 80)
            yield Way("from a pod to a pod", gateway, alice.enter(caller), _envoys((alice, bob)))


@contextlib.asynccontextmanager
async def _outside(bench: Bench, folder: Path) -> AsyncIterator[Way]:
    async with partners(folder, bench.bytecode, fenced=False, net=23) as (alice, bob):
        with _origin(bench, folder, "127.0.23.2", free_port("127.0.23.2"), ()) as where:
            await bob.serve_one("echo", where)
            yield Way("on the machine's network", alice.internal, (), _envoys((alice, bob)))


async def _gateways(bench: Bench, folder: Path) -> list[Row]:
    async with _inside(bench, folder / "fenced") as inside, _outside(bench, folder / "before") as before:
        await asyncio.to_thread(_traffic, bench, [inside, before])
        return _rows([inside, before])


async def from_pod_to_pod(bench: Bench, folder: Path) -> Way:
    async with _inside(bench, folder) as way:
        await asyncio.to_thread(_traffic, bench, [way])
        return way


async def fenced_start(bench: Bench, root: Path) -> float:
    """The median in milliseconds."""
    starts = Starts()
    async with _runtime(root, fenced=True) as runtime:
        for number in range(bench.plan.pod_starts):
            starts.waits.append(await _started(runtime, root, f"pod-{number}"))
    return starts.share(0.5)


def _envoys(nodes: tuple[GatewayNode, ...]) -> tuple[int, ...]:
    return tuple(each.envoy for each in nodes)


@contextlib.contextmanager
def _origin(bench: Bench, folder: Path, host: str, port: int, prefix: tuple[str, ...]) -> Iterator[SocketAddress]:
    arguments = ["-m", "benchmarks.gateway_origin", "0.0.0.0" if prefix else host, str(port)]
    process = Pinned(arguments, bench.cores.load, folder / "origin.log", prefix=prefix)
    try:
        if not prefix:
            process.wait_for(port, host)
        yield SocketAddress(host, port)
    finally:
        process.stop()


def _traffic(bench: Bench, ways: list[Way]) -> None:
    for way in ways:
        _until_answered(bench, way)
        for pid in way.pids:
            confine(pid, bench.cores.server)
    for _ in range(bench.plan.rounds):
        for way in ways:
            way.many.append(_load(bench, way, _MANY))
            way.single.append(_load(bench, way, 1))


def _until_answered(bench: Bench, way: Way) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            _load(bench, way, 1, count=1)
            return
        except (RuntimeError, subprocess.CalledProcessError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _load(bench: Bench, way: Way, connections: int, count: int = 0) -> Outcome:
    return run(
        Load(
            way.where.port, None, connections, "GET", "/", seconds=bench.plan.seconds / 2, count=count, pids=way.pids,
            core=bench.cores.load, address=way.where.host, host=_HOST,
        ),
        way.prefix,
    )  # fmt: skip


def _rows(ways: list[Way]) -> list[Row]:
    inside, before = ways
    rows = []
    for way in ways:
        goal = before.best.rate if way is inside else None
        note = "goal 0.95 of the machine's network" if way is inside else "as before pods had networks"
        rows.append(Row(f"gateways {way.name}: requests, {_MANY} connections", way.best.rate, "/s", way.best.cpu, goal, note=note))  # fmt: skip
    for way in ways:
        p50 = way.quickest.p50 * 1e3
        goal = before.quickest.p50 * 1e3 if way is inside else None
        rows.append(Row(f"gateways {way.name}: one request at a time, p50", p50, "µs", way.quickest.cpu, goal, True))
    return rows
