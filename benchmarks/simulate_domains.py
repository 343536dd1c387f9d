"""Many domains on one machine: a real master (API server, store, controllers, scheduler), and lites that are played.

    python -m benchmarks.simulate_domains [--domains 1000] [--nodes 5000] [--jobs 10000] [--routes 1] [--watches 4]
        [--beats 60] [--at-once 50] [--job-seconds 900] [--output table|json]

Each played domain registers as a lite does (Domain, Nodes with their status and Lease, Gateway), has routes to its neighbours, keeps
its watches open over TLS connections of their own, renews the Leases of its nodes each 10 s and its Gateway each 15 s, and runs pods as an
agent would say it does: Running, then Succeeded. Jobs are of two neighbours; what happens between a KusciaJob and its end is done by the
controllers and the scheduler of the master. All players share one process, so the figures of the last rows are also its own: `players`
says how busy it was. Every player uses the administrator's certificate, and gateways do no handshakes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.measures import Bench
from benchmarks.node import Node, cpu_of, memory_of
from benchmarks.table import Row
from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.meta import Object
from coterie.kuscia.api.labels import KUSCIA_NODE_NAMESPACE
from coterie.kuscia.api.types.job import CROSS_DOMAIN

_KUSCIA = "/apis/kuscia.secretflow/v1alpha1"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_EVERY = 10.0
_GATEWAY_EVERY = 15.0
_OVERDUE = 30.0
_PATIENCE = 600.0
_MERGE = "application/merge-patch+json"
_ENDED = ("Succeeded", "Failed", "Cancelled", "ApprovalReject")
_PROBE = "probe"
_IMAGE = "simulated"
_WATCHED = (
    "/api/v1/namespaces/{}/pods",
    "/api/v1/namespaces/{}/configmaps",
    _KUSCIA + "/namespaces/{}/domainroutes",
    _KUSCIA + "/namespaces/{}/taskresources",
    "/api/v1/namespaces/{}/services",
    "/api/v1/namespaces/{}/endpoints",
    _KUSCIA + "/namespaces/{}/gateways",
    "/api/v1/namespaces/{}/secrets",
)
"""The first two are needed; what else a lite watches comes after them."""


class CallFailed(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:200].decode(errors='replace')}")
        self.status = status


@dataclass(slots=True)
class Tally:
    """What happened, and how long it took."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: Counter[str] = field(default_factory=Counter)
    events: int = 0
    delays: list[float] = field(default_factory=list)

    def of(self, *words: str) -> list[float]:
        return sorted(each for word in words for each in self.seconds.get(word, ()))


class PlayerLine:
    """One kept-alive connection, one request at a time."""

    def __init__(self, port: int, tls: ssl.SSLContext, tally: Tally) -> None:
        self._port = port
        self._tls = tls
        self._tally = tally
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._tls, server_hostname="localhost", limit=2**22
        )

    async def call(self, word: str, method: str, path: str, body: Object | None = None) -> Object:
        """Raises CallFailed. `word`: under which the time is kept."""
        async with self._turn:
            began = time.perf_counter()
            try:
                if self._streams is None:
                    self._streams = await self.open()
                reader, writer = self._streams
                writer.write(_request(method, path, body))
                status, answer = await _response(reader)
            except (OSError, asyncio.IncompleteReadError, ValueError) as problem:
                self._streams = None
                self._tally.failures[f"{word}: {type(problem).__name__}"] += 1
                raise CallFailed(0, str(problem).encode()) from problem
            self._tally.seconds[word].append(time.perf_counter() - began)
        if status >= 400:
            self._tally.failures[f"{word}: {status}"] += 1
            raise CallFailed(status, answer)
        found: Object = orjson.loads(answer)
        return found

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _request(method: str, path: str, body: Object | None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    content = orjson.dumps(body)
    kind = _MERGE if method == "PATCH" else "application/json"
    return f"{head}content-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, headers = await _head(reader)
    if headers.get("transfer-encoding") != "chunked":
        return status, await reader.readexactly(int(headers.get("content-length", "0")))
    parts: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return status, b"".join(parts)


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.strip().lower(): value.strip().lower() for name, _, value in pairs}


class PlayedDomain:
    def __init__(self, name: str, nodes: Sequence[str], port: int, tls: ssl.SSLContext, tally: Tally) -> None:
        self.name = name
        self.nodes = nodes
        self._tally = tally
        self._line = PlayerLine(port, tls, tally)
        self._watches: list[asyncio.StreamWriter] = []
        self._started: set[str] = set()
        self._renewed: dict[str, float] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def register(self) -> None:
        line = self._line
        await line.call("domain", "POST", f"{_KUSCIA}/domains", _object("Domain", {"name": self.name}, {"cert": ""}))
        for node in self.nodes:
            marks = {"kubernetes.io/hostname": node, KUSCIA_NODE_NAMESPACE: self.name, "domain": self.name}
            marks[COTERIE_POD_NAMESPACE] = self.name
            await line.call(
                "node",
                "POST",
                "/api/v1/nodes",
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": marks}},
            )
            await line.call("node status", "PATCH", f"/api/v1/nodes/{node}/status", {"status": _node_status()})
            spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": _now()}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node}, "spec": spec}
            await line.call("lease", "POST", _LEASES, lease)
        await self._until_there()
        gateways = f"{_KUSCIA}/namespaces/{self.name}/gateways"
        await line.call("gateway", "POST", gateways, _object("Gateway", {"name": f"{self.name}-0"}))
        await self._gateway_beat()

    async def _until_there(self) -> None:
        """The domain controller has made the namespace."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            with suppress(CallFailed):
                await self._line.call("look", "GET", f"/api/v1/namespaces/{self.name}")
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"there is no namespace {self.name}")

    async def route_to(self, other: str) -> None:
        spec = {
            "source": self.name,
            "destination": other,
            "endpoint": {"host": f"{other}.example", "ports": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
            "authenticationType": "None",
        }
        body = _object("ClusterDomainRoute", {"name": f"{self.name}-{other}"}, spec)
        await self._line.call("route", "POST", f"{_KUSCIA}/clusterdomainroutes", body)

    async def watch(self, number: int) -> None:
        for path in _WATCHED[:number]:
            reader, writer = await self._line.open()
            self._watches.append(writer)
            task = asyncio.create_task(self._follow(path.format(self.name), reader, writer))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _follow(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(_request("GET", f"{path}?watch=1&timeoutSeconds=3600", None))
            status, _ = await _head(reader)
            if status != 200:
                self._tally.failures[f"watch: {status}"] += 1
                return
            rest = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                rest += (await reader.readexactly(size + 2))[:-2]
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    self._heard(orjson.loads(line))
        except (OSError, asyncio.IncompleteReadError, ValueError) as problem:
            self._tally.failures[f"watch: {type(problem).__name__}"] += 1

    def _heard(self, event: Object) -> None:
        self._tally.events += 1
        obj = event["object"]
        if event["type"] == "ERROR":
            self._tally.failures[f"watch: {obj.get('code')}"] += 1
        elif obj.get("kind") == "ConfigMap" and obj["metadata"]["name"] == _PROBE:
            self._tally.delays.append(time.perf_counter() - float(obj["data"]["at"]))
        elif obj.get("kind") == "Pod" and event["type"] != "DELETED":
            uid = obj["metadata"]["uid"]
            if obj["spec"].get("nodeName") and uid not in self._started:
                self._started.add(uid)
                task = asyncio.create_task(self._run_pod(obj))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _run_pod(self, pod: Object) -> None:
        path = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}/status"
        names = [each["name"] for each in pod["spec"]["containers"]]
        running = {"running": {"startedAt": rfc3339(SYSTEM_CLOCK.now())}}
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": rfc3339(SYSTEM_CLOCK.now())}}
        with suppress(CallFailed):
            for phase, state in (("Running", running), ("Succeeded", ended)):
                shown = [
                    {"name": each, "ready": phase == "Running", "restartCount": 0, "image": "i", "imageID": "i", "state": state}
                    for each in names
                ]  # fmt: skip
                ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
                status = {"phase": phase, "containerStatuses": shown, "conditions": [ready], "podIP": "10.0.0.1"}
                await self._line.call("pod status", "PATCH", path, {"status": status})

    async def live(self, pace: float, share: float) -> None:
        """Heartbeats; `pace`: 1 is as in life, 10 ten times as often. `share`: of a period before the first, as not all start at once."""
        beats = 0
        await asyncio.sleep(share * _LEASE_EVERY / pace)
        while True:
            began = time.monotonic()
            for node in self.nodes:
                with suppress(CallFailed):
                    await self._renew(node)
            beats += 1
            if beats % 3:  # twice in 30 s
                with suppress(CallFailed):
                    await self._gateway_beat()
            await asyncio.sleep(max(0.0, began + _LEASE_EVERY / pace - time.monotonic()))

    async def _renew(self, node: str) -> None:
        await self._line.call("renewal", "PATCH", f"{_LEASES}/{node}", {"spec": {"renewTime": _now()}})
        now, last = time.monotonic(), self._renewed.get(node)
        self._renewed[node] = now
        if last is not None and now - last > _OVERDUE:
            # The master says by now that the node is lost; an agent sees that and says that it is not.
            await self._line.call("node status", "PATCH", f"/api/v1/nodes/{node}/status", {"status": _node_status()})

    async def _gateway_beat(self) -> None:
        path = f"{_KUSCIA}/namespaces/{self.name}/gateways/{self.name}-0/status"
        now = rfc3339(SYSTEM_CLOCK.now())
        told = {
            "heartbeatTime": now,
            "uptime": now,
            "address": "127.0.0.1",
            "publicKey": "eA==",
            "version": "simulated",
        }
        await self._line.call("gateway beat", "PATCH", path, {"status": told})

    async def probe(self) -> None:
        """Written, and heard of by this domain's own watch."""
        data = {"data": {"at": repr(time.perf_counter())}}
        path = f"/api/v1/namespaces/{self.name}/configmaps"
        try:
            await self._line.call("probe", "PATCH", f"{path}/{_PROBE}", data)
        except CallFailed as problem:
            if problem.status != 404:
                raise
            await self._line.call(
                "probe", "POST", path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _PROBE}, **data}
            )

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for writer in self._watches:
            writer.close()
        self._line.close()


def _object(kind: str, metadata: Object, spec: Object | None = None) -> Object:
    made: Object = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": kind, "metadata": metadata}
    return made if spec is None else {**made, "spec": spec}


def _now() -> str:
    return rfc3339(SYSTEM_CLOCK.now()).replace("Z", ".000000Z")


def _node_status() -> Object:
    room = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}
    ready = {"type": "Ready", "status": "True", "reason": "Played", "lastHeartbeatTime": rfc3339(SYSTEM_CLOCK.now())}
    return {"capacity": room, "allocatable": room, "conditions": [ready]}


# The run.


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float
    cpu: float
    """Of the master, seconds."""
    players: float
    """Of this process, seconds."""
    requests: int
    p50: float
    p99: float
    """Milliseconds, of writes."""
    watch_p50: float
    watch_p99: float
    """Milliseconds from the call of a write to its event."""
    events: int
    megabytes: float
    """RSS of the master at the end."""
    failures: dict[str, int]
    note: str = ""

    @property
    def row(self) -> str:
        rate = self.requests / self.seconds if self.seconds else 0.0
        busy = self.cpu / self.seconds * 100 if self.seconds else 0.0
        wrong = "; ".join(f"{number} x {what}" for what, number in sorted(self.failures.items())) or "none"
        watch = f"{self.watch_p50:.1f} / {self.watch_p99:.1f} ms" if self.watch_p99 else ""
        return (
            f"| {self.name} | {self.seconds:.1f} s | {self.requests:,} ({rate:,.0f} /s) | {self.p50:.1f} / {self.p99:.1f} ms | {watch} "
            f"| {self.events:,} | {busy:.0f} % | {self.players / max(self.seconds, 1e-9) * 100:.0f} % | {self.megabytes:.0f} MB | {wrong} | {self.note} |"
        )


HEADER = (
    "| phase | took | requests | writes p50 / p99 | watch p50 / p99 | events | master CPU | players CPU | master RSS | failures | note |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def _at(values: Sequence[float], share: float) -> float:
    return values[min(int(len(values) * share), len(values) - 1)] * 1000 if values else 0.0


class Simulation:
    def __init__(self, node: Node, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self._node = node
        self._options = options
        self._say = say
        self._tls = node.identity.tls()
        self._tls.check_hostname = False
        self._tally = Tally()
        each = max(1, options.nodes // options.domains)
        self.domains = [
            PlayedDomain(f"d{n:05}", [f"d{n:05}-n{k}" for k in range(each)], node.port, self._tls, self._tally)
            for n in range(options.domains)
        ]
        self._line = PlayerLine(node.port, self._tls, self._tally)
        self.phases: list[Phase] = []

    async def _phase(self, name: str, work: Awaitable[str | None]) -> None:
        tally = self._tally
        tally.seconds.clear()
        tally.failures.clear()
        tally.delays.clear()
        before, spent, own, heard = (
            time.perf_counter(),
            cpu_of(self._node.process.pid),
            time.process_time(),
            tally.events,
        )
        note = await work
        seconds = time.perf_counter() - before
        writes = tally.of(*(word for word in tally.seconds if word != "look"))
        delays = sorted(tally.delays)
        failures = {what: n for what, n in tally.failures.items() if not what.startswith(("look: 404", "probe: 404"))}
        done = Phase(
            name,
            seconds,
            cpu_of(self._node.process.pid) - spent,
            time.process_time() - own,
            len(writes),
            _at(writes, 0.5),
            _at(writes, 0.99),
            _at(delays, 0.5),
            _at(delays, 0.99),
            tally.events - heard,
            memory_of(self._node.process.pid)[0],
            failures,
            note or "",
        )
        self.phases.append(done)
        self._say(done.row)

    async def run(self) -> None:
        options = self._options
        beating: list[asyncio.Task[None]] = []
        try:
            # A node that registered renews its Lease from then on: one that does not for 40 s is lost.
            await self._phase("registration", self._each(lambda each: self._join(each, beating)))
            await self._phase("watches opened", self._each(lambda each: each.watch(options.watches)))
            await self._phase("routes", self._routes())
            for pace in options.paces:
                if pace != 1.0:
                    await self._stop(beating)
                    beating += self._beat(pace)
                await self._phase(f"heartbeats x{pace:g}", self._probing(options.beats))
                if pace != 1.0:
                    await self._stop(beating)
                    beating += self._beat(1.0)
            if options.jobs:
                await self._phase(f"{options.jobs:,} jobs, {options.at_once} at once", self._jobs())
        finally:
            await self._stop(beating)
            await asyncio.gather(*(each.close() for each in self.domains))
            self._line.close()

    async def _join(self, domain: PlayedDomain, beating: list[asyncio.Task[None]]) -> None:
        await domain.register()
        beating.append(asyncio.create_task(domain.live(1.0, len(beating) / len(self.domains))))

    async def _stop(self, beating: list[asyncio.Task[None]]) -> None:
        for task in beating:
            task.cancel()
        await asyncio.gather(*beating, return_exceptions=True)
        beating.clear()

    def _beat(self, pace: float) -> list[asyncio.Task[None]]:
        many = len(self.domains)
        return [asyncio.create_task(each.live(pace, at / many)) for at, each in enumerate(self.domains)]

    async def _each(self, work: Callable[[PlayedDomain], Awaitable[None]]) -> str:
        room = asyncio.Semaphore(32)

        async def one(domain: PlayedDomain) -> None:
            async with room:
                await work(domain)

        await asyncio.gather(*(one(each) for each in self.domains))
        return f"{len(self.domains):,} domains, {sum(len(each.nodes) for each in self.domains):,} nodes"

    async def _routes(self) -> str:
        number = min(self._options.routes, (len(self.domains) - 1) // 2)

        async def routes(domain: PlayedDomain) -> None:
            at = self.domains.index(domain)
            for step in range(1, number + 1):
                other = self.domains[(at + step) % len(self.domains)]
                await domain.route_to(other.name)
                await other.route_to(domain.name)

        await self._each(routes)
        return f"{2 * number * len(self.domains):,} ClusterDomainRoutes"

    async def _probing(self, seconds: float) -> str:
        """The same heartbeats go on; besides, ten probes a second are timed."""
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            with suppress(CallFailed):
                await self.domains[number * 7919 % len(self.domains)].probe()
            number += 1
            await asyncio.sleep(0.1)
        renewals = self._tally.of("renewal")
        return f"{len(renewals) / seconds:,.0f} renewals/s"

    async def _jobs(self) -> str:
        options = self._options
        ended: dict[str, str] = {}
        news = asyncio.Event()
        following = asyncio.create_task(self._follow_jobs(ended, news))
        room = asyncio.Semaphore(options.at_once)
        took: list[float] = []
        await self._image()

        async def one(number: int) -> None:
            async with room:
                if time.perf_counter() - began_all > options.job_seconds:
                    return
                name = f"job-{number:06}"
                parties = [self.domains[(number + k) % len(self.domains)].name for k in range(2)]
                began = time.perf_counter()
                await self._line.call(
                    "job", "POST", f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs", _job(name, parties)
                )
                async with asyncio.timeout(_PATIENCE):
                    while name not in ended:
                        news.clear()
                        await news.wait()
                took.append(time.perf_counter() - began)

        probing = asyncio.create_task(self._probing(10**9))
        began_all = time.perf_counter()
        try:
            await asyncio.gather(*(one(number) for number in range(options.jobs)))
        finally:
            for task in (following, probing):
                task.cancel()
            await asyncio.gather(following, probing, return_exceptions=True)
        took.sort()
        wrong = Counter(phase for phase in ended.values() if phase != "Succeeded")
        rate = len(took) / (time.perf_counter() - began_all)
        few = f"{len(took):,} of them, " if len(took) < options.jobs else ""
        bad = f", {dict(wrong)}" if wrong else ""
        return f"{few}{rate:.1f} jobs/s, p50 {_at(took, 0.5) / 1000:.2f} s, p99 {_at(took, 0.99) / 1000:.2f} s{bad}"

    async def _follow_jobs(self, ended: dict[str, str], news: asyncio.Event) -> None:
        reader, writer = await self._line.open()
        try:
            writer.write(
                _request("GET", f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs?watch=1&timeoutSeconds=36000", None)
            )
            await _head(reader)
            rest = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                rest += (await reader.readexactly(size + 2))[:-2]
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    obj = orjson.loads(line)["object"]
                    phase = (obj.get("status") or {}).get("phase", "")
                    if phase in _ENDED:
                        ended[obj["metadata"]["name"]] = phase
                        news.set()
        finally:
            writer.close()

    async def _image(self) -> None:
        container = {"name": "main", "command": ["true"], "workingDir": "/"}
        template = {"name": "any", "spec": {"restartPolicy": "Never", "containers": [container]}}
        spec = {"image": {"name": "simulated", "tag": "1"}, "deployTemplates": [template]}
        await self._line.call("image", "POST", f"{_KUSCIA}/appimages", _object("AppImage", {"name": _IMAGE}, spec))


def _job(name: str, parties: Sequence[str]) -> Object:
    listed = [{"domainID": each} for each in parties]
    task = {"alias": "only", "appImage": _IMAGE, "taskInputConfig": "{}", "parties": listed}
    return _object("KusciaJob", {"name": name}, {"initiator": parties[0], "tasks": [task]})


def simulate(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> list[Phase]:
    with Node(folder / "master", None, folder / "bytecode", f"mode: master\n{options.settings}") as node:
        simulation = Simulation(node, options, say)
        uvloop.run(simulation.run())
        return simulation.phases


def rows(bench: Bench) -> list[Row]:
    """As large as the plan says; the whole size is a command of its own."""
    domains, nodes, jobs = bench.plan.simulated
    words = [
        "--domains",
        str(domains),
        "--nodes",
        str(nodes),
        "--jobs",
        str(jobs),
        "--beats",
        str(bench.plan.seconds * 5),
    ]
    found: list[Row] = []
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        for phase in simulate(options_of(words), Path(folder), lambda row: None):
            wrong = f"; {sum(phase.failures.values())} failures" if phase.failures else ""
            rate = f"{phase.requests / phase.seconds:,.0f} requests/s, p50 {phase.p50:.1f} ms, p99 {phase.p99:.1f} ms; "
            note = f"{rate if phase.requests else ''}RSS {phase.megabytes:.0f} MB; {phase.note}{wrong}"
            cpu = phase.cpu / phase.requests * 1e6 if phase.requests else None
            found.append(Row(f"{domains} domains, {nodes} nodes: {phase.name}", phase.seconds, "s", cpu, note=note))
    return found


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5000, help="of all domains together")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=50, help="jobs under way")
    parser.add_argument("--job-seconds", type=float, default=3600.0, help="after so long no more jobs are begun")
    parser.add_argument("--routes", type=int, default=1, help="neighbours that each domain is joined to, both ways")
    parser.add_argument("--watches", type=int, default=4, help=f"of each domain, 2 to {len(_WATCHED)}")
    parser.add_argument("--beats", type=float, default=60.0, help="seconds of heartbeats at each pace")
    parser.add_argument(
        "--paces", type=float, nargs="*", default=[1.0], help="heartbeats so many times as often as in life"
    )
    parser.add_argument("--settings", default="", help="further lines of the master's configuration")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    options = options_of(words)

    def say(row: str) -> None:
        if options.output == "table":
            print(row, flush=True)

    say(HEADER)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        phases = simulate(options, Path(folder), say)
    if options.output == "json":
        shown: list[dict[str, Any]] = [
            {name: getattr(phase, name) for name in Phase.__dataclass_fields__} for phase in phases
        ]
        json.dump(shown, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
