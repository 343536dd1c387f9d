"""What calls of KusciaAPI cost while many jobs are known, and how soon watchers of jobs hear of a change.

A master with its KusciaAPI, mutual TLS and the token, as it comes. Both of its processes (the API server with its
controllers, and the one that serves KusciaAPI) share one core, callers the other; CPU is that of both together. Jobs that are
created are looked at by the controllers meanwhile, as they always are.

gRPC callers are grpcio's, in a process of their own; they are slower than the HTTP ones, which do nothing but HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
from google.protobuf import json_format

from benchmarks.load import Load, Outcome, child, run
from benchmarks.measures import Bench
from benchmarks.node import DOMAIN, Identity, Node, cpu_of, free_port, port_taken
from benchmarks.objects import NAME_DIGITS, PLACE
from benchmarks.table import Row
from coterie.base.clock import now_rfc3339
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.kusciaapi import messages

JOB, TASK = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic
_SERVICE = f"{messages.PACKAGE}.JobService"
_PARTIES = ("alice", "bob")
_BATCH = 20
"""Jobs of one batch query."""
_AT_ONCE = (1, 32)
_MAKERS = 64
_PATIENCE = 120.0


class ApiNode(Node):
    """A master with KusciaAPI."""

    def __init__(self, root: Path, core: int, bytecode: Path) -> None:
        self.http, self.grpc, conf_http, conf_grpc = (free_port() for _ in range(4))
        super().__init__(
            root, core, bytecode,
            f"mode: master\nkusciaAPI: {{enabled: true, host: 127.0.0.1, HTTPPort: {self.http}, GRPCPort: {self.grpc}}}\n"
            f"confManager: {{host: 127.0.0.1, HTTPPort: {conf_http}, GRPCPort: {conf_grpc}}}\n",
        )  # fmt: skip
        certs = root / DOMAIN / "var" / "certs"
        self.caller = Identity(
            *(str(certs / name) for name in ("ca.crt", "kusciaapi-client.crt", "kusciaapi-client.key"))
        )
        self._token = certs / "token"

    @property
    def token(self) -> str:
        return self._token.read_text()

    def pids(self) -> tuple[int, ...]:
        """The node, and who serves KusciaAPI once somebody has called."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return (self.process.pid, *(int(pid) for listed in children for pid in listed.read_text().split()))

    def _connection(self) -> ClusterConnection:
        own = self.identity
        return ClusterConnection(
            server=f"https://127.0.0.1:{self.port}", ca=Path(own.ca).read_bytes(),
            certificate=Path(own.certificate).read_bytes(), key=Path(own.key).read_bytes(),
        )  # fmt: skip

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Of the API server, past KusciaAPI."""
        transport = HttpTransport(self._connection())
        try:
            yield Client(transport)
        finally:
            await transport.close()


def api(bench: Bench) -> list[Row]:
    with (
        tempfile.TemporaryDirectory(dir=bench.folder) as place,
        ApiNode(Path(place), bench.cores.server, bench.bytecode) as node,
    ):
        asyncio.run(_fill(node, bench.plan.known_jobs))
        _served(node)
        asked = _asked(bench.plan.known_jobs)
        # Creating comes last: what it leaves behind would be known too, and keeps the controllers busy for a while.
        return [
            *_calls(bench, node, asked),
            *asyncio.run(_watched(bench, node)),
            *_calls(bench, node, [_CREATE]),
        ]


# Jobs that are there.


def _name(number: int) -> str:
    return f"job-{number:0{NAME_DIGITS}}"


async def _fill(node: ApiNode, count: int) -> None:
    """Jobs of one task that have ended."""
    room = asyncio.Semaphore(_MAKERS)
    async with node.client() as client:

        async def make(number: int) -> None:
            async with room:
                await _make(client, _name(number))

        await asyncio.gather(*(make(number) for number in range(count)))


async def _make(client: Client, name: str) -> None:
    parties = [{"domainID": each} for each in _PARTIES]
    task = {"alias": "psi", "taskID": f"{name}-psi", "appImage": "engine", "taskInputConfig": "{}", "parties": parties}
    spec = {"initiator": _PARTIES[0], "scheduleMode": "BestEffort", "tasks": [task]}
    meta = {"name": name, "namespace": CROSS_DOMAIN}
    job = await client.create(JOB, {"metadata": meta, "spec": spec})
    now = now_rfc3339()  # jobs that ended long ago would be cleaned up
    ended = {"phase": "Succeeded", "message": "", "startTime": now, "completionTime": now}
    await client.patch_status(JOB, name, CROSS_DOMAIN, {"status": ended})
    marks = {labels.KUSCIA_JOB_ID: name, labels.KUSCIA_TASK_ALIAS: "psi"}
    told = {labels.KUSCIA_JOB_UID: job["metadata"]["uid"], labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_JOB}
    named = [{"domainID": each, "appImageRef": "engine"} for each in _PARTIES]
    body = {
        "metadata": {**meta, "name": f"{name}-psi", "labels": told, "annotations": marks},
        "spec": {"initiator": _PARTIES[0], "taskInputConfig": "{}", "parties": named},
    }
    await client.create(TASK, body)
    parties_ended = [{"domainID": each, "phase": "Succeeded"} for each in _PARTIES]
    await client.patch_status(
        TASK, f"{name}-psi", CROSS_DOMAIN, {"status": {**ended, "partyTaskStatus": parties_ended}}
    )


# Calls.


@dataclass(frozen=True, slots=True)
class Asked:
    """One kind of call. `request`: with `PLACE` where a number makes each its own."""

    what: str
    method: str
    path: str
    request: dict[str, Any]


def _asked(jobs: int) -> list[Asked]:
    header = {"custom_headers": {"number": PLACE}}
    middle, few = _name(jobs // 2), min(_BATCH, jobs)
    batch = [_name(number * jobs // few) for number in range(few)]
    return [
        Asked("query", "QueryJob", "query", {"job_id": middle, "header": header}),
        Asked(
            f"batch query of {few}", "BatchQueryJobStatus", "status/batchQuery", {"job_ids": batch, "header": header}
        ),
    ]


_TASK = {
    "alias": "psi", "app_image": "engine", "task_input_config": "{}", "parties": [{"domain_id": each} for each in _PARTIES],
}  # fmt: skip
_CREATE = Asked("create", "CreateJob", "create", {"job_id": f"new-{PLACE}", "initiator": _PARTIES[0], "tasks": [_TASK]})


def _calls(bench: Bench, node: ApiNode, kinds: Sequence[Asked]) -> list[Row]:
    rows = []
    first = 0
    for shown, send in (("HTTP", _over_http), ("gRPC", _over_grpc)):
        for asked in kinds:
            for at_once in _AT_ONCE:
                done = send(bench, node, asked, at_once, first)
                first += done.requests
                note = f"p50 {done.p50:.2f} ms, p99 {done.p99:.2f} ms; {done.bytes} B, the caller takes {done.own_cpu:.0f} µs"
                what = f"KusciaAPI, {bench.plan.known_jobs} jobs known: {asked.what}, {shown}, {at_once} at once"
                rows.append(Row(what, done.rate, "/s", done.cpu, note=note))
    return rows


def _served(node: ApiNode) -> None:
    """The first call starts the process that serves."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if port_taken("127.0.0.1", node.http) and len(node.pids()) > 1:
            asyncio.run(_first_call(node))
            return
        time.sleep(0.05)
    raise RuntimeError("nobody serves KusciaAPI")


async def _first_call(node: ApiNode) -> None:
    """Refusals come with HTTP 200, so that whoever only counts would not see them."""
    async with _session(node) as session, session.post("/api/v1/job/query", json={"job_id": _name(0)}) as answer:
        told = await answer.json(content_type=None)
    if told["status"]["code"] or told["data"]["status"]["state"] != "Succeeded":
        raise RuntimeError(f"KusciaAPI does not know the jobs: {told}")


def _over_http(bench: Bench, node: ApiNode, asked: Asked, at_once: int, first: int) -> Outcome:
    before, _, after = json.dumps(asked.request).partition(PLACE)
    return run(
        Load(
            node.http, node.caller, at_once, "POST", f"/api/v1/job/{asked.path}", body_before=before, body_after=after,
            first=first, seconds=bench.plan.seconds, pids=node.pids(), core=bench.cores.load,
            headers=f"Token: {node.token}\r\n",
        )
    )  # fmt: skip


def _over_grpc(bench: Bench, node: ApiNode, asked: Asked, at_once: int, first: int) -> Outcome:
    specification = {
        "port": node.grpc, "identity": asdict(node.caller), "token": node.token, "method": asked.method,
        "request": json.dumps(asked.request), "at_once": at_once, "first": first, "seconds": bench.plan.seconds,
        "pids": node.pids(), "core": bench.cores.load,
    }  # fmt: skip
    return Outcome(**child("benchmarks.bench_api", specification))


# Watchers.


async def _watched(bench: Bench, node: ApiNode) -> list[Row]:
    rows = []
    watchers, jobs = bench.plan.job_watchers, bench.plan.known_jobs
    for shown, listen in (("HTTP", _listen_http), ("gRPC", _listen_grpc)):
        async with node.client() as client:
            room = _Room(client, watchers)
            with _measured(node) as cpu:
                began = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    listening = [group.create_task(listen(node, room)) for _ in range(watchers)]
                    await room.filled(jobs)
                    rows.append(
                        Row(
                            f"WatchJob, {watchers} watchers over {shown}: all told of {jobs} jobs",
                            time.perf_counter() - began, "s", cpu() / watchers, note="CPU is for one watcher",
                        )
                    )  # fmt: skip
                    spent = cpu()
                    delays = [await room.change(_name(number % jobs), number) for number in range(bench.plan.changes)]
                    spent = (cpu() - spent) / len(delays) / watchers
                    for each in listening:
                        each.cancel()
        ordered = sorted(delays)
        note = f"p99 {ordered[len(ordered) * 99 // 100] * 1e3:.1f} ms; CPU is for one watcher"
        what = f"WatchJob, {watchers} watchers over {shown}: change to the last of them, p50"
        rows.append(Row(what, statistics.median(delays) * 1e3, "ms", spent, note=note))
    return rows


class _Room:
    """All watchers of one run. What is changed is the message of a job, which is told as `err_msg`."""

    def __init__(self, client: Client, watchers: int) -> None:
        self._client = client
        self._watchers = watchers
        self._known: list[int] = []
        self._word = ""
        self._heard = 0
        self._moved = asyncio.Event()

    def seat(self) -> Callable[[str, str], None]:
        """What a watcher calls with each job and its message."""
        place = len(self._known)
        self._known.append(0)

        def hear(job: str, word: str) -> None:
            self._known[place] += 1
            if self._word and word == self._word:
                self._heard += 1
            self._moved.set()

        return hear

    async def filled(self, jobs: int) -> None:
        await self._until(lambda: len(self._known) == self._watchers and min(self._known) >= jobs)

    async def change(self, job: str, number: int) -> float:
        """Seconds until the last watcher heard of it."""
        self._word, self._heard = f"change {number} {time.monotonic_ns()}", 0
        began = time.perf_counter()
        await self._client.patch_status(JOB, job, CROSS_DOMAIN, {"status": {"message": self._word}})
        await self._until(lambda: self._heard >= self._watchers)
        return time.perf_counter() - began

    async def _until(self, so: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not so():
                self._moved.clear()
                await self._moved.wait()


async def _listen_http(node: ApiNode, room: _Room) -> None:
    hear, reader, rest = room.seat(), json.JSONDecoder(), ""
    async with _session(node) as session, session.post("/api/v1/job/watch", json={}) as answer:
        async for chunk in answer.content.iter_any():
            rest += chunk.decode()
            with contextlib.suppress(json.JSONDecodeError):
                while rest:
                    event, end = reader.raw_decode(rest)
                    rest = rest[end:]
                    job = event.get("object")
                    if job is not None:
                        hear(job["job_id"], job["status"].get("err_msg", ""))


async def _listen_grpc(node: ApiNode, room: _Room) -> None:
    hear, event = room.seat(), messages.message("WatchJobEventResponse")
    async with _channel(node.grpc, node.caller) as channel:
        call: grpc.aio.UnaryStreamMultiCallable[bytes, Any] = channel.unary_stream(
            f"/{_SERVICE}/WatchJob", response_deserializer=event.FromString
        )
        async for told in call(b"", metadata=(("token", node.token),)):
            if told.HasField("object"):
                hear(told.object.job_id, told.object.status.err_msg)


@contextmanager
def _measured(node: ApiNode) -> Iterator[Callable[[], float]]:
    """Microseconds of the server's CPU time since here."""
    pids = node.pids()

    def total() -> float:
        return sum(cpu_of(pid) for pid in pids) * 1e6

    before = total()
    yield lambda: total() - before


# Callers.


def _session(node: ApiNode) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(ssl=node.caller.tls())
    no_end = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(
        f"https://localhost:{node.http}", connector=connector, headers={"Token": node.token}, timeout=no_end,
        read_bufsize=1 << 20,
    )  # fmt: skip


def _channel(port: int, own: Identity) -> grpc.aio.Channel:
    files = [Path(path).read_bytes() for path in (own.ca, own.key, own.certificate)]
    # Each has a connection of its own, as callers in different programs have.
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*files), options)


async def _ask(given: dict[str, Any]) -> Outcome:
    before, _, after = given["request"].partition(PLACE)
    request, response = messages.message(f"{given['method']}Request"), messages.message(f"{given['method']}Response")
    numbers = iter(range(given["first"], sys.maxsize))
    latencies: list[float] = []
    size = 0
    deadline = float("inf")

    async def caller() -> None:
        nonlocal size
        async with _channel(given["port"], Identity(**given["identity"])) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{_SERVICE}/{given['method']}")
            await channel.channel_ready()
            ready.release()
            await begin.wait()
            while time.perf_counter() < deadline:
                text = f"{before}{next(numbers):0{NAME_DIGITS}}{after}"
                body = json_format.Parse(text, request()).SerializeToString()
                began = time.perf_counter()
                data = await call(body, metadata=(("token", given["token"]),))
                latencies.append(time.perf_counter() - began)
                size = len(data)
                told = response.FromString(data).status
                if told.code:
                    raise RuntimeError(f"{given['method']} was refused: {told.code} {told.message}")

    ready, begin = asyncio.Semaphore(0), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(given["at_once"]):
            group.create_task(caller())
        for _ in range(given["at_once"]):
            await ready.acquire()
        own, cpu, began = time.process_time(), sum(map(cpu_of, given["pids"])), time.perf_counter()
        deadline = began + given["seconds"]
        begin.set()
    seconds = time.perf_counter() - began
    own, cpu = time.process_time() - own, sum(map(cpu_of, given["pids"])) - cpu
    ordered, count = sorted(latencies), len(latencies)
    return Outcome(
        requests=count,
        seconds=seconds,
        p50=ordered[count // 2] * 1e3,
        p99=ordered[count * 99 // 100] * 1e3,
        bytes=size,
        refused=0,
        refusal="",
        cpu=cpu / count * 1e6,
        own_cpu=own / count * 1e6,
    )


def main() -> None:
    given = json.load(sys.stdin)
    os.sched_setaffinity(0, {given["core"]})
    print(json.dumps(asdict(asyncio.run(_ask(given)))))


if __name__ == "__main__":
    main()
