"""What a pod may know of itself: fields and resources, for variables and for files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.agent.pods import pod_model
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


class ConfigProblem(Exception):
    """The pod refers to something that is not there or cannot be used: CreateContainerConfigError."""


class NoSuchConfig(ConfigProblem):
    """A problem that will not go away by itself: waiting for it would only hide it."""


@dataclass(frozen=True, slots=True)
class DownwardNodeInfo:
    """What the downward API tells beyond the pod itself."""

    host_ip: str
    pod_ip: str
    allocatable: Mapping[str, str]
    """Stands in for limits that a container does not set."""


def field_value(pod: Object, path: str, node: DownwardNodeInfo) -> str:
    meta, spec = pod["metadata"], pod_model.spec_of(pod)
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((meta.get(keyed[1]) or {}).get(keyed[2], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta.get(path.partition(".")[2]) or "")
        case "metadata.labels" | "metadata.annotations":
            found = meta.get(path.partition(".")[2]) or {}
            return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(found.items()))
        case "spec.nodeName":
            return str(spec.get("nodeName") or "")
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "")
        case "status.hostIP" | "status.hostIPs":
            return node.host_ip
        case "status.podIP" | "status.podIPs":
            return node.pod_ip
    raise ConfigProblem(f"the field {path} cannot be handed down to a container")


def resource_value(pod: Object, container: Object, reference: Mapping[str, Any], node: DownwardNodeInfo) -> str:
    """`limits.cpu` and the like in whole units of the divisor, rounded up."""
    named = reference.get("containerName")
    if named and named != container.get("name"):
        other = pod_model.container_named(pod, named)
        if other is None:
            raise ConfigProblem(f"the pod has no container {named}")
        container = other
    group, _, name = str(reference.get("resource") or "").partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(group) or {}).get(name)
    if amount is None and group == "limits":
        amount = node.allocatable.get(name)
    if amount is None:
        amount = "0"
    divisor = quantity.parse(str(reference.get("divisor") or "1"))
    if not divisor:
        divisor = quantity.from_units(1)
    return str(-(-quantity.parse(amount).nanos // divisor.nanos))


def _quoted(text: str) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
