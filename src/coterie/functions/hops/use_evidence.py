"""Uses of ActionGrants in the evidence log. A partner's call is accepted after its use is there, as rows of a granted table leave after theirs.

Calls that come while an event is written wait for the next one, which says how many uses it is about: a log must not grow as fast as a partner
can call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimit, TokenBucket
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.functions.types import ActionGrant
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder

log = logger("functions.hops")

BETWEEN_SECONDS = 0.05
"""Between two events of one grant."""
_RECORDED_REFUSALS = 30.0


@dataclass(slots=True)
class _Batch:
    """Uses of one grant that the next event is about."""

    done: asyncio.Future[None]
    uses: int = 0
    total: int = 0


class UseEvidence:
    def __init__(self, recorder: EvidenceRecorder | None, clock: Clock) -> None:
        """`recorder` None: there is no evidence log."""
        self._recorder = recorder
        self._clock = clock
        self._refusals = TokenBucket(RateLimit(_RECORDED_REFUSALS, 1.0), clock)
        self._batches: dict[str, _Batch] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._written: dict[str, float] = {}

    async def used(self, grant: ActionGrant, total: int) -> None:
        """`total`: uses of the grant, with this one. EvidenceError: it is not recorded, so it must not happen."""
        if self._recorder is None:
            return
        uid = grant.metadata.uid
        batch, mine = self._batches.get(uid), False
        if batch is None:
            batch, mine = _Batch(asyncio.get_running_loop().create_future()), True
            self._batches[uid] = batch
        batch.uses, batch.total = batch.uses + 1, max(batch.total, total)
        if not mine:
            await asyncio.shield(batch.done)
            return
        try:
            async with self._turns[uid]:
                pause = self._written.get(uid, -BETWEEN_SECONDS) + BETWEEN_SECONDS - self._clock.monotonic()
                if pause > 0:
                    await self._clock.sleep(pause)
                del self._batches[uid]
                await self._recorder.record(_used(grant, batch))
                self._written[uid] = self._clock.monotonic()
        except EvidenceError as problem:
            batch.done.set_exception(EvidenceError(str(problem)))
            batch.done.exception()  # nobody else may wait
            raise
        except BaseException:
            if self._batches.get(uid) is batch:
                del self._batches[uid]
            batch.done.set_exception(EvidenceError("whoever recorded it was interrupted"))
            batch.done.exception()
            raise
        batch.done.set_result(None)

    async def refused(self, partner: str, action: str, rule: str) -> None:
        """At most so many a minute: who is refused decides how often. The refusal stands in any case."""
        if self._recorder is None or not self._refusals.take():
            return
        event = EvidenceEvent(kind=evidence.GRANT_REFUSED, partner=partner, reason=rule, object=("Action",))
        try:
            await self._recorder.record(EventRequest(event=event, object_name=action))
        except EvidenceError as problem:
            log.error("A refusal cannot be recorded", error=problem)


def _used(grant: ActionGrant, batch: _Batch) -> EventRequest:
    event = EvidenceEvent(
        kind=evidence.GRANT_USED,
        partner=grant.spec.grant_domain,
        grant=(grant.metadata.name, evidence.object_digest(msgspec.to_builtins(grant.spec))),
        object=("Action",),
        count=batch.total,
        more={"uses": str(batch.uses)} if batch.uses > 1 else {},
    )
    return EventRequest(event=event, object_name=grant.spec.action)
