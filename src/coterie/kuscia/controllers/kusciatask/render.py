"""The objects a task consists of, from its workloads: config maps, pods, services, the resource group. Pure.

Everything in a domain's namespace belongs to one of the task's pods and goes with it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.kube.api.labels import COTERIE_IDLE_SECONDS, COTERIE_LEAN_ENDPOINTS
from coterie.kube.api.meta import Object, OwnerReference
from coterie.kuscia.api import engine_template, labels
from coterie.kuscia.api.engine_template import CLUSTER, DOMAIN, LOCAL, TEMPLATE_VOLUME, as_text
from coterie.kuscia.api.types.job import BandwidthLimit, KusciaTask
from coterie.kuscia.controllers.kusciatask.party_workloads import PartyWorkload, PodWorkload

_INPUT = "TASK_INPUT_CONFIG"
_RESERVED_SECONDS, _LIFE_SECONDS, _RETRY_SECONDS = 30, 300, 30
_COPIED_TO_GROUP = (
    labels.KUSCIA_INITIATOR,
    labels.KUSCIA_SELF_AS_INITIATOR,
    labels.KUSCIA_SELF_AS_PARTICIPANT,
    labels.KUSCIA_INTERCONN_KUSCIA_PARTIES,
)

Numbers = Mapping[tuple[str, str], int]
"""(domain, `<pod>/<port>`) -> port number."""


def template_map_name(task: KusciaTask, party: PartyWorkload) -> str:
    """Two roles in one domain may have different engines, hence different templates."""
    return f"{task.metadata.name}-{party.role}-configtemplate" if party.role else f"{task.metadata.name}-configtemplate"


def values_map_name(pod: PodWorkload) -> str:
    """One for each pod: in Kuscia all pods of a domain share the first one's index and ports."""
    return f"{pod.name}-kuscia-gen-conf"


def _task_labels(task: KusciaTask) -> dict[str, str]:
    return {
        labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK,
        labels.KUSCIA_TASK_UID: task.metadata.uid,
    }


# Pods.


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a pod has to know of its TaskResource."""

    name: str
    uid: str
    group_uid: str


def pod(
    task: KusciaTask,
    party: PartyWorkload,
    which: PodWorkload,
    numbers: Numbers,
    reservation: Reservation,
    runtime_class: str = "",
    idle_seconds: int = 0,
) -> Object:
    """`runtime_class`: what the policy of the partner who began the task demands. `idle_seconds`: after how long the agent
    reports that the pod does nothing; 0: never."""
    protocol = (task.metadata.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE)
    templated = engine_template.is_templated(party.config_templates, party.containers)
    own = _numbers(party, which, numbers)
    variables = [{"name": port.variable, "value": str(own[port.name])} for port in party.ports]
    variables += [{"name": name, "value": value} for name, value in party.variables.items()]
    containers = [
        engine_template.container_of(each, party.image, own, variables, templated=templated)
        for each in party.containers
    ]
    spec = engine_template.pod_spec(
        party.domain, party.restart_policy, containers, template_map_name(task, party) if templated else ""
    )
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    affinity = engine_template.node_affinity(party.config_templates, party.containers) if templated else None
    if affinity is not None:
        spec["affinity"] = {"nodeAffinity": affinity}
    marks = {
        labels.KUSCIA_INITIATOR: task.spec.initiator,
        labels.KUSCIA_TASK_ID: task.metadata.name,
        labels.KUSCIA_TASK_RESOURCE_GROUP: task.metadata.name,
        labels.KUSCIA_TASK_RESOURCE: reservation.name,
        labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: values_map_name(which),
        **({labels.KUSCIA_CONFIG_TEMPLATE_VOLUMES: TEMPLATE_VOLUME} if templated else {}),
        **engine_template.image_marks(party.image_id, party.image_sign),
        labels.COTERIE_APP_IMAGE: party.app_image,
        **({labels.COTERIE_ENGINE: party.engine} if party.engine else {}),
        **({labels.COTERIE_COMPONENT_FIELD: party.component_field} if party.component_field else {}),
        **engine_template.metrics_of(party.containers, own),
        **({COTERIE_IDLE_SECONDS: str(idle_seconds)} if idle_seconds else {}),
    }
    for key in (labels.KUSCIA_JOB_ID, labels.KUSCIA_TASK_ALIAS, labels.COTERIE_FLOW):
        if (value := (task.metadata.annotations or {}).get(key)) is not None:
            marks[key] = value
    return {
        "metadata": {
            "name": which.name,
            "namespace": party.domain,
            "labels": {
                **_task_labels(task),
                labels.KUSCIA_COMMUNICATION_ROLE_SERVER: "true",
                labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true",
                labels.KUSCIA_POD_IDENTITY: which.identity,
                labels.KUSCIA_POD_ROLE: party.role,
                labels.KUSCIA_TASK_RESOURCE_GROUP_UID: reservation.group_uid,
                labels.KUSCIA_TASK_RESOURCE_UID: reservation.uid,
                **({labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: protocol} if protocol else {}),
            },
            "annotations": marks,
        },
        "spec": spec,
    }


def _numbers(party: PartyWorkload, which: PodWorkload, numbers: Numbers) -> dict[str, int]:
    """Of one pod's ports, by name."""
    return {port.name: numbers[party.domain, f"{which.name}/{port.name}"] for port in party.ports}


# What belongs to a pod.


def services(
    task: KusciaTask, party: PartyWorkload, which: PodWorkload, numbers: Numbers, owner: OwnerReference
) -> list[Object]:
    out = []
    for port in party.ports:
        if port.scope == LOCAL:
            continue
        meta_labels = {
            labels.KUSCIA_PORT_NAME: port.name,
            labels.KUSCIA_PORT_SCOPE: port.scope,
            labels.KUSCIA_TASK_UID: task.metadata.uid,
            COTERIE_LEAN_ENDPOINTS: "true",
        }
        if port.scope != DOMAIN:
            meta_labels[labels.KUSCIA_LOADBALANCER] = labels.KUSCIA_LOADBALANCER_DOMAINROUTE
        number = numbers[party.domain, f"{which.name}/{port.name}"]
        out.append(
            {
                "metadata": {
                    "name": which.services[port.name],
                    "namespace": party.domain,
                    "ownerReferences": [msgspec.to_builtins(owner)],
                    "labels": meta_labels,
                    "annotations": {
                        labels.KUSCIA_INITIATOR: task.spec.initiator,
                        labels.KUSCIA_PROTOCOL: port.protocol,
                        labels.KUSCIA_ACCESS_DOMAIN: ",".join(sorted(party.access[port.name])),
                        labels.KUSCIA_TASK_ID: task.metadata.name,
                        labels.COTERIE_TASK_PARTIES: ",".join(sorted({each.domain_id for each in task.spec.parties})),
                        **limit_annotations(party.bandwidth),
                    },
                },
                "spec": {
                    "clusterIP": "None",
                    "publishNotReadyAddresses": True,
                    "selector": {labels.KUSCIA_POD_IDENTITY: which.identity},
                    "ports": [{"name": port.name, "port": number, "protocol": "TCP", "targetPort": port.name}],
                },
            }
        )
    return out


LimitOf = tuple[str, str, str, int]
"""Domain, role, destination, KiB/s."""


def limits_of(own: Iterable[PartyWorkload]) -> tuple[LimitOf, ...]:
    return tuple(
        sorted(
            (party.domain, party.role, limit.destination_id, limit.limit_kbps)
            for party in own
            for limit in party.bandwidth
        )
    )


def limit_annotations(limits: Iterable[BandwidthLimit]) -> dict[str, str]:
    return {f"{labels.KUSCIA_BANDWIDTH_LIMIT_PREFIX}{each.destination_id}": str(each.limit_kbps) for each in limits}


def template_map(task: KusciaTask, party: PartyWorkload, owner: OwnerReference) -> Object | None:
    """The engine's config templates as the agent finds them; None when it has none."""
    if not party.config_templates:
        return None
    return {
        "metadata": {
            "name": template_map_name(task, party),
            "namespace": party.domain,
            "ownerReferences": [msgspec.to_builtins(owner)],
            "labels": _task_labels(task),
        },
        "data": dict(party.config_templates),
    }


def values_map(
    task: KusciaTask,
    all_parties: Sequence[PartyWorkload],
    place: int,
    which: PodWorkload,
    numbers: Numbers,
    owner: OwnerReference,
) -> Object:
    """What the templates of one pod are filled with."""
    party = all_parties[place]
    compressed = base64.b64encode(zlib.compress(task.spec.task_input_config.encode())).decode()
    return {
        "metadata": {
            "name": values_map_name(which),
            "namespace": party.domain,
            "ownerReferences": [msgspec.to_builtins(owner)],
            "labels": _task_labels(task),
            "annotations": {labels.KUSCIA_CONFIG_VALUE_COMPRESS_FIELDS: _INPUT},
        },
        "data": {
            "KUSCIA_DOMAIN_ID": party.domain,
            "TASK_ID": task.metadata.name,
            "TASK_CLUSTER_DEFINE": as_text(cluster_define(all_parties, place, which.index, numbers)),
            "ALLOCATED_PORTS": as_text(engine_template.allocated_ports(party.ports, _numbers(party, which, numbers))),
        },
        "binaryData": {_INPUT: compressed},
    }


def cluster_define(all_parties: Sequence[PartyWorkload], place: int, endpoint: int, numbers: Numbers) -> Object:
    """Who takes part and where, in the order in which the task names the parties and the engine its ports."""
    parties = [
        {
            "name": each_party.domain,
            "role": each_party.role,
            "services": [
                {
                    "portName": port.name,
                    "endpoints": [_endpoint(each_party, which, port, numbers) for which in each_party.pods],
                }
                for port in each_party.ports
                if port.scope != LOCAL
            ],
        }
        for each_party in all_parties
    ]
    return engine_template.cluster_define(parties, place, endpoint)


def _endpoint(party: PartyWorkload, which: PodWorkload, port: Any, numbers: Numbers) -> str:
    host = f"{which.services[port.name]}.{party.domain}.svc"
    # A partner does not tell the numbers of ports that only its own pods can reach.
    number = numbers.get((party.domain, f"{which.name}/{port.name}"))
    return host if port.scope == CLUSTER or number is None else f"{host}:{number}"


# The resource group.


def group(task: KusciaTask, own: Sequence[PartyWorkload], *, initiates: bool, digits: Callable[[], str]) -> Object:
    """`own`: the parties that we host; the initiator counts the others even when it has none, and keeps a reservation for
    each of them. `digits`: twelve random hexadecimal ones, for a name."""
    chosen = task.spec.schedule_config
    total = len(task.spec.parties)
    wanted = (chosen.min_reserved_members if chosen is not None else None) or total
    meta = task.metadata
    ours = {(party.domain, party.role) for party in own}
    others = [party for party in task.spec.parties if (party.domain_id, party.role) not in ours]
    return {
        "metadata": {
            "name": meta.name,
            "labels": _task_labels(task),
            "annotations": {
                **{key: value for key in _COPIED_TO_GROUP if (value := (meta.annotations or {}).get(key)) is not None},
                labels.KUSCIA_INITIATOR: task.spec.initiator,
                labels.KUSCIA_TASK_ID: meta.name,
                labels.COTERIE_RESERVATIONS: labels.COTERIE_MADE_BY_TASK,
            },
        },
        "spec": {
            "minReservedMembers": min(wanted, total),
            "initiator": task.spec.initiator,
            **({"bandwidthRequest": task.spec.bandwidth_request} if task.spec.bandwidth_request else {}),
            "resourceReservedSeconds": (chosen and chosen.resource_reserved_seconds) or _RESERVED_SECONDS,
            "lifecycleSeconds": (chosen and chosen.lifecycle_seconds) or _LIFE_SECONDS,
            "retryIntervalSeconds": (chosen and chosen.retry_interval_seconds) or _RETRY_SECONDS,
            "parties": [
                {
                    "domainID": party.domain,
                    "role": party.role,
                    "minReservedPods": party.min_reserved_pods,
                    "pods": [{"name": which.name} for which in party.pods],
                    "taskResourceName": f"{meta.name}-{digits()}",
                }
                for party in own
            ],
            "outOfControlledParties": [
                {
                    "domainID": party.domain_id,
                    "role": party.role,
                    "minReservedPods": 1,
                    **({"taskResourceName": f"{meta.name}-{digits()}"} if initiates else {}),
                }
                for party in others
            ],
        },
    }


def reserved_pod(workload: PartyWorkload, which: PodWorkload) -> Object:
    """The entry of a pod in its TaskResource."""
    asked = [each["resources"] for each in workload.containers if each.get("resources")]
    return {"name": which.name, "resources": asked[0]} if len(asked) == 1 else {"name": which.name}
