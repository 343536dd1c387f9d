"""A chain of three actions on a real node while actors, the functions process, gateways and (COTERIE_KAFKA) the broker are killed: every call
is answered, none twice, and each step of each call has its effect under one id.

COTERIE_KILL_CALLS calls, a kill after each COTERIE_KILL_EVERY answers; `make functions-kills` takes 10,000.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import kubectl_runner
import msgspec
import psutil
import pytest
from e2e_kit import Cluster, Node
from functions_kit import GATEWAY_PORT, FunctionsNode, action, trigger
from kafka_broker import KafkaCluster, kafka_wanted

from coterie.functions.bus.factory import open_bus
from coterie.functions.bus.protocol import Bus, Record
from coterie.functions.messages import MONITOR_TOPIC, RESULTS_TOPIC, CallRecord
from coterie.functions.pod_connections import PodConnections
from coterie.http.plain_client import HttpFailure, Pool
from root_kit import needs_root

CALLS = int(os.environ.get("COTERIE_KILL_CALLS", "150"))
EVERY = int(os.environ.get("COTERIE_KILL_EVERY", "30"))
"""Answers between two kills: so it is the same on slow machines."""
AT_ONCE = 16
PATIENCE = 180.0
"""Seconds after which a client gives up: containers that are killed again and again wait before they are started again."""
NAMES = ("first", "second", "third")
PREFIX = "kills-"

pytestmark = [
    pytest.mark.xdist_group("e2e-functions-kills"),
    needs_root("calls come from the network of the pods"),
    pytest.mark.timeout(240 if CALLS < 1000 else 3600),
]

_EFFECTS_SERVER = """
import asyncio
async def serve(reader, writer):
    with open("/effects/effects", "a") as file:
        file.write((await reader.readline()).decode())
    writer.write(b"kept\\n")
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", 7000, backlog=500)
    await server.serve_forever()
asyncio.run(main())
"""
_EFFECT = """
import os, socket, uuid
from serverless import Invoke, Response

def effect(req):
    with socket.create_connection((os.environ["EFFECTS"], 7000), 10) as kept:
        kept.sendall(f"{os.environ['COTERIE_ACTION']} {req.id}\\n".encode())
        assert kept.recv(10) == b"kept\\n"

def action(req):
    effect(req)
"""
_PASS_ON = _EFFECT + "    return Invoke(%r, params=dict(n=req.param('n')))\n"
_ANSWER = _EFFECT + "    return Response(f\"{req.param('n')} {uuid.uuid4()}\")\n"


class KilledNode:
    """A node with the chain, and a pod that writes down effects and is not killed."""

    def __init__(self, folder: Path, kafka: KafkaCluster | None) -> None:
        self.kafka = kafka
        self.url = kafka.url(PREFIX) if kafka is not None else "embedded"
        self._effects = folder / "effects"
        self._effects.mkdir()
        settings = {
            "mode": "autonomy",
            "apiServer": {"port": 0},
            "agent": {"nodeName": "node-a", "port": 0, "hostPaths": [str(self._effects)]},
            "capacity": {"cpu": 16, "memory": "32Gi"},
            "metrics": {"enabled": False},
            "console": {"enabled": False},
            "controllers": {"healthPort": 0},
            "functions": {"bus": self.url, "gateway": {"minReplicas": 2}},
        }
        self.plane = Node(folder / "node", "node-a", settings)
        self.cluster = Cluster(self.plane, kubectl_runner.chosen()[-1], namespace="alice", nodes={"node-a": self.plane})
        self.kills: Counter[str] = Counter()
        self.node: FunctionsNode
        self.address = ""

    def start(self) -> None:
        self.plane.start()
        self.cluster.wait_until_up("node-a")
        self.node = FunctionsNode(self.cluster)
        mount = {"name": "effects", "mountPath": "/effects"}
        container = {
            "name": "main",
            "image": "coterie-actor",
            "command": ["python", "-c", _EFFECTS_SERVER],
            "volumeMounts": [mount],
        }
        volumes = [{"name": "effects", "hostPath": {"path": str(self._effects)}}]
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "effects"},
                "spec": {"containers": [container], "volumes": volumes},
            }
        )
        self.cluster.phase("effects", "Running")
        address = self.cluster.json("get pod effects")["status"]["podIP"]
        common = {
            "env": [{"name": "EFFECTS", "value": address}],
            "concurrency": 4,
            "scaling": {"minReplicas": 2, "maxReplicas": 3},
            "retries": {"limit": 10, "firstDelayMilliseconds": 50},
        }
        chain = [
            action(name, _PASS_ON % following if following else _ANSWER, next=[following] if following else [], **common)
            for name, following in zip(NAMES, (*NAMES[1:], ""), strict=True)
        ]  # fmt: skip
        self.cluster.apply(*reversed(chain), trigger("first", "first"))
        self.address = self.node.wait_for_gateway()

    def effects(self) -> Counter[tuple[str, str]]:
        lines = (self._effects / "effects").read_text().splitlines()
        return Counter((line.split()[0], line.split()[1]) for line in lines)

    @property
    def kinds(self) -> list[str]:
        return ["actor", "functions process", "gateway", *(["broker"] if self.kafka is not None else [])]

    def kill(self, kind: str, random: Random) -> None:
        if kind == "broker":
            assert self.kafka is not None
            self.kafka.kill(0)
            self.kafka.start_broker(0)
            self.kafka.wait_for(0)
        elif kind == "functions process":
            self.node.process().kill()
        else:
            module = {"actor": "coterie.engines.actor", "gateway": "coterie.functions.gateway"}[kind]
            found = self._inside(module)
            if not found:
                return
            random.choice(found).kill()
        self.kills[kind] += 1
        if kind == "gateway" and self.kills[kind] % 3 == 0:
            # Else a container that dies again and again waits for minutes, and with it those of the test.
            self.cluster.try_("delete", "pods", "-l", "app.kubernetes.io/name=serverless-gateway", "--field-selector",
                              f"metadata.name={self._most_restarted()}", "--grace-period=0", "--force")  # fmt: skip

    def _most_restarted(self) -> str:
        pods = self.cluster.pods("app.kubernetes.io/name=serverless-gateway")
        restarts = {
            each["metadata"]["name"]: sum(c["restartCount"] for c in each["status"].get("containerStatuses", ()))
            for each in pods
        }
        return max(restarts, key=lambda name: restarts[name])

    def _inside(self, module: str) -> list[psutil.Process]:
        """Processes of pods that run this module."""
        found = []
        for keeper in self.plane.shepherds():
            for process in keeper.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if module in process.cmdline():
                        found.append(process)
        return found

    async def call(self, pool: Pool, number: int) -> tuple[int, bytes, int]:
        """As a careful client: it repeats with its key until there is an answer. Status, body, attempts."""
        headers = {"Host": "gateway", "Idempotency-Key": f"call {number}", "Coterie-Timeout": "15"}
        attempt, end = 0, time.monotonic() + PATIENCE
        while time.monotonic() < end:
            attempt += 1
            try:
                async with asyncio.timeout(20):
                    response = await pool.request("POST", f"/first?n={number}", headers, b"body")
                    body = await response.read()
            except (HttpFailure, TimeoutError, OSError):
                await asyncio.sleep(0.1)
                continue
            if response.status not in (503, 504):
                return response.status, body, attempt
            await asyncio.sleep(0.1)
        return 0, b"", attempt

    async def check_bus(self) -> None:
        """After its end: one result of each call, and one record of each step."""
        bus = await open_bus(self.url, self.plane.home / "var" / "storage" / "functions" / "bus.db")
        try:
            results = Counter(each.key for each in await _all(bus, RESULTS_TOPIC))
            records = Counter(
                msgspec.json.decode(each.value, type=CallRecord).action for each in await _all(bus, MONITOR_TOPIC)
            )
        finally:
            await bus.close()
        assert len(results) == CALLS and set(results.values()) == {1}, "one result for each call"
        assert records == dict.fromkeys(NAMES, CALLS), "one record for each step"


async def _all(bus: Bus, topic: str) -> list[Record]:
    found: list[Record] = []
    for partition, end in (await bus.ends(topic)).items():
        offset = 0
        while offset < end and (records := await bus.read(topic, partition, offset, 1000)):
            found += records
            offset = records[-1].offset + 1
    return found


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.skipif(not kafka_wanted(), reason="COTERIE_KAFKA is not set"))])  # fmt: skip
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KilledNode]:
    (tmp_path / "kafka").mkdir()
    with KafkaCluster(tmp_path / "kafka") if request.param == "kafka" else contextlib.nullcontext() as kafka:
        world = KilledNode(tmp_path, kafka)
        try:
            world.start()
            yield world
        finally:
            world.plane.destroy()


async def test_whatever_is_killed_each_call_is_answered_once(killed: KilledNode) -> None:
    netns = next((killed.plane.home / "var" / "run" / "runp").glob("netns-*"))
    pool = Pool((killed.address, GATEWAY_PORT), connect=PodConnections(netns).connect)
    limit, killing = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
    random = Random(5)
    kinds = itertools.chain(killed.kinds, iter(lambda: random.choice(killed.kinds), ""))
    answered, began = 0, time.monotonic()

    async def one(number: int) -> tuple[int, bytes, int]:
        nonlocal answered
        async with limit:
            answer = await killed.call(pool, number)
            answered += 1
            if answered % EVERY == 0 and answered < CALLS:
                async with killing:
                    await asyncio.to_thread(killed.kill, next(kinds), random)
            if answered % 500 == 0:
                print(f"{answered} answered, {time.monotonic() - began:.0f} s, killed {dict(killed.kills)}", flush=True)
            return answer

    try:
        answers = await asyncio.gather(*[one(number) for number in range(CALLS)])
        took = time.monotonic() - began
        problems = [
            (number, answer)
            for number, answer in enumerate(answers)
            if answer[0] != 200 or answer[1].split()[0] != str(number).encode()
        ]
        assert not problems, (len(problems), problems[:5])
        # Asked again, each gives the answer that it gave: it was not run anew.
        for number in random.sample(range(CALLS), min(CALLS, 100)):
            again = await killed.call(pool, number)
            assert again[:2] == answers[number][:2], number
    finally:
        await pool.close()
    assert killed.plane.complaints() == []
    await asyncio.to_thread(killed.plane.destroy)
    await killed.check_bus()
    effects = killed.effects()
    assert Counter(name for name, _ in effects) == dict.fromkeys(NAMES, CALLS), "each step ran, under one id"
    print(
        f"{CALLS} calls in {took:.0f} s, {sum(each[2] for each in answers)} repeated by clients, killed {dict(killed.kills)}; "
        f"{len(effects)} effects, {sum(effects.values()) - len(effects)} of them repeated under their id"
    )
    assert set(killed.kills) == set(killed.kinds)
