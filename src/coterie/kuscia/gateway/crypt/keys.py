"""Which tokens encrypt which route, and how the child process learns of them.

    keys_of(inputs) ──> KeyTable ──write──> a file only we can read ──> KeyRing, in the child

The file is written before Envoy hears of a change, and the child looks at it whenever a request begins, so a request
never meets a child that knows less than Envoy does. Tokens stand in no argument, environment or log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson

from coterie.base.files import write_atomic
from coterie.base.secret import SecretValue
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.model import SnapshotInputs

AES = "AES"


@dataclass(frozen=True, slots=True)
class RouteKeys:
    """The tokens of one route by revision, newest last."""

    source: str
    destination: str
    tokens: tuple[tuple[int, SecretValue], ...]
    kuscia_format: bool = False
    """What we send is in Kuscia's format, and it is taken; see kuscia_format.py."""

    @property
    def newest(self) -> tuple[int, SecretValue] | None:
        return self.tokens[-1] if self.tokens else None

    def of_revision(self, revision: int) -> SecretValue | None:
        return dict(self.tokens).get(revision)


@dataclass(frozen=True, slots=True)
class KeyTable:
    routes: tuple[RouteKeys, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.routes)


def keys_of(inputs: SnapshotInputs) -> KeyTable:
    """Of every route that asks for body encryption and whose tokens are known; empty: no child is needed."""
    found = (
        RouteKeys(
            route.source,
            route.destination,
            tuple(zip(route.revisions, route.tokens, strict=False)),
            KusciaWireForm.BODY_ENCRYPTION in route.kuscia_wire,
        )
        for route in inputs.routes
        if route.body_encryption == AES and inputs.domain in (route.source, route.destination)
    )
    return KeyTable(tuple(sorted(found, key=lambda each: (each.source, each.destination))))


def write_keys(path: Path, table: KeyTable) -> None:
    content = [
        {
            "source": route.source,
            "destination": route.destination,
            "tokens": [[revision, token.reveal()] for revision, token in route.tokens],
            "kusciaFormat": route.kuscia_format,
        }
        for route in table.routes
    ]
    write_atomic(path, orjson.dumps(content), durable=False)


def read_keys(path: Path) -> KeyTable:
    """Raises OSError or ValueError."""
    return KeyTable(
        tuple(
            RouteKeys(
                str(each["source"]),
                str(each["destination"]),
                tuple((int(revision), SecretValue(token)) for revision, token in each["tokens"]),
                bool(each.get("kusciaFormat")),
            )
            for each in orjson.loads(path.read_bytes())
        )
    )


@dataclass(slots=True)
class KeyRing:
    """What the child knows: the file's content, read again when another file has taken its place."""

    path: Path
    _seen: tuple[int, int] = (0, 0)
    _routes: dict[tuple[str, str], RouteKeys] = field(default_factory=dict, repr=False)

    def keys(self, source: str, destination: str) -> RouteKeys | None:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return None
        if (now.st_ino, now.st_mtime_ns) != self._seen:
            table = read_keys(self.path)
            self._routes = {(each.source, each.destination): each for each in table.routes}
            self._seen = (now.st_ino, now.st_mtime_ns)
        return self._routes.get((source, destination))
