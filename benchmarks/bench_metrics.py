"""What a scrape of a node's page costs: the machine, pods and links to partners, with all sources in this process.

    scrape      what Prometheus asks for: OpenMetrics, compressed; sources that are sampled answer with their last sample
    sampling    the sources that are asked in the background, at most every 10 s

Envoy's answer is made here: every cluster has every statistic, as if all links had been used. Its own time for that is not counted, nor is reading
control groups (20 µs for a file). CPU time, so that neighbours do not matter.
"""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import msgspec

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.exposition import Family
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Peer, Request
from coterie.kube.agent.runtimes.protocol import ContainerState, ContainerUsage, PodRuntime, PodState
from coterie.kube.agent.server.network_metrics import pod_network_families
from coterie.kube.agent.server.usage_metrics import ContainerUsageSource
from coterie.kube.metrics.endpoint import MetricsEndpoint, ScrapeAccess
from coterie.kube.metrics.machine import MachineSource
from coterie.kube.metrics.sources import MetricsPage, MetricsSource, SampledSource
from coterie.kube.network.pods.links import pod_device_index
from coterie.kube.network.pods.sock_diag import TcpConnection
from coterie.kuscia.api.types.domain import DomainRoute
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.admin import Admin
from coterie.kuscia.gateway.metrics.envoy_families import FAMILIES, OF_CLUSTERS
from coterie.kuscia.gateway.metrics.envoy_source import EnvoyStatsSource
from coterie.kuscia.gateway.metrics.route_source import RouteSource
from coterie.kuscia.gateway.metrics.socket_source import endpoints_of
from coterie.kuscia.gateway.metrics.socket_totals import SocketTotals
from coterie.kuscia.gateway.model import Route, RoutePort, SnapshotInputs

_CIDR = "100.96.0.0/16"
_ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
_PORT = RoutePort("http", 1080, tls=True)


@dataclass(frozen=True, slots=True)
class Scrape:
    cpu: float
    """Milliseconds."""
    sampling: float
    size: int
    sent: int
    """Bytes after compression."""
    peak: float
    """MB of memory that a scrape takes beyond what is there before."""


class _Pods:
    """As many pods as asked for, each with one container that runs."""

    def __init__(self, count: int) -> None:
        self._pods = [
            PodState(str(number), "alice", f"task-{number:05}-0", (ContainerState("main", 0, "image", "", 1, 1.0),))
            for number in range(count)
        ]
        self._usage = {"main": ContainerUsage(123_456_789_012, 123_456_789, 17)}

    def pods(self) -> Sequence[PodState]:
        return self._pods

    async def usage(self, uid: str) -> dict[str, ContainerUsage]:
        return self._usage

    def pod_ip(self, uid: str) -> str:
        number = int(uid) + 2
        return f"100.96.{number >> 8}.{number & 255}"


class _PodNetwork:
    name = "pod-network"

    def __init__(self, pods: _Pods) -> None:
        self._pods = [(pod.namespace, pod.name, pods.pod_ip(pod.uid)) for pod in pods.pods()]
        self._found = {pod_device_index(number + 2): (10**6, 10**6, 10**9, 10**9) for number in range(len(self._pods))}

    async def families(self) -> Sequence[Family]:
        return pod_network_families(self._pods, _CIDR, self._found)


class _Sockets:
    name = "sockets"

    def __init__(self, inputs: SnapshotInputs) -> None:
        self._endpoints, _ = endpoints_of(inputs)
        self._partners = [route.destination for route in inputs.outbound]
        self._totals = SocketTotals()
        self._found = [
            TcpConnection(number.to_bytes(8, "big"), number, remote, 0.01234, 7, 10**9, 10**9)
            for number, remote in enumerate(self._endpoints)
        ]

    async def families(self) -> Sequence[Family]:
        self._totals.update(self._partners, self._endpoints, self._found)
        return self._totals.families("alice")


class _BusyEnvoy:
    """An admin socket behind which every cluster has every statistic."""

    def __init__(self, partners: Sequence[str]) -> None:
        lines = []
        for name, family in FAMILIES.items():
            lines.append(f"# TYPE {name} {family.kind}")
            if family in OF_CLUSTERS:
                lines += [f'{name}{{envoy_cluster_name="alice-to-{each}-http"}} 1234567890' for each in partners]
            else:
                lines.append(f"{name}{{}} 1")
        self._body = ("\n".join(lines) + "\n").encode()

    async def ask(self, path: str, *, post: bool = False, limit: int | None = None) -> str:
        return self._body.decode()


def _inputs(partners: Sequence[str]) -> SnapshotInputs:
    nowhere = SocketAddress("127.0.0.1", 1)
    routes = tuple(
        Route("alice", name, host=f"10.1.{number >> 8}.{number & 255}", ports=(_PORT,))
        for number, name in enumerate(partners)
    )
    return SnapshotInputs("alice", None, None, nowhere, nowhere, Path("/"), Path("/"), routes=routes)


def _domain_route(partner: str) -> DomainRoute:
    token = {"isReady": True, "revision": 2, "expirationTime": "2026-12-01T00:00:00Z"}
    status = {
        "isDestinationAuthorized": True,
        "isDestinationUnreachable": False,
        "tokenStatus": {"tokens": [token]},
    }
    spec = {"source": "alice", "destination": partner, "authenticationType": "Token"}
    return msgspec.convert({"metadata": {"name": partner}, "spec": spec, "status": status}, DomainRoute)


def measure(pods: int, routes: int, rounds: int = 11) -> Scrape:
    return asyncio.run(_measure(pods, routes, rounds))


async def _measure(pods: int, routes: int, rounds: int) -> Scrape:
    partners = [f"partner-{number:04}" for number in range(routes)]
    inputs = _inputs(partners)
    objects = [_domain_route(name) for name in partners]
    runtime = _Pods(pods)
    task = {"job": "job-2026", "party": "alice"}
    slow: list[MetricsSource] = [
        ContainerUsageSource(cast(PodRuntime, runtime), lambda _, name: {**task, "task": name}),
        _PodNetwork(runtime),
        _Sockets(inputs),
    ]
    fast: list[MetricsSource] = [
        MachineSource(),
        EnvoyStatsSource(cast(Admin, _BusyEnvoy(partners)), "alice", lambda: inputs),
        RouteSource("alice", lambda: objects, lambda: inputs, {}),
    ]
    request = Request("GET", "/metrics", headers={"accept": _ACCEPT, "accept-encoding": "gzip"}, peer=Peer("127.0.0.1"))
    async with TaskOwner("bench") as owner:
        sampled = [SampledSource(each, SYSTEM_CLOCK, owner, lasts=1e9) for each in slow]
        endpoint = MetricsEndpoint(MetricsPage([*fast, *sampled]), ScrapeAccess())
        answer = await endpoint.handle(request)
        cpu = [await _cpu(lambda: endpoint.handle(request)) for _ in range(rounds)]
        sampling = [sum([await _cpu(each.families) for each in slow]) for _ in range(rounds)]
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await endpoint.handle(request)
        peak = (tracemalloc.get_traced_memory()[1] - before) / 1e6
        tracemalloc.stop()
    size = len(gzip.decompress(answer.body)) if ("Content-Encoding", "gzip") in answer.headers else len(answer.body)
    return Scrape(median(cpu), median(sampling), size, len(answer.body), peak)


async def _cpu(what: Callable[[], Any]) -> float:
    began = time.process_time()
    await what()
    return (time.process_time() - began) * 1000


def metrics(bench: Bench) -> list[Row]:
    rows = []
    for pods, routes in ((0, 0), (100, 10), (1000, 0), (1000, 1000)):
        found = measure(pods, routes)
        note = (
            f"{found.size / 1e6:.2f} MB, {found.sent / 1e3:.0f} kB sent; {found.peak:.1f} MB more while it runs;"
            f" sampling {found.sampling:.1f} ms each 10 s; goal 50 ms, 10 MB"
        )
        what = f"scrape of metrics: {pods:,} pods, {routes:,} routes"
        rows.append(Row(what, found.cpu, "ms", found.cpu * 1000, lower_is_better=True, note=note))
    return rows
