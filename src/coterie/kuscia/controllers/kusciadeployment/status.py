"""How a deployment is, from its Deployments and pods and from what partners tell. Pure.

    party   Available          as many replicas serve as are wanted, and at least one
            PartialAvailable   some do
            Progressing        none does
            Failed             it cannot be carried out; the condition ReplicaFailure says why
    whole   Failed when a party is, else Progressing when a party is or has not been heard of, else Available when all
            are, else PartialAvailable

Conditions of a party are told to partners: they say which container does what, and never what it printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from coterie.kube.api.meta import find_condition
from coterie.kube.api.pod_state import container_statuses, is_ready, reason_and_message, termination_message
from coterie.kube.api.types.apps import Deployment, DeploymentCondition
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api.types.deployment import (
    FAILURE,
    KusciaDeployment,
    KusciaDeploymentStatus,
    PartyDeploymentStatus,
    PartyStatuses,
    ServingPhase,
)
from coterie.kuscia.api.waiting import Waiting, WaitReason
from coterie.kuscia.controllers.kusciadeployment.party_workloads import deployment_name

WAITING = "Waiting"
_ORDINARY = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is as it is."""

    reason: str
    message: str = ""
    log: str = ""
    """What a container printed last, for our own side only."""


def explain_pods(pods: Iterable[Pod]) -> Explanation | None:
    """Of the first pod that waits for something bad, has ended, or found no place."""
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        if pod.metadata.deleting or is_ready(pod):
            continue
        for status in container_statuses(pod):
            state = status.state or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
            if (reason := str(waiting.get("reason") or "")) not in _ORDINARY:
                _, log = termination_message(pod)
                words = f"pod {pod.metadata.name}: container {status.name}: {reason_and_message(reason, waiting.get('message'))}"
                return Explanation(reason, words, log)
            if ended.get("exitCode"):
                brief, log = termination_message(pod)
                return Explanation(str(ended.get("reason") or "Error"), f"pod {pod.metadata.name}: {brief}", log)
        placed = find_condition(pod.status.conditions, "PodScheduled")
        if placed is not None and placed.status == "False":
            return Explanation(placed.reason or "Unschedulable", f"pod {pod.metadata.name}: {placed.message}")
    return None


def party_status(
    found: Deployment | None, role: str, wanted: int, why: Explanation | None, failed: Explanation | None, now: str
) -> PartyDeploymentStatus:
    """`why`: of pods that do not run as they should; `failed`: of what cannot be carried out at all."""
    status = found.status if found is not None else None
    available = status.available_replicas if status is not None else 0
    conditions = list(status.conditions or ()) if status is not None else []
    if failed is not None:
        phase = ServingPhase.FAILED
        conditions = [*(each for each in conditions if each.type != FAILURE), _condition(FAILURE, failed)]
    elif available >= wanted > 0:
        phase = ServingPhase.AVAILABLE
    else:
        phase = ServingPhase.PARTIAL if available else ServingPhase.PROGRESSING
        if why is not None:
            conditions.append(_condition(WAITING, why))
    return PartyDeploymentStatus(
        replicas=status.replicas if status is not None else 0,
        updated_replicas=status.updated_replicas if status is not None else 0,
        available_replicas=available,
        unavailable_replicas=status.unavailable_replicas if status is not None else wanted,
        phase=str(phase),
        role=role,
        conditions=tuple(conditions) or None,
        creation_timestamp=found.metadata.creation_timestamp if found is not None else now,
    )


def condition_of(why: Explanation) -> DeploymentCondition:
    """That it waits for something, and what."""
    return _condition(WAITING, why)


def _condition(type_: str, explanation: Explanation) -> DeploymentCondition:
    return DeploymentCondition(type=type_, status="True", reason=explanation.reason, message=explanation.message)


def whole_status(
    deployment: KusciaDeployment, parties: PartyStatuses, logs: Mapping[str, str], failed: Explanation | None
) -> KusciaDeploymentStatus:
    """`parties`: everybody's; `logs`: last words of our own, by domain; `failed`: why it cannot be carried out here."""
    entries = [
        (party.domain_id, parties.get(party.domain_id, {}).get(deployment_name(deployment, party)))
        for party in deployment.spec.parties
    ]
    phases = [entry.phase if entry is not None else str(ServingPhase.PROGRESSING) for _, entry in entries]
    phase = ServingPhase.FAILED if failed is not None else _phase(phases)
    words = failed or Explanation("")
    if failed is None and phase is not ServingPhase.AVAILABLE:
        domain, entry = entries[phases.index(phase)]
        words = _explain_party(entry)
        log = logs.get(domain, "").strip()
        message = words.message if phase is ServingPhase.FAILED else _sentence(deployment, domain, entry, words)
        words = Explanation(f"domainID: {domain}, reason: {words.reason}", f"{message}\n{log}" if log else message)
    return KusciaDeploymentStatus(
        total_parties=len(entries),
        available_parties=phases.count(ServingPhase.AVAILABLE),
        phase=str(phase),
        reason=words.reason,
        message=words.message,
        last_reconcile_time=deployment.status.last_reconcile_time if deployment.status is not None else None,
        party_deployment_statuses=parties or None,
    )


def _sentence(deployment: KusciaDeployment, domain: str, entry: PartyDeploymentStatus | None, why: Explanation) -> str:
    """What a deployment that does not serve in full waits for."""
    name = deployment.metadata.name
    since = (entry.creation_timestamp if entry is not None else None) or deployment.metadata.creation_timestamp or ""
    step = f"Run `coterie describe kusciadeployment {name} -n {deployment.metadata.namespace}`"
    reason = WaitReason.PARTNER
    if why.reason == "AwaitingApproval":
        reason, step = WaitReason.APPROVAL, f"At {domain}, run `coterie policy approve deployment/{name}`"
    elif entry is None:
        step = f"Run `coterie route ls`, or ask {domain}"
    return Waiting(reason, domain, f"{domain}: {why.message}", step, since).sentence


def _phase(phases: Sequence[str]) -> ServingPhase:
    for phase in (ServingPhase.FAILED, ServingPhase.PROGRESSING):
        if phase in phases:
            return phase
    return ServingPhase.AVAILABLE if set(phases) == {ServingPhase.AVAILABLE} else ServingPhase.PARTIAL


def _explain_party(entry: PartyDeploymentStatus | None) -> Explanation:
    if entry is None:
        return Explanation("NotReported", "the party has not reported its status yet")
    for type_ in (FAILURE, WAITING):
        found = find_condition(entry.conditions, type_)
        if found is not None and found.status == "True":
            return Explanation(found.reason, found.message)
    for type_ in ("Available", "Progressing"):
        found = find_condition(entry.conditions, type_)
        if found is not None and found.reason and (type_ != "Available" or found.status != "True"):
            return Explanation(found.reason, found.message)
    return Explanation("ReplicasNotReady", f"{entry.available_replicas} replicas serve")


def all_failed(
    deployment: KusciaDeployment,
    own: Iterable[str],
    found: Mapping[tuple[str, str], Deployment],
    why: Explanation,
    now: str,
) -> PartyStatuses:
    """Our own parties when the deployment cannot be carried out."""
    out: PartyStatuses = {}
    hosted = set(own)
    for party in deployment.spec.parties:
        if party.domain_id in hosted:
            name = deployment_name(deployment, party)
            entry = party_status(found.get((party.domain_id, name)), party.role, 0, None, why, now)
            before = deployment.party_statuses.get(party.domain_id, {}).get(name)
            if before is not None:
                entry = replace(entry, creation_timestamp=before.creation_timestamp)
            out.setdefault(party.domain_id, {})[name] = entry
    return out
