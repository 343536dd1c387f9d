"""The files of a rotated log, oldest first, compressed or not, line by line."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import deque
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_NUMBERED = re.compile(r"\.(\d+)(\.gz)?$")
LONGEST_LINE = 16 << 10


def rotated_files(path: Path, since: float = 0.0) -> list[Path]:
    """`<log>.3.gz`, `<log>.2.gz`, `<log>.1`, `<log>`; without those that were last written before `since`."""
    found: list[tuple[int, Path]] = []
    for each in path.parent.glob(f"{path.name}*"):
        rest = each.name.removeprefix(path.name)
        numbered = _NUMBERED.fullmatch(rest)
        if rest and numbered is None:
            continue
        try:
            recent = each.is_file() and each.stat().st_mtime >= since
        except FileNotFoundError:
            continue
        if recent:
            found.append((int(numbered[1]) if numbered else 0, each))
    return [each for _, each in sorted(found, reverse=True)]


def lines_of(path: Path) -> Iterator[str]:
    """What cannot be read any more ends early. Very long lines come in pieces."""
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE):
                yield line.decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def last_lines(path: Path, most: int, largest: int) -> list[str]:
    """Of a log with its older files: the last `most` lines, and no more than `largest` bytes of the newest file."""
    kept: deque[str] = deque(maxlen=most)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - largest))
            if size > largest:
                file.readline(largest)
            while line := file.readline(LONGEST_LINE):
                kept.append(line.decode("utf-8", "replace").rstrip("\n"))
    except OSError:
        return []
    return list(kept)
