"""Which of our routes answer now, for who watches the network: a controller notices a lost partner after three quiet probes only.

Routes that are not ready are not asked about: what is wrong with them is in their condition. Who watches through several tabs
causes no more calls than through one. The gateway of the node asks, always the same empty question, and only about routes that the
person may list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.base.tasks import TaskOwner
from coterie.console.rows import text
from coterie.http.plain_client import Pool
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES
from coterie.kuscia.routes.reachability import PartnerAnswer, answer_limit, ask_partner, node_socket

FRESH_SECONDS: Final = 0.3
MOST_ROUTES: Final = 64
_MOST_ANSWERS: Final = 4 * MOST_ROUTES
_ROUTES: Final = CLUSTER_DOMAIN_ROUTES.as_dynamic


class RouteHealth:
    """`home`: of the domain whose gateway runs on this machine; routes of other domains cannot be tried from here."""

    def __init__(self, domain: str, home: DomainPaths, clock: Clock, owner: TaskOwner) -> None:
        self._domain = domain
        self._home = home
        self._clock = clock
        self._owner = owner
        self._pool: Pool | None = None
        self._answers: dict[str, tuple[float, PartnerAnswer]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def view(self, client: Client) -> Object:
        """Of the routes that the person may list, by name."""
        routes = [each for each in (await client.list(_ROUTES)).items if is_asked(each, self._domain)][:MOST_ROUTES]
        if self._pool is None and (gateway := node_socket(self._home)) is not None:
            self._pool = Pool(gateway, keep=0)
        if self._pool is not None:
            await asyncio.gather(*(self._refresh(self._pool, route) for route in routes))
        names = [str(route["metadata"]["name"]) for route in routes]
        return {"routes": {name: shown(self._answers[name][1]) for name in names if name in self._answers}}

    async def _refresh(self, pool: Pool, route: Object) -> None:
        name = str(route["metadata"]["name"])
        found = self._answers.get(name)
        if found is not None and self._clock.monotonic() - found[0] < FRESH_SECONDS:
            return
        if name not in self._asking:
            self._asking[name] = self._owner.start(f"route-health-{name}", self._ask(pool, name, route), vital=False)
        await asyncio.shield(self._asking[name])

    async def _ask(self, pool: Pool, name: str, route: Object) -> None:
        before = self._answers.get(name)
        spec = route["spec"]
        try:
            answer = await ask_partner(
                pool,
                str(spec["source"]),
                str(spec["destination"]),
                token_revision(route),
                answer_limit(before[1] if before is not None else None),
                self._clock,
            )
            if len(self._answers) > _MOST_ANSWERS:
                self._answers.clear()  # of routes that are gone
            self._answers[name] = (self._clock.monotonic(), answer)
        finally:
            del self._asking[name]


def is_asked(route: Mapping[str, Any], domain: str) -> bool:
    """A ready route of ours."""
    conditions = (route.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and (route.get("spec") or {}).get("source") == domain


def token_revision(route: Mapping[str, Any]) -> int:
    tokens = ((route.get("status") or {}).get("tokenStatus") or {}).get("sourceTokens") or ()
    return next((int(each.get("revision") or 0) for each in reversed(tokens) if each.get("isReady")), 0)


def shown(answer: PartnerAnswer) -> Object:
    return {
        "answers": answer.answered,
        "milliseconds": round(answer.seconds * 1000, 1),
        "message": text(answer.problem),
    }
