"""The objects of one party of a deployment, from its kit: Deployment, services, config map. Pure.

Each carries a digest of itself (`coterie.io/made-from`): when it differs from the one that lies in the API, the object is
written anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from coterie.kube.api import labels as kube_labels
from coterie.kube.api.meta import Object
from coterie.kuscia.api import engine_template, labels
from coterie.kuscia.api.engine_template import CLUSTER, LOCAL, TEMPLATE_VOLUME, EnginePort, as_text
from coterie.kuscia.api.types.deployment import KusciaDeployment
from coterie.kuscia.api.types.job import CROSS_DOMAIN, PartyAllocatedPorts
from coterie.kuscia.controllers.kusciadeployment.party_workloads import PartyDeployment

_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
_NO_AFFINITY, _AFFINITY = "none", "affinity"
_WEIGHT = 100


def template_map_name(party: PartyDeployment) -> str:
    return f"{party.name}-configtemplate"


def own_labels(deployment: KusciaDeployment, party: PartyDeployment) -> dict[str, str]:
    """Of everything that belongs to one party."""
    return {
        labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_DEPLOYMENT,
        labels.KUSCIA_KD_UID: deployment.metadata.uid,
        labels.KUSCIA_KD_NAME: deployment.metadata.name,
        labels.KUSCIA_OWNER_NAMESPACE: CROSS_DOMAIN,
        labels.KUSCIA_DEPLOYMENT_NAME: party.name,
    }


def marks_of(deployment: KusciaDeployment, ours: Sequence[str], allotted: Sequence[PartyAllocatedPorts]) -> Object:
    """Annotations of the KusciaDeployment itself. `ours`: the parties' domains that are hosted here."""
    parties = dict.fromkeys(party.domain_id for party in deployment.spec.parties)
    marks: Object = {
        labels.KUSCIA_INTERCONN_SELF_PARTIES: "_".join(ours),
        labels.KUSCIA_ALLOCATED_PORTS: as_json(allotted),
    }
    if (deployment.metadata.annotations or {}).get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN) is None:
        marks |= {
            labels.KUSCIA_INITIATOR: deployment.spec.initiator,
            labels.KUSCIA_SELF_AS_INITIATOR: "true",
            labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "_".join(each for each in parties if each not in ours),
        }
    return marks


def as_json(allotted: Sequence[PartyAllocatedPorts]) -> str:
    ports = [
        {"domainID": each.domain_id, "role": each.role, "namedPort": each.named_port or {}}
        for each in allotted
    ]  # fmt: skip
    return orjson.dumps(ports).decode()


def marked(body: Object) -> Object:
    """With the digest of itself."""
    digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
    meta = body["metadata"]
    annotations = {**(meta.get("annotations") or {}), labels.COTERIE_MADE_FROM: digest}
    return {**body, "metadata": {**meta, "annotations": annotations}}


# The Deployment.


def deployment_of(
    deployment: KusciaDeployment,
    all_parties: Sequence[PartyDeployment],
    place: int,
    numbers: Mapping[str, int],
    runtime_class: str = "",
) -> Object:
    """`runtime_class`: what the policy of the partner who began it demands."""
    party = all_parties[place]
    engine = party.engine
    selector = own_labels(deployment, party)
    app_type = (deployment.metadata.labels or {}).get(labels.KUSCIA_APP_TYPE, "")
    known = {
        **selector,
        labels.KUSCIA_COMMUNICATION_ROLE_SERVER: "true",
        labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true",
        **({labels.KUSCIA_APP_TYPE: app_type} if app_type else {}),
    }
    templated = engine_template.is_templated(engine.config_templates, engine.containers)
    variables = _variables(deployment, all_parties, place, app_type)
    containers = [
        engine_template.container_of(each, engine.image, numbers, variables, templated=templated)
        for each in engine.containers
    ]
    # A Deployment takes no other policy, whatever the AppImage says for tasks.
    spec = engine_template.pod_spec(party.domain, "Always", containers, template_map_name(party) if templated else "")
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    if (affinity := _affinity(deployment, party)) is not None:
        spec["affinity"] = affinity
    nodes = engine_template.node_affinity(engine.config_templates, engine.containers) if templated else None
    if nodes is not None:
        spec["affinity"] = {"nodeAffinity": nodes, **(affinity or {})}
    marks = {
        labels.KUSCIA_INITIATOR: deployment.spec.initiator,
        **{f"{labels.COTERIE_PORT_PREFIX}{name}": str(number) for name, number in numbers.items()},
        **engine_template.image_marks(engine.image_id, engine.image_sign),
        **engine_template.metrics_of(engine.containers, numbers),
    }
    if templated:
        # Pods read templates when they start: other templates need other pods.
        text = orjson.dumps(dict(engine.config_templates), option=orjson.OPT_SORT_KEYS)
        marks[labels.KUSCIA_CONFIG_TEMPLATE_VOLUMES] = TEMPLATE_VOLUME
        marks[labels.COTERIE_MADE_FROM] = hashlib.sha256(text).hexdigest()[:32]
    return marked(
        {
            "metadata": {
                "name": party.name,
                "namespace": party.domain,
                "labels": known,
                "annotations": {labels.KUSCIA_INITIATOR: deployment.spec.initiator},
            },
            "spec": {
                "replicas": engine.replicas,
                "strategy": dict(party.strategy or _ROLLING),
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": known, "annotations": marks}, "spec": spec},
            },
        }
    )


def _variables(
    deployment: KusciaDeployment, all_parties: Sequence[PartyDeployment], place: int, app_type: str
) -> list[Object]:
    party = all_parties[place]
    ports = party.engine.ports
    values = {
        "KUSCIA_DOMAIN_ID": party.domain,
        "CLUSTER_DEFINE": _plain(as_text(cluster_define(all_parties, place))),
        "ALLOCATED_PORTS": _allocated_ports(ports),
        "INPUT_CONFIG": _plain(deployment.spec.input_config),
        **({"SERVING_ID": deployment.metadata.name} if app_type == labels.KUSCIA_APP_TYPE_SERVING else {}),
    }
    # First, because others refer to them; from annotations, because each pod has its own.
    numbers = [
        {
            "name": port.variable,
            "valueFrom": {
                "fieldRef": {"fieldPath": f"metadata.annotations['{labels.COTERIE_PORT_PREFIX}{port.name}']"}
            },
        }
        for port in ports
    ]
    return [*numbers, *({"name": name, "value": value} for name, value in values.items())]


def _plain(text: str) -> str:
    """Text in which a container's variables are not to be put."""
    return text.replace("$", "$$")


def _allocated_ports(ports: Sequence[EnginePort]) -> str:
    ports_text = engine_template.allocated_ports(ports, {port.name: f"$({port.variable})" for port in ports})
    text = as_text(ports_text)
    for port in ports:
        text = text.replace(f'"$({port.variable})"', f"$({port.variable})")
    return text


def cluster_define(all_parties: Sequence[PartyDeployment], place: int) -> Object:
    """Of partners only what they open to others; replicas stand behind one endpoint."""
    parties = [
        {
            "name": each_party.domain,
            "role": each_party.role,
            "services": [
                {"portName": port.name, "endpoints": [endpoint(each_party, port)]}
                for port in each_party.engine.ports
                if port.scope == CLUSTER or (port.scope != LOCAL and each_party.domain == all_parties[place].domain)
            ],
        }
        for each_party in all_parties
    ]
    return engine_template.cluster_define(parties, place, 0)


def endpoint(party: PartyDeployment, port: EnginePort) -> str:
    """Through the gateway, also inside the domain: behind it stand all replicas, each with a port of its own."""
    return f"{party.services[port.name]}.{party.domain}.svc"


def _affinity(deployment: KusciaDeployment, party: PartyDeployment) -> Object | None:
    selector = {"matchLabels": {labels.KUSCIA_DEPLOYMENT_NAME: party.name}}
    if party.affinity:
        return {
            key: _selecting(terms, selector) if key in ("podAffinity", "podAntiAffinity") else terms
            for key, terms in party.affinity.items()
        }
    mode = (deployment.metadata.annotations or {}).get(labels.KUSCIA_AFFINITY_MODE, "")
    if mode == _NO_AFFINITY:
        return None
    term = {"labelSelector": selector, "topologyKey": kube_labels.HOSTNAME}
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": _WEIGHT, "podAffinityTerm": term}]}
    return {"podAffinity" if mode == _AFFINITY else "podAntiAffinity": rule}


def _selecting(rules: Mapping[str, Any], selector: Object) -> Object:
    """Rules about other pods mean those of the same party, whatever they select: nobody knows our labels before."""
    required = [
        {**term, "labelSelector": selector}
        for term in rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    ]
    preferred = [
        {**each, "podAffinityTerm": {**each["podAffinityTerm"], "labelSelector": selector}}
        for each in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    ]
    return {
        **({"requiredDuringSchedulingIgnoredDuringExecution": required} if required else {}),
        **({"preferredDuringSchedulingIgnoredDuringExecution": preferred} if preferred else {}),
    }


# What stands beside it.


def services_of(deployment: KusciaDeployment, party: PartyDeployment, numbers: Mapping[str, int]) -> list[Object]:
    return [
        marked(
            {
                "metadata": {
                    "name": party.services[port.name],
                    "namespace": party.domain,
                    "labels": {
                        **own_labels(deployment, party),
                        labels.KUSCIA_PORT_NAME: port.name,
                        labels.KUSCIA_PORT_SCOPE: port.scope,
                        # Names of services with this label lead to the gateway.
                        labels.KUSCIA_LOADBALANCER: labels.KUSCIA_LOADBALANCER_DOMAINROUTE,
                    },
                    "annotations": {
                        labels.KUSCIA_INITIATOR: deployment.spec.initiator,
                        labels.KUSCIA_PROTOCOL: port.protocol,
                        labels.KUSCIA_ACCESS_DOMAIN: ",".join(sorted(party.access[port.name])),
                        labels.KUSCIA_STICKY_SESSION_COOKIE: labels.KUSCIA_STICKY_COOKIE_NAME,
                        labels.KUSCIA_STICKY_SESSION_TTL: labels.KUSCIA_STICKY_COOKIE_TTL,
                    },
                },
                "spec": {
                    "clusterIP": "None",
                    "selector": {labels.KUSCIA_DEPLOYMENT_NAME: party.name},
                    "ports": [
                        {"name": port.name, "port": numbers[port.name], "protocol": "TCP", "targetPort": port.name}
                    ],
                },
            }
        )
        for port in party.engine.ports
        if port.scope != LOCAL
    ]


def template_map(deployment: KusciaDeployment, party: PartyDeployment) -> Object | None:
    """The engine's config templates as the agent finds them; None when nothing is made from them."""
    if not engine_template.is_templated(party.engine.config_templates, party.engine.containers):
        return None
    return marked(
        {
            "metadata": {
                "name": template_map_name(party),
                "namespace": party.domain,
                "labels": own_labels(deployment, party),
            },
            "data": dict(party.engine.config_templates),
        }
    )
