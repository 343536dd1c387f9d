"""Shows granted data to the grantee, keeps the copies equal, takes them back, and says whether a grant is good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes, difference
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.finalizers import add_finalizer, remove_finalizer
from coterie.kube.control.preconditions import preconditions
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainData, DomainDataGrant
from coterie.kuscia.api.types.domain import DOMAINS, Domain, DomainSpec
from coterie.kuscia.controllers.domaindatagrant import plan

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa

    from coterie.kuscia.sources import grant_entries
else:
    grant_entries = lazy_import("coterie.kuscia.sources.grant_entries")

FINALIZER = "coterie.io/granted-copies"
BY_DATA = "domaindatagrant/data"
BY_GRANTEE = "domaindatagrant/grantee"
BY_ORIGINAL = "domaindatagrant/original"
_LATER = 5.0
"""Seconds after which a grantee that was not known is looked for again."""
_SLACK = 0.05


def by_data(grant: DomainDataGrant) -> tuple[str, ...]:
    return () if _copy_of(grant) else (f"{grant.metadata.namespace}/{grant.spec.domain_data_id}",)


def by_grantee(grant: DomainDataGrant) -> tuple[str, ...]:
    return () if _copy_of(grant) else (grant.spec.grant_domain,)


def by_original(obj: DomainDataGrant | DomainData) -> tuple[str, ...]:
    name = _copy_of(obj)
    return (f"{obj.spec.author}/{name}",) if name else ()


def _copy_of(obj: DomainDataGrant | DomainData) -> str:
    """The name of what it is a copy of; empty for originals."""
    name = (obj.metadata.labels or {}).get(labels.KUSCIA_OWNER_REFERENCES, "")
    return name if obj.metadata.namespace != obj.spec.author else ""


@dataclass(frozen=True, slots=True)
class GrantSigner:
    domain: str
    key: Callable[[], rsa.RSAPrivateKey]
    """Reads it when it is needed."""


class GrantReconciler:
    def __init__(self, client: Client, informers: Informers, signer: GrantSigner | None, clock: Clock) -> None:
        self._signer = signer
        self._client = client
        self._clock = clock
        self.grants = informers.get(DOMAIN_DATA_GRANTS)
        self.datas = informers.get(DOMAIN_DATAS)
        self.domains = informers.get(DOMAINS)
        for name, function in ((BY_DATA, by_data), (BY_GRANTEE, by_grantee), (BY_ORIGINAL, by_original)):
            self.grants.cache.add_index(name, function)
        self.datas.cache.add_index(BY_ORIGINAL, by_original)
        self._known_specs: dict[str, DomainSpec | None] = {}
        self._log = logger("controllers.domaindatagrant")

    async def reconcile(self, key: ObjectKey) -> Result:
        grant = self.grants.cache.by_key(key)
        if grant is None or _copy_of(grant) or not self._hosted(grant.metadata.namespace):
            return DONE
        if grant.metadata.deleting:
            return await self._withdraw(grant)
        if fault := plan.faults(grant):
            await self._write_status(grant, self._clock.now())
            self._log.debug("Grant is invalid", grant=str(key), why=fault)
            return DONE
        if self._signer is not None and plan.signs(grant, self._signer.domain):
            await self._sign(grant, self._signer)
            return DONE
        if (mark := plan.marks(grant)) is not None:
            await self._client.patch(DOMAIN_DATA_GRANTS, key.name, key.namespace, {"metadata": mark})
            return DONE
        if not grant.metadata.has_finalizer(FINALIZER):
            await add_finalizer(self._client, DOMAIN_DATA_GRANTS, key.name, key.namespace, FINALIZER)
            return DONE
        now = self._clock.now()
        grant = await self._write_status(grant, now)
        shown = await self._show(grant)
        waits = [each for each in (plan.until_change(grant, now), None if shown else _LATER) if each is not None]
        return Result(after=min(waits) + _SLACK) if waits else DONE

    async def _sign(self, grant: DomainDataGrant, signer: GrantSigner) -> None:
        key = await asyncio.to_thread(signer.key)
        signed = grant_entries.signed(msgspec.to_builtins(grant.spec), key)
        patch = {"metadata": preconditions(grant), "spec": {"signature": signed["signature"]}}
        await self._client.patch(DOMAIN_DATA_GRANTS, grant.metadata.name, grant.metadata.namespace, patch)
        self._log.info("Grant signed", grant=str(grant.key))

    def _hosted(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    async def _write_status(self, grant: DomainDataGrant, now: Any) -> DomainDataGrant:
        known = self.datas.cache.get(grant.spec.domain_data_id, grant.metadata.namespace) is not None
        wanted = plan.status(grant, self.domains.cache.get(grant.spec.author), known, now)
        change = changes(grant.status, wanted) if grant.status is not None else None
        if grant.status is not None and change is None:
            return grant
        meta = grant.metadata
        body = change if grant.status is not None else {"phase": wanted.phase, "message": wanted.message}
        patch = {"metadata": preconditions(grant), "status": body}
        try:
            return await self._client.patch_status(DOMAIN_DATA_GRANTS, meta.name, meta.namespace, patch)
        except NotFound:
            return replace(grant, status=wanted)

    # Copies.

    async def _show(self, grant: DomainDataGrant) -> bool:
        grantee = self.domains.cache.get(grant.spec.grant_domain)
        namespace = plan.destination(grant, grantee)
        data = self.datas.cache.get(grant.spec.domain_data_id, grant.metadata.namespace)
        if not namespace or grantee is None or data is None:
            return False
        meta = grant.metadata
        plain_data = await self._client.get(DOMAIN_DATAS.as_dynamic, data.metadata.name, data.metadata.namespace)
        plain_grant = await self._client.get(DOMAIN_DATA_GRANTS.as_dynamic, meta.name, meta.namespace)
        if namespace == meta.namespace:
            return True
        for kind, body in (
            (DOMAIN_DATAS, plan.data_copy(plain_data, grant.spec.grant_domain, namespace, grantee.partner)),
            (DOMAIN_DATA_GRANTS, plan.grant_copy(plain_grant, namespace, grantee.partner)),
        ):
            if not await self._ensure(kind, body):
                return False
        await self._copy_status(plain_grant, namespace)
        return True

    async def _ensure(self, kind: Kind[Any], body: Object) -> bool:
        """The copy exists and says what the original says; False when its namespace does not exist yet."""
        meta = body["metadata"]
        try:
            there = await self._client.get(kind.as_dynamic, meta["name"], meta["namespace"])
        except NotFound:
            try:
                await self._client.create(kind.as_dynamic, body)
            except NotFound:
                return False
            except AlreadyExists:
                return True
            return True
        if there["spec"].get("author") != body["spec"]["author"]:
            name = f"{meta['namespace']}/{meta['name']}"
            self._log.warning("The grantee has another object of that name; not overwritten", object=name)
            return True
        if change := difference(there["spec"], body["spec"]):
            await self._client.patch(kind, meta["name"], meta["namespace"], {"spec": change})
        return True

    async def _copy_status(self, plain: Object, namespace: str) -> None:
        wanted = plain.get("status")
        if not wanted:
            return
        name = plain["metadata"]["name"]
        try:
            there = await self._client.get(DOMAIN_DATA_GRANTS.as_dynamic, name, namespace)
            if change := difference(there.get("status") or {}, wanted):
                await self._client.patch_status(DOMAIN_DATA_GRANTS, name, namespace, {"status": change})
        except NotFound:
            return

    async def _withdraw(self, grant: DomainDataGrant) -> Result:
        meta = grant.metadata
        if not meta.has_finalizer(FINALIZER):
            return DONE
        for copy in self.grants.cache.by_index(BY_ORIGINAL, f"{grant.spec.author}/{meta.name}"):
            await self._delete(DOMAIN_DATA_GRANTS, copy)
        others = {
            self._namespace_of(other)
            for other in self.grants.cache.by_index(BY_DATA, f"{meta.namespace}/{grant.spec.domain_data_id}")
            if other.metadata.name != meta.name and not other.metadata.deleting
        }
        for data in self.datas.cache.by_index(BY_ORIGINAL, f"{grant.spec.author}/{grant.spec.domain_data_id}"):
            if data.metadata.namespace not in others:
                await self._delete(DOMAIN_DATAS, data)
        await remove_finalizer(self._client, DOMAIN_DATA_GRANTS, meta.name, meta.namespace, FINALIZER, uid=meta.uid)
        self._log.info("Grant revoked", grant=f"{meta.namespace}/{meta.name}", of=grant.spec.grant_domain)
        return DONE

    def _namespace_of(self, grant: DomainDataGrant) -> str:
        return plan.destination(grant, self.domains.cache.get(grant.spec.grant_domain))

    async def _delete(self, kind: Kind[Any], obj: DomainDataGrant | DomainData) -> None:
        meta = obj.metadata
        try:
            await self._client.delete(kind, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    # Whom a change concerns.

    def keys_of_grant(self, grant: DomainDataGrant) -> list[ObjectKey]:
        name = _copy_of(grant)
        return [ObjectKey(grant.spec.author, name)] if name else [grant.key]

    def keys_of_data(self, data: DomainData) -> list[ObjectKey]:
        original = _copy_of(data) or data.metadata.name
        found = self.grants.cache.by_index(BY_DATA, f"{data.spec.author}/{original}")
        return [grant.key for grant in found]

    def keys_of_domain(self, domain: Domain) -> list[ObjectKey]:
        """Only what a domain is matters, not how its nodes are."""
        name = domain.metadata.name
        current = self.domains.cache.get(name)
        known = current.spec if current is not None else None
        if self._known_specs.get(name) == known:
            return []
        self._known_specs[name] = known
        return [grant.key for grant in self.grants.cache.by_index(BY_GRANTEE, domain.metadata.name)]


def make(
    client: Client,
    informers: Informers,
    *,
    signer: GrantSigner | None = None,
    workers: int = 2,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`signer`: of the domain that runs the control plane, whose own grants are signed where they are not."""
    reconciler = GrantReconciler(client, informers, signer, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.grants, reconciler.keys_of_grant),
        Watches(reconciler.datas, reconciler.keys_of_data),
        Watches(reconciler.domains, reconciler.keys_of_domain),
    ]
    return Controller("domaindatagrant", reconciler.reconcile, watches, workers=workers, clock=clock)
