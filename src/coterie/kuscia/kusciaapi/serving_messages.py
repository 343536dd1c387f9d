"""Services in the forms of KusciaAPI. Pure: from a request to a KusciaDeployment, and from that to an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_label_faults
from coterie.kube.api.types.network import Service
from coterie.kuscia.api import labels
from coterie.kuscia.api.appimages import choose_template
from coterie.kuscia.api.engine_template import service_prefix_fault
from coterie.kuscia.api.types.deployment import DeploymentParty, KusciaDeployment, ServingPhase, party_deployment
from coterie.kuscia.api.types.job import CROSS_DOMAIN, AppImage
from coterie.kuscia.kusciaapi.codes import invalid
from coterie.kuscia.kusciaapi.job_messages import amount, named

AFFINITY_MODES = ("none", "affinity", "anti-affinity")
RECREATE, ROLLING = "Recreate", "RollingUpdate"
_SHARE = "25%"
_NUMBER = re.compile(r"\d{1,9}|\d{1,9}%")
_AMOUNTS = (
    ("min_cpu", "requests", "cpu"),
    ("max_cpu", "limits", "cpu"),
    ("min_memory", "requests", "memory"),
    ("max_memory", "limits", "memory"),
)
"""(field of Resource, kind, resource)"""
_STATES = frozenset(str(phase) for phase in ServingPhase)
_MOST_REPLICAS = 1 << 16


# From a request.


def deployment_object(request: Any, images: Mapping[str, AppImage]) -> Object:
    """Refused (11100) with the field that cannot be taken."""
    serving = named("serving_id", request.serving_id)
    initiator = named("initiator", request.initiator)
    if request.affinity_mode and request.affinity_mode not in AFFINITY_MODES:
        raise invalid("affinity_mode", f"must be one of {', '.join(AFFINITY_MODES)}")
    parties: list[Object] = []
    for place, party in enumerate(request.parties):
        parties.append(new_party(f"parties[{place}]", serving, party, images))
        same = [(each["domainID"], each.get("role", "")) for each in parties[:-1]]
        if (party.domain_id, party.role) in same:
            raise invalid(f"parties[{place}]", f'{party.domain_id} has the role "{party.role}" twice')
    if initiator not in {party["domainID"] for party in parties}:
        raise invalid("initiator", f"{initiator} must be one of the parties")
    meta: Object = {
        "name": serving,
        "namespace": CROSS_DOMAIN,
        "labels": {labels.KUSCIA_APP_TYPE: labels.KUSCIA_APP_TYPE_SERVING},
    }
    if request.affinity_mode:
        meta["annotations"] = {labels.KUSCIA_AFFINITY_MODE: request.affinity_mode}
    spec = {"initiator": initiator, "inputConfig": request.serving_input_config, "parties": parties}
    return {"metadata": meta, "spec": spec}


def check_parties(request: Any) -> None:
    if not request.parties:
        raise invalid("parties", "name at least one")


def new_party(path: str, serving: str, party: Any, images: Mapping[str, AppImage]) -> Object:
    out: Object = {"domainID": named(f"{path}.domain_id", party.domain_id)}
    if party.role:
        if faults := dns_label_faults(party_deployment(serving, party.role)):
            raise invalid(f"{path}.role", f"with the serving_id it makes a name that cannot be taken: {faults[0]}")
        out["role"] = party.role
    if not party.app_image:
        raise invalid(f"{path}.app_image", "must be given")
    out["appImageRef"] = party.app_image
    return _with_overrides(path, out, party, images)


def changed_parties(request: Any, before: Sequence[Object], images: Mapping[str, AppImage]) -> list[Object]:
    """The parties with what the request says of some of them; none comes or goes."""
    out = [dict(party) for party in before]
    places = {(party["domainID"], party.get("role", "")): place for place, party in enumerate(out)}
    for number, party in enumerate(request.parties):
        path = f"parties[{number}]"
        place = places.get((party.domain_id, party.role))
        if place is None:
            who = f'{party.domain_id} in the role "{party.role}"' if party.role else party.domain_id
            raise invalid(path, f"{who} is not one of the parties, and none can be added")
        if party.app_image:
            out[place]["appImageRef"] = party.app_image
        out[place] = _with_overrides(path, out[place], party, images)
    return out


def _with_overrides(path: str, known: Object, party: Any, images: Mapping[str, AppImage]) -> Object:
    """What the request says of replicas, updates, resources and names, over what is known."""
    image = images.get(known["appImageRef"])
    if image is None:
        raise invalid(f"{path}.app_image", f'there is no AppImage "{known["appImageRef"]}"')
    chosen = choose_template(image.spec.deploy_templates, known.get("role", ""))
    if chosen is None:
        raise invalid(f"{path}.role", f'AppImage "{known["appImageRef"]}" has nothing for it')
    template = dict(known.get("template") or {})
    if party.HasField("replicas"):
        if not 0 <= party.replicas <= _MOST_REPLICAS:
            raise invalid(f"{path}.replicas", f"must be between 0 and {_MOST_REPLICAS}")
        template["replicas"] = party.replicas
    if party.HasField("update_strategy"):
        template["strategy"] = _strategy(f"{path}.update_strategy", party.update_strategy)
    if party.resources:
        containers = [
            {"name": each["name"], "workingDir": each.get("workingDir") or "/"}
            for each in chosen.spec.get("containers") or ()
        ]
        template["spec"] = {
            **(template.get("spec") or {}),
            "containers": _resources(path, party.resources, containers),
        }
    out = dict(known)
    if template:
        out["template"] = template
    if party.service_name_prefix:
        if fault := service_prefix_fault(party.service_name_prefix):
            raise invalid(f"{path}.service_name_prefix", fault)
        out["serviceNamePrefix"] = party.service_name_prefix
    return out


def _strategy(path: str, strategy: Any) -> Object:
    kind = strategy.type or ROLLING
    if kind == RECREATE:
        return {"type": RECREATE}
    if kind != ROLLING:
        raise invalid(f"{path}.type", f"must be {RECREATE} or {ROLLING}")
    limits = {
        "maxSurge": _number(f"{path}.max_surge", strategy.max_surge),
        "maxUnavailable": _number(f"{path}.max_unavailable", strategy.max_unavailable),
    }
    if {str(each).removesuffix("%").lstrip("0") for each in limits.values()} == {""}:
        raise invalid(path, "max_surge and max_unavailable cannot both be 0")
    return {"type": ROLLING, "rollingUpdate": limits}


def _number(field: str, text: str) -> int | str:
    """A number of replicas or a share of them."""
    if not text:
        return _SHARE
    if not text.isascii() or not _NUMBER.fullmatch(text):
        raise invalid(field, f'"{text[:64]}" is neither a number of replicas nor a share such as 25%')
    if text.endswith("%"):
        if field.endswith("max_unavailable") and int(text[:-1]) > 100:
            raise invalid(field, "must be at most 100%")
        return text
    return int(text)


def _resources(path: str, given: Iterable[Any], containers: list[Object]) -> list[Object]:
    """A resource without a container's name is for all; later ones win."""
    names = [each["name"] for each in containers]
    found: dict[str, dict[str, dict[str, str]]] = {name: {} for name in names}
    for place, each in enumerate(given):
        where = f"{path}.resources[{place}]"
        if each.container_name and each.container_name not in names:
            raise invalid(f"{where}.container_name", f"must be one of {', '.join(names)}")
        for field, kind, resource in _AMOUNTS:
            if text := getattr(each, field):
                for name in [each.container_name] if each.container_name else names:
                    found[name].setdefault(kind, {})[resource] = amount(f"{where}.{field}", text)
    return [{**each, "resources": found[each["name"]]} for each in containers if found[each["name"]]]


# To an answer.


def domains_of(deployment: KusciaDeployment) -> tuple[str, ...]:
    named_ = (deployment.spec.initiator, *(party.domain_id for party in deployment.spec.parties))
    return tuple(dict.fromkeys(named_))


def serving_data(deployment: KusciaDeployment, services: Iterable[Service], *, brief: bool) -> Object:
    data: Object = {
        "serving_input_config": deployment.spec.input_config,
        "initiator": deployment.spec.initiator,
        "parties": [_party(party) for party in deployment.spec.parties],
    }
    if (detail := status_detail(deployment, services, brief=brief)) is not None:
        data["status"] = detail
    return data


def _party(party: DeploymentParty) -> Object:
    out: Object = {"domain_id": party.domain_id, "role": party.role, "app_image": party.app_image_ref}
    out["service_name_prefix"] = party.service_name_prefix
    template = party.template
    if template is None:
        return out
    if template.replicas is not None:
        out["replicas"] = template.replicas
    if template.strategy:
        rolling = template.strategy.get("rollingUpdate") or {}
        limits = {"max_surge": rolling.get("maxSurge"), "max_unavailable": rolling.get("maxUnavailable")}
        out["update_strategy"] = {
            "type": template.strategy.get("type") or ROLLING,
            **{key: str(value) for key, value in limits.items() if value is not None},
        }
    out["resources"] = [
        {"container_name": each.get("name") or "", **amounts}
        for each in (template.spec or {}).get("containers") or ()
        if (amounts := _amounts(each.get("resources") or {}))
    ]
    return out


def _amounts(resources: Mapping[str, Any]) -> dict[str, str]:
    return {
        field: str(text)
        for field, kind, resource in _AMOUNTS
        if (text := (resources.get(kind) or {}).get(resource)) is not None
    }


def status_detail(deployment: KusciaDeployment, services: Iterable[Service], *, brief: bool) -> Object | None:
    """None until something is known of a party. `services`: of this deployment; `brief`: without what containers
    printed."""
    status = deployment.status
    if status is None or not status.party_deployment_statuses:
        return None
    listed = list(services)
    parties = []
    for party in deployment.spec.parties:
        name = party_deployment(deployment.metadata.name, party.role)
        entry = status.party_deployment_statuses.get(party.domain_id, {}).get(name)
        if entry is None:
            continue
        parties.append(
            {
                "domain_id": party.domain_id,
                "role": party.role,
                "state": _state(entry.phase),
                "replicas": entry.replicas,
                "available_replicas": entry.available_replicas,
                "unavailable_replicas": entry.unavailable_replicas,
                "updatedReplicas": entry.updated_replicas,
                "create_time": entry.creation_timestamp or "",
                "endpoints": [_endpoint(each) for each in listed if _is_of(each, party.domain_id, name)],
            }
        )
    return {
        "state": _state(status.phase),
        "reason": status.reason,
        "message": status.message.partition("\n")[0] if brief else status.message,
        "total_parties": status.total_parties,
        "available_parties": status.available_parties,
        "create_time": deployment.metadata.creation_timestamp or "",
        "party_statuses": parties,
    }


def _state(phase: str) -> str:
    return phase if phase in _STATES else "Pending" if not phase else "Unknown"


def _is_of(service: Service, domain: str, name: str) -> bool:
    known = service.metadata.labels or {}
    return service.metadata.namespace == domain and known.get(labels.KUSCIA_DEPLOYMENT_NAME) == name


def _endpoint(service: Service) -> Object:
    known = service.metadata.labels or {}
    return {
        "port_name": known.get(labels.KUSCIA_PORT_NAME, ""),
        "scope": known.get(labels.KUSCIA_PORT_SCOPE, ""),
        "endpoint": f"{service.metadata.name}.{service.metadata.namespace}.svc",
    }
