"""A gateway with very many partners: start, memory, what a request costs, how soon a new token or partner is in force.

The partners are made up, and only the gateway is real: `snapshot` and its Envoy. Each partner has a route both ways, with
a token and a pinned certificate of its own. A second, equally real gateway is the one partner that really calls.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.load import Load, run
from benchmarks.measures import Bench
from benchmarks.node import confine, free_port, memory_of
from benchmarks.table import Row
from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.addresses import KeyPair, SocketAddress
from coterie.kuscia.gateway.envoy import Envoy, EnvoySettings
from coterie.kuscia.gateway.model import DomainService, Route, RoutePort, SnapshotInputs
from coterie.kuscia.gateway.snapshot import snapshot

_CALLER, _SERVER = ("anna", "127.0.21.3"), ("boris", "127.0.21.4")


def _certificate(folder: Path, name: str) -> str:
    authority = pki.self_signed_ca(name, pki.new_key("ec"), now=datetime.now(UTC))
    pki.save_key(folder / f"{name}.key", authority.key)
    pki.save_certificate(folder / f"{name}.crt", authority.certificate)
    return (folder / f"{name}.crt").read_text()


def _inputs(folder: Path, name: str, host: str) -> SnapshotInputs:
    internal, external, handshake = (SocketAddress(host, free_port(host)) for _ in range(3))
    own = KeyPair(folder / f"{name}.crt", folder / f"{name}.key")
    node_socket = SocketAddress(str(folder / name / "gw.sock"), 0)
    return SnapshotInputs(
        name, internal, external, handshake, node_socket, folder / name / "xds", folder / name / "logs", identity=own
    )


def _route(source: str, destination: str, where: SocketAddress | None, certificate: str, revision: int = 1) -> Route:
    target = where or SocketAddress("192.0.2.1", 1080)
    port = RoutePort("http", target.port, tls=True)
    token = SecretValue(f"{source}-{destination}-{revision}")
    return Route(source, destination, host=target.host, ports=(port,), tokens=(token,), certificates=(certificate,))


@asynccontextmanager
async def _running(inputs: SnapshotInputs) -> AsyncIterator[tuple[Envoy, float]]:
    """With the seconds until it served."""
    made = EnvoySettings(
        inputs.domain, inputs.directory, inputs.directory.parent / "run", inputs.logs, accept_seconds=60.0
    )
    began = time.perf_counter()
    envoy = Envoy(made, snapshot(inputs))
    life = asyncio.create_task(envoy.run())
    try:
        await envoy.ready.wait()
        yield envoy, time.perf_counter() - began
    finally:
        envoy.stop()
        await life


async def with_many_partners(bench: Bench, folder: Path, origin: SocketAddress) -> list[Row]:
    plan = bench.plan
    certificates = {name: _certificate(folder, name) for name, _ in (_CALLER, _SERVER)}
    calling, serving = (_inputs(folder, *each) for each in (_CALLER, _SERVER))
    here, there = calling.domain, serving.domain
    calling = replace(calling, routes=(_route(here, there, serving.external, certificates[there]),))
    # The real caller comes last in the order of names, where a list that is searched from its start costs most.
    strangers = [f"a-partner-{number}" for number in range(plan.partners)]
    theirs = await asyncio.to_thread(lambda: {name: _certificate(folder, name) for name in strangers})
    known = [_route(here, there, None, certificates[here])]
    for name, certificate in theirs.items():
        known += [_route(name, there, None, certificate), _route(there, name, None, certificate)]
    serving = replace(serving, routes=tuple(known), services=(DomainService("echo", (origin,)),))
    what = f"{plan.partners} partners"
    async with _running(calling) as (caller, _), _running(serving) as (server, seconds):
        assert server.pid is not None and caller.pid is not None
        memory = memory_of(server.pid)[1]
        taken = []
        for number in range(plan.changes):
            # A token rolls: the partner's new one is accepted beside the old one.
            name = strangers[number % len(strangers)]
            fresh = _route(name, there, None, theirs[name], revision=number + 2)
            serving = replace(serving, routes=tuple(fresh if _same(each, fresh) else each for each in serving.routes))
            began = time.perf_counter()
            applied = await server.apply(await asyncio.to_thread(snapshot, serving))
            if not applied.accepted:
                raise RuntimeError(f"Envoy does not take a change: {applied}")
            taken.append((time.perf_counter() - began) * 1e3)
        taken.sort()
        pids = (caller.pid, server.pid)
        for pid in pids:
            confine(pid, bench.cores.server)
        load = Load(
            calling.internal.port, None, 32, "GET", "/", seconds=plan.seconds, pids=pids, core=bench.cores.load,
            address=calling.internal.host, host=f"echo.{there}.svc",
        )  # fmt: skip
        done = await asyncio.to_thread(run, load)
    return [
        Row(f"gateway with {what}: start", seconds * 1e3, "ms"),
        Row(f"gateway with {what}: Envoy, PSS", memory, "MiB"),
        Row(f"gateway with {what}: new token in force, p50", statistics.median(taken), "ms"),
        Row(f"gateway with {what}: new token in force, p99", taken[len(taken) * 99 // 100], "ms"),
        Row(f"gateway with {what}: requests, 32 connections", done.rate, "/s", done.cpu, note=f"p99 {done.p99:.2f} ms"),
    ]


def _same(one: Route, other: Route) -> bool:
    return (one.source, one.destination) == (other.source, other.destination)
