"""A large table read and written: by Arrow on the file itself, through a bare Flight server, and through a data mesh.

Both servers speak mutual TLS, and the client is the same. The data mesh's "prototype" is the bare server; 0.7 is what was
asked for.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from benchmarks import data_tables
from benchmarks.measures import Bench
from benchmarks.node import Pinned, cpu_of, free_port
from benchmarks.table import Row
from coterie.base.paths import DomainPaths
from coterie.cli import process_usage
from coterie.engines.psi.protobytes import command

DOMAIN = "bench"
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    read: Callable[[str], int]
    """The rows of `in.<format>`."""
    write: Callable[[str, int], None]
    """`out.<format>`, about so many bytes."""
    pid: int = 0
    """Of the server, if there is one."""


def data(bench: Bench) -> list[Row]:
    size = bench.plan.table
    with tempfile.TemporaryDirectory(dir=bench.folder) as place, _servers(Path(place)) as ways:
        rows: list[Row] = []
        for ending in data_tables.FORMATS:
            rows += _measured(bench, ways, ending, size)
        return rows


def _measured(bench: Bench, ways: list[Way], ending: str, size: int) -> Iterator[Row]:
    count = sum(each.num_rows for each in data_tables.batches(size))
    moved = sum(each.nbytes for each in data_tables.batches(size)) / 1e6
    # Written first: what the direct way writes is what all of them read.
    ways[0].write(ending, size)
    for verb in ("read", "write"):
        best: dict[str, tuple[float, float]] = {}
        # Twice as often as others: memory that the machine never used before is slow to write to, whoever comes to it first.
        for _ in range(2 * bench.plan.rounds):
            for way in ways:
                used, began = cpu_of(way.pid) if way.pid else 0.0, time.perf_counter()
                if verb == "write":
                    way.write(ending, size)
                elif way.read(ending) != count:
                    raise SystemExit(f"{way.name}: rows of the {ending} table are missing")
                seconds = time.perf_counter() - began
                used = cpu_of(way.pid) - used if way.pid else 0.0
                best[way.name] = min(best.get(way.name, (seconds, used)), (seconds, used))
        bare = moved / best[ways[1].name][0]
        for way in ways:
            seconds, used = best[way.name]
            yield Row(
                f"data: {verb} a table of {moved:,.0f} MB, {ending}, {way.name}", moved / seconds, "MB/s",
                used / moved * 1e6 if way.pid else None, bare if way is ways[2] else None,
                note="CPU µs of the server for a MB" if way.pid else "",
            )  # fmt: skip


@contextmanager
def _servers(folder: Path) -> Iterator[list[Way]]:
    http, grpc, bare = free_port(), free_port(), free_port()
    log = folder / "servers.log"
    domain = Pinned(["-m", "benchmarks.data_domain", str(folder), str(http), str(grpc)], None, log)
    try:
        ready = _ready(folder, log)
        files = Path(ready["data"])
        paths = DomainPaths.of(folder, DOMAIN)
        keys = [paths.certs / "DataMesh.crt", paths.certs / "DataMesh.key", paths.ca_certificate]
        read, write = _through_mesh(_client(folder, grpc, paths))
        # Whoever reads first waits for the serving process; it has made its keys by then.
        data_tables.write(files / "in.csv", data_tables.batches(1))
        read("csv")
        table = process_usage.processes()
        serving = next(pid for pid, (parent, _) in table.items() if parent == domain.pid)
        mesh = Way("data mesh", read, write, serving)
        plain = Pinned(["-m", "benchmarks.data_bare", str(files), str(bare), *map(str, keys)], None, log)
        try:
            plain.wait_for(bare)
            yield [
                Way("Arrow on the file", *_directly(files)),
                Way("bare Flight", *_through_bare(_client(folder, bare, paths)), pid=plain.pid),
                mesh,
            ]
        finally:
            plain.stop()
    finally:
        domain.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _ready(folder: Path, log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if (folder / "ready.json").exists():
            found: dict[str, Any] = json.loads((folder / "ready.json").read_text())
            return found
        time.sleep(0.02)
    sys.exit(f"the domain did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def _client(folder: Path, port: int, paths: DomainPaths) -> flight.FlightClient:
    return flight.connect(
        f"grpc+tls://localhost:{port}",
        tls_root_certs=paths.ca_certificate.read_bytes(),
        cert_chain=(folder / "engine.crt").read_bytes(),
        private_key=(folder / "engine.key").read_bytes(),
    )


Both = tuple[Callable[[str], int], Callable[[str, int], None]]


def _directly(files: Path) -> Both:
    def read(ending: str) -> int:
        return sum(each.num_rows for each in data_tables.read(files / f"in.{ending}"))

    def write(ending: str, size: int) -> None:
        data_tables.write(files / f"in.{ending}", data_tables.batches(size))

    return read, write


def _through_bare(client: flight.FlightClient) -> Both:
    def read(ending: str) -> int:
        return sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(f"in.{ending}".encode())))

    def write(ending: str, size: int) -> None:
        _put(client, flight.FlightDescriptor.for_path(f"out.{ending}"), size)

    return read, write


def _through_mesh(client: flight.FlightClient) -> Both:
    def ticket(name: str, table: str) -> flight.Ticket:
        asked = flight.FlightDescriptor.for_command(command(name, (1, table)))
        return client.get_flight_info(asked).endpoints[0].ticket

    def read(ending: str) -> int:
        given = ticket("CommandDomainDataQuery", f"in-{ending}")
        return sum(chunk.data.num_rows for chunk in client.do_get(given))

    def write(ending: str, size: int) -> None:
        given = ticket("CommandDomainDataUpdate", f"out-{ending}")
        _put(client, flight.FlightDescriptor.for_command(given.ticket), size)

    return read, write


def _put(client: flight.FlightClient, descriptor: flight.FlightDescriptor, size: int) -> None:
    writer, answers = client.do_put(descriptor, data_tables.SCHEMA)
    with writer:
        for each in data_tables.batches(size):
            writer.write_batch(each)
        writer.done_writing()
        while answers.read() is not None:
            pass
