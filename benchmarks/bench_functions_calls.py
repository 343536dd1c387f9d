"""Warm calls through gateway, link, embedded bus, dispatcher and actor, beside a bare asyncio HTTP server in the same run.

    python -m benchmarks.bench_functions_calls [--quick]

Every process is real and on one core; the load comes from the other one. Every call is on the disk before it is run, and its answer before it is
sent. Chains of 1, 2 and 4 actions say what one more hop costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httptools

from benchmarks.load import Load, Outcome, run
from benchmarks.measures import Bench, Plan
from benchmarks.node import Cores, Pinned, free_port
from benchmarks.table import Row, markdown

_TOKEN = "bench-token"
_ANSWER = "from serverless import Response\n\ndef action(req):\n    return Response('hello')\n"
_PASS_ON = "from serverless import Invoke\n\ndef action(req):\n    return Invoke('{next}', params={{'n': 1}}, body=req.body())\n"
CHAINS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Functions:
    port: int
    """Of the gateway."""
    pids: tuple[int, ...]
    """Gateway, functions process."""
    actors: tuple[int, ...]

    def calls(self, path: str, connections: int, seconds: float, core: int) -> Outcome:
        load = Load(self.port, None, connections, "GET", path, seconds=seconds, pids=self.pids + self.actors, core=core)
        return run(load)


def chain(length: int) -> list[str]:
    return [f"chain{length}-{number}" for number in range(length)]


@contextmanager
def functions(folder: Path, core: int, bytecode: Path, actors_each: int = 1) -> Iterator[Functions]:
    port, link_port = free_port(), free_port()
    actions, actor_pids = [], []
    with ExitStack() as stack:
        started: list[tuple[Pinned, int]] = []
        for length in CHAINS:
            names = chain(length)
            for name, following in zip(names, [*names[1:], ""], strict=True):
                ports = [free_port() for _ in range(actors_each)]
                code = folder / name
                code.mkdir()
                (code / "action.py").write_text(_PASS_ON.format(next=following) if following else _ANSWER)
                for actor_port in ports:
                    made = _actor(name, following, code, actor_port, core, folder, bytecode)
                    stack.callback(made.stop)
                    started.append((made, actor_port))
                    actor_pids.append(made.pid)
                actions.append(
                    {"name": name, "next": [following] if following else [], "concurrency": 8, "actors": ports}
                )
        for made, actor_port in started:
            made.wait_for(actor_port)
        settings = {
            "COTERIE_LINK_TOKEN": _TOKEN,
            "COTERIE_GATEWAY_ADDRESS": "127.0.0.1",
            "COTERIE_GATEWAY_PORT": port,
            "COTERIE_GATEWAY_LINK_PORT": link_port,
            "COTERIE_GATEWAY_GRACE": 1,
        }
        gateway = Pinned(
            ["-m", "coterie.functions.gateway"], core, folder / "gateway.log", bytecode, prefix=_env(settings)
        )
        stack.callback(gateway.stop)
        gateway.wait_for(port)
        specification = {
            "directory": str(folder),
            "token": _TOKEN,
            "gateways": [{"uid": "g1", "port": link_port}],
            "actions": actions,
            "routes": [{"path": f"/{length}", "action": chain(length)[0]} for length in CHAINS],
        }
        (folder / "host.json").write_text(json.dumps(specification))
        host = Pinned(
            ["-m", "benchmarks.functions_host", str(folder / "host.json")], core, folder / "host.log", bytecode
        )
        stack.callback(host.stop)
        _wait_linked(port)
        yield Functions(port, (gateway.pid, host.pid), tuple(actor_pids))


def _actor(name: str, following: str, code: Path, port: int, core: int, folder: Path, bytecode: Path) -> Pinned:
    settings = {
        "COTERIE_ACTION": name,
        "COTERIE_ACTION_NEXT": following,
        "COTERIE_ACTION_CONCURRENCY": 8,
        "COTERIE_ACTOR_TOKEN": _TOKEN,
        "COTERIE_ACTOR_HOST": "127.0.0.1",
        "COTERIE_ACTOR_PORT": port,
        "COTERIE_ACTOR_CODE": code,
    }
    return Pinned(["-m", "coterie.engines.actor"], core, folder / f"{name}.log", bytecode, prefix=_env(settings))


def _env(settings: dict[str, object]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in settings.items())]


def _wait_linked(port: int) -> None:
    for _ in range(300):
        try:
            run(Load(port, None, 1, "GET", "/1", count=1))
        except (RuntimeError, OSError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the gateway has no link")


class _BareServer(asyncio.Protocol):
    """What asyncio and a parser cost, and nothing else."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")


async def _serve_bare(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_BareServer, "127.0.0.1", port)
    await server.serve_forever()


def calls(bench: Bench) -> list[Row]:
    seconds, cores = bench.plan.seconds, bench.cores
    rows: list[Row] = []
    bare_port = free_port()
    bare = Pinned(
        ["-m", "benchmarks.bench_functions_calls", "--bare", str(bare_port)], cores.server, bench.folder / "bare.log", bench.bytecode
    )  # fmt: skip
    try:
        bare.wait_for(bare_port)
        for connections in (1, 64):
            load = Load(
                bare_port, None, connections, "GET", "/", seconds=seconds / 2, pids=(bare.pid,), core=cores.load
            )
            rows.append(_row(f"bare asyncio HTTP server, {connections} at once", run(load)))
    finally:
        bare.stop()
    with (
        tempfile.TemporaryDirectory(dir=bench.folder) as place,
        functions(Path(place), cores.server, bench.bytecode) as domain,
    ):
        for length in CHAINS:
            domain.calls(f"/{length}", 4, 0.5, cores.load)  # warm
            alone = domain.calls(f"/{length}", 1, seconds, cores.load)
            rows.append(_row(f"functions: warm call, chain of {length}, 1 at once", alone))
            if length > 1:
                first = next(row for row in rows if row.what == "functions: warm call, chain of 1, 1 at once")
                extra = (alone.p50 - float(first.note.split()[1])) / (length - 1)
                rows.append(
                    Row(f"functions: cost of one more hop, chain of {length}", extra, "ms", lower_is_better=True)
                )
        for connections in (8, 32):
            rows.append(
                _row(
                    f"functions: warm calls, {connections} at once",
                    domain.calls("/1", connections, seconds, cores.load),
                )
            )
    return rows


def _row(what: str, outcome: Outcome) -> Row:
    return Row(what, outcome.rate, "/s", outcome.cpu, note=f"p50 {outcome.p50:.3f} ms, p99 {outcome.p99:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="measure warm calls of functions")
    parser.add_argument("--bare", type=int, default=0, help="be the bare server on this port")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.bare:
        asyncio.run(_serve_bare(options.bare))
        return
    with tempfile.TemporaryDirectory() as place:
        plan = Plan(seconds=1.0 if options.quick else 4.0)
        print(markdown(calls(Bench(plan, Path(place), Cores.pick()))), file=sys.stdout)


if __name__ == "__main__":
    main()
