"""Two tasks share a link of 100 Mbit/s: what is reserved, used and reported agrees, and the scheduler acts on it.

    namespace alice: Envoy ──veth, tbf 100 Mbit/s each way──> namespace bob: Envoy ──> sink, which counts

Gateways, link and traffic are real, and so are API server, controllers and scheduler; pods only say that they run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from gateway_kit import Domain, free_port, make_inputs, make_settings, route
from job_world import JOB, POD, JobWorld, a_job, a_task, by_task, job_world
from netns_kit import Namespace, needs_root

from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, GATEWAYS, TaskLinkUsage
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.envoy import Envoy
from coterie.kuscia.gateway.model import DomainService, SnapshotInputs, TaskBandwidthLimit, TaskLink
from coterie.kuscia.gateway.snapshot import snapshot
from coterie.kuscia.gateway.usage_monitor import EVERY, UsageMonitor

MBIT = 1_000_000
HOSTS = {"alice": "10.99.0.1", "bob": "10.99.0.2"}
REASON = "BandwidthInsufficient"
_LIMIT = 40 * MBIT // 8192
"""40 Mbit/s in KiB/s."""


def _no_shaping() -> str:
    made = subprocess.run(
        ["unshare", "-n", "sh", "-c", "ip link add v0 type veth peer name v1 && tc qdisc add dev v0 root tbf rate 1mbit burst 9kb latency 9ms"],
        capture_output=True, check=False,
    )  # fmt: skip
    return "" if made.returncode == 0 else "this machine cannot shape the traffic of a veth"


pytestmark = [needs_root, pytest.mark.skipif(bool(_no_shaping()), reason=_no_shaping()), pytest.mark.timeout(180)]


@contextlib.contextmanager
def _link(directory: Path) -> Iterator[dict[str, tuple[int, Namespace]]]:
    """By domain: the process that holds the namespace."""
    holders: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in HOSTS:
            held = subprocess.Popen(
                ["unshare", "-n", "sh", "-ec", "ip link set lo up; echo ready; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert held.stdout is not None and held.stdout.readline() == b"ready\n"
            holders[name] = held
        alice, bob = (str(holders[name].pid) for name in HOSTS)
        create = f"ip link add eth0 netns {alice} type veth peer name eth0 netns {bob}"
        subprocess.run(create.split(), check=True)
        for name, host in HOSTS.items():
            words = (
                f"ip addr add {host}/24 dev eth0; ip link set eth0 up; "
                "tc qdisc add dev eth0 root tbf rate 100mbit burst 256kb latency 50ms"
            )
            subprocess.run(["nsenter", "-t", str(holders[name].pid), "-n", "sh", "-ec", words], check=True)
        found = {}
        for name, held in holders.items():
            path = directory / f"netns-{name}"
            path.symlink_to(f"/proc/{held.pid}/ns/net")
            found[name] = (held.pid, Namespace(path))
        yield found
    finally:
        for held in holders.values():
            assert held.stdin is not None and held.stdout is not None
            held.stdin.close()
            held.wait()
            held.stdout.close()


class Sink:
    """Reads what comes and counts it, by service."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}

    async def handle(self, request: web.Request) -> web.Response:
        task = request.headers["x-task"]
        with contextlib.suppress(ConnectionResetError):
            async for chunk in request.content.iter_any():
                self.received[task] = self.received.get(task, 0) + len(chunk)
        return web.Response(text="ok")


@contextlib.asynccontextmanager
async def _sink(inside: Namespace) -> AsyncIterator[tuple[Sink, SocketAddress]]:
    sink = Sink()
    app = web.Application(client_max_size=1 << 40)
    app.router.add_post("/", sink.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    bound = inside.inside(lambda: socket.create_server((HOSTS["bob"], 0)))
    await web.SockSite(runner, bound).start()
    try:
        yield sink, SocketAddress(HOSTS["bob"], bound.getsockname()[1])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _gateways(
    root: Path, held: dict[str, tuple[int, Namespace]], *inputs: SnapshotInputs
) -> AsyncIterator[list[Domain]]:
    domains = []
    for each in inputs:
        prefix = ("nsenter", "-t", str(held[each.domain][0]), "-n")
        chosen = make_settings(each, root, stop_seconds=2.0, accept_seconds=30.0, command_prefix=prefix)
        domains.append(Domain(each.domain, each, Envoy(chosen, snapshot(each)), chosen))
    tasks = [asyncio.create_task(each.envoy.run()) for each in domains]
    try:
        for domain in domains:
            await asyncio.wait_for(domain.envoy.ready.wait(), 60)
        yield domains
    finally:
        for domain in domains:
            domain.envoy.stop()
        await asyncio.gather(*tasks)


class Traffic:
    """A task that sends as fast as it may, one stream at a time, until it is told to stop."""

    def __init__(self, http: aiohttp.ClientSession, task: str) -> None:
        self._http, self._task = http, task
        self._stopped = False
        self._running = asyncio.create_task(self._send())

    async def _send(self) -> None:
        headers = {"Host": f"{self._task}-0-spu.bob.svc", "x-task": self._task}
        while not self._stopped:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._http.post("http://gateway/", headers=headers, data=self._body()) as reply:
                    await reply.read()

    async def _body(self) -> AsyncIterator[bytes]:
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends and not self._stopped:
            yield bytes(64 << 10)

    async def stop(self) -> None:
        self._stopped = True
        await self._running


class Rig:
    def __init__(self, world: JobWorld, alice: Domain, monitor: UsageMonitor, sink: Sink) -> None:
        self.world, self.alice, self.monitor, self.sink = world, alice, monitor, sink

    async def measure(self) -> dict[str, TaskLinkUsage]:
        """As the monitor does every two seconds; then controllers and scheduler see it."""
        await asyncio.sleep(EVERY)
        await self.monitor.measure_once()
        await self.world.settle(1)
        found = await self.world.client.get(GATEWAYS, "gw", "alice")
        assert found.status is not None
        return {each.task: each for each in found.status.usage or ()}

    async def until(self, what: Callable[[dict[str, TaskLinkUsage]], bool], seconds: float) -> dict[str, TaskLinkUsage]:
        async with asyncio.timeout(seconds):
            while not what(found := await self.measure()):
                continue
        return found

    async def runs(self, name: str) -> None:
        async def running() -> bool:
            return (await self.world.job_status(name)).get("phase") == "Running" and any(
                pod["metadata"]["name"].startswith(f"t-{name}-") and pod["status"].get("phase") == "Running"
                for pod in await self.world.list(POD, "alice")
            )

        await self.world.until(running, 60)

    async def end(self, name: str) -> None:
        for domain in HOSTS:
            for pod in await self.world.list(POD, domain):
                if pod["metadata"]["name"].startswith(f"t-{name}-"):
                    ended = {"status": {"phase": "Succeeded"}}
                    await self.world.client.patch_status(POD, pod["metadata"]["name"], domain, ended)
        await self.world.until_phase("Succeeded", name)


def _job(name: str, request: str) -> dict[str, object]:
    return a_job(a_task("a", taskID=f"t-{name}", bandwidthRequest=request), name=name)


@contextlib.asynccontextmanager
async def _rig(root: Path) -> AsyncIterator[tuple[Rig, aiohttp.ClientSession]]:
    async with contextlib.AsyncExitStack() as stack:
        held = stack.enter_context(_link(root))
        sink, where = await stack.enter_async_context(_sink(held["bob"][1]))
        alice, bob = (
            replace(
                make_inputs(name, root, Protocol.MTLS),
                internal=None,
                external=SocketAddress(host, free_port("127.0.0.1")),
            )
            for name, host in HOSTS.items()
        )
        services = tuple(
            DomainService(f"t-{name}-0-spu", (where,), access=frozenset({"alice"}), task=f"t-{name}") for name in "ab"
        )
        bob = replace(
            bob, services=services, routes=(route("alice", "bob", bob, "bob"), route("bob", "alice", alice, "bob"))
        )
        alice = replace(
            alice,
            routes=(route("alice", "bob", bob, "alice"), route("bob", "alice", alice, "alice")),
            task_links=tuple(TaskLink(f"t-{name}", "bob") for name in "ab"),
            limits=tuple(TaskBandwidthLimit(f"t-{name}", "bob", _LIMIT) for name in "ab"),
        )
        at_alice, _ = await stack.enter_async_context(_gateways(root, held, alice, bob))
        world = await stack.enter_async_context(job_world())
        world.outcome = by_task(a="Running")
        annotations = {labels.COTERIE_LINK_BANDWIDTH: "100Mbps"}
        spec = {"source": "alice", "destination": "bob", "authenticationType": "Token"}
        meta = {"name": "alice-bob", "namespace": "alice", "annotations": annotations}
        await world.client.create(DOMAIN_ROUTES.as_dynamic, {"metadata": meta, "spec": spec})
        gateway = {"metadata": {"name": "gw", "namespace": "alice"}}
        await world.client.create(GATEWAYS.as_dynamic, gateway)
        stamp = "2026-01-01T00:00:00Z"
        lasting = {"address": "", "uptime": stamp, "heartbeatTime": stamp, "publicKey": "", "version": ""}
        await world.client.patch_status(GATEWAYS.as_dynamic, "gw", "alice", {"status": lasting})
        monitor = UsageMonitor(
            world.client, "alice", "gw", at_alice.envoy.admin, lambda: at_alice.inputs, asyncio.Event()
        )
        connector = aiohttp.UnixConnector(path=str(alice.node_socket.host), limit=8)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        yield Rig(world, at_alice, monitor, sink), http


async def test_reserved_used_and_reported_agree_and_the_scheduler_acts_on_it(tmp_path: Path) -> None:
    async with _rig(tmp_path) as (rig, http):
        world = rig.world
        for name in "ab":
            await world.client.create(JOB, _job(name, "40Mbps"))
            await rig.runs(name)
        traffic = {name: Traffic(http, f"t-{name}") for name in "ab"}
        await rig.measure()
        await rig.measure()  # the first second's worth passes at once
        before, began = dict(rig.sink.received), time.monotonic()
        await rig.measure()
        await rig.measure()
        usage = await rig.measure()
        after, elapsed = dict(rig.sink.received), time.monotonic() - began
        for name in "ab":
            arrived = 8 * (after[f"t-{name}"] - before[f"t-{name}"]) / elapsed
            reported = usage[f"t-{name}"].sent_bits_per_second
            assert reported == pytest.approx(arrived, rel=0.05)
            assert reported == pytest.approx(40 * MBIT, rel=0.05), "the reservation, which is the limit too"
        # A third one does not fit.
        await world.client.create(JOB, _job("c", "30Mbps"))

        async def waits(name: str) -> bool:
            return (await world.job_status(name)).get("reason") == REASON

        await world.until(lambda: waits("c"), 60)
        message = (await world.job_status("c"))["message"]
        assert "link alice-bob has 100 Mbit/s, 80 Mbit/s of it are taken and the task requests 30 Mbit/s" in message
        # It starts when the link frees.
        await traffic["b"].stop()
        await rig.end("b")
        await rig.alice.change(task_links=(TaskLink("t-a", "bob"),))
        await rig.until(lambda found: "t-b" not in found, 20)
        await rig.runs("c")
        await rig.end("c")
        # The limit of the first is raised while it runs: it takes more than it reserved, and that is seen.
        await rig.alice.change(limits=(TaskBandwidthLimit("t-a", "bob", 2 * _LIMIT),))
        over = await rig.until(lambda found: found["t-a"].sent_bits_per_second > 70 * MBIT, 20)
        assert over["t-a"].limit_bits_per_second == 2 * _LIMIT * 8192
        await world.client.create(JOB, _job("d", "40Mbps"))
        await world.until(lambda: waits("d"), 60)
        await traffic["a"].stop()
        await rig.end("a")
        await rig.alice.change(limits=(), task_links=())
        await rig.until(lambda found: not found, 20)
        await rig.runs("d")
        await rig.end("d")
