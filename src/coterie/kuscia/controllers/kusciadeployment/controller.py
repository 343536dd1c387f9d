"""Carries out deployments: reads one with all that was made of it, asks `plan.py` what is next, and does it.

A deployment lives in another namespace than what is made of it, so it is held back by a finalizer until that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from coterie.base.backoff import Policy, delay
from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from coterie.kube.api.meta import ApiObject, Object, ObjectKey
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.autoscaling import HORIZONTAL_POD_AUTOSCALERS, HorizontalPodAutoscaler
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.finalizers import remove_finalizer
from coterie.kube.control.preconditions import preconditions, write
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_template import EngineTemplateError
from coterie.kuscia.api.engine_versions import (
    LocalEngine,
    engine_named,
    local_engines,
    names_versions,
    parse_pins,
    version_of,
    versions_named,
)
from coterie.kuscia.api.partner_policy import ALLOWED, AdmissionDecision, admit
from coterie.kuscia.api.partner_requests import (
    PartnerRequestError,
    deployment_request,
    deployment_taken,
    version_allowed,
    versions_allowed,
)
from coterie.kuscia.api.types.data import DOMAIN_DATAS
from coterie.kuscia.api.types.deployment import (
    KUSCIA_DEPLOYMENTS,
    KusciaDeployment,
    KusciaDeploymentStatus,
    ServingPhase,
)
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, AppImage
from coterie.kuscia.api.types.partner_policy import PartnerPolicy, PartnerPolicySpec
from coterie.kuscia.control.partner_quotas import PartnerQuotas
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciadeployment.plan import (
    KINDS,
    PartyKey,
    Plan,
    View,
    WantedObject,
    allocated_ports,
    failed_status,
    is_of,
    made_from,
    plan,
    updated,
)
from coterie.kuscia.controllers.kusciadeployment.status import Explanation
from coterie.kuscia.controllers.kusciadeployment.versions import pins_of

BY_UID = "kusciadeployment/uid"
BY_TARGET = "kusciadeployment/autoscaled"
TRIES = 15
_AGAIN = Policy(first=0.1, factor=2.0, limit=60.0, jitter=0.1)
_SELDOM = 300.0
"""Seconds after which something that was given up is looked at again although nothing changed."""
_OURS = f"{labels.KUSCIA_CONTROLLER}={labels.KUSCIA_CONTROLLER_DEPLOYMENT}"


class DeploymentFailing(Exception):
    """It cannot be carried out; the words go into the status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.explanation = Explanation(reason, message)


def by_uid(obj: ApiObject) -> tuple[str, ...]:
    uid = (obj.metadata.labels or {}).get(labels.KUSCIA_KD_UID, "")
    return (uid,) if uid else ()


def by_target(autoscaler: HorizontalPodAutoscaler) -> tuple[str, ...]:
    """The Deployment that it sizes."""
    target = autoscaler.spec.scale_target_ref
    if (target.api_version.rpartition("/")[0], target.kind) != ("apps", "Deployment"):
        return ()
    return (str(ObjectKey(autoscaler.metadata.namespace, target.name)),)


class KusciaDeploymentReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        ports: PortPool,
        quotas: PartnerQuotas,
        events: EventRecorder | None,
        clock: Clock,
        *,
        requires_approval: bool | None,
    ) -> None:
        self._quotas = quotas
        self._requires_approval = requires_approval
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
        self.datas = informers.get(DOMAIN_DATAS)
        self._made: dict[str, Informer[Any]] = {
            DEPLOYMENTS.resource.plural: self.made,
            SERVICES.resource.plural: self.services,
            CONFIG_MAPS.resource.plural: self.maps,
        }
        for informer in (*self._made.values(), self.pods):
            informer.cache.add_index(BY_UID, by_uid)
        self.autoscalers = informers.get(HORIZONTAL_POD_AUTOSCALERS)
        self.autoscalers.cache.add_index(BY_TARGET, by_target)
        self._tries: dict[str, int] = {}
        self._log = logger("controllers.kusciadeployment")

    async def reconcile(self, key: ObjectKey) -> Result:
        deployment = self.deployments.cache.by_key(key)
        if deployment is None:
            return DONE
        uid = deployment.metadata.uid
        view = self._view(deployment)
        wanted = plan(view)
        if wanted.remove:
            return await self._remove(deployment)
        try:
            after = await self._apply(view, wanted)
        except DeploymentFailing as problem:
            await self._write(deployment, failed_status(view, problem.explanation))
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
            words = Explanation("RetryProcessingFailed", why if refused else f"tried {TRIES} times more, last: {why}")
            await self._write(deployment, failed_status(view, words))
            return Result(after=_SELDOM)
        self._tries.pop(uid, None)
        return Result(after=after)

    def _view(self, deployment: KusciaDeployment) -> View:
        uid = deployment.metadata.uid
        partner = not self._ours(deployment.spec.initiator)
        if partner:
            deployment = _with_taken(deployment)
        parties = deployment.spec.parties
        offers = self._offers(deployment)
        return View(
            deployment=deployment,
            own=tuple(name for name in dict.fromkeys(party.domain_id for party in parties) if self._ours(name)),
            initiates=self._ours(deployment.spec.initiator),
            images=self._images(deployment, offers),
            offers=offers,
            objects={
                plural: {
                    (each.metadata.namespace, each.metadata.name): each for each in informer.cache.by_index(BY_UID, uid)
                }
                for plural, informer in self._made.items()
            },
            pods=self.pods.cache.by_index(BY_UID, uid),
            ports={(each.domain_id, each.role): each.named_port or {} for each in allocated_ports(deployment)},
            now=rfc3339(self._clock.now()),
            partner=partner,
            admission=self._admission(deployment, offers) if partner else ALLOWED,
            runtime_class=self._quotas.runtime_class_of(deployment.spec.initiator),
            autoscaled=frozenset(
                (each.metadata.namespace, each.metadata.name)
                for each in self.made.cache.by_index(BY_UID, uid)
                if self.autoscalers.cache.by_index(BY_TARGET, str(each.key))
            ),
        )

    def _policy(self, deployment: KusciaDeployment) -> PartnerPolicySpec | None:
        """Of the partner that began it."""
        initiator = deployment.spec.initiator
        policy = self._quotas.policy_of(initiator) if self._quotas.is_partner(initiator) else None
        return policy.spec if policy is not None else None

    def _offers(self, deployment: KusciaDeployment) -> dict[PartyKey, tuple[LocalEngine, ...]]:
        """Versions that our own parties may use, where they name an engine."""
        known: list[AppImage] = self.images.cache.list()
        out: dict[PartyKey, tuple[LocalEngine, ...]] = {}
        for party in deployment.spec.parties:
            domain = self.domains.cache.get(party.domain_id)
            if not is_own(domain) or not names_versions(party.app_image_ref, known):
                continue
            annotations = (domain.metadata.annotations or {}) if domain is not None else {}
            pinned = parse_pins(annotations.get(labels.COTERIE_ENGINE_PINS, ""))
            found = versions_named(party.app_image_ref, known, pinned)
            out[party.domain_id, party.role] = local_engines(versions_allowed(self._policy(deployment), found), {})
        return out

    def _images(
        self, deployment: KusciaDeployment, offers: Mapping[PartyKey, Sequence[LocalEngine]]
    ) -> dict[str, AppImage]:
        """By name; of engines all versions that the initiator may know of, and those that parties are pinned to."""
        named = {party.app_image_ref for party in deployment.spec.parties}
        engines = {engine_named(party.app_image_ref) for party in deployment.spec.parties} if offers else set()
        pinned = {pin.app_image for pin in pins_of(deployment).values()}
        policy = self._policy(deployment)
        return {
            image.metadata.name: image
            for image in self.images.cache.list()
            if image.metadata.name in named
            or image.metadata.name in pinned
            or ((found := version_of(image)).engine in engines and found.version and version_allowed(policy, found))
        }

    def _admission(
        self, deployment: KusciaDeployment, offers: Mapping[PartyKey, Sequence[LocalEngine]]
    ) -> AdmissionDecision:
        spec = deployment.spec
        ours = {party.domain_id for party in spec.parties if self._ours(party.domain_id)}
        named = {party.app_image_ref for party in spec.parties}
        images = {name: image for name in named if (image := self.images.cache.get(name)) is not None}
        pins = pins_of(deployment)
        for party in spec.parties:
            key = (party.domain_id, party.role)
            if offered := offers.get(key):
                pin = pins.get(key)
                kept = pin.app_image if pin is not None and pin.ref == party.app_image_ref else ""
                image = self.images.cache.get(kept) or self.images.cache.get(offered[0].app_image)
                if image is not None:
                    images[party.app_image_ref] = image
        tables = {
            name: {data.metadata.name for data in self.datas.cache.list(name) if data.spec.author == name}
            for name in ours
        }
        policy = self._quotas.policy_of(spec.initiator)
        asked = deployment_request(deployment, ours, images, tables)
        return admit(self._requires_approval, policy.spec if policy is not None else None, asked, self._clock.now())

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    # Doing.

    async def _apply(self, view: View, wanted: Plan) -> float | None:
        """The seconds after which it is looked at again."""
        if wanted.claim is not None:
            meta, initiator = view.deployment.metadata, view.deployment.spec.initiator
            view = replace(view, claimed=True, over_quota=self._quotas.claim(meta.uid, initiator, wanted.claim))
            wanted = plan(view)
        if wanted.release:
            self._quotas.release(view.deployment.metadata.uid)
        if wanted.allocate:
            view = replace(view, ports=self._allocate(view, wanted.allocate))
            wanted = plan(view)
        if wanted.failure is not None:
            raise DeploymentFailing(wanted.failure.reason, wanted.failure.message)
        if wanted.mark is not None:
            await self._mark(view.deployment, wanted.mark)
        for each in wanted.ensure:
            await self._ensure(view.deployment, each)
        for unwanted in wanted.delete:
            meta = unwanted.object.metadata
            await self._delete(unwanted.kind, meta.name, meta.namespace, meta.uid)
        if wanted.status is not None:
            await self._write(view.deployment, wanted.status)
        return wanted.after

    def _allocate(self, view: View, lacking: Mapping[PartyKey, Sequence[str]]) -> dict[PartyKey, Mapping[str, int]]:
        """The numbers that ports have, and new ones for those that have none."""
        uid = view.deployment.metadata.uid
        ports = dict(view.ports)
        for key, names in lacking.items():
            try:
                ports[key] = {**ports.get(key, {}), **self._pool.allot(uid, key[0], names)}
            except EngineTemplateError as problem:
                self._pool.learn(uid, allocated_ports(view.deployment))
                raise DeploymentFailing("AllocatePortsFailed", str(problem)) from problem
        return ports

    async def _mark(self, deployment: KusciaDeployment, mark: Object) -> None:
        try:
            await write(self._client, KUSCIA_DEPLOYMENTS, deployment, {"metadata": mark})
        except (ApiError, TransportError):
            self._pool.learn(deployment.metadata.uid, allocated_ports(deployment))  # nobody knows of the others
            raise

    async def _ensure(self, deployment: KusciaDeployment, wanted: WantedObject) -> None:
        """Creates or updates it. The cache may be behind, so what the server has is looked at once more."""
        kind, body = wanted.kind, wanted.body
        reason = f"Create{kind.resource.kind}Failed"
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        found = self._made[kind.resource.plural].cache.get(name, namespace)
        try:
            there = found if found is not None else await self._made_before(kind, body)
            if there is None:
                return
            if not is_of(there, deployment):
                words = f'{namespace} has another {kind.resource.kind} "{name}", which is not of this deployment'
                raise DeploymentFailing(reason, words)
            if not made_from(there, wanted):
                await self._client.modify(kind.as_dynamic, name, namespace, lambda old: updated(old, wanted))
                self._log.info(
                    "Workload recreated", deployment=deployment.metadata.name, kind=kind.resource.kind, name=name
                )
        except Conflict:
            raise
        except NotFound as problem:
            if found is not None:
                raise Conflict(f"{kind} {namespace}/{name} went away meanwhile") from problem
            raise DeploymentFailing(reason, problem.message) from problem  # the namespace is missing
        except ApiError as problem:
            if outlook(problem) is Outlook.TRANSIENT:
                raise
            raise DeploymentFailing(
                reason, f"{kind.resource.kind} {namespace}/{name}: {status_message(problem)}"
            ) from problem

    async def _made_before(self, kind: Kind[Any], body: Object) -> Any:
        """None when it is made now; else what has its name already."""
        try:
            await self._client.create(kind.as_dynamic, body)
        except AlreadyExists:
            return await self._client.get(kind, body["metadata"]["name"], body["metadata"]["namespace"])
        return None

    # Ending.

    async def _remove(self, deployment: KusciaDeployment) -> Result:
        """The deployment is being deleted: so is everything of it, asked of the server because the cache may be behind."""
        meta = deployment.metadata
        selector = f"{labels.KUSCIA_OWNER_NAMESPACE}={CROSS_DOMAIN},{labels.KUSCIA_KD_UID}={meta.uid}"
        named = {party.domain_id for party in deployment.spec.parties}
        seen = {each.metadata.namespace for each in self.made.cache.by_index(BY_UID, meta.uid)}
        for domain in sorted(named | seen):
            for kind in KINDS:
                listed = (await self._client.list(Kind.metadata(kind.resource), domain, labels=selector)).items
                await asyncio.gather(
                    *(self._delete(kind, each.metadata.name, domain, each.metadata.uid) for each in listed)
                )
        self._pool.release(meta.uid)
        self._quotas.release(meta.uid)
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

    async def _write(self, deployment: KusciaDeployment, status: KusciaDeploymentStatus) -> None:
        before = deployment.status
        if before is not None and changes(before, status) is None:
            return
        status = msgspec.structs.replace(status, last_reconcile_time=rfc3339(self._clock.now()))
        change = msgspec.to_builtins(status) if before is None else changes(before, status)
        meta = deployment.metadata
        patch = {"metadata": preconditions(deployment), "status": change}
        try:
            await self._client.patch_status(KUSCIA_DEPLOYMENTS, meta.name, meta.namespace, patch)
        except NotFound:
            return
        if before is None or before.phase != status.phase:
            self._record_event(deployment, status)

    def _record_event(self, deployment: KusciaDeployment, status: KusciaDeploymentStatus) -> None:
        first = status.message.partition("\n")[0]
        self._log.info(
            "Deployment phase changed", deployment=deployment.metadata.name, phase=status.phase, why=status.reason
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
            self._pool.learn(uid, allocated_ports(current))
        else:
            self._pool.release(uid)
            self._quotas.release(uid)
            self._tries.pop(uid, None)
        return [deployment.key]

    def keys_of_policy(self, policy: PartnerPolicy) -> list[ObjectKey]:
        return [
            each.key for each in self.deployments.cache.list() if self._quotas.concerned(policy, each.spec.initiator)
        ]

    def keys_of_made(self, obj: ApiObject) -> list[ObjectKey]:
        known = obj.metadata.labels or {}
        name = known.get(labels.KUSCIA_KD_NAME, "")
        ours = known.get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_DEPLOYMENT
        return [ObjectKey(CROSS_DOMAIN, name)] if name and ours else []

    def keys_of_autoscaler(self, autoscaler: HorizontalPodAutoscaler) -> list[ObjectKey]:
        made = self.made.cache.get(autoscaler.spec.scale_target_ref.name, autoscaler.metadata.namespace)
        return self.keys_of_made(made) if made is not None and by_target(autoscaler) else []

    def keys_of_image(self, image: AppImage) -> list[ObjectKey]:
        engine = version_of(image).engine
        return [
            each.key
            for each in self.deployments.cache.list()
            if any(
                party.app_image_ref == image.metadata.name or engine_named(party.app_image_ref) == engine
                for party in each.spec.parties
            )
        ]

    def keys_of_domain(self, domain: Domain) -> list[ObjectKey]:
        """A deployment may come before the domains that it names."""
        name = domain.metadata.name
        return [
            each.key
            for each in self.deployments.cache.list()
            if each.status is None and any(party.domain_id == name for party in each.spec.parties)
        ]


def _with_taken(deployment: KusciaDeployment) -> KusciaDeployment:
    """As the boundary would let it in, whoever wrote it, and before which version of ours."""
    try:
        return msgspec.structs.replace(deployment, spec=deployment_taken(msgspec.to_builtins(deployment.spec)))
    except PartnerRequestError:
        return msgspec.structs.replace(deployment, spec=msgspec.structs.replace(deployment.spec, parties=()))


def make(
    client: Client,
    informers: Informers,
    *,
    requires_approval: bool | None = False,
    ports: PortPool | None = None,
    quotas: PartnerQuotas | None = None,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`requires_approval`: as for jobs. `ports`, `quotas`: the control plane's; others that give out numbers, or start
    partners' work, must use the same."""
    quotas = quotas or PartnerQuotas(informers)
    reconciler = KusciaDeploymentReconciler(
        client, informers, ports or PortPool(), quotas, events, clock, requires_approval=requires_approval
    )
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.deployments, reconciler.keys_of_deployment),
        Watches(reconciler.made, reconciler.keys_of_made),
        Watches(reconciler.services, reconciler.keys_of_made),
        Watches(reconciler.maps, reconciler.keys_of_made),
        Watches(reconciler.pods, reconciler.keys_of_made),
        Watches(reconciler.autoscalers, reconciler.keys_of_autoscaler),
        Watches(reconciler.images, reconciler.keys_of_image),
        Watches(reconciler.domains, reconciler.keys_of_domain),
        Watches(quotas.policies, reconciler.keys_of_policy),
    ]
    return Controller("kusciadeployment", reconciler.reconcile, watches, workers=workers, clock=clock)
