"""What a host shows its partners of a deployment, and what both sides take from its summary. Pure.

    in the host's cluster, namespace of the partner's control plane
        KusciaDeployment          the deployment as it is asked for                       host writes
        KusciaDeploymentSummary   the whole's phase; how each party's Deployments are     each its own parties

Nobody takes from a summary what it says about the taker's own domains. What a container printed never crosses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from coterie.kube.api.meta import Object, find_condition
from coterie.kube.api.types.apps import DeploymentCondition
from coterie.kuscia.api import labels
from coterie.kuscia.api.job_statements import offers_taken
from coterie.kuscia.api.partner_requests import PartnerRequestError, deployment_taken
from coterie.kuscia.api.types.deployment import (
    FAILURE,
    KusciaDeployment,
    KusciaDeploymentStatus,
    PartyDeploymentStatus,
    PartyStatuses,
    ServingPhase,
    party_deployment,
)
from coterie.kuscia.api.types.job import CROSS_DOMAIN

HOST_GENERATION = "coterie.io/host-generation"
"""Annotation of a summary: which state of the host's deployment its mirror shows."""
_LONGEST_REF = 256
WITHDRAWN, REFUSED = "WithdrawnByParty", "RefusedByParty"


def parties_of(deployment: KusciaDeployment) -> tuple[str, ...]:
    return tuple(dict.fromkeys(party.domain_id for party in deployment.spec.parties))


def stamp_of(deployment: KusciaDeployment) -> str:
    return f"{deployment.metadata.uid}/{deployment.metadata.generation}"


# What the host shows.


def mirror_of(plain: Object, master: str, theirs: tuple[str, ...]) -> Object:
    """`plain`: the deployment with everything in it."""
    known = plain["metadata"].get("labels") or {}
    marks = plain["metadata"].get("annotations") or {}
    app_type = known.get(labels.KUSCIA_APP_TYPE, "")
    mode = marks.get(labels.KUSCIA_AFFINITY_MODE, "")
    meta: Object = {
        "name": plain["metadata"]["name"],
        "namespace": master,
        "annotations": {
            labels.KUSCIA_INITIATOR: plain["spec"]["initiator"],
            labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "_".join(theirs),
            **({labels.KUSCIA_AFFINITY_MODE: mode} if mode else {}),
        },
    }
    if app_type and app_type != labels.KUSCIA_APP_TYPE_SCQL:
        meta["labels"] = {labels.KUSCIA_APP_TYPE: app_type}
    return {"metadata": meta, "spec": plain["spec"]}


def summary_of(deployment: KusciaDeployment, master: str, theirs: tuple[str, ...]) -> Object:
    return {
        "metadata": {
            "name": deployment.metadata.name,
            "namespace": master,
            "annotations": {
                labels.KUSCIA_INITIATOR: deployment.spec.initiator,
                labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "_".join(theirs),
                HOST_GENERATION: stamp_of(deployment),
            },
        },
    }


def status_from_host(
    own: KusciaDeploymentStatus, there: KusciaDeploymentStatus | None, theirs: Iterable[str]
) -> KusciaDeploymentStatus:
    """How the whole is, and all parties but the partner's own."""
    known = (there.party_deployment_statuses if there is not None else None) or {}
    named = set(theirs)
    parties = {domain: each for domain, each in (own.party_deployment_statuses or {}).items() if domain not in named}
    parties |= {domain: each for domain, each in known.items() if domain in named}
    return replace(
        own,
        message=own.message.partition("\n")[0],
        last_reconcile_time=None,
        party_deployment_statuses=dict(sorted(parties.items())) or None,
    )


def merge_partner_statuses(own: PartyStatuses, reported: PartyStatuses, others: Iterable[str]) -> PartyStatuses:
    """Our own view with what is told about `others`, who are not ours."""
    named = set(others)
    out = {domain: each for domain, each in own.items() if domain not in named}
    for domain, entries in reported.items():
        if domain in named:
            out[domain] = {name: _engines_taken(entry) for name, entry in entries.items()}
    return dict(sorted(out.items()))


def _engines_taken(entry: PartyDeploymentStatus) -> PartyDeploymentStatus:
    if not entry.engine_ref and entry.engines is None:
        return entry
    return replace(entry, engine_ref=entry.engine_ref[:_LONGEST_REF], engines=offers_taken(entry.engines))


# What a member makes of it.


def working_copy(mirror: Object, host: str, namespace: str) -> Object:
    """PartnerRequestError when nothing can be taken from it. Where our replicas run is not the partner's to say."""
    spec = deployment_taken(mirror.get("spec"))
    marks = mirror["metadata"].get("annotations") or {}
    meta: Object = {
        "name": mirror["metadata"]["name"],
        "namespace": CROSS_DOMAIN,
        "annotations": {
            labels.KUSCIA_INITIATOR: spec.initiator,
            labels.KUSCIA_SELF_AS_INITIATOR: "false",
            labels.KUSCIA_INITIATOR_MASTER_DOMAIN: host,
            labels.KUSCIA_PARTY_MASTER_DOMAIN: namespace,
            labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: marks.get(labels.KUSCIA_INTERCONN_KUSCIA_PARTIES, ""),
        },
    }
    if (mirror["metadata"].get("labels") or {}).get(labels.KUSCIA_APP_TYPE) == labels.KUSCIA_APP_TYPE_SERVING:
        meta["labels"] = {labels.KUSCIA_APP_TYPE: labels.KUSCIA_APP_TYPE_SERVING}
    return {"metadata": meta, "spec": msgspec.to_builtins(spec)}


def parties_named(mirror: Object) -> list[tuple[str, str]]:
    """(domain, role) of the parties that a partner's deployment names; none when it cannot be read."""
    try:
        return [(party.domain_id, party.role) for party in deployment_taken(mirror.get("spec")).parties]
    except PartnerRequestError:
        return []


def refused_statuses(mirror: Object, ours: Iterable[str], reason: str, sentence: str) -> PartyStatuses:
    """What a member tells of its own parties when it does not run them."""
    hosted = set(ours)
    why = DeploymentCondition(type=FAILURE, status="True", reason=reason, message=sentence)
    out: PartyStatuses = {}
    for domain, role in parties_named(mirror):
        if domain in hosted:
            out.setdefault(domain, {})[party_deployment(mirror["metadata"]["name"], role)] = PartyDeploymentStatus(
                replicas=0,
                updated_replicas=0,
                available_replicas=0,
                unavailable_replicas=0,
                phase=str(ServingPhase.FAILED),
                role=role,
                conditions=(why,),
            )
    return out


def was_withdrawn(reported: Mapping[str, Mapping[str, PartyDeploymentStatus]], ours: Iterable[str]) -> bool:
    """Whether we have left it: then it is not taken up again."""
    entries = [entry for domain in ours for entry in reported.get(domain, {}).values()]
    found: list[Any] = [find_condition(entry.conditions, FAILURE) for entry in entries]
    return bool(found) and all(each is not None and each.reason == WITHDRAWN for each in found)
