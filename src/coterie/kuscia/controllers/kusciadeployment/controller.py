"""Carries out deployments: reads one with all that was made of it, makes what is missing, writes anew what is made from
something else now, removes what it no longer needs, and tells how it is.

A deployment lives in another namespace than what is made of it, so it is held back by a finalizer until that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from coterie.base.backoff import Policy, delay
from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api import labels
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from coterie.kube.api.meta import ApiObject, Object, ObjectKey
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.api.types.apps import DEPLOYMENTS, Deployment
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.finalizers import remove_finalizer
from coterie.kube.control.preconditions import exactly, write
from coterie.kuscia.api.engine_template import KitFault
from coterie.kuscia.api.types.deployment import (
    KUSCIA_DEPLOYMENTS,
    KusciaDeployment,
    KusciaDeploymentStatus,
    PartyStatuses,
    ServingPhase,
)
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, AppImage, PartyAllocatedPorts
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciadeployment import render
from coterie.kuscia.controllers.kusciadeployment.kit import DeploymentKit, fault_of, kits_of
from coterie.kuscia.controllers.kusciadeployment.status import Words, all_failed, party_status, whole_status, words_of

BY_UID = "kusciadeployment/uid"
TRIES = 15
_AGAIN = Policy(first=0.1, factor=2.0, limit=60.0, jitter=0.1)
_SELDOM = 300.0
"""Seconds after which something that was given up is looked at again although nothing changed."""
_KINDS: tuple[Kind[Any], ...] = (SERVICES, DEPLOYMENTS, CONFIG_MAPS)
_OURS = f"{labels.KUSCIA_CONTROLLER}={labels.KUSCIA_CONTROLLER_DEPLOYMENT}"


class Failing(Exception):
    """It cannot be carried out; the words go into the status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.words = Words(reason, message)


def by_uid(obj: ApiObject) -> tuple[str, ...]:
    uid = (obj.metadata.labels or {}).get(labels.KUSCIA_KD_UID, "")
    return (uid,) if uid else ()


class KusciaDeploymentReconciler:
    def __init__(
        self, client: Client, informers: Informers, ports: PortPool, events: EventRecorder | None, clock: Clock
    ) -> None:
        self._client = client
        self._pool = ports
        self._events = events
        self._clock = clock
        self.deployments = informers.get(KUSCIA_DEPLOYMENTS, CROSS_DOMAIN)
        self.made = informers.get(DEPLOYMENTS)
        self.services = informers.get(SERVICES)
        self.maps = informers.get(CONFIG_MAPS, labels=_OURS)
        self.pods = informers.get(PODS)
        self.domains = informers.get(DOMAINS)
        self.images = informers.get(APP_IMAGES)
        for informer in (self.made, self.services, self.maps, self.pods):
            informer.cache.add_index(BY_UID, by_uid)
        self._tries: dict[str, int] = {}
        self._log = logger("controllers.kusciadeployment")

    async def reconcile(self, key: ObjectKey) -> Result:
        deployment = self.deployments.cache.by_key(key)
        if deployment is None:
            return DONE
        uid = deployment.metadata.uid
        if deployment.metadata.deleting:
            return await self._remove(deployment)
        ours = self._own(deployment)
        if not ours and not self._ours(deployment.spec.initiator):
            return DONE
        try:
            await self._carry_out(deployment, ours)
        except Failing as problem:
            await self._write_failed(deployment, ours, problem.words)
            # Looked at again as soon as something changes; for what has no news, a few times besides.
            tried = self._tries[uid] = self._tries.get(uid, 0) + 1
            return Result(after=delay(_AGAIN, tried) if tried <= TRIES else _SELDOM)
        except Conflict:
            raise  # our cache is behind
        except (ApiError, TransportError) as problem:
            tried = self._tries[uid] = self._tries.get(uid, 0) + 1
            refused = isinstance(problem, ApiError) and outlook(problem) is Outlook.LASTING
            if tried <= TRIES and not refused:
                raise
            why = status_message(problem) if isinstance(problem, ApiError) else str(problem)
            words = Words("RetryProcessingFailed", why if refused else f"tried {TRIES} times more, last: {why}")
            await self._write_failed(deployment, ours, words)
            return Result(after=_SELDOM)
        self._tries.pop(uid, None)
        return DONE

    async def _carry_out(self, deployment: KusciaDeployment, ours: Sequence[str]) -> None:
        if fault := fault_of(deployment):
            raise Failing("ValidateFailed", fault)
        named = {party.app_image_ref for party in deployment.spec.parties}
        images = {name: found for name in named if (found := self.images.cache.get(name)) is not None}
        try:
            kits = kits_of(deployment, images)
        except KitFault as problem:
            raise Failing("BuildPartyKitInfoFailed", str(problem)) from problem
        own = [(place, kit) for place, kit in enumerate(kits) if kit.domain in ours]
        allotted = self._allotted(deployment, [kit for _, kit in own])
        if await self._mark(deployment, ours, allotted):
            return  # its own event brings us back
        numbers = {(each.domain_id, each.role): each.named_port or {} for each in allotted}
        for place, kit in own:
            await self._make(deployment, kits, place, numbers[kit.domain, kit.role])
        await self._prune(deployment, [kit for _, kit in own])
        parties, logs = self._judged(deployment, [kit for _, kit in own])
        await self._write(deployment, ours, parties, logs)

    # Reading.

    def _ours(self, name: str) -> bool:
        domain = self.domains.cache.get(name)
        return domain is not None and not domain.partner

    def _own(self, deployment: KusciaDeployment) -> list[str]:
        """Domains of the parties that are hosted here."""
        named = dict.fromkeys(party.domain_id for party in deployment.spec.parties)
        return [name for name in named if self._ours(name)]

    def _found(self, deployment: KusciaDeployment) -> dict[tuple[str, str], Deployment]:
        found = self.made.cache.by_index(BY_UID, deployment.metadata.uid)
        return {(each.metadata.namespace, each.metadata.name): each for each in found}

    def _judged(
        self, deployment: KusciaDeployment, own: Sequence[DeploymentKit]
    ) -> tuple[PartyStatuses, dict[str, str]]:
        """How our own parties are, and the last words of their containers by domain."""
        found = self._found(deployment)
        pods = self.pods.cache.by_index(BY_UID, deployment.metadata.uid)
        parties: PartyStatuses = {}
        logs: dict[str, str] = {}
        for kit in own:
            mine = [pod for pod in pods if _of(pod, kit)]
            why = words_of(mine)
            if why is not None and why.log:
                logs.setdefault(kit.domain, why.log)
            entry = party_status(
                found.get((kit.domain, kit.name)), kit.role, kit.engine.replicas, why, None, self._now()
            )
            parties.setdefault(kit.domain, {})[kit.name] = entry
        return parties, logs

    def _now(self) -> str:
        return rfc3339(self._clock.now())

    # Marking.

    def _allotted(self, deployment: KusciaDeployment, own: Sequence[DeploymentKit]) -> list[PartyAllocatedPorts]:
        """What the deployment has, and new numbers for ports that have none."""
        uid = deployment.metadata.uid
        known = {(each.domain_id, each.role): each.named_port or {} for each in allotted_to(deployment)}
        out = []
        for kit in own:
            kept = {name: n for name, n in known.get((kit.domain, kit.role), {}).items() if name in kit.port_names}
            lacking = [name for name in kit.port_names if name not in kept]
            try:
                numbers = {**kept, **self._pool.allot(uid, kit.domain, lacking)}
            except KitFault as problem:
                self._pool.learn(uid, allotted_to(deployment))
                raise Failing("AllocatePortsFailed", str(problem)) from problem
            named = {name: numbers[name] for name in kit.port_names}
            out.append(PartyAllocatedPorts(domain_id=kit.domain, role=kit.role, named_port=named))
        return out

    async def _mark(
        self, deployment: KusciaDeployment, ours: Sequence[str], allotted: Sequence[PartyAllocatedPorts]
    ) -> bool:
        """Finalizer and annotations; False when all were there."""
        meta = deployment.metadata
        wanted = render.marks_of(deployment, ours, allotted)
        known = meta.annotations or {}
        patch: Object = {}
        if any(known.get(key) != value for key, value in wanted.items()):
            patch["annotations"] = wanted
        if not meta.has_finalizer(labels.FINALIZER_DEPLOYMENT):
            patch["finalizers"] = [*(meta.finalizers or ()), labels.FINALIZER_DEPLOYMENT]
        if not patch:
            return False
        try:
            await write(self._client, KUSCIA_DEPLOYMENTS, deployment, {"metadata": patch})
        except (ApiError, TransportError):
            self._pool.learn(meta.uid, allotted_to(deployment))  # nobody knows of the others
            raise
        return True

    # Making.

    async def _make(
        self, deployment: KusciaDeployment, kits: Sequence[DeploymentKit], place: int, numbers: dict[str, int]
    ) -> None:
        kit = kits[place]
        templates = render.template_map(deployment, kit)
        if templates is not None:
            await self._ensure(deployment, CONFIG_MAPS, self.maps, templates, "data")
        for service in render.services_of(deployment, kit, numbers):
            await self._ensure(deployment, SERVICES, self.services, service, "spec")
        body = render.deployment_of(deployment, kits, place, numbers)
        await self._ensure(deployment, DEPLOYMENTS, self.made, body, "spec")

    async def _ensure(
        self, deployment: KusciaDeployment, kind: Kind[Any], informer: Informer[Any], body: Object, part: str
    ) -> None:
        """The object is there and made from what it should be, of which `part` is the body."""
        reason = f"Create{kind.resource.kind}Failed"
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        found = informer.cache.get(name, namespace)
        if found is not None and _is_of(found, deployment) and _same(found, body):
            return
        try:
            there = found if found is not None else await self._made_before(kind, body)
            if there is None:
                return
            if not _is_of(there, deployment):
                words = f'{namespace} has another {kind.resource.kind} "{name}", which is not of this deployment'
                raise Failing(reason, words)
            if not _same(there, body):
                await self._client.modify(kind.as_dynamic, name, namespace, lambda old: _renewed(old, body, part))
                self._log.info("Made anew", deployment=deployment.metadata.name, kind=kind.resource.kind, name=name)
        except Conflict:
            raise
        except NotFound as problem:
            if found is not None:
                raise Conflict(f"{kind} {namespace}/{name} went away meanwhile") from problem
            raise Failing(reason, problem.message) from problem  # the namespace is missing
        except ApiError as problem:
            if outlook(problem) is Outlook.TRANSIENT:
                raise
            raise Failing(reason, f"{kind.resource.kind} {namespace}/{name}: {status_message(problem)}") from problem

    async def _made_before(self, kind: Kind[Any], body: Object) -> Any:
        """None when it is made now; else what has its name already."""
        try:
            await self._client.create(kind.as_dynamic, body)
        except AlreadyExists:
            return await self._client.get(kind, body["metadata"]["name"], body["metadata"]["namespace"])
        return None

    async def _prune(self, deployment: KusciaDeployment, own: Sequence[DeploymentKit]) -> None:
        """What was made for a port, a party or a template that is no longer there."""
        wanted = {(kit.domain, kit.name) for kit in own}
        services = {(kit.domain, name) for kit in own for name in kit.services.values()}
        maps = {(kit.domain, render.template_map_name(kit)) for kit in own if render.template_map(deployment, kit)}
        made: tuple[tuple[Kind[Any], Informer[Any], set[tuple[str, str]]], ...] = (
            (DEPLOYMENTS, self.made, wanted),
            (SERVICES, self.services, services),
            (CONFIG_MAPS, self.maps, maps),
        )
        for kind, informer, kept in made:
            for each in informer.cache.by_index(BY_UID, deployment.metadata.uid):
                if (each.metadata.namespace, each.metadata.name) not in kept:
                    await self._delete(kind, each.metadata.name, each.metadata.namespace, each.metadata.uid)

    # Ending.

    async def _remove(self, deployment: KusciaDeployment) -> Result:
        """The deployment is being deleted: so is everything of it, asked of the server because the cache may be behind."""
        meta = deployment.metadata
        if not meta.has_finalizer(labels.FINALIZER_DEPLOYMENT):
            return DONE
        selector = f"{labels.KUSCIA_OWNER_NAMESPACE}={CROSS_DOMAIN},{labels.KUSCIA_KD_UID}={meta.uid}"
        named = {party.domain_id for party in deployment.spec.parties}
        seen = {each.metadata.namespace for each in self.made.cache.by_index(BY_UID, meta.uid)}
        for domain in sorted(named | seen):
            for kind in _KINDS:
                listed = (await self._client.list(Kind.metadata(kind.resource), domain, labels=selector)).items
                await asyncio.gather(
                    *(self._delete(kind, each.metadata.name, domain, each.metadata.uid) for each in listed)
                )
        self._pool.release(meta.uid)
        self._tries.pop(meta.uid, None)
        await remove_finalizer(
            self._client, KUSCIA_DEPLOYMENTS, meta.name, meta.namespace, labels.FINALIZER_DEPLOYMENT, uid=meta.uid
        )
        self._log.info("Removed", deployment=meta.name)
        return DONE

    async def _delete(self, kind: Kind[Any], name: str, namespace: str, uid: str) -> None:
        try:
            await self._client.delete(kind, name, namespace, uid=uid, propagation="Background")
        except NotFound:
            return

    # Writing.

    async def _write_failed(self, deployment: KusciaDeployment, ours: Sequence[str], why: Words) -> None:
        parties = all_failed(deployment, ours, self._found(deployment), why, self._now())
        await self._write(deployment, ours, parties, {}, why)

    async def _write(
        self,
        deployment: KusciaDeployment,
        ours: Sequence[str],
        own: PartyStatuses,
        logs: dict[str, str],
        failed: Words | None = None,
    ) -> None:
        named = {party.domain_id for party in deployment.spec.parties}
        others = {
            domain: entries
            for domain, entries in deployment.party_statuses.items()
            if domain in named and domain not in ours
        }
        status = whole_status(deployment, dict(sorted({**others, **own}.items())), logs, failed)
        before = deployment.status
        if before is not None and changes(before, status) is None:
            return
        status = replace(status, last_reconcile_time=self._now())
        change = msgspec.to_builtins(status) if before is None else changes(before, status)
        meta = deployment.metadata
        patch = {"metadata": exactly(deployment), "status": change}
        try:
            await self._client.patch_status(KUSCIA_DEPLOYMENTS, meta.name, meta.namespace, patch)
        except NotFound:
            return
        if before is None or before.phase != status.phase:
            self._tell(deployment, status)

    def _tell(self, deployment: KusciaDeployment, status: KusciaDeploymentStatus) -> None:
        first = status.message.partition("\n")[0]
        self._log.info(
            "The deployment moved on", deployment=deployment.metadata.name, phase=status.phase, why=status.reason
        )
        if self._events is None:
            return
        resource = KUSCIA_DEPLOYMENTS.resource
        about = reference_to(deployment, api_version=resource.api_version, kind=resource.kind)
        if status.phase == ServingPhase.FAILED:
            self._events.warning(about, "Failed", f"{status.reason}: {first}" if first else status.reason)
        else:
            self._events.normal(about, status.phase, first or f"The deployment is {status.phase}")

    # Whom a change concerns.

    def keys_of_deployment(self, deployment: KusciaDeployment) -> list[ObjectKey]:
        uid = deployment.metadata.uid
        current = self.deployments.cache.by_key(deployment.key)
        if current is not None and current.metadata.uid == uid:
            self._pool.learn(uid, allotted_to(current))
        else:
            self._pool.release(uid)
            self._tries.pop(uid, None)
        return [deployment.key]

    def keys_of_made(self, obj: ApiObject) -> list[ObjectKey]:
        known = obj.metadata.labels or {}
        name = known.get(labels.KUSCIA_KD_NAME, "")
        ours = known.get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_DEPLOYMENT
        return [ObjectKey(CROSS_DOMAIN, name)] if name and ours else []

    def keys_of_image(self, image: AppImage) -> list[ObjectKey]:
        return [
            each.key
            for each in self.deployments.cache.list()
            if any(party.app_image_ref == image.metadata.name for party in each.spec.parties)
        ]

    def keys_of_domain(self, domain: Domain) -> list[ObjectKey]:
        """A deployment may come before the domains that it names."""
        name = domain.metadata.name
        return [
            each.key
            for each in self.deployments.cache.list()
            if each.status is None and any(party.domain_id == name for party in each.spec.parties)
        ]


def allotted_to(deployment: KusciaDeployment) -> list[PartyAllocatedPorts]:
    """What the annotation says; nothing when nobody can read it."""
    text = (deployment.metadata.annotations or {}).get(labels.KUSCIA_ALLOCATED_PORTS, "")
    try:
        return msgspec.json.decode(text, type=list[PartyAllocatedPorts]) if text else []
    except (msgspec.ValidationError, msgspec.DecodeError):
        return []


def _of(pod: Pod, kit: DeploymentKit) -> bool:
    known = pod.metadata.labels or {}
    return pod.metadata.namespace == kit.domain and known.get(labels.KUSCIA_DEPLOYMENT_NAME) == kit.name


def _is_of(obj: ApiObject, deployment: KusciaDeployment) -> bool:
    return (obj.metadata.labels or {}).get(labels.KUSCIA_KD_UID) == deployment.metadata.uid


def _same(obj: ApiObject, body: Object) -> bool:
    """Whether it is made from the same; of Deployments the number of replicas too, which people change by hand."""
    mark = (obj.metadata.annotations or {}).get(labels.COTERIE_MADE_FROM)
    if mark != body["metadata"]["annotations"][labels.COTERIE_MADE_FROM]:
        return False
    return not isinstance(obj, Deployment) or obj.replicas == body["spec"]["replicas"]


def _renewed(old: Object, body: Object, part: str) -> Object:
    """What others wrote into the metadata stays."""
    meta = dict(old["metadata"])
    for key in ("labels", "annotations"):
        meta[key] = {**(meta.get(key) or {}), **(body["metadata"].get(key) or {})}
    return {**old, "metadata": meta, part: body[part]}


def make(
    client: Client,
    informers: Informers,
    *,
    ports: PortPool | None = None,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`ports`: the control plane's; others that give out numbers must use the same."""
    reconciler = KusciaDeploymentReconciler(client, informers, ports or PortPool(), events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.deployments, reconciler.keys_of_deployment),
        Watches(reconciler.made, reconciler.keys_of_made),
        Watches(reconciler.services, reconciler.keys_of_made),
        Watches(reconciler.maps, reconciler.keys_of_made),
        Watches(reconciler.pods, reconciler.keys_of_made),
        Watches(reconciler.images, reconciler.keys_of_image),
        Watches(reconciler.domains, reconciler.keys_of_domain),
    ]
    return Controller("kusciadeployment", reconciler.reconcile, watches, workers=workers, clock=clock)
