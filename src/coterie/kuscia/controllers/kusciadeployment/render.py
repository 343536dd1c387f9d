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
from coterie.kuscia.api.engine_template import CLUSTER, LOCAL, TEMPLATE_VOLUME, Port, as_text
from coterie.kuscia.api.types.deployment import KusciaDeployment
from coterie.kuscia.api.types.job import CROSS_DOMAIN, PartyAllocatedPorts
from coterie.kuscia.controllers.kusciadeployment.kit import DeploymentKit

_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
_NO_AFFINITY, _AFFINITY = "none", "affinity"
_WEIGHT = 100


def template_map_name(kit: DeploymentKit) -> str:
    return f"{kit.name}-configtemplate"


def own_labels(deployment: KusciaDeployment, kit: DeploymentKit) -> dict[str, str]:
    """Of everything that belongs to one party."""
    return {
        labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_DEPLOYMENT,
        labels.KUSCIA_KD_UID: deployment.metadata.uid,
        labels.KUSCIA_KD_NAME: deployment.metadata.name,
        labels.KUSCIA_OWNER_NAMESPACE: CROSS_DOMAIN,
        labels.KUSCIA_DEPLOYMENT_NAME: kit.name,
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
    told = [
        {"domainID": each.domain_id, "role": each.role, "namedPort": each.named_port or {}}
        for each in allotted
    ]  # fmt: skip
    return orjson.dumps(told).decode()


def marked(body: Object) -> Object:
    """With the digest of itself."""
    digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
    meta = body["metadata"]
    annotations = {**(meta.get("annotations") or {}), labels.COTERIE_MADE_FROM: digest}
    return {**body, "metadata": {**meta, "annotations": annotations}}


# The Deployment.


def deployment_of(
    deployment: KusciaDeployment, kits: Sequence[DeploymentKit], place: int, numbers: Mapping[str, int]
) -> Object:
    kit = kits[place]
    engine = kit.engine
    selector = own_labels(deployment, kit)
    app_type = (deployment.metadata.labels or {}).get(labels.KUSCIA_APP_TYPE, "")
    known = {
        **selector,
        labels.KUSCIA_COMMUNICATION_ROLE_SERVER: "true",
        labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true",
        **({labels.KUSCIA_APP_TYPE: app_type} if app_type else {}),
    }
    templated = engine_template.is_templated(engine.config_templates, engine.containers)
    variables = _variables(deployment, kits, place, app_type)
    containers = [
        engine_template.container_of(each, engine.image, numbers, variables, templated=templated)
        for each in engine.containers
    ]
    # A Deployment takes no other policy, whatever the AppImage says for tasks.
    spec = engine_template.pod_spec(kit.domain, "Always", containers, template_map_name(kit) if templated else "")
    if (affinity := _affinity(deployment, kit)) is not None:
        spec["affinity"] = affinity
    marks = {
        labels.KUSCIA_INITIATOR: deployment.spec.initiator,
        **{f"{labels.COTERIE_PORT_PREFIX}{name}": str(number) for name, number in numbers.items()},
        **({labels.KUSCIA_IMAGE_ID: engine.image_id} if engine.image_id else {}),
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
                "name": kit.name,
                "namespace": kit.domain,
                "labels": known,
                "annotations": {labels.KUSCIA_INITIATOR: deployment.spec.initiator},
            },
            "spec": {
                "replicas": engine.replicas,
                "strategy": dict(kit.strategy or _ROLLING),
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": known, "annotations": marks}, "spec": spec},
            },
        }
    )


def _variables(deployment: KusciaDeployment, kits: Sequence[DeploymentKit], place: int, app_type: str) -> list[Object]:
    kit = kits[place]
    ports = kit.engine.ports
    told = {
        "KUSCIA_DOMAIN_ID": kit.domain,
        "CLUSTER_DEFINE": _plain(as_text(cluster_define(kits, place))),
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
    return [*numbers, *({"name": name, "value": value} for name, value in told.items())]


def _plain(text: str) -> str:
    """Text in which a container's variables are not to be put."""
    return text.replace("$", "$$")


def _allocated_ports(ports: Sequence[Port]) -> str:
    told = engine_template.allocated_ports(ports, {port.name: f"$({port.variable})" for port in ports})
    text = as_text(told)
    for port in ports:
        text = text.replace(f'"$({port.variable})"', f"$({port.variable})")
    return text


def cluster_define(kits: Sequence[DeploymentKit], place: int) -> Object:
    """Of partners only what they open to others; replicas stand behind one endpoint."""
    parties = [
        {
            "name": kit.domain,
            "role": kit.role,
            "services": [
                {"portName": port.name, "endpoints": [endpoint(kit, port)]}
                for port in kit.engine.ports
                if port.scope == CLUSTER or (port.scope != LOCAL and kit.domain == kits[place].domain)
            ],
        }
        for kit in kits
    ]
    return engine_template.cluster_define(parties, place, 0)


def endpoint(kit: DeploymentKit, port: Port) -> str:
    """Through the gateway, also inside the domain: behind it stand all replicas, each with a port of its own."""
    return f"{kit.services[port.name]}.{kit.domain}.svc"


def _affinity(deployment: KusciaDeployment, kit: DeploymentKit) -> Object | None:
    selector = {"matchLabels": {labels.KUSCIA_DEPLOYMENT_NAME: kit.name}}
    if kit.affinity:
        return {
            key: _selecting(terms, selector) if key in ("podAffinity", "podAntiAffinity") else terms
            for key, terms in kit.affinity.items()
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


def services_of(deployment: KusciaDeployment, kit: DeploymentKit, numbers: Mapping[str, int]) -> list[Object]:
    return [
        marked(
            {
                "metadata": {
                    "name": kit.services[port.name],
                    "namespace": kit.domain,
                    "labels": {
                        **own_labels(deployment, kit),
                        labels.KUSCIA_PORT_NAME: port.name,
                        labels.KUSCIA_PORT_SCOPE: port.scope,
                        # Names of services with this label lead to the gateway.
                        labels.KUSCIA_LOADBALANCER: labels.KUSCIA_LOADBALANCER_DOMAINROUTE,
                    },
                    "annotations": {
                        labels.KUSCIA_INITIATOR: deployment.spec.initiator,
                        labels.KUSCIA_PROTOCOL: port.protocol,
                        labels.KUSCIA_ACCESS_DOMAIN: ",".join(sorted(kit.access[port.name])),
                        labels.KUSCIA_STICKY_SESSION_COOKIE: labels.KUSCIA_STICKY_COOKIE_NAME,
                        labels.KUSCIA_STICKY_SESSION_TTL: labels.KUSCIA_STICKY_COOKIE_TTL,
                    },
                },
                "spec": {
                    "clusterIP": "None",
                    "selector": {labels.KUSCIA_DEPLOYMENT_NAME: kit.name},
                    "ports": [
                        {"name": port.name, "port": numbers[port.name], "protocol": "TCP", "targetPort": port.name}
                    ],
                },
            }
        )
        for port in kit.engine.ports
        if port.scope != LOCAL
    ]


def template_map(deployment: KusciaDeployment, kit: DeploymentKit) -> Object | None:
    """The engine's config templates as the agent finds them; None when nothing is made from them."""
    if not engine_template.is_templated(kit.engine.config_templates, kit.engine.containers):
        return None
    return marked(
        {
            "metadata": {
                "name": template_map_name(kit),
                "namespace": kit.domain,
                "labels": own_labels(deployment, kit),
            },
            "data": dict(kit.engine.config_templates),
        }
    )
