"""Cold functions on a real node: the first call, and what actors and idle functions cost.

    spare actor     functions are called now and then: a pod waits, with the actor's modules in memory
    forked          spare actors are off; the zygote of the image is there
    nothing warm    the same with an image without a zygote: a pod is started, and an interpreter in it (not the very first of the image since the
                    node began, for which all files of the image are looked at)

Calls are HTTP requests on new connections from the network of the pods to the address of the gateway's Service, each to another function. The same request to a
bare asyncio server on the loopback says what the machine does meanwhile. Best, p50 and CPU time (node, supervisor, functions process): where others
use the machine too, only the best and the CPU time say much. Needs root.

    python -m benchmarks.bench_functions_cold [COUNT]
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import coterie
from benchmarks.bench_pods import Operator, Starts, operating
from benchmarks.measures import Bench, Plan
from benchmarks.node import DOMAIN, Cores, Pinned, PodNode, cpu_of, free_port, memory_of
from benchmarks.table import Row, markdown
from coterie.base import network_namespace
from coterie.base.paths import DomainPaths
from coterie.functions.actor_pods import SPARE_LABEL
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.functions.types import ACTION_LABEL, ACTIONS, GATEWAY_NAME, GATEWAY_PORT, TRIGGERS

_SCRIPT = "from serverless import Response\n\ndef action(req):\n    return Response('hello')\n"
_COLD = "bench-cold:1"
_PATIENCE = 120.0
_FILL_SECONDS = 1.5
"""After which there are spare actors again."""
_SPARES = 2
_WARM_CALLS = 300
PUBLISHED = (
    Row(
        "published: Fission, cold call with its pool of warm containers",
        100,
        "ms",
        note="'typically about 100msec': README of github.com/fission/fission",
    ),
    Row(
        "published: Knative, cold call",
        800,
        "ms",
        note="'consistently around 800ms', Knative 1.11: github.com/knative/serving, issue 15477; its own limit for tests is 10 s (pull request 5420)",
    ),
    Row(
        "published: Knative, start of the pod alone",
        2000,
        "ms",
        note="'~2second pod startup time' on an idle cluster: github.com/knative/serving, issue 2484",
    ),
)


class Calls:
    """HTTP requests from the network of the node's pods."""

    def __init__(self, netns: Path | None, host: str, port: int) -> None:
        self._netns = netns
        self._address = (host, port)

    def once(self, path: str) -> tuple[int, float]:
        """Status and milliseconds, on a connection of its own that is open already."""
        connection = http.client.HTTPConnection(*self._address, timeout=_PATIENCE)
        connection.sock = self._connect()
        try:
            began = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status, (time.perf_counter() - began) * 1e3
        finally:
            connection.close()

    def must(self, path: str) -> float:
        status, took = self.once(path)
        if status != 200:
            raise RuntimeError(f"{path} was answered {status}")
        return took

    def _connect(self) -> socket.socket:
        if self._netns is None:
            made = socket.socket()
        else:
            with network_namespace.entered(self._netns):
                made = socket.socket()
        made.settimeout(_PATIENCE)
        made.connect(self._address)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


class Domain:
    """A node with functions, and what is measured of it."""

    def __init__(self, node: PodNode, operator: Operator) -> None:
        self._node = node
        self._client = operator.client
        self.calls = Calls(None, "127.0.0.1", 0)

    async def make(self, name: str, **spec: Any) -> None:
        for kind, body in (
            (ACTIONS, {"script": _SCRIPT, "scaling": {"idleSeconds": 3600}, **spec}),
            (TRIGGERS, {"action": name, "http": {"path": f"/{name}"}}),
        ):
            meta = {"name": name, "namespace": DOMAIN}
            whole = {
                "apiVersion": kind.resource.api_version,
                "kind": kind.resource.kind,
                "metadata": meta,
                "spec": body,
            }
            await self._client.apply(kind.as_dynamic, whole, force=True)

    async def open_gateway(self, path: str) -> None:
        """Begins when the gateway knows this path."""

        async def service() -> str:
            try:
                found = await self._client.get(SERVICES.as_dynamic, GATEWAY_NAME, DOMAIN)
            except ApiError:
                return ""
            return str(found["spec"].get("clusterIP") or "")

        host = str(await until(service))
        netns = next((self._node.root / DOMAIN / "var" / "run" / "runp").glob("netns-*"))
        self.calls = Calls(netns, host, GATEWAY_PORT)

        async def routed() -> bool:
            try:
                return self.calls.once("/no-such-path")[0] == 404
            except OSError:
                return False

        await until(routed)
        await self.first_call(path)

    async def first_call(self, path: str) -> None:
        """As soon as the gateway knows the path."""

        async def known() -> bool:
            return self.calls.once(path)[0] == 200

        await until(known)

    async def pods(self, labels: str) -> int:
        return len((await self._client.list(PODS, DOMAIN, labels=labels)).items)

    async def ready(self, name: str) -> int:
        return (await self._client.get(ACTIONS, name, DOMAIN)).status.ready_replicas

    def own_pids(self) -> list[int]:
        """Node, supervisor, functions process."""
        pids = list(self._node.pids())
        return [*pids, *(pid for pid in children(pids[0]) if b"coterie.functions" in command(pid))]

    def actors(self) -> list[int]:
        """Processes of actors: below the supervisor's inits."""
        inits = children(self._node.pids()[-1])
        return [pid for init in inits for pid in children(init) if b"engines.actor" in command(pid)]

    def cpu(self) -> float:
        return sum(cpu_of(pid) for pid in self.own_pids())

    def memory(self) -> float:
        """MiB of node, supervisor and functions process."""
        return sum(memory_of(pid)[1] for pid in self.own_pids())


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(_PATIENCE):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.02)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def private(pid: int) -> float:
    """MiB that no other process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def cold(bench: Bench) -> list[Row]:
    rows = [_bare(bench)]
    if os.getuid():
        return [*rows, *PUBLISHED]  # nobody else enters the network of the pods
    for spares, measure in ((_SPARES, _with_spares), (0, _without_spares)):
        with tempfile.TemporaryDirectory(dir=bench.folder) as place:
            more = f"capacity: {{cpu: 32, memory: 64Gi}}\nfunctions: {{spareActors: {{size: {spares}}}}}\n"
            with PodNode(Path(place), bench.bytecode, more) as node:
                rows += asyncio.run(_measured(bench, node, measure))
    return [*rows, *PUBLISHED]


def _bare(bench: Bench) -> Row:
    port = free_port()
    words = ["-m", "benchmarks.bench_functions_calls", "--bare", str(port)]
    bare = Pinned(words, bench.cores.server, bench.folder / "bare.log", bench.bytecode)
    try:
        bare.wait_for(port)
        calls, taken = Calls(None, "127.0.0.1", port), Starts()
        taken.waits = [calls.must("/") for _ in range(_warm_calls(bench))]
    finally:
        bare.stop()
    return _row("bare asyncio HTTP server, a call on a new connection", taken, "yardstick of this run")


async def _measured(
    bench: Bench, node: PodNode, measure: Callable[[Bench, PodNode, Domain], Awaitable[list[Row]]]
) -> list[Row]:
    async with operating(node) as operator:
        return await measure(bench, node, Domain(node, operator))


async def _with_spares(bench: Bench, _: PodNode, domain: Domain) -> list[Row]:
    count = _count(bench)
    await domain.make("first")
    await domain.open_gateway("/first")
    for number in range(count):
        await domain.make(f"cold-{number}")

    async def filled() -> bool:
        return await domain.pods(SPARE_LABEL) == _SPARES

    await until(filled)
    await asyncio.sleep(_FILL_SECONDS)
    rows = [await _cold_calls(domain, "spare actor, modules preloaded", count, 15)]
    warm = Starts()
    warm.waits = [domain.calls.must("/first") for _ in range(_warm_calls(bench))]
    rows.append(_row("warm call on the node, a new connection each", warm, f"p99 {warm.share(0.99):.2f} ms; goal 2"))
    rows += await _many_actors(bench.plan.sleeping_pods, domain)
    rows.append(await _idle_functions(bench.plan.sleeping_pods, domain))
    return rows


async def _without_spares(bench: Bench, node: PodNode, domain: Domain) -> list[Row]:
    count = _count(bench)
    store = ImageStore(DomainPaths.of(node.root, DOMAIN).images)
    variables = (("PYTHONPATH", str(Path(coterie.__file__).parents[1])),)
    store.add_host(_COLD, (sys.executable,), args=("-S", "-P", "-m", "coterie.engines.actor"), env=variables)
    await domain.make("first")
    await domain.open_gateway("/first")
    await domain.make("prepared", image=_COLD)
    await domain.first_call("/prepared")  # the node has looked at the files of the image, once since it began
    for number in range(count):
        await domain.make(f"cold-{number}", image=_COLD)
    await asyncio.sleep(_FILL_SECONDS)
    nothing = await _cold_calls(domain, "nothing warm: pod and interpreter are started", count, 100)
    for number in range(count):
        await domain.make(f"forked-{number}")
    await asyncio.sleep(_FILL_SECONDS)
    forked = await _cold_calls(domain, "no spare actor, forked from the zygote", count, 100, "forked")
    return [forked, nothing]


async def _cold_calls(domain: Domain, what: str, count: int, goal: int, prefix: str = "cold") -> Row:
    taken = Starts()
    for number in range(count):
        before = domain.cpu()
        taken.waits.append(domain.calls.must(f"/{prefix}-{number}"))
        await asyncio.sleep(_FILL_SECONDS)
        taken.cpu += domain.cpu() - before
    row = _row(f"cold call, {what}", taken, f"p50 {taken.share(0.5):.1f}, most {max(taken.waits):.1f}; goal {goal}")
    return row


async def _many_actors(count: int, domain: Domain) -> list[Row]:
    """One actor of an action, then many, then none."""
    name = "many"
    await domain.make(name)
    await domain.first_call(f"/{name}")
    before, cpu = set(domain.actors()), domain.cpu()
    began = time.perf_counter()
    await domain.make(name, scaling={"minReplicas": count, "maxReplicas": count})

    async def all_ready() -> bool:
        return await domain.ready(name) == count

    await until(all_ready)
    took = time.perf_counter() - began
    used = (domain.cpu() - cpu) / max(1, count - 1) * 1e6
    added = [pid for pid in domain.actors() if pid not in before]
    shares = [memory_of(pid)[1] for pid in added]
    own = sum(private(pid) for pid in added) / len(added)
    began = time.perf_counter()
    await domain.make(name, scaling={"minReplicas": 0, "maxReplicas": count, "idleSeconds": 1})

    async def all_gone() -> bool:
        return not await domain.pods(f"{ACTION_LABEL}={name}")

    await until(all_gone)
    return [
        Row(f"actors of one function, 1 to {count}: all ready", took, "s", used, note=f"{count / took:.0f} a second"),
        Row(f"actors of one function, {count} to 0: all gone", time.perf_counter() - began, "s"),
        Row("memory of an actor, private", own, "MiB", note=f"PSS {sum(shares) / len(shares):.1f}"),
    ]


async def _idle_functions(count: int, domain: Domain) -> Row:
    """Functions that nobody calls: objects in the node, and nothing else."""
    actors, before = len(domain.actors()), domain.memory()
    for number in range(count):
        await domain.make(f"idle-{number}")
    await asyncio.sleep(_FILL_SECONDS)
    each = (domain.memory() - before) * 1024 / count
    more = max(0, len(domain.actors()) - actors)
    note = f"of {count}; objects in node and functions process. Processes: {more}"
    return Row("memory of an idle function", each, "KiB", note=note)


def _row(what: str, taken: Starts, note: str) -> Row:
    cpu = taken.cpu / len(taken.waits) * 1e6 or None
    if what.startswith("cold"):
        return Row(f"functions: {what}, best", min(taken.waits), "ms", cpu, note=note)
    return Row(f"functions: {what}, p50", taken.share(0.5), "ms", cpu, note=f"best {min(taken.waits):.2f}; {note}")


def _count(bench: Bench) -> int:
    return max(2, bench.plan.pod_starts // 8)


def _warm_calls(bench: Bench) -> int:
    return max(10, int(_WARM_CALLS * min(1.0, bench.plan.seconds)))


def main(words: list[str]) -> int:
    count = int(words[0]) if words else 12
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        os.chmod(folder, 0o755)
        bench = Bench(Plan(pod_starts=count * 8), Path(folder), Cores.pick())
        print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
        print(markdown(cold(bench)), f"load average {os.getloadavg()[0]:.1f}", sep="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
