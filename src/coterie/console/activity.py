"""What the machines and links do now, measured while somebody watches: a ring of points for each session.

Nothing runs while no page asks; a session sees only what its person may see."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from coterie.base.clock import Clock
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import ApiError
from coterie.kube.api.quantity import NANO, QuantityError, parse
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import GATEWAYS

POINTS: Final = 3600
STEP_SECONDS: Final = 2.0
WATCHED_SECONDS: Final = 15.0
_USAGE: Final = "/apis/metrics.k8s.io/v1beta1/nodes"
_GATEWAYS: Final[Kind[dict[str, Any]]] = GATEWAYS.as_dynamic


class ActivitySampler:
    """Measures while it is asked for. Points are (seconds since 1970, bits per second sent, CPUs in use or None)."""

    def __init__(self, client: Client, clock: Clock, owner: TaskOwner) -> None:
        self._client = client
        self._clock = clock
        self._owner = owner
        self._points: deque[tuple[float, float, float | None]] = deque(maxlen=POINTS)
        self._asked = 0.0
        self._task: asyncio.Task[None] | None = None

    def points(self, since: float = 0.0) -> list[tuple[float, float, float | None]]:
        """Those after `since`. Who asks keeps the measuring alive."""
        self._asked = self._clock.monotonic()
        if self._task is None or self._task.done():
            self._task = self._owner.start("activity", self._run(), vital=False)
        return [point for point in self._points if point[0] > since]

    def stop(self) -> None:
        self._points.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._clock.monotonic() - self._asked < WATCHED_SECONDS:
            await self.sample()
            await self._clock.sleep(STEP_SECONDS)
        self._points.clear()  # nobody looks; a page that comes back begins anew, without a hole in its line

    async def sample(self) -> None:
        try:
            gateways = (await self._client.list(_GATEWAYS)).items
        except (ApiError, TransportError):
            gateways = []
        self._points.append((self._clock.now().timestamp(), sent_bits(gateways), await self._cpus()))

    async def _cpus(self) -> float | None:
        try:
            answer = await self._client.raw("GET", _USAGE)
            return cpus_used(msgspec.json.decode(answer.body).get("items") or ())
        except (ApiError, TransportError, msgspec.MsgspecError):
            return None


def sent_bits(gateways: Iterable[Mapping[str, Any]]) -> float:
    links = (link for each in gateways for link in (each.get("status") or {}).get("links") or ())
    return float(sum(link.get("sentBitsPerSecond") or 0 for link in links))


def cpus_used(items: Iterable[Mapping[str, Any]]) -> float | None:
    total, found = 0, False
    for item in items:
        try:
            total += parse(str((item.get("usage") or {}).get("cpu"))).nanos
            found = True
        except QuantityError:
            continue
    return total / NANO if found else None
