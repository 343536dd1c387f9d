"""Write the hashes of pinned packages: `make hashes` after a version in constraints.txt or in an engine's requirements changed.

    constraints.txt                     the versions                       (written by hand)
    requirements.txt                    the same with hashes               (written here, installed by `make setup`)
    src/coterie/engines/*/requirements.txt, scripts/s3-server.txt, scripts/lakes.txt, scripts/warehouses.txt, scripts/gcs-emulator.txt   (hashes are added here)

Every file of a pinned version is listed, wheels of all platforms and the source, so that one file serves all Python versions
and processors. The index is the one that pip is configured with; its address is written nowhere.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pip._internal.commands.download import DownloadCommand
from pip._internal.network.session import PipSession

ROOT = Path(__file__).parent.parent
BUILD = ("setuptools",)
"""What builds Coterie itself; its version stands in pyproject.toml."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(\s*;[^\\]*)?")
_LINK = re.compile(r'<a\s[^>]*href="([^"]+)"')
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})")
_PLATFORMS = re.compile(r"win32|win_amd64|win_arm64|macosx|musllinux|i686|ppc64|s390x|armv7l|riscv64|android|ios|wasm")
"""Wheels for machines that Coterie does not run on."""
_PYTHONS = re.compile(r"-(?:cp3(?:11|12|13)-|cp3(?:[2-9]|10)-abi3|cp311\.|py\d|py2\.py3|cp3\d+-none)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Index:
    """The package index that pip is configured with."""

    def __init__(self) -> None:
        command = DownloadCommand("download", "")
        options, _ = command.parse_args(["x"])
        self._url: str = options.index_url.rstrip("/")
        self._session: PipSession = command._build_session(options)

    def files(self, name: str) -> list[tuple[str, str]]:
        """(file name, sha256)"""
        answer = self._session.get(f"{self._url}/{normal(name)}/", headers={"Accept": "text/html"}, timeout=60)
        answer.raise_for_status()
        found = []
        for link in map(unescape, _LINK.findall(answer.text)):
            digest = _SHA256.search(urlsplit(link).fragment)
            if digest:
                found.append((unquote(urlsplit(link).path.rsplit("/", 1)[-1]), digest[1]))
        return found


def belongs(file: str, name: str, version: str) -> bool:
    """Whether a file is of this version, and for a machine and a Python that Coterie runs on."""
    stem = file.lower()
    if stem.endswith(".whl"):
        parts = stem.split("-")
        same = normal(parts[0]) == normal(name) and parts[1] == version.lower()
        tags = "-" + "-".join(parts[-3:])
        return same and not _PLATFORMS.search(parts[-1]) and _PYTHONS.search(tags) is not None
    for ending in (".tar.gz", ".zip"):
        if stem.endswith(ending):
            head, _, tail = stem.removesuffix(ending).rpartition("-")
            return normal(head) == normal(name) and tail == version.lower()
    return False


def locked(pin: str, files: Iterable[tuple[str, str]]) -> str:
    match = _PIN.match(pin)
    assert match is not None
    name, version = match[1], match[2]
    digests = sorted({digest for file, digest in files if belongs(file, name, version)})
    if not digests:
        raise SystemExit(f"the index has no file of {name} {version}")
    return " \\\n".join(
        (f"{name}=={version}{(match[3] or '').rstrip()}", *(f"    --hash=sha256:{each}" for each in digests))
    )


def lock(lines: Iterable[str], index: Index) -> str:
    """The same lines, with the hashes of each pinned package; hashes that stand there are replaced."""
    kept = [line.rstrip(" \\") for line in lines if line.strip() and not line.strip().startswith("--hash")]
    pinned = [line for line in kept if _PIN.match(line)]
    if stray := [line for line in kept if not line.startswith("#") and not _PIN.match(line)]:
        raise SystemExit(f"not pinned: {', '.join(stray)}")
    with ThreadPoolExecutor(8) as pool:
        files = dict(zip(pinned, pool.map(lambda line: index.files(_PIN.match(line)[1]), pinned), strict=True))  # type: ignore[index]
    return "\n".join(locked(line, files[line]) if line in files else line for line in kept) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="files to write (default: all)")
    chosen = {Path(each).resolve() for each in parser.parse_args().only}
    index = Index()
    pyproject = (ROOT / "pyproject.toml").read_text()
    build = [f"{name}=={match[1]}" for name in BUILD if (match := re.search(rf'"{name}==([^"]+)"', pyproject))]
    versions = (ROOT / "constraints.txt").read_text().splitlines()
    head = ["# Written by scripts/pin_hashes.py from constraints.txt and pyproject.toml."]
    sources = {ROOT / "requirements.txt": [*head, *sorted([*versions, *build], key=str.lower)]}
    others = (ROOT / "scripts" / name for name in ("s3-server.txt", "lakes.txt", "warehouses.txt", "gcs-emulator.txt"))
    for path in (*sorted(ROOT.glob("src/coterie/engines/*/requirements.txt")), *others):
        sources[path] = path.read_text().splitlines()
    for path, lines in sources.items():
        if not chosen or path.resolve() in chosen:
            path.write_text(lock(lines, index))
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
