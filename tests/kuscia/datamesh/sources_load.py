"""Writes and reads a large table in a process of its own; prints rows, speed and the most memory that it had.

    python tests/kuscia/datamesh/sources_load.py '{"kind": "localfs", "path": "/tmp/x"}' t.csv 10000000

Secrets in the JSON are plain: this is for servers of tests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.protocol import DataLocation, DataSource, SourceInfo
from coterie.kuscia.sources.source_registry import open_source

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
BATCH = 65536


def info_of(text: str) -> SourceInfo:
    fields = json.loads(text)
    for secret in ("password", "access_key_secret"):
        if fields.get(secret):
            fields[secret] = SecretValue(fields[secret])
    return SourceInfo(**fields)


def batch_of(start: int, count: int) -> pa.RecordBatch:
    ids = pa.array(range(start, start + count), pa.int64())
    names = pc.binary_join_element_wise("person", ids.cast(pa.string()), "-")
    return pa.RecordBatch.from_arrays([ids, names, pc.divide(ids.cast(pa.float64()), 7.0)], schema=SCHEMA)


async def load(source: DataSource, place: DataLocation, rows: int) -> dict[str, float]:
    size, write_s, start = 0, 0.0, time.perf_counter()
    async with source.write(place, SCHEMA) as sink:
        for first in range(0, rows, BATCH):
            batch = batch_of(first, min(BATCH, rows - first))
            size += batch.nbytes
            await sink.put(batch)
    write_s = time.perf_counter() - start
    start, seen, total = time.perf_counter(), 0, 0
    async with source.read(place, SCHEMA) as stream:
        async for batch in stream:
            seen += batch.num_rows
            total += pc.sum(batch.column(0)).as_py()
    read_s = time.perf_counter() - start
    assert (seen, total) == (rows, rows * (rows - 1) // 2)
    return {"rows": rows, "mb": size / 1e6, "write_mb_s": size / 1e6 / write_s, "read_mb_s": size / 1e6 / read_s}


def peak_mb() -> float:
    """Of this program alone: getrusage would count what started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


async def main() -> None:
    async with open_source(info_of(sys.argv[1])) as source:
        place = DataLocation(sys.argv[2])
        found = await load(source, place, int(sys.argv[3]))
        await source.delete(place)
    print(json.dumps({**found, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    asyncio.run(main())
