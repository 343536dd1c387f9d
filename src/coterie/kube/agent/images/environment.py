"""The id of a host environment: what its containers run, not where it lies.

    command, arguments, variables ──┐
    files of the environment ───────┼──> sha256
    scripts, PYTHONPATH, visible ───┘

Two machines on which the same packages are installed, in whatever directory, have the same id; another version of one file
is another id. Bytecode caches and pip's records of an installation do not count, and neither does the interpreter that a
virtual environment was made with, except for its version.

Contents are hashed once: a file counts as unchanged while its inode, size, mtime and ctime are what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie
from coterie.base.files import private_directory, write_atomic
from coterie.kube.agent.images.model import StoredImage
from coterie.kube.agent.runtimes.runp import visible

_CHUNK = 1 << 20
_MOST_TEXT = 256 << 10
"""Bytes up to which a file is searched for the path of its environment."""
_PLACE = b"{environment}"
_NOT_CODE = ("__pycache__",)
_PIP_RECORDS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_SETTLED_NS = 1_000_000_000
"""A file that changed later than this before it was read may change again without a new time."""
_SYSTEM = "/usr"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    code_only: bool = False
    """Programs, libraries and Python modules alone: the rest is data, which may be large."""


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    """Relative to the source."""
    path: str
    info: os.stat_result

    @property
    def stamp(self) -> list[int]:
        info = self.info
        return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode]


def at_once() -> None:
    """No rest between files."""


def environment_id(image: StoredImage, cache: Path, rest: Callable[[], None] = at_once) -> str:
    """`sha256:...` of a host environment as it is now. Blocking; reads what changed since the last time. `cache`: a directory
    for what was read; `rest` is called after each file. Raises OSError, and what `rest` raises."""
    if image.builtin and not image.entrypoint:
        return image.id  # all programs of the machine: only the name is known
    sources = _sources(image)
    place = sources[0].path if sources and os.path.isdir(sources[0].path) else ""
    facts = {
        "command": [_relative(word, place) for word in (*image.entrypoint, *image.cmd)],
        # PATH says where the machine's own programs are.
        "env": sorted([key, _relative(value, place)] for key, value in image.env if key not in ("PATH", "PYTHONPATH")),
        "workdir": _relative(image.workdir, place),
        "visible": [os.path.basename(path) for path in image.visible],
        "code": [_digest(source, cache, rest) for source in sources],
    }
    if image.builtin:
        facts |= {"command": [image.name], "python": list(sys.version_info[:2])}
    return f"sha256:{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()}"


def environment_stamp(image: StoredImage, rest: Callable[[], None] = at_once) -> str:
    """Changes when a file of the environment does. Blocking; reads no contents. Raises OSError, and what `rest` raises."""
    value = hashlib.sha256()
    for source in _sources(image) if not image.builtin or image.entrypoint else ():
        for file in _files(source):
            value.update(f"{file.path}\0{file.stamp}\n".encode("utf-8", "surrogateescape"))
            rest()
    return value.hexdigest()


def _relative(text: str, place: str) -> str:
    return text.replace(place, _PLACE.decode()) if place else text


def _sources(image: StoredImage) -> list[_Source]:
    """The first is the environment's own directory, or its program."""
    if image.builtin:
        return [_Source(str(Path(coterie.__file__).parent))]
    variables = dict(image.env)
    found = []
    if image.entrypoint:
        program = shutil.which(image.entrypoint[0], path=variables.get("PATH")) or image.entrypoint[0]
        if os.path.isabs(program) and os.path.exists(program):
            prefix = visible.own_prefix(program)
            found.append(_Source(program if prefix == _SYSTEM or prefix.startswith(f"{_SYSTEM}/") else prefix))
    words = (*image.entrypoint[1:], *image.cmd)
    found += [_Source(word) for word in words if word.startswith("/") and os.path.isfile(word)]
    found += [
        _Source(each)
        for each in variables.get("PYTHONPATH", "").split(":")
        if each.startswith("/") and os.path.isdir(each)
    ]
    found += [_Source(each, code_only=True) for each in image.visible if os.path.exists(each)]
    return list(dict.fromkeys(found))


def _files(source: _Source) -> Iterator[_File]:
    """In a fixed order."""
    top = source.path
    if not os.path.isdir(top):
        yield _File("", top, os.stat(top))
        return
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(os.path.join(top, inside) if inside else top) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                name = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _NOT_CODE:
                        waiting.append(name)
                elif _counts(name, inside):
                    info = entry.stat(follow_symlinks=False)
                    if _is_content(info.st_mode) and (not source.code_only or _is_code(name, info.st_mode)):
                        yield _File(name, entry.path, info)


def _counts(name: str, folder: str) -> bool:
    base = name.rpartition("/")[2]
    if base.endswith(".pyc") or (folder == "bin" and base.lower().startswith("activate")):
        return False
    return not (folder.endswith(".dist-info") and base in _PIP_RECORDS)


def _is_content(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _is_code(name: str, mode: int) -> bool:
    return bool(mode & 0o111) or name.endswith((".py", ".so", ".jar")) or ".so." in name


def _digest(source: _Source, cache: Path, rest: Callable[[], None]) -> str:
    """Of all files of a source, from the cache where they did not change."""
    kept = cache / f"{hashlib.sha256(f'{source.path} {source.code_only}'.encode()).hexdigest()[:32]}.json"
    known = _read(kept)
    files: dict[str, list[Any]] = {}
    changed = False
    total = hashlib.sha256()
    settled = time.time_ns() - _SETTLED_NS
    for file in _files(source):
        before = known.get(file.name)
        content = before[-1] if before is not None and before[:-1] == file.stamp else ""
        if not content:
            content = _content(file, source.path)
            changed = True
        if max(file.info.st_mtime_ns, file.info.st_ctime_ns) < settled:
            files[file.name] = [*file.stamp, content]
        executable = "x" if file.info.st_mode & 0o100 else "-"
        total.update(f"{file.name}\0{executable}\0{content}\n".encode("utf-8", "surrogateescape"))
        rest()
    if changed or len(files) != len(known):
        private_directory(cache)
        write_atomic(kept, json.dumps({"format": _FORMAT, "files": files}), durable=False)
    return total.hexdigest()


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    found: dict[str, list[Any]] = document.get("files") or {} if document.get("format") == _FORMAT else {}
    return found


def _content(file: _File, top: str) -> str:
    place = os.fsencode(top)
    if stat.S_ISLNK(file.info.st_mode):
        target = os.readlink(file.path)
        real = os.path.normpath(os.path.join(os.path.dirname(file.path), target))
        # Where a link leads to outside is the machine's business.
        return hashlib.sha256(b"link " + _inside(real, top)).hexdigest()
    with open(file.path, "rb") as opened:
        if file.info.st_size <= _MOST_TEXT:
            data = opened.read()
            if file.name == "pyvenv.cfg":
                data = _venv_version(data.decode("utf-8", "replace"))
            return hashlib.sha256(data.replace(place, _PLACE)).hexdigest()
        value = hashlib.sha256()
        while data := opened.read(_CHUNK):
            value.update(data)
        return value.hexdigest()


def _inside(path: str, top: str) -> bytes:
    return os.fsencode(os.path.relpath(path, top)) if path.startswith(f"{top}/") else b"outside"


def _venv_version(text: str) -> bytes:
    lines = (line.partition("=") for line in text.splitlines())
    return b" ".join(value.strip().encode() for key, _, value in lines if key.strip() in ("version", "version_info"))


def code_sources(image: StoredImage) -> Sequence[str]:
    """Paths whose content the id of a host environment covers."""
    return [source.path for source in _sources(image)]
