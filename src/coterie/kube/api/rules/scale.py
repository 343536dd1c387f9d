"""The `scale` sub-resource: any workload seen as a number of replicas.

Deployments and their kin keep the numbers in known places; a custom resource says where by three paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.errors import BadRequest, InternalError, Invalid, invalid, invalid_object
from coterie.kube.api.resources import Resource
from coterie.kube.api.rules.base import Obj
from coterie.kube.api.selectors import selector_of, selector_of_map

_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where a custom resource keeps its replicas, as `subresources.scale` of its definition says."""

    spec_replicas: str
    status_replicas: str
    label_selector: str = ""

    @classmethod
    def of(cls, scale: Mapping[str, Any]) -> ScalePaths:
        return cls(
            scale.get("specReplicasPath") or "",
            scale.get("statusReplicasPath") or "",
            scale.get("labelSelectorPath") or "",
        )


BUILTIN_PATHS = ScalePaths(".spec.replicas", ".status.replicas")


def _read(obj: Mapping[str, Any], path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _number(obj: Obj, path: str) -> int:
    value = _read(obj, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def scale_of(obj: Obj, resource: Resource, paths: ScalePaths | None = None) -> Obj:
    """The object as `autoscaling/v1` Scale; `paths` is needed for custom resources."""
    places = _places(resource, paths)
    if resource.custom and _read(obj, places.spec_replicas) is None:
        # Kubernetes answers 500 here; but it is the object that lacks something, not the server that failed.
        raise Invalid(f'the spec replicas field "{places.spec_replicas}" does not exist')
    meta = obj.get("metadata") or {}
    replicas = _number(obj, places.spec_replicas)
    status: Obj = {"replicas": _number(obj, places.status_replicas)}
    if selector := _selector(obj, resource, places):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in _META if key in meta},
        # A zero is left out by the reference server, too: clients read a missing number as 0.
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def _places(resource: Resource, paths: ScalePaths | None) -> ScalePaths:
    if paths is not None:
        return paths
    if resource.custom:
        raise InternalError(f"{resource.group_resource} has no scale sub-resource")
    return BUILTIN_PATHS


def _selector(obj: Obj, resource: Resource, places: ScalePaths) -> str:
    if resource.custom:
        value = _read(obj, places.label_selector) if places.label_selector else ""
        return value if isinstance(value, str) else ""
    selector = (obj.get("spec") or {}).get("selector")
    if resource.kind == "ReplicationController":
        return str(selector_of_map(selector))
    return str(selector_of(selector)) if selector else ""


def apply_scale(obj: Obj, scale: Obj, resource: Resource, paths: ScalePaths | None = None) -> Obj:
    """A copy of the object with the replicas that the Scale asks for."""
    if scale.get("kind") not in (None, "", "Scale"):
        raise BadRequest(f"expected a Scale, got kind {scale.get('kind')}")
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise BadRequest("spec.replicas: must be a whole number")
    if replicas < 0:
        raise _negative(obj, replicas)
    *parents, last = _places(resource, paths).spec_replicas.strip(".").split(".")
    out = dict(obj)
    place = out
    for part in parents:
        child = place.get(part)
        place[part] = dict(child) if isinstance(child, dict) else {}
        place = place[part]
    place[last] = replicas
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        out["metadata"] = {**(obj.get("metadata") or {}), "resourceVersion": version}
    return out


def _negative(obj: Obj, replicas: int) -> Invalid:
    fault = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
    name = (obj.get("metadata") or {}).get("name") or ""
    return invalid_object("Scale", "autoscaling", name, [fault])
