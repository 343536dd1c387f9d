"""The code of an action: its files, its version, and what is wrong with it. Pure.

    spec.script ───────────────> {"action.py": ...} ─┐
    spec.archive ─base64, read─> {path: file} ───────┴─> version_name, packed (a .tar.gz for actors, always the same bytes)

Files come from users: links, devices, paths that lead out and archives that unpack to too much are refused. A fault of
the code itself (`code_fault`: syntax, no such module) is found without running anything.
"""

from __future__ import annotations

import ast
import base64
import binascii
import hashlib
import warnings
from collections.abc import Iterator

from coterie.base.archives import ArchivedFile, ArchiveLimits, FileTree, InvalidFiles, read_archive, write_archive
from coterie.kuscia.api.functions.types import DEFAULT_IMAGE, ActionSpec

LIMITS = ArchiveLimits(packed=750_000, unpacked=16 << 20, files=1000)
"""A packed archive is kept in one ConfigMap for each version."""
MAX_SCRIPT = 512 * 1024
MAX_PARSED = 64 * 1024
"""Bytes that the API server parses of one action, which takes 100 ms at most; faults of the rest are found by the actor."""
SCRIPT_FILE = "action.py"


def code_files(spec: ActionSpec) -> dict[str, ArchivedFile]:
    """What lies in `/userland` of an actor; empty when the image has the code. Raises InvalidFiles."""
    if spec.script:
        data = spec.script.encode("utf-8", "surrogatepass")
        if len(data) > MAX_SCRIPT:
            raise InvalidFiles(f"the script has {len(data)} bytes; {MAX_SCRIPT} are allowed: use an archive")
        return {SCRIPT_FILE: ArchivedFile(data)}
    if not spec.archive:
        return {}
    try:
        packed = base64.b64decode("".join(spec.archive.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidFiles(f"the archive is not base64: {error}") from error
    files = read_archive(packed, LIMITS, strict=True)
    if not files:
        raise InvalidFiles("the archive has no files")
    return files


def packed_code(spec: ActionSpec) -> bytes:
    """A .tar.gz; the same files give the same bytes. Raises InvalidFiles."""
    return write_archive(code_files(spec), LIMITS)


def version_name(spec: ActionSpec) -> str:
    """`v` and 10 hex digits of the SHA-256 of the files; of the image and its command where the image has the code.
    Raises InvalidFiles."""
    return version_of_files(code_files(spec), spec)


def version_of_files(files: FileTree, spec: ActionSpec) -> str:
    digest = hashlib.sha256()
    for part in _parts(files, spec):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return f"v{digest.hexdigest()[:10]}"


def _parts(files: FileTree, spec: ActionSpec) -> Iterator[bytes]:
    if not files:
        yield spec.image.encode()
        for word in spec.command or ():
            yield word.encode()
    for path in sorted(files):
        yield path.encode()
        yield b"x" if files[path].executable else b""
        yield files[path].data


def code_fault(files: FileTree, spec: ActionSpec) -> str:
    """Why the default image could not load this code; empty when nothing is known. What other images load is theirs to say."""
    if spec.image != DEFAULT_IMAGE or not files:
        return ""
    module, _, function = spec.handler.rpartition(".")
    if spec.script and module != "action":
        return f"handler {spec.handler}: a script is the module action; write action.{function}, or use an archive"
    path = module.replace(".", "/")
    found = next((each for each in (f"{path}.py", f"{path}/__init__.py") if each in files), "")
    if not found:
        return f"handler {spec.handler}: the archive has neither {path}.py nor {path}/__init__.py"
    left = MAX_PARSED
    for each in sorted(files, key=lambda path: (path != found, path)):
        if each.endswith(".py") and len(files[each].data) <= left:
            left -= len(files[each].data)
            if fault := syntax_fault(files[each].data, each):
                return fault
    return ""


def syntax_fault(source: bytes, name: str) -> str:
    """`action.py, line 3: ...`; empty when Python can read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, name)
    except SyntaxError as error:
        return f"{name}, line {error.lineno or 0}: {error.msg}"
    except (RecursionError, MemoryError):
        return f"{name}: nested too deeply"
    except ValueError as error:
        return f"{name}: {error}"
    return ""
