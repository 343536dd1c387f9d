"""What happens to a deployment next. Pure: `plan(view)` says it, the controller does it.

    the deployment                                         the plan
    -----------------------------------------------------  ----------------------------------------------------------
    is being deleted, and its finalizer is there           remove everything of it, then the finalizer
    is being deleted otherwise; nobody in it is hosted     nothing
    here
    is invalid                                             status Failed, reason ValidateFailed
    names an AppImage or a role that is missing            status Failed, reason BuildPartyKitInfoFailed
    was begun by a partner and is not approved yet         mark it approved, where the partner's policy says so; else
                                                           leave what there is, and wait; or delete all, status Failed
    was begun by a partner and is approved                 claim its place in the partner's quota, and plan again; where
                                                           there is none, leave what there is, and wait
    has ports without numbers                              allocate them, and plan again
    names an engine, and a partner's versions of it are    status with the versions that we offer
    not known yet
    names an engine of which no versions work together     status Failed, reason EngineVersionMismatch
    lacks the finalizer, or its annotations are outdated   mark it; its own event continues
    is carried out                                         create or update objects that are missing or made from
                                                           something else; delete those of ports, parties and
                                                           templates that are gone; status from `status.py`

The phases of parties and of the whole follow the table in `status.py`. What the API refuses while a plan is carried out
becomes the status `failed_status`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coterie.kube.api.meta import ApiObject, Object
from coterie.kube.api.types.apps import DEPLOYMENTS, Deployment
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_template import EngineTemplateError
from coterie.kuscia.api.engine_versions import LocalEngine
from coterie.kuscia.api.partner_policy import ALLOWED, AdmissionDecision, Usage, Verdict, usage_of
from coterie.kuscia.api.partner_requests import deployment_digest
from coterie.kuscia.api.types.deployment import KusciaDeployment, KusciaDeploymentStatus, PartyStatuses, ServingPhase
from coterie.kuscia.api.types.job import AppImage, PartyAllocatedPorts
from coterie.kuscia.control.partner_quotas import QuotaRefusal
from coterie.kuscia.controllers.kusciadeployment import render, versions
from coterie.kuscia.controllers.kusciadeployment.party_workloads import (
    PartyDeployment,
    deployment_name,
    party_deployments,
    spec_error,
)
from coterie.kuscia.controllers.kusciadeployment.status import (
    Explanation,
    all_failed,
    condition_of,
    explain_pods,
    party_status,
    whole_status,
)
from coterie.kuscia.controllers.kusciadeployment.versions import EngineAgreement

VALIDATE_FAILED, BUILD_FAILED = "ValidateFailed", "BuildPartyKitInfoFailed"
AWAITING_APPROVAL, REFUSED, REJECTED_HERE = "AwaitingApproval", "RefusedByPolicy", "Rejected"
QUOTA_EXCEEDED = "QuotaExceeded"
QUOTA_RETRY = 5.0
"""Seconds after which a deployment that found no room in its quota is tried again."""
KINDS: tuple[Kind[Any], ...] = (SERVICES, DEPLOYMENTS, CONFIG_MAPS)
"""What a deployment is made of."""

Place = tuple[str, str]
"""(namespace, name)"""
PartyKey = tuple[str, str]
"""(domain, role)"""


@dataclass(frozen=True, slots=True)
class View:
    deployment: KusciaDeployment
    own: tuple[str, ...]
    """Domains of the parties that are hosted here."""
    initiates: bool
    """The initiator is hosted here."""
    images: Mapping[str, AppImage]
    objects: Mapping[str, Mapping[Place, ApiObject]]
    """What was made of this deployment, by the plural of its kind."""
    pods: Sequence[Pod]
    ports: Mapping[PartyKey, Mapping[str, int]]
    """Numbers that ports have."""
    now: str
    partner: bool = False
    """The initiator is a partner."""
    admission: AdmissionDecision = ALLOWED
    """What the policy says to it; only asked while it is not approved."""
    claimed: bool = False
    """Its place in the partner's quota was asked for."""
    over_quota: QuotaRefusal | None = None
    """Why there is none."""
    runtime_class: str = ""
    """What the partner's policy demands of its pods."""
    offers: Mapping[PartyKey, Sequence[LocalEngine]] = field(default_factory=dict)
    """Versions that our own parties offer, where they name an engine; `images` has all of them."""
    autoscaled: frozenset[Place] = frozenset()
    """Deployments that are the target of a HorizontalPodAutoscaler."""

    @property
    def deployments(self) -> dict[Place, Deployment]:
        found = self.objects.get(DEPLOYMENTS.resource.plural, {})
        return {place: each for place, each in found.items() if isinstance(each, Deployment)}


@dataclass(frozen=True, slots=True)
class WantedObject:
    kind: Kind[Any]
    body: Object
    part: str
    """The field of the body that is replaced when the object is updated."""
    autoscaled: bool = False
    """The number of replicas is an autoscaler's: it is neither compared nor replaced."""


@dataclass(frozen=True, slots=True)
class Unwanted:
    kind: Kind[Any]
    object: ApiObject


@dataclass(frozen=True, slots=True)
class Plan:
    """In the order in which it is done. An empty plan: nothing."""

    remove: bool = False
    """Everything of the deployment, and then its finalizer."""
    failure: Explanation | None = None
    allocate: Mapping[PartyKey, tuple[str, ...]] = field(default_factory=dict)
    """Names of ports that need numbers. Nothing else is planned before they have them."""
    mark: Object | None = None
    """Metadata to merge. Nothing else is done with it; its own event brings us back."""
    ensure: tuple[WantedObject, ...] = ()
    delete: tuple[Unwanted, ...] = ()
    status: KusciaDeploymentStatus | None = None
    claim: Usage | None = None
    """A place in the quota of the partner that began it. Nothing else is planned before that is asked for."""
    release: bool = False
    """The place is not needed any more."""
    after: float | None = None


def plan(view: View) -> Plan:
    meta = view.deployment.metadata
    if meta.deleting:
        return Plan(remove=meta.has_finalizer(labels.FINALIZER_DEPLOYMENT))
    if not view.own and not view.initiates:
        return Plan()
    if fault := spec_error(view.deployment):
        return Plan(failure=Explanation(VALIDATE_FAILED, fault))
    engines = _engines(view)
    if engines.missing:
        return Plan(failure=Explanation(BUILD_FAILED, engines.missing))
    try:
        workloads = party_deployments(view.deployment, view.images, engines.app_images)
    except EngineTemplateError as problem:
        return Plan(failure=Explanation(BUILD_FAILED, str(problem)))
    own = [workload for workload in workloads if workload.domain in view.own]
    if view.partner and own and (unadmitted := _unadmitted(view, own)) is not None:
        return unadmitted
    if engines.problem:
        return Plan(failure=Explanation(versions.ENGINE_MISMATCH, engines.problem))
    if engines.waiting:
        return _waiting(view, own, Explanation(versions.ENGINE_VERSIONS, f"waiting for {engines.waiting}"), None)
    if lacking := dict(_without_number(view, own)):
        return Plan(allocate=lacking)
    if mark := _mark(view, own):
        return Plan(mark=mark)
    wanted = [
        each
        for place, workload in enumerate(workloads)
        if workload.domain in view.own
        for each in _objects(view, workloads, place)
    ]
    return Plan(
        ensure=tuple(each for each in wanted if not _up_to_date(view, each)),
        delete=tuple(_unwanted(view, wanted)),
        status=_status(view, *_own_parties(view, own)),
    )


def _engines(view: View) -> EngineAgreement:
    return versions.agreed(view.deployment, view.offers, view.images)


def _is_approved(view: View) -> bool:
    known = view.deployment.metadata.annotations or {}
    return not view.partner or known.get(labels.COTERIE_APPROVED) == deployment_digest(view.deployment.spec)


def _unadmitted(view: View, own: Sequence[PartyDeployment]) -> Plan | None:
    """What happens instead of carrying out a partner's deployment; None when it is approved and has its place."""
    known = view.deployment.metadata.annotations or {}
    digest = deployment_digest(view.deployment.spec)
    decision = view.admission
    if known.get(labels.COTERIE_REJECTED) == digest:
        return _refused(view, Explanation(REJECTED_HERE, f"{', '.join(view.own)} rejected it"))
    if known.get(labels.COTERIE_APPROVED) != digest:
        if decision.verdict is Verdict.REFUSE:
            return _refused(view, Explanation(REFUSED, f"refused: {decision.sentence}"))
        if decision.verdict is Verdict.ASK:
            words = f"waiting for the approval of {', '.join(view.own)}: {decision.sentence}"
            return _waiting(view, own, Explanation(AWAITING_APPROVAL, words), decision.recheck_after)
        return Plan(mark={"annotations": {labels.COTERIE_APPROVED: digest}})
    if not view.claimed:
        total = Usage()
        for party in own:
            total += usage_of(party.engine.containers, _replicas(view, party))
        return Plan(claim=total)
    if view.over_quota is not None:
        return _waiting(view, own, Explanation(QUOTA_EXCEEDED, view.over_quota.sentence), QUOTA_RETRY)
    return None


def _refused(view: View, why: Explanation) -> Plan:
    unwanted = tuple(
        Unwanted(kind, found) for kind in KINDS for found in view.objects.get(kind.resource.plural, {}).values()
    )
    return Plan(delete=unwanted, status=failed_status(view, why), release=True)


def _waiting(view: View, own: Sequence[PartyDeployment], why: Explanation, after: float | None) -> Plan:
    """What runs of an earlier spec goes on."""
    parties: PartyStatuses = {}
    for party in own:
        found = view.deployments.get((party.domain, party.name))
        before = view.deployment.party_statuses.get(party.domain, {}).get(party.name)
        entry = party_status(found, party.role, _replicas(view, party), why, None, view.now)
        if entry.phase == ServingPhase.AVAILABLE:
            entry = msgspec.structs.replace(entry, conditions=(*(entry.conditions or ()), condition_of(why)))
        if found is None and before is not None:
            entry = msgspec.structs.replace(entry, creation_timestamp=before.creation_timestamp)
        parties.setdefault(party.domain, {})[party.name] = entry
    return Plan(status=_status(view, parties, {}), after=after)


def failed_status(view: View, why: Explanation) -> KusciaDeploymentStatus:
    """When the deployment cannot be carried out here."""
    parties = all_failed(view.deployment, view.own, view.deployments, why, view.now)
    return _status(view, parties, {}, why)


# Ports and marks.


def allocated_ports(deployment: KusciaDeployment) -> list[PartyAllocatedPorts]:
    """What the annotation says; nothing when nobody can read it."""
    text = (deployment.metadata.annotations or {}).get(labels.KUSCIA_ALLOCATED_PORTS, "")
    try:
        return msgspec.json.decode(text, type=list[PartyAllocatedPorts]) if text else []
    except (msgspec.ValidationError, msgspec.DecodeError):
        return []


def _without_number(view: View, own: Sequence[PartyDeployment]) -> Iterator[tuple[PartyKey, tuple[str, ...]]]:
    for workload in own:
        known = view.ports.get((workload.domain, workload.role), {})
        if lacking := tuple(name for name in workload.port_names if name not in known):
            yield (workload.domain, workload.role), lacking


def _numbers(view: View, workload: PartyDeployment) -> dict[str, int]:
    known = view.ports.get((workload.domain, workload.role), {})
    return {name: known[name] for name in workload.port_names}


def _mark(view: View, own: Sequence[PartyDeployment]) -> Object:
    """Finalizer and annotations that are missing or outdated."""
    meta = view.deployment.metadata
    allocated = [
        PartyAllocatedPorts(domain_id=workload.domain, role=workload.role, named_port=_numbers(view, workload))
        for workload in own
    ]
    wanted = render.marks_of(view.deployment, view.own, allocated)
    pins = versions.pins_text(_engines(view).pins)
    known = meta.annotations or {}
    if pins or labels.COTERIE_DEPLOYED_ENGINES in known:
        wanted[labels.COTERIE_DEPLOYED_ENGINES] = pins
    mark: Object = {}
    if any(known.get(key) != value for key, value in wanted.items()):
        mark["annotations"] = wanted
    if not meta.has_finalizer(labels.FINALIZER_DEPLOYMENT):
        mark["finalizers"] = [*(meta.finalizers or ()), labels.FINALIZER_DEPLOYMENT]
    return mark


# Objects.


def _objects(view: View, workloads: Sequence[PartyDeployment], place: int) -> Iterator[WantedObject]:
    """Of one party, in the order in which they are made: pods need what stands before the Deployment."""
    workload = workloads[place]
    numbers = _numbers(view, workload)
    templates = render.template_map(view.deployment, workload)
    if templates is not None:
        yield WantedObject(CONFIG_MAPS, templates, "data")
    for service in render.services_of(view.deployment, workload, numbers):
        yield WantedObject(SERVICES, service, "spec")
    body = render.deployment_of(view.deployment, workloads, place, numbers, view.runtime_class)
    yield WantedObject(DEPLOYMENTS, body, "spec", _is_autoscaled(view, workload))


def _is_autoscaled(view: View, party: PartyDeployment) -> bool:
    """While an autoscaler sizes the Deployment, the party's replicas are only what it starts with. Zero replicas, in the
    party or in the Deployment, switch the autoscaler off, as Kubernetes does: then the party's number counts."""
    found = view.deployments.get((party.domain, party.name))
    targeted = (party.domain, party.name) in view.autoscaled
    return targeted and found is not None and found.replicas > 0 and party.engine.replicas > 0


def _replicas(view: View, party: PartyDeployment) -> int:
    if _is_autoscaled(view, party):
        return view.deployments[(party.domain, party.name)].replicas
    return party.engine.replicas


def _place(body: Object) -> Place:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _up_to_date(view: View, wanted: WantedObject) -> bool:
    found = view.objects.get(wanted.kind.resource.plural, {}).get(_place(wanted.body))
    return found is not None and made_from(found, wanted)


def _unwanted(view: View, wanted: Sequence[WantedObject]) -> Iterator[Unwanted]:
    """What was made for a port, a party or a template that is no longer there."""
    kept = {(each.kind.resource.plural, _place(each.body)) for each in wanted}
    for kind in KINDS:
        for place, found in view.objects.get(kind.resource.plural, {}).items():
            if (kind.resource.plural, place) not in kept:
                yield Unwanted(kind, found)


def is_of(obj: ApiObject, deployment: KusciaDeployment) -> bool:
    return (obj.metadata.labels or {}).get(labels.KUSCIA_KD_UID) == deployment.metadata.uid


def made_from(obj: ApiObject, wanted: WantedObject) -> bool:
    """Whether it is made from the same; of Deployments the number of replicas too, which people change by hand."""
    mark = (obj.metadata.annotations or {}).get(labels.COTERIE_MADE_FROM)
    if mark != wanted.body["metadata"]["annotations"][labels.COTERIE_MADE_FROM]:
        return False
    if not isinstance(obj, Deployment) or wanted.autoscaled:
        return True
    return bool(obj.replicas == wanted.body["spec"]["replicas"])


def updated(old: Object, wanted: WantedObject) -> Object:
    """What others wrote into the metadata stays, and the replicas that an autoscaler chose."""
    body, meta = wanted.body, dict(old["metadata"])
    for key in ("labels", "annotations"):
        meta[key] = {**(meta.get(key) or {}), **(body["metadata"].get(key) or {})}
    part = body[wanted.part]
    if wanted.autoscaled:
        part = {**part, "replicas": old[wanted.part].get("replicas", part["replicas"])}
    return {**old, "metadata": meta, wanted.part: part}


# Status.


def _own_parties(view: View, own: Sequence[PartyDeployment]) -> tuple[PartyStatuses, dict[str, str]]:
    """How our own parties are, and the last output of their containers by domain."""
    found = view.deployments
    parties: PartyStatuses = {}
    logs: dict[str, str] = {}
    for workload in own:
        why = explain_pods(pod for pod in view.pods if _is_pod_of(pod, workload))
        if why is not None and why.log:
            logs.setdefault(workload.domain, why.log)
        entry = party_status(
            found.get((workload.domain, workload.name)), workload.role, _replicas(view, workload), why, None, view.now
        )
        parties.setdefault(workload.domain, {})[workload.name] = entry
    return parties, logs


def _is_pod_of(pod: Pod, workload: PartyDeployment) -> bool:
    known = pod.metadata.labels or {}
    return pod.metadata.namespace == workload.domain and known.get(labels.KUSCIA_DEPLOYMENT_NAME) == workload.name


def _with_engines(view: View, own: PartyStatuses) -> PartyStatuses:
    """With the versions that our parties offer; before a partner's deployment is approved it is told only that they will."""
    if not view.offers:
        return own
    stated = _engines(view).stated if _is_approved(view) else {}
    out: PartyStatuses = {}
    for party in view.deployment.spec.parties:
        name = deployment_name(view.deployment, party)
        entry = own.get(party.domain_id, {}).get(name)
        if entry is not None and versions.key_of(party) in view.offers:
            offered = stated.get(versions.key_of(party))
            entry = msgspec.structs.replace(entry, engine_ref=party.app_image_ref, engines=offered)
        if entry is not None:
            out.setdefault(party.domain_id, {})[name] = entry
    return out


def _status(
    view: View, own: PartyStatuses, logs: Mapping[str, str], failed: Explanation | None = None
) -> KusciaDeploymentStatus:
    """With what the others reported of themselves."""
    own = _with_engines(view, own)
    named = {party.domain_id for party in view.deployment.spec.parties}
    others = {
        domain: entries
        for domain, entries in view.deployment.party_statuses.items()
        if domain in named and domain not in view.own
    }
    return whole_status(view.deployment, dict(sorted({**others, **own}.items())), logs, failed)
