"""What an engine consists of at one party: the AppImage's template with the party's wishes laid over it, its ports, who may
call them, and the parts of pods and services that follow. Pure; tasks and deployments are made of the same parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.appimages import choose_template, replicas_of
from coterie.kuscia.api.grants import component_field, mark
from coterie.kuscia.api.types.job import AppImage

CLUSTER, DOMAIN, LOCAL = "Cluster", "Domain", "Local"
TEMPLATE_VOLUME = "config-template"
_SERVICE_NAME_LIMIT = 63
_DIGEST = 16
_IMAGE_ID = re.compile(r"(sha256:)?[0-9a-f]{64}")
_PREFIX = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?")
_OF_CONTAINERS = (
    "command", "args", "workingDir", "envFrom", "resources", "livenessProbe", "readinessProbe", "startupProbe",
    "securityContext",
)  # fmt: skip


class EngineTemplateError(Exception):
    """It cannot be made as it is; the message is a sentence for a status."""


@dataclass(frozen=True, slots=True)
class EnginePort:
    name: str
    protocol: str
    scope: str

    @property
    def variable(self) -> str:
        return f"KUSCIA_PORT_{self.name.upper().replace('-', '_')}_NUMBER"


@dataclass(frozen=True, slots=True)
class EngineTemplate:
    app_image: str
    engine: str
    """That the AppImage says it is a version of; empty: it does not say."""
    component_field: str
    """Where in the task input the engine finds its component (kuscia/api/grants.py)."""
    image: str
    image_id: str
    image_sign: str
    spec: Object = field(repr=False)
    """Kuscia's pod spec."""
    replicas: int
    ports: tuple[EnginePort, ...]
    policy: Mapping[str, Any] | None
    """Kuscia's network policy."""
    config_templates: Mapping[str, str] = field(repr=False)

    @property
    def containers(self) -> tuple[Object, ...]:
        return tuple(self.spec["containers"])


def engine_of(
    images: Mapping[str, AppImage],
    reference: str,
    role: str,
    overrides: Mapping[str, Any] | None,
    replicas: int | None,
    *,
    by_name: bool = False,
) -> EngineTemplate:
    """`overrides`, `replicas`: of the party; `by_name`: its containers are laid over those of the same name, not the same
    place. KitFault when the AppImage, or something for the role, is missing."""
    image = images.get(reference)
    if image is None:
        raise EngineTemplateError(f'there is no AppImage "{reference}"')
    chosen = choose_template(image.spec.deploy_templates, role)
    if chosen is None:
        raise EngineTemplateError(f'AppImage "{reference}" has nothing for the role "{role}"')
    spec = merged(chosen.spec, overrides or {}, by_name=by_name)
    name = image.spec.image
    return EngineTemplate(
        app_image=image.metadata.name,
        engine=mark(image.metadata.annotations, labels.COTERIE_ENGINE),
        component_field=component_field(image.metadata.annotations, name.name),
        image=f"{name.name}:{name.tag}",
        image_id=_image_id(name.id, reference),
        image_sign=name.sign,
        spec=spec,
        replicas=replicas_of(chosen) if replicas is None else replicas,
        ports=_ports(spec["containers"], reference),
        policy=chosen.network_policy,
        config_templates=image.spec.config_templates or {},
    )


def _image_id(text: str, reference: str) -> str:
    """`sha256:...`; empty where the AppImage requires none. Raises EngineTemplateError for a digest that no image can have."""
    if is_placeholder(text):
        return ""
    if not _IMAGE_ID.fullmatch(text):
        raise EngineTemplateError(
            f'AppImage "{reference}": image.id "{text[:80]}" is not sha256: and 64 hexadecimal digits'
        )
    return text if text.startswith("sha256:") else f"sha256:{text}"


def is_placeholder(image_id: str) -> bool:
    """Manifests of Kuscia's documentation have such ids as `abc`: they name no image, and nothing is required."""
    return ":" not in image_id and not _IMAGE_ID.fullmatch(image_id)


def image_marks(image_id: str, sign: str) -> dict[str, str]:
    """Annotations by which the node knows which image the pod must have."""
    return {
        **({labels.KUSCIA_IMAGE_ID: image_id} if image_id else {}),
        **({labels.COTERIE_IMAGE_SIGNATURE: sign} if sign else {}),
    }


def _ports(containers: list[Object], image: str) -> tuple[EnginePort, ...]:
    found = [
        EnginePort(port["name"], port.get("protocol") or "HTTP", port.get("scope") or LOCAL)
        for container in containers
        for port in container.get("ports") or ()
    ]
    names = [port.name for port in found]
    for name in names:
        if names.count(name) > 1:
            raise EngineTemplateError(f'AppImage "{image}" names the port "{name}" twice in one template')
    return tuple(found)


def access_of(
    own: str, parties: Sequence[tuple[str, str]], policy: Mapping[str, Any] | None, ports: Iterable[EnginePort]
) -> dict[str, frozenset[str]]:
    """Port name -> domains that may call. `parties`: all of them, (domain, role)."""
    if policy is None or len(parties) == 1:
        # Who is alone has nobody to talk to; Kuscia opens such ports to everybody.
        everyone = frozenset(domain for domain, _ in parties)
        return {port.name: everyone for port in ports}
    allowed: dict[str, set[str]] = {port.name: {own} for port in ports}
    for rule in policy.get("ingresses") or ():
        roles = set((rule.get("from") or {}).get("roles") or ())
        domains = {domain for domain, role in parties if role in roles}
        for port in rule.get("ports") or ():
            allowed.setdefault(port["port"], set()).update(domains)
    return {name: frozenset(domains) for name, domains in allowed.items()}


def service_prefix_fault(text: str) -> str:
    """What is wrong with the start that somebody chose for names of services; empty when nothing is."""
    if _PREFIX.fullmatch(text):
        return ""
    return f'"{text[:64]}" must begin with a letter and have at most 48 lower-case letters, digits and dashes'


def service_name(owner: str, port: str) -> str:
    """`<owner>-<port>`, made into a name that DNS takes."""
    port = port.replace("_", "-").replace(".", "-")
    name = f"{owner}-{port}"
    if name[0].isdigit():
        name = f"svc-{name}"
    if len(name) <= _SERVICE_NAME_LIMIT:
        return name
    tail = f"-{hashlib.sha256(owner.encode()).hexdigest()[:_DIGEST]}-{port}"
    kept = owner[: _SERVICE_NAME_LIMIT - len("svc-") - len(tail)].rstrip("-")
    return f"svc-{kept}{tail}"


# Laying a party's wishes over the AppImage's template.


def merged(base: Mapping[str, Any], over: Mapping[str, Any], *, by_name: bool = False) -> Object:
    """Containers by their place in the list or by name; lists of variables by name, the rest field by field."""
    overrides = over.get("containers") or ()
    named = {each.get("name"): each for each in overrides}
    containers = [
        _laid_over(
            container,
            named.get(container["name"], {}) if by_name else overrides[place] if place < len(overrides) else {},
        )
        for place, container in enumerate(base.get("containers") or ())
    ]
    out = {**base, "containers": containers}
    for key in ("restartPolicy", "affinity"):
        if over.get(key):
            out[key] = over[key]
    return out


def _laid_over(base: Object, over: Mapping[str, Any]) -> Object:
    out = dict(base)
    if over.get("name"):
        out["name"] = over["name"]
    if over.get("command") or over.get("args"):
        out["command"], out["args"] = list(over.get("command") or ()), list(over.get("args") or ())
    if over.get("env"):
        named = {each["name"]: each for each in (*(base.get("env") or ()), *over["env"])}
        out["env"] = list(named.values())
    resources = {
        kind: amounts
        for kind in ("requests", "limits")
        if (amounts := {**_amounts(base, kind), **_amounts(over, kind)})
    }
    if resources:
        out["resources"] = resources
    return out


def _amounts(container: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get(kind) or {}


# Pods.


def is_templated(engine_templates: Mapping[str, str], containers: Iterable[Object]) -> bool:
    """Whether some container has files rendered from the AppImage's templates."""
    return bool(engine_templates) and any(each.get("configVolumeMounts") for each in containers)


_TEMPLATE_NAME = re.compile(r"(?:\{\{-?\s*|\[)\.([A-Za-z_][A-Za-z0-9_]*)")
"""At the beginning of a place to fill in, or as an index taken from elsewhere."""
KNOWN_NAMES = frozenset(
    (
        "KUSCIA_DOMAIN_ID", "KUSCIA_API_PROTOCOL", "ALLOCATED_PORTS",
        "TASK_ID", "TASK_INPUT_CONFIG", "TASK_CLUSTER_DEFINE",
        "SERVING_ID", "INPUT_CONFIG", "CLUSTER_DEFINE",
        "CONTAINER_CPU_LIMIT", "CONTAINER_MEM_LIMIT", "TRUSTED_CA_FILE",
        "SERVER_CERT_FILE", "SERVER_PRIVATE_KEY_FILE", "CLIENT_CERT_FILE", "CLIENT_PRIVATE_KEY_FILE",
    )
)  # fmt: skip
"""In config templates: what every node knows of an engine."""


def pod_spec(domain: str, restart_policy: str, containers: list[Object], template_map: str) -> Object:
    """Where and how engines of a domain run. `template_map`: the config map with templates; empty when there are none."""
    spec: Object = {
        "restartPolicy": restart_policy,
        "schedulerName": labels.KUSCIA_SCHEDULER,
        "nodeSelector": {labels.KUSCIA_NODE_NAMESPACE: domain},
        "tolerations": [{"key": labels.KUSCIA_AGENT_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
        "automountServiceAccountToken": False,
        "containers": containers,
    }
    if template_map:
        spec["volumes"] = [{"name": TEMPLATE_VOLUME, "configMap": {"name": template_map}}]
    return spec


def node_affinity(config_templates: Mapping[str, str], containers: Iterable[Object]) -> Object | None:
    """Engines whose templates name a value that may be in the domain's config store run where the domain's key is. None:
    they run everywhere."""
    named = {match[1] for text in config_templates.values() for match in _TEMPLATE_NAME.finditer(text)}
    variables = {str(each.get("name") or "").upper() for given in containers for each in given.get("env") or ()}
    if named <= KNOWN_NAMES | variables:
        return None
    keyless = {"key": labels.COTERIE_JOINED, "operator": "DoesNotExist"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [keyless]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def container_of(
    given: Object, image: str, numbers: Mapping[str, int], variables: Sequence[Object], *, templated: bool
) -> Object:
    """A Kubernetes container from Kuscia's. `numbers`: of ports by name; `variables`: besides its own."""
    out: Object = {
        "name": given["name"],
        "image": image,
        "imagePullPolicy": given.get("imagePullPolicy") or "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [*(given.get("env") or ()), *variables],
    }
    for key in _OF_CONTAINERS:
        if given.get(key):
            out[key] = given[key]
    ports = [
        {"name": port["name"], "containerPort": numbers[port["name"]], "protocol": "TCP"}
        for port in given.get("ports") or ()
    ]
    if ports:
        out["ports"] = ports
    if templated and given.get("configVolumeMounts"):
        out["volumeMounts"] = [
            {"name": TEMPLATE_VOLUME, "mountPath": mount["mountPath"], "subPath": mount["subPath"]}
            for mount in given["configVolumeMounts"]
        ]
    return out


def metrics_of(containers: Iterable[Object], numbers: Mapping[str, int]) -> dict[str, str]:
    """Annotations that tell where an engine shows metrics."""
    for container in containers:
        probe = container.get("metricProbe") or {}
        number = numbers.get(probe.get("port", ""))
        if probe.get("path") and number is not None:
            return {
                labels.KUSCIA_SHOULD_BE_SCRAPED: "true",
                labels.KUSCIA_METRIC_PATH: probe["path"],
                labels.KUSCIA_METRIC_PORT: str(number),
            }
    return {}


# What engines are told.


def cluster_define(parties: list[Object], place: int, endpoint: int) -> Object:
    """Who takes part and where; `place`, `endpoint`: which of them the reader is."""
    return {"parties": parties, "selfPartyIdx": place, "selfEndpointIdx": endpoint}


def allocated_ports(ports: Iterable[EnginePort], numbers: Mapping[str, Any]) -> Object:
    return {
        "ports": [
            {"name": port.name, "port": numbers[port.name], "scope": port.scope, "protocol": port.protocol}
            for port in ports
        ]
    }


def as_text(value: Object) -> str:
    return orjson.dumps(value).decode()
