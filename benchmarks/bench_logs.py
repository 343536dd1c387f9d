"""Searching kept logs: output of an engine in files of 64 MiB, all pages of a query, each in a process of its own.

Run it as a script; the argument is the number of megabytes (default 1024). Prints seconds for the whole, GB/s, and the newest page.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base.log_scan import ScanRequest, ScanStream
from coterie.base.log_scan_process import LogScanner

FILE = 64 << 20
PATTERNS = (
    ("a text", "needle 77"),
    ("a regular expression with a text", r"needle \d+$"),
    ("alternatives in any case", "(?i)NEEDLE|panic"),
    ("an expression without any text", r"[0-9]{7}ms"),
)


@dataclass(frozen=True, slots=True)
class Searched:
    seconds: float
    cpu: float
    pages: int
    lines: int


def write(folder: Path, megabytes: int) -> tuple[ScanStream, int]:
    """A log of lines of about 120 bytes, in files of 64 MiB; returns it with its size."""
    names, left, second = [], megabytes << 20, 0
    for number in range(-(-left // FILE)):
        name = f"0.log.{number}" if number else "0.log"
        names.append((name,))
    for name in reversed(names):
        with (folder / name[0]).open("wb") as file:
            size = 0
            while size < min(FILE, left):
                stamp = f"2026-01-02T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
                head = f"{stamp}.123456789Z stdout F "
                block = "".join(
                    f"{head}epoch {i} batch {second} loss 0.12345 rows 100000 {'x' * 40}\n" for i in range(500)
                )
                size += file.write((block + f"{head}needle {second}\n").encode())
                second += 1
            left -= size
    return ScanStream(str(folder), tuple(names), "cri"), sum((folder / name[0]).stat().st_size for name in names)


async def search(stream: ScanStream, pattern: str) -> Searched:
    scanner, request = LogScanner(), ScanRequest((stream,), grep=pattern, limit=1000)
    before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    pages = lines = 0
    while True:
        answer = await scanner.scan(request)
        pages, lines = pages + 1, lines + len(answer.lines)
        if not answer.frontier:
            break
        request = replace(request, before=answer.frontier)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Searched(time.perf_counter() - before, cpu, pages, lines)


async def newest(stream: ScanStream) -> float:
    """Seconds for the newest 100 lines."""
    before = time.perf_counter()
    await LogScanner().scan(ScanRequest((stream,), limit=100))
    return time.perf_counter() - before


def rows(bench: Bench) -> list[Row]:
    megabytes = 64 if bench.plan.seconds < 1 else 1024
    with tempfile.TemporaryDirectory() as folder:
        stream, size = write(Path(folder), megabytes)
        asyncio.run(search(stream, "nothing"))  # the files are in memory afterwards, as fresh logs are
        out = [Row("logs: the newest 100 lines", asyncio.run(newest(stream)) * 1e3, "ms", lower_is_better=True)]
        for what, pattern in PATTERNS:
            found = asyncio.run(search(stream, pattern))
            note = f"{size / 1e9:.2f} GB in {found.seconds:.2f} s, {found.pages} pages"
            out.append(Row(f"logs: search for {what}", size / found.seconds / 1e9, "GB/s", note=note))
        return out


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory() as folder:
        stream, size = write(Path(folder), megabytes)
        asyncio.run(search(stream, "nothing"))
        print(f"{size / 1e9:.2f} GB; the newest 100 lines: {asyncio.run(newest(stream)) * 1e3:.0f} ms")
        for what, pattern in PATTERNS:
            found = asyncio.run(search(stream, pattern))
            print(
                f"{what}: {found.seconds:.2f} s, {size / found.seconds / 1e9:.2f} GB/s, CPU {found.cpu:.2f} s, "
                f"{found.pages} pages, {found.lines} lines"
            )


if __name__ == "__main__":
    main()
