"""What a caller may do with a piece of data, and the account of it.

    own job of the domain ─────────────────────────────> may
    what the same job (or flow) wrote through here ─────> may (provenance.py)
    everything else ──grants of the owner──> decide (pure, kuscia/api/grants.py) ──> allowed, and the use is on the grant

A use is one read that begins. It is on the grant, durably, before the first row leaves; a crash in between costs a use
and never gives one away. Writers race by `resourceVersion`, so a count is exact however many data meshes and
controllers write. While rows flow, the grant is looked at again and again; what is revoked, changed or ended stops the
stream.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimit, TokenBucket
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import evidence as evidence_events
from coterie.kuscia.api import grants, labels
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.grants import DataUse, GrantRefusal
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, METADATA, NORMAL, READY, DomainData, DomainDataGrant
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder
from coterie.kuscia.datamesh.authentication import EngineCaller, unavailable
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.errors import MeshErrorCode, NotPermitted
from coterie.kuscia.datamesh.metrics import MeshMetrics
from coterie.kuscia.datamesh.provenance import DataProvenance, made_by, registered_by
from coterie.kuscia.identity.domain_identity import DomainIdentity

log = logger("datamesh.grants")

_API_OUTAGE_LIMIT = 10.0
"""Seconds for which rows may flow while the API cannot be asked."""
_RECORDED_REFUSALS = 60
"""In a minute."""
_KEPT_WITHOUT_COUNT = 1000
"""Uses that are kept on a grant without a count; one with a count keeps all, for they are the count."""


@dataclass(frozen=True, slots=True)
class Permit:
    """The caller may. `grant`: by which grant, None where none is needed."""

    caller: EngineCaller
    data: DomainData
    use: DataUse
    grant: DomainDataGrant | None = None

    @property
    def columns(self) -> frozenset[str] | None:
        """The only ones that the caller may know of; None: all."""
        return grants.granted_columns(self.grant) if self.grant is not None else None


class DataAuthorizer:
    def __init__(
        self,
        client: Client,
        catalogue: DataCatalogue,
        provenance: DataProvenance,
        identity: DomainIdentity,
        clock: Clock,
        *,
        every: float,
        metrics: MeshMetrics | None = None,
        evidence: EvidenceRecorder | None = None,
    ) -> None:
        """`evidence`: None: uses are not recorded (`evidence.enabled: false`)."""
        self._evidence = evidence
        self._refusals = TokenBucket(RateLimit(_RECORDED_REFUSALS, 1.0), clock)
        self._metrics = metrics or MeshMetrics()
        self._provenance = provenance
        self._client = client
        self._catalogue = catalogue
        self._domain = identity.domain
        self._key = identity.key.public_key()
        self._clock = clock
        self._every = every
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def permit_metadata(self, caller: EngineCaller, data: DomainData, code: MeshErrorCode) -> Permit:
        """To know what the data is."""
        self._check_tables(caller, data, code)
        if data.spec.author != self._domain:
            # A copy that its owner sent us to know of.
            return Permit(caller, data, _use(caller, data, (), METADATA))
        if not caller.at_home and registered_by(caller, await self._provenance.of(data)):
            return Permit(caller, data, _use(caller, data, (), METADATA))
        return await self._permit(caller, data, _use(caller, data, (), METADATA), code)

    async def read(
        self, caller: EngineCaller, data: DomainData, columns: tuple[str, ...], mode: str = NORMAL
    ) -> Permit:
        """To read these columns. Nothing is counted yet."""
        self._check_tables(caller, data, MeshErrorCode.QUERY_DATA)
        if data.spec.author != self._domain:
            raise NotPermitted(
                MeshErrorCode.QUERY_DATA,
                f'"{data.metadata.name}" lies at its owner "{data.spec.author}"; its engines read it there',
            )
        return await self._permit(caller, data, _use(caller, data, columns, mode), MeshErrorCode.QUERY_DATA)

    def _check_tables(self, caller: EngineCaller, data: DomainData, code: MeshErrorCode) -> None:
        if caller.tables is not None and data.metadata.name not in caller.tables:
            where = "spec.tables of the Action" if caller.at_home else f'the ActionGrant of "{caller.initiator}"'
            sentence = f'{where} does not name "{data.metadata.name}"'
            raise self._refused(caller, data, code, "tables", sentence)

    async def _permit(self, caller: EngineCaller, data: DomainData, use: DataUse, code: MeshErrorCode) -> Permit:
        if caller.at_home or made_by(caller, await self._provenance.of(data)):
            return Permit(caller, data, use)
        found = await self._catalogue.grants_of(data.metadata.name)
        decision = grants.decide(found, use, self._domain, self._clock.now(), self._key)
        if decision.grant is None:
            log.warning(
                "Use of data refused",
                data=use.data,
                initiator=use.initiator,
                task=caller.task,
                rule=",".join(dict.fromkeys(each.limit for each in decision.refusals)),
                why=decision.sentence,
            )
            self._metrics.refused(use.initiator)
            await self._record_refusal(use, caller, decision.refusals)
            raise NotPermitted(code, f"{caller.describe} may not use {use.data}: {decision.sentence}")
        return Permit(caller, data, use, decision.grant)

    # Uses.

    async def begin(self, permit: Permit) -> Permit:
        """Count the use. The grants are read and judged anew; the one that counts may be another than before."""
        if permit.grant is None:
            return await self._permit(permit.caller, permit.data, permit.use, MeshErrorCode.QUERY_DATA)
        # One after the other for each table: those of this process need not lose races against each other.
        async with self._turns[permit.use.data]:
            while True:
                now = await self._permit(permit.caller, permit.data, permit.use, MeshErrorCode.QUERY_DATA)
                if now.grant is None:
                    return now
                try:
                    counted = await self._count(now.grant, permit)
                except (Conflict, NotFound):
                    continue  # somebody else wrote, or revoked; judge again by what is there now
                except (ApiError, TransportError) as problem:
                    raise unavailable(problem) from problem
                await self._record_use(now, now.grant)
                self._metrics.used(now.use.initiator)
                log.info("Use of a grant", grant=now.grant.metadata.name, data=now.use.data, task=now.caller.task)
                return replace(now, grant=counted)

    async def _record_use(self, permit: Permit, grant: DomainDataGrant) -> None:
        """Before the first row leaves; what cannot be recorded is not read."""
        if self._evidence is None:
            return
        event = EvidenceEvent(
            kind=evidence_events.GRANT_USED,
            job=permit.caller.job,
            task=permit.caller.task,
            partner=permit.use.initiator,
            grant=(grant.metadata.name, evidence_events.object_digest(msgspec.to_builtins(grant.spec))),
            count=len(grant.uses) + 1,
        )
        columns = (f"{permit.use.data}.{each}" for each in permit.use.columns or ())
        try:
            await self._evidence.record(EventRequest(event=event, tables=(permit.use.data, *columns)))
        except EvidenceError as problem:
            raise unavailable(problem) from problem

    async def _record_refusal(self, use: DataUse, caller: EngineCaller, refusals: Sequence[GrantRefusal]) -> None:
        """At most so many a minute: who is refused decides how often. The refusal stands in any case."""
        if self._evidence is None or not self._refusals.take():
            return
        rules = ",".join(dict.fromkeys(each.limit for each in refusals))
        event = EvidenceEvent(
            kind=evidence_events.GRANT_REFUSED,
            job=caller.job,
            task=caller.task,
            partner=use.initiator,
            reason=rules[:200],
        )
        try:
            await self._evidence.record(EventRequest(event=event, tables=(use.data,)))
        except EvidenceError as problem:
            log.error("A refusal cannot be recorded", error=problem)

    async def _count(self, grant: DomainDataGrant, permit: Permit) -> DomainDataGrant:
        plain = DOMAIN_DATA_GRANTS.as_dynamic
        obj = await self._client.get(plain, grant.metadata.name, self._domain)
        if obj["metadata"]["resourceVersion"] != grant.metadata.resource_version:
            raise Conflict(f"{grant.metadata.name} changed meanwhile")
        status: Object = dict(obj.get("status") or {"phase": READY, "message": ""})
        records = [*(status.get("use_records") or ()), self._record(permit)]
        if grant.limit.use_count <= 0:
            records = records[-_KEPT_WITHOUT_COUNT:]
        written = await self._client.update(
            plain, {**obj, "status": {**status, "use_records": records}}, subresource="status"
        )
        return replace_version(grant, str(written["metadata"]["resourceVersion"]))

    def _record(self, permit: Permit) -> Object:
        caller = permit.caller
        out = {"use_time": rfc3339(self._clock.now()), "grant_domain": caller.initiator}
        if caller.components:
            out["component"] = caller.components[0]
        if caller.task:
            out["output"] = f"task {caller.task}" + (f" of job {caller.job}" if caller.job else "")
        return out

    @asynccontextmanager
    async def held(self, permit: Permit) -> AsyncIterator[asyncio.Future[str]]:
        """While rows flow. The future gets the reason when they must not any more."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if permit.grant is None:
            yield ended
            return
        watch = asyncio.create_task(
            self._watch(permit, permit.grant, ended), name=f"grant/{permit.grant.metadata.name}"
        )
        try:
            yield ended
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, permit: Permit, grant: DomainDataGrant, ended: asyncio.Future[str]) -> None:
        name, silent_since = grant.metadata.name, None
        while not ended.done():
            await self._clock.sleep(self._every)
            try:
                now = await self._client.get(DOMAIN_DATA_GRANTS, name, self._domain)
            except NotFound:
                ended.set_result(f'grant "{name}" was revoked')
                return
            except (ApiError, TransportError):
                silent_since = silent_since if silent_since is not None else self._clock.monotonic()
                if self._clock.monotonic() - silent_since > _API_OUTAGE_LIMIT:
                    ended.set_result(f'whether grant "{name}" still holds cannot be asked')
                continue
            silent_since = None
            if now.metadata.uid != grant.metadata.uid:
                ended.set_result(f'grant "{name}" was revoked')
                return
            # The use under way was counted; only whether it may go on is looked at.
            reason = grants.signature_refusal(now, self._key) or grants.refusals_of(
                without_count(now), permit.use, self._clock.now()
            )
            if reason is not None:
                ended.set_result(str(reason))

    # Writing.

    def create(self, caller: EngineCaller, code: MeshErrorCode) -> None:
        """To register something new."""
        if caller.tables is not None:
            raise NotPermitted(code, f"{caller.describe}, an actor of an action, only reads")

    async def write(self, caller: EngineCaller, data: DomainData, code: MeshErrorCode) -> None:
        """To replace or remove what is there."""
        self.create(caller, code)
        if data.spec.author != self._domain:
            raise self._refused(caller, data, code, "author", f'"{data.metadata.name}" is of "{data.spec.author}"')
        if caller.at_home:
            return
        record = await self._provenance.of(data)
        if record is None or record.initiator != caller.initiator:
            sentence = (
                f'{caller.describe} of "{caller.initiator}" may not change "{data.metadata.name}", '
                "which no task of that domain made"
            )
            raise self._refused(caller, data, code, "provenance", sentence)

    def _refused(
        self, caller: EngineCaller, data: DomainData, code: MeshErrorCode, rule: str, sentence: str
    ) -> NotPermitted:
        log.warning(
            "Change of data refused",
            data=data.metadata.name,
            initiator=caller.initiator,
            task=caller.task,
            rule=rule,
            why=sentence,
        )
        self._metrics.refused(caller.initiator)
        return NotPermitted(code, sentence)

    def grant(self, caller: EngineCaller, code: MeshErrorCode) -> None:
        """To give, change or take grants."""
        if not caller.at_home:
            raise NotPermitted(
                code, f'{caller.describe} of "{caller.initiator}" may not touch grants of "{self._domain}"'
            )

    def marks(self, caller: EngineCaller) -> dict[str, str]:
        """What new data says about its maker, for people and for cleaning up. Nothing is decided by it."""
        marks = {labels.COTERIE_MADE_FOR: caller.initiator}
        if caller.job:
            marks[labels.COTERIE_MADE_BY] = caller.job
        if caller.flow:
            marks[labels.COTERIE_FLOW] = caller.flow
        return marks


def _use(caller: EngineCaller, data: DomainData, columns: tuple[str, ...], mode: str) -> DataUse:
    return DataUse(
        data=data.metadata.name,
        initiator=caller.initiator,
        parties=caller.parties,
        components=caller.components,
        flow=caller.flow,
        input_config=caller.input_config,
        columns=columns,
        mode=mode,
    )


def without_count(grant: DomainDataGrant) -> DomainDataGrant:
    if grant.spec.limit is None or grant.spec.limit.use_count <= 0:
        return grant
    return structs.replace(
        grant, spec=structs.replace(grant.spec, limit=structs.replace(grant.spec.limit, use_count=0), signature="")
    )


def replace_version(grant: DomainDataGrant, version: str) -> DomainDataGrant:
    return structs.replace(grant, metadata=structs.replace(grant.metadata, resource_version=version))
