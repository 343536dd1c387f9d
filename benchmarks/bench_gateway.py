"""What gateways cost: requests and large bodies over four ways, how soon a change is live, memory, a thousand partners.

    direct         client ─> service
    one Envoy      client ─> Envoy ─> service                                            set up by hand
    two Envoys     client ─> Envoy ═> Envoy ─> service            mutual TLS, HTTP/2     set up by hand
    Coterie        client ─> alice ═> bob ─> service              mutual TLS, HTTP/2, identity, tokens, rules, access logs

Gateways share one core, client and service another, so a rate is what one core of gateway work gives. The ways take turns
and the best round of each counts: other work on the machine comes and goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import gateway_byhand
from benchmarks.gateway_nodes import GatewayNode, partners
from benchmarks.gateway_origin import Bulk, bulk
from benchmarks.gateway_partners import with_many_partners
from benchmarks.load import Load, Outcome, run
from benchmarks.measures import Bench
from benchmarks.node import Pinned, confine, free_port
from benchmarks.table import Row
from coterie.kuscia.gateway.addresses import SocketAddress

_MANY = 32
_HOST = "echo.bob.svc"
_LOOK_EVERY = 0.001
_PATIENCE = 60.0


@dataclass(slots=True)
class Way:
    """A way of a request, and what was measured on it."""

    name: str
    where: SocketAddress
    pids: tuple[int, ...]
    """The gateways on it."""
    many: list[Outcome] = field(default_factory=list)
    single: list[Outcome] = field(default_factory=list)
    down: list[float] = field(default_factory=list)
    up: list[float] = field(default_factory=list)

    @property
    def best(self) -> Outcome:
        return max(self.many, key=lambda each: each.rate)

    @property
    def quickest(self) -> Outcome:
        return min(self.single, key=lambda each: each.p50)


def gateway(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        return asyncio.run(_measure(bench, Path(place)))


async def _measure(bench: Bench, folder: Path) -> list[Row]:
    with _origin(bench, folder) as origin:
        rows = await _between_nodes(bench, folder, origin)
        return rows + await with_many_partners(bench, folder, origin)


@contextlib.contextmanager
def _origin(bench: Bench, folder: Path) -> Iterator[SocketAddress]:
    where = SocketAddress("127.0.21.2", free_port("127.0.21.2"))
    arguments = ["-m", "benchmarks.gateway_origin", where.host, str(where.port)]
    process = Pinned(arguments, bench.cores.load, folder / "origin.log")
    try:
        process.wait_for(where.port, where.host)
        yield where
    finally:
        process.stop()


async def _between_nodes(bench: Bench, folder: Path, origin: SocketAddress) -> list[Row]:
    async with partners(folder, bench.bytecode) as (alice, bob):
        await bob.serve(["echo"], origin)
        await _until_live(alice.internal, _HOST)
        await asyncio.sleep(bench.plan.settle * 4)
        idle = [_memory("idle", bob.memory())]
        rows = await asyncio.to_thread(_traffic, bench, folder, origin, (alice, bob))
        return rows + idle + await _changes(bench, alice, bob, origin)


# ---- requests and large bodies ----


def _traffic(bench: Bench, folder: Path, origin: SocketAddress, nodes: Sequence[GatewayNode]) -> list[Row]:
    with (
        gateway_byhand.one(folder, origin) as (single,),
        gateway_byhand.pair(folder, origin) as (front, back),
        gateway_byhand.pair(folder, origin, logs=True) as (logging_front, logging_back),
    ):
        ways = [
            Way("direct", origin, ()),
            Way("one Envoy by hand", single.where, (single.pid,)),
            Way("two Envoys by hand", front.where, (front.pid, back.pid)),
            Way("Coterie", nodes[0].internal, tuple(node.envoy for node in nodes)),
            Way("two Envoys by hand, with access logs", logging_front.where, (logging_front.pid, logging_back.pid)),
        ]
        for way in ways:
            for pid in way.pids:
                confine(pid, bench.cores.server)
        for _ in range(bench.plan.rounds):
            for way in ways:
                _take_turn(bench, way)
    return _rows(bench, ways)


def _take_turn(bench: Bench, way: Way) -> None:
    plan, core = bench.plan, bench.cores.load

    def small(connections: int) -> Outcome:
        return run(
            Load(
                way.where.port, None, connections, "GET", "/", seconds=plan.seconds / 2, pids=way.pids, core=core,
                address=way.where.host, host=_HOST,
            )
        )  # fmt: skip

    way.many.append(small(_MANY))
    way.single.append(small(1))
    for up, rates in ((False, way.down), (True, way.up)):
        rates.append(bulk(Bulk(way.where.host, way.where.port, _HOST, plan.bulk, up, core)))


def _rows(bench: Bench, ways: Sequence[Way]) -> list[Row]:
    by_hand, ours, logging = ways[2:]

    def goal(way: Way, value: float) -> float | None:
        return value if way is ours else None

    size = f"{bench.plan.bulk / (1 << 20):,.0f} MiB"
    rows = []
    for way in ways:
        best = way.best
        note = f"p50 {best.p50:.2f} ms, p99 {best.p99:.2f} ms"
        if way is logging:
            note += f"; Coterie has {ours.best.rate / best.rate:.2f} of it"
        rows.append(
            Row(f"{way.name}: requests, {_MANY} connections", best.rate, "/s", best.cpu or None,
                goal(way, by_hand.best.rate), note=note)
        )  # fmt: skip
    for way in ways:
        one = way.quickest
        rows.append(
            Row(f"{way.name}: one request at a time, p50", one.p50 * 1e3, "µs", one.cpu or None,
                goal(way, by_hand.quickest.p50 * 1e3), True, f"p99 {one.p99 * 1e3:.0f} µs")
        )  # fmt: skip
    for way in ways:
        rows.append(
            Row(f"{way.name}: {size} down", max(way.down) / 1e6, "MB/s", None, goal(way, max(by_hand.down) / 1e6))
        )
        rows.append(Row(f"{way.name}: {size} up", max(way.up) / 1e6, "MB/s", None, goal(way, max(by_hand.up) / 1e6)))
    return rows


# ---- changes ----


async def _changes(bench: Bench, alice: GatewayNode, bob: GatewayNode, origin: SocketAddress) -> list[Row]:
    plan = bench.plan
    await bob.serve((f"service-{number}" for number in range(plan.services)), origin)
    await _until_live(alice.internal, f"service-{plan.services - 1}.bob.svc")
    await asyncio.sleep(plan.settle * 2)

    async def new_service(number: int) -> float:
        name = f"new-{number}.bob.svc"
        return await _time(bob.serve_one(f"new-{number}", origin), (bob.internal, name), (alice.internal, name))

    async def new_route(number: int) -> float:
        partner = f"partner-{number}"
        return await _time(bob.lead(partner, origin), (bob.internal, f"any.{partner}.svc"))

    rows = []
    for what, change in (("Service", new_service), ("DomainRoute", new_route)):
        rows += await _timed(f"new {what} among {plan.services} services", plan.changes, change)
    return [*rows, _memory(f"{plan.services} services", bob.memory())]


async def _timed(what: str, count: int, change: Callable[[int], Awaitable[float]]) -> list[Row]:
    taken = []
    for number in range(count):
        taken.append(await change(number) * 1e3)
        await asyncio.sleep(0.3)
    taken.sort()
    return [
        Row(f"{what} to live, p50", statistics.median(taken), "ms"),
        Row(f"{what} to live, p99", taken[len(taken) * 99 // 100], "ms", note="goal 200 ms"),
    ]


async def _time(change: Awaitable[object], *doors: tuple[SocketAddress, str]) -> float:
    """From before the object is sent until a call is answered at each of the doors."""
    began = time.perf_counter()
    looking = [asyncio.create_task(_until_live(*door)) for door in doors]
    await change
    return max(await asyncio.gather(*looking)) - began


async def _until_live(where: SocketAddress, host: str) -> float:
    return await asyncio.to_thread(_look, where, host)


def _look(where: SocketAddress, host: str) -> float:
    """When the first call to the host was answered well."""
    connection = http.client.HTTPConnection(where.host, where.port, timeout=_PATIENCE)
    deadline = time.perf_counter() + _PATIENCE
    with contextlib.closing(connection):
        while (now := time.perf_counter()) < deadline:
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 200:
                return time.perf_counter()
            time.sleep(max(0.0, _LOOK_EVERY - (time.perf_counter() - now)))
    raise RuntimeError(f"{host} did not come alive at {where}: {answer.status} {text.decode(errors='replace')}")


def _memory(when: str, parts: dict[str, float]) -> Row:
    # Envoy's program is shared by all gateways of a machine, so its PSS is less than it would be alone.
    note = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
    return Row(f"memory of a domain, {when}, PSS", sum(parts.values()), "MiB", note=note)
