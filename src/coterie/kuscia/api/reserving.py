"""The TaskResource of one party of a group: what is made when a task begins to reserve. Pure."""

from __future__ import annotations

import msgspec

from coterie.kube.api.meta import Object, OwnerReference
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import GroupParty, TaskResourceGroup
from coterie.kuscia.api.types.task_resource import RESERVATION_SENTENCES, ReservationPhase

RESERVED_SECONDS = 30
_COPIED = (
    labels.KUSCIA_INITIATOR,
    labels.KUSCIA_TASK_ID,
    labels.KUSCIA_SELF_AS_INITIATOR,
    labels.KUSCIA_INTERCONN_KUSCIA_PARTIES,
)


def task_resource(
    group: TaskResourceGroup, party: GroupParty, owner: OwnerReference, pods: list[Object], now: str
) -> Object:
    """`owner`: the group; `pods`: the entries of the party's pods."""
    meta = group.metadata
    copied = {key: value for key in _COPIED if (value := (meta.annotations or {}).get(key)) is not None}
    phase = str(ReservationPhase.RESERVING)
    everyone = (*(group.spec.parties or ()), *(group.spec.out_of_controlled_parties or ()))
    peers = sorted({each.domain_id for each in everyone} - {party.domain_id})
    request = group.spec.bandwidth_request
    return {
        "metadata": {
            "name": party.task_resource_name,
            "namespace": party.domain_id,
            "ownerReferences": [msgspec.to_builtins(owner)],
            "labels": {**(meta.labels or {}), labels.KUSCIA_TASK_RESOURCE_GROUP_UID: meta.uid},
            "annotations": {**copied, labels.KUSCIA_TASK_RESOURCE_GROUP: meta.name},
        },
        "spec": {
            "role": party.role,
            "minReservedPods": max(1, party.min_reserved_pods),
            "resourceReservedSeconds": group.spec.resource_reserved_seconds or RESERVED_SECONDS,
            "initiator": group.spec.initiator,
            **({"bandwidthRequest": request} if request else {}),
            **({"peers": peers} if peers else {}),
            "pods": pods,
        },
        "status": {
            "phase": phase,
            "startTime": now,
            "lastTransitionTime": now,
            "conditions": [
                {
                    "type": phase,
                    "status": "True",
                    "reason": RESERVATION_SENTENCES[ReservationPhase.RESERVING],
                    "lastTransitionTime": now,
                }
            ],
        },
    }
