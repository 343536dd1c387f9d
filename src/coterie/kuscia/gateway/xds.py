"""Configuration as files that Envoy watches: each is replaced by rename, and only when its content changed.

Files rather than a server, because Envoy then starts and goes on with its last configuration while we are away. Each
file's version is a hash of its content; Envoy tells it back, so what it accepted can be compared with what we wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import orjson

from coterie.base.files import private_directory, read_bytes_or_none, write_atomic
from coterie.kuscia.gateway.names import Json


def render(resources: Iterable[Json]) -> tuple[str, bytes]:
    """(version, the file's content)."""
    listed = orjson.dumps(list(resources))
    version = sha256(listed).hexdigest()[:16]
    return version, b'{"version_info":"%s","resources":%s}' % (version.encode(), listed)


def bridged(old: Sequence[Json], new: Sequence[Json]) -> tuple[Json, ...] | None:
    """The new clusters with those that vanish: routes that still name them must find them. None: none vanishes."""
    kept = {str(each["name"]) for each in new}
    vanishing = tuple(each for each in old if str(each["name"]) not in kept)
    return (*new, *vanishing) if vanishing else None


class XdsFiles:
    """What lies in the directory, and writing the difference."""

    def __init__(self, directory: Path) -> None:
        self.directory = private_directory(directory)
        self.versions: dict[str, str] = {}
        self._written: dict[str, Sequence[Json]] = {}

    def write(self, files: Mapping[str, Sequence[Json]]) -> tuple[str, ...]:
        """In the order given. Answers which files changed."""
        changed = []
        for name, resources in files.items():
            # Most files are taken over from the snapshot before, and nobody changes what is in one.
            if self._written.get(name) is resources:
                continue
            version, content = render(resources)
            if self.versions.get(name) == version:
                self._written[name] = resources
                continue
            path = self.directory / name
            # After a restart of ours Envoy may be running with this very file.
            if read_bytes_or_none(path) != content:
                write_atomic(path, content, durable=False)
                changed.append(name)
            self.versions[name] = version
            self._written[name] = resources
        return tuple(changed)

    def forget(self, keep: Iterable[str]) -> None:
        """Remove files of resources that no longer exist; done last, when nothing names them any more."""
        wanted = set(keep)
        for path in self.directory.glob("*ds-*.json"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)
                self.versions.pop(path.name, None)
                self._written.pop(path.name, None)
