"""Log files that stay within limits: `<log>` grows, `<log>.1` is the one before, `<log>.2.gz` the one before that, ...

Moving a file aside is a rename, so what its writer still writes goes to `<log>.1`, and nothing is lost. The writer then opens
`<log>` anew: Envoy when asked to, our own processes when they notice (`OwnOutput`). `.1` is compressed only when it becomes
`.2`, when nobody writes to it any more. A writer that cannot reopen gets `copy_and_truncate`.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import

if TYPE_CHECKING:
    import gzip
else:
    gzip = lazy_import("gzip")

_DAY = 86400.0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_CHUNK = 1 << 20
_OUTPUTS = (1, 2)
_LOCK = threading.Lock()
"""Files change their numbers while another thread compresses one."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How much is kept of one log."""

    max_bytes: int = 64 << 20
    """A file that is larger is moved aside."""
    max_files: int = 5
    """With the one that is written to."""
    max_age_days: float = 30.0
    """Files that were moved aside are removed when they are older."""


STANDARD = Rotation()


def is_full(path: Path, rules: Rotation) -> bool:
    return _size(path) > rules.max_bytes


def move_aside(path: Path, rules: Rotation) -> None:
    """`<log>` becomes `<log>.1`, `.1` becomes `.2`, and so on; what is too many goes."""
    with _LOCK:
        _as_first(path, path, rules)


def _as_first(file: Path, path: Path, rules: Rotation) -> None:
    for number, old in sorted(_set_aside(path).items(), reverse=True):
        for each in old:
            if number >= rules.max_files - 1:
                each.unlink(missing_ok=True)
            else:
                os.replace(each, _numbered(path, number + 1, gz=each.suffix == ".gz"))
    if rules.max_files > 1:
        os.replace(file, _numbered(path, 1))
    else:
        file.unlink()


def copy_and_truncate(path: Path, rules: Rotation) -> None:
    """For a writer that keeps its file open for appending. What it writes between the last read and the truncation is lost,
    which takes microseconds: only for logs that are hardly written to."""
    copy = path.with_name(path.name + ".copy")
    with path.open("rb+") as source, open(os.open(copy, _FLAGS | os.O_TRUNC, 0o600), "wb") as target:
        while data := source.read(_CHUNK):
            target.write(data)
        source.truncate(0)
    with _LOCK:
        _as_first(copy, path, rules)


def tidy(path: Path, rules: Rotation, now: float) -> None:
    """Remove what is too old or too much, compress what nobody writes to any more. `now`: seconds since 1970.

    May take a second for a large file: not for an event loop.
    """
    for number, old in _set_aside(path).items():
        for each in old:
            with contextlib.suppress(FileNotFoundError):
                if number >= rules.max_files or now - each.stat().st_mtime > rules.max_age_days * _DAY:
                    each.unlink()
                elif number > 1 and each.suffix != ".gz":
                    compress(each)


def compress(path: Path) -> None:
    """In place of the file, with its time. An interrupted attempt is begun anew, one that was overtaken by a rotation later."""
    packed, unfinished = path.with_name(path.name + ".gz"), path.with_name(path.name + ".gz.part")
    unfinished.unlink(missing_ok=True)
    found = path.stat()
    with (
        path.open("rb") as source,
        open(os.open(unfinished, _FLAGS | os.O_TRUNC, 0o600), "wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=4, mtime=0) as target,
    ):
        while chunk := source.read(_CHUNK):  # as shutil does, which would load two more compressors
            target.write(chunk)
    os.utime(unfinished, ns=(found.st_atime_ns, found.st_mtime_ns))
    with _LOCK:
        if os.path.samestat(path.stat(), found):
            os.replace(unfinished, packed)
            path.unlink()
            return
    unfinished.unlink()


def _set_aside(path: Path) -> dict[int, list[Path]]:
    """By number, what was moved aside."""
    name = re.compile(re.escape(path.name) + r"\.(\d+)(\.gz)?")
    out: dict[int, list[Path]] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(path.parent):
            if found := name.fullmatch(entry.name):
                out.setdefault(int(found[1]), []).append(path.parent / entry.name)
    return out


def _numbered(path: Path, number: int, *, gz: bool = False) -> Path:
    return path.with_name(f"{path.name}.{number}{'.gz' if gz else ''}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def open_log(path: Path) -> int:
    """For appending: whole lines of several writers do not mix."""
    return os.open(path, _FLAGS, 0o600)


class OwnOutput:
    """Standard output and error of this process, where they go to the file `path`."""

    def __init__(self, path: Path, *, known: bool = False) -> None:
        """`known`: they were opened as that file, whatever it is called now. Otherwise it is found out."""
        self.path = path
        self._outputs = _OUTPUTS if known else tuple(each for each in _OUTPUTS if _is(each, path))

    @property
    def is_ours(self) -> bool:
        return bool(self._outputs)

    def follow(self) -> None:
        """Write to the file that has the name now, when another one had it before."""
        if not self._outputs or _is(self._outputs[-1], self.path):
            return
        fresh = open_log(self.path)
        try:
            for each in self._outputs:
                os.dup2(fresh, each)
        finally:
            os.close(fresh)


def _is(descriptor: int, path: Path) -> bool:
    try:
        opened, named = os.fstat(descriptor), os.stat(path)
    except OSError:
        return False
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
