"""Metrics of a serving child: asked over a private Unix socket while it runs, kept by the node when it ends.

    scrape ──> ChildMetricsSource ──the child runs──> its socket ──> what it counted
                      └── counters of earlier processes are added; a child that sleeps is not woken

A child that is idle ends and begins again with zeros; for whoever scrapes, counters go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coterie.base.exposition import Family, Row
from coterie.base.log import logger
from coterie.http.messages import Request, Response
from coterie.http.plain_client import HttpFailure, Pool
from coterie.http.server import HttpServer
from coterie.kube.control.child_api_listener import private_socket

_LAST_CALL_SECONDS = 1.0
_LIMIT = 8 << 20
_log = logger("child")


class FamilyRecord(msgspec.Struct, frozen=True, array_like=True):
    """A family on its way from the child to the node."""

    name: str
    help: str
    kind: str
    rows: list[tuple[str, float]]


_decoder = msgspec.json.Decoder(list[FamilyRecord])


def metrics_socket(api: Path) -> Path:
    """Beside the socket by which the child reaches the API; short, as the path of a socket has to be."""
    return api.with_suffix(".stats")


class ChildMetricsServer:
    """The child's end."""

    def __init__(self, path: Path, families: Callable[[], Sequence[Family]]) -> None:
        self._path = path
        self._families = families
        self._http = HttpServer(self._handle)

    async def __aenter__(self) -> ChildMetricsServer:
        await self._http.serve(private_socket(self._path))
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._http.stop(0.0)
        self._path.unlink(missing_ok=True)

    async def _handle(self, _: Request) -> Response:
        found = [FamilyRecord(each.name, each.help, each.kind, list(each.rows)) for each in self._families()]
        return Response(200, msgspec.json.encode(found))


class ChildMetricsSource:
    """The node's end: a source of metrics."""

    def __init__(self, name: str, path: Path, pid: Callable[[], int | None]) -> None:
        """`pid`: of the process that serves, while there is one."""
        self.name = name
        self._pool = Pool(path, keep=0.0)
        self._pid = pid
        self._asked: int | None = None
        """The process whose answer is in `_last`."""
        self._last: list[FamilyRecord] = []
        self._kept: dict[str, FamilyRecord] = {}
        """Counters of processes that ended."""

    async def families(self) -> Sequence[Family]:
        pid = self._pid()
        if pid != self._asked:
            self._fold()
        if pid is not None:
            try:
                self._last = await self._ask()
                self._asked = pid
            except HttpFailure:
                pass  # it starts, or ends
        return self._summed()

    async def keep(self) -> None:
        """The process is about to be ended: what it counted is asked for the last time."""
        try:
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                await self.families()
        except OSError as problem:  # a time-out, too
            _log.debug("What a child counted is lost: it did not answer", child=self.name, error=problem)

    async def _ask(self) -> list[FamilyRecord]:
        response = await self._pool.request("GET", "/metrics", {"Host": "child"})
        body = await response.read(_LIMIT)
        try:
            return _decoder.decode(body)
        except msgspec.MsgspecError as problem:
            raise HttpFailure(f"no families: {problem}") from problem

    def _fold(self) -> None:
        """The process that was asked last has ended."""
        for each in self._last:
            rows = [row for row in each.rows if _counts(each.kind, row[0])]
            before = self._kept.get(each.name)
            self._kept[each.name] = FamilyRecord(each.name, each.help, each.kind, _added(before, rows))
        self._last, self._asked = [], None

    def _summed(self) -> list[Family]:
        found = dict(self._kept)
        for each in self._last:
            rows = _added(found.get(each.name), each.rows)
            found[each.name] = FamilyRecord(each.name, each.help, each.kind, rows)
        return [Family(each.name, each.help, each.kind, each.rows) for each in found.values()]


def _counts(kind: str, where: str) -> bool:
    """Whether a row only grows, so that what an ended process counted still holds."""
    return kind in ("counter", "histogram") or (kind == "summary" and where.startswith("_"))


def _added(before: FamilyRecord | None, rows: Sequence[Row]) -> list[Row]:
    if before is None:
        return list(rows)
    sums = dict(before.rows)
    for where, value in rows:
        sums[where] = sums.get(where, 0) + value if _counts(before.kind, where) else value
    return list(sums.items())
