"""The status of ActionGrants: phase, uses, the latest of them. Written some moments after a use; what counts is on the bus (ledger.py).

A status is computed from the objects, the ledger and the time alone, so a restart forgets nothing.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from coterie.base.clock import Clock, parse_rfc3339, rfc3339
from coterie.base.log import logger
from coterie.functions.hops import call_grants
from coterie.functions.hops.inbox import PartnerAccess
from coterie.functions.hops.ledger import HopLedger, Received
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ActionGrant

USE_RECORDS = 20
"""Latest uses in the status."""
_DELAY = 0.5
"""Seconds for which uses are gathered before they are written."""
_LOOK_AGAIN = 60.0
"""Seconds after which tables and expirations are looked at though nothing changed."""

log = logger("functions.hops")


class GrantStatuses:
    def __init__(self, client: Client, domain: str, access: PartnerAccess, ledger: HopLedger, clock: Clock) -> None:
        self._client = client
        self._domain = domain
        self._access = access
        self._ledger = ledger
        self._clock = clock
        self._changed = asyncio.Event()
        self._changed.set()

    def changed(self) -> None:
        """An object changed, or a grant was used."""
        self._changed.set()

    async def run(self) -> None:
        """Forever."""
        while True:
            await self._wait()
            self._changed.clear()
            for grant in self._access.grants():
                wanted = self.status_of(grant)
                if wanted != _written(grant):
                    await self._write(grant, wanted)

    async def _wait(self) -> None:
        """For a change, or for the next end of a grant; then a moment for what comes with it."""
        now = self._clock.now()
        ends = [
            (parse_rfc3339(each.spec.limit.expiration_time) - now).total_seconds()
            for each in self._access.grants()
            if each.spec.limit.expiration_time
        ]
        first = min([each for each in ends if each > 0] + [_LOOK_AGAIN])
        sleeping = asyncio.ensure_future(self._clock.sleep(first))
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((sleeping, changing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (sleeping, changing):
                each.cancel()
            await asyncio.gather(sleeping, changing, return_exceptions=True)
        await self._clock.sleep(_DELAY)

    def status_of(self, grant: ActionGrant) -> Object:
        uid = grant.metadata.uid
        total = self._ledger.uses(uid, grant.status.uses).total
        missing = self._access.missing_tables(grant)
        found = call_grants.phase_of(grant, self._access.timeouts().keys(), total, missing, self._clock.now())
        status: Object = {"phase": found.phase, "message": found.message, "uses": total}
        latest = self._ledger.latest_uses(uid)[-USE_RECORDS:]
        if latest:
            status["lastUseTime"] = _time(latest[-1])
            status["useRecords"] = [_use_record(each) for each in latest]
        else:
            # A new bus knows less than the object.
            status |= {key: value for key, value in _written(grant).items() if key in ("lastUseTime", "useRecords")}
        return status

    async def _write(self, grant: ActionGrant, status: Object) -> None:
        name = grant.metadata.name
        try:
            await self._client.patch(
                ACTION_GRANTS.as_dynamic,
                name,
                self._domain,
                {"metadata": {"uid": grant.metadata.uid}, "status": status},
                subresource="status",
            )
        except (NotFound, Conflict):
            return
        except (ApiError, TransportError) as problem:
            log.warning("The status of an ActionGrant was not written", grant=name, error=problem)
            self._changed.set()


def _written(grant: ActionGrant) -> Object:
    status = grant.status
    found: Object = {"phase": status.phase, "message": status.message, "uses": status.uses}
    if status.last_use_time:
        found["lastUseTime"] = status.last_use_time
    if status.use_records:
        found["useRecords"] = [dict(each) for each in status.use_records]
    return found


def _use_record(use: Received) -> dict[str, str]:
    return {"time": _time(use), "request": use.request, "bytes": str(use.size)}


def _time(use: Received) -> str:
    return rfc3339(datetime.fromtimestamp(use.time / 1000, UTC))
