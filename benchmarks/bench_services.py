"""What virtual addresses of Services cost: pod to pod by way of one, against the pod's own address, and one change among many.

The kernel works in both cases with all rules loaded: 1,000 Services with 10 endpoints each. Idle CPU is that of the proxy of a
node with as many Services in its caches.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.http.messages import UserInfo
from coterie.kube.api.types.network import SERVICES
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.network.services.node_scope import NodeScope
from coterie.kube.network.services.plan import TableChange
from coterie.kube.network.services.proxy import ServiceProxy, ServiceRules
from coterie.kube.store.memory import MemoryStore

_ADMIN = UserInfo("system:admin", ("system:masters",))


def services(bench: Bench) -> list[Row]:
    rows = _kernel(bench) if os.getuid() == 0 else []
    idle, count = asyncio.run(_idle(min(5.0, bench.plan.seconds * 2)))
    rows.append(Row("services: CPU of the proxy when idle", idle, "% of a core", note=f"{count} Services"))
    return rows


def _kernel(bench: Bench) -> list[Row]:
    command = [sys.executable, "-m", "benchmarks.services_network", str(bench.plan.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout)
    many = "1,000 Services x 10 endpoints"
    return [
        Row("services: pod to virtual address, one stream", found["virtual_gbytes"], "GB/s", prototype=found["direct_gbytes"], note="prototype: pod to pod"),
        Row("services: pod to virtual address, round trip p50", found["virtual_round_trip_us"], "µs", prototype=found["direct_round_trip_us"], lower_is_better=True, note="prototype: pod to pod"),
        Row("services: pod to virtual address, new connection p50", found["virtual_connect_us"], "µs", prototype=found["direct_connect_us"], lower_is_better=True, note="prototype: pod to pod"),
        Row("services: one change of endpoints", found["change_ms"], "ms", note=f"{many}; slowest of 200 {found['slowest_change_ms']:.1f} ms; 50 is what was asked for"),
        Row("services: the whole table", found["load_ms"], "ms", note=many),
        Row("services: memory of the plan", found["memory_mb"], "MB", note=many),
    ]  # fmt: skip


class _NoKernel(ServiceRules):
    def __init__(self) -> None:
        return

    def load(self, everything: TableChange) -> None:
        return

    def apply(self, change: TableChange) -> None:
        return

    def close(self) -> None:
        return


async def _idle(seconds: float, count: int = 1000) -> tuple[float, int]:
    """Of a process that has nothing but an API server, its informers and the proxy."""
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings())
    await server.start()
    client = Client(InProcessTransport(server.handle, _ADMIN))
    await _fill(client, count)
    informers = Informers(client)
    proxy = ServiceProxy(informers, NodeScope(informers, "here"), _NoKernel())
    tasks = [asyncio.create_task(each.run()) for each in (informers, proxy)]
    await proxy.synced.wait()
    await asyncio.sleep(0.2)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - used) / (time.perf_counter() - began) * 100
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()
    await store.close()
    return share, count


async def _fill(client: Client, count: int) -> None:
    for number in range(count):
        body = {"metadata": {"name": f"s{number}", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}}
        await client.create(SERVICES.as_dynamic, {"apiVersion": "v1", "kind": "Service", **body})
