"""What is wrong with a container's environment, and with references to the pod's own fields and resources."""

from __future__ import annotations

import re

from coterie.kube.api.errors import invalid, not_supported, required
from coterie.kube.api.names import config_key_faults, dns_subdomain_faults, env_name_faults, qualified_name_faults
from coterie.kube.api.rules.base import Errors, Obj
from coterie.kube.api.rules.common import named, optional_named, parse_quantity

_DOWNWARD_KEY = re.compile(r"metadata\.(?:labels|annotations)\['(.*)'\]")
_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_VOLUME_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_RESOURCE_FIELDS = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)


def check_env(env: list[Obj], path: str) -> Errors:
    errors: Errors = []
    for index, item in enumerate(env):
        name = item.get("name")
        if not name or env_name_faults(name):
            errors += named(name, f"{path}[{index}].name", env_name_faults)
        if (source := item.get("valueFrom")) is not None:
            errors += _check_env_source(source, f"{path}[{index}].valueFrom", bool(item.get("value")))
    return errors


def _check_env_source(source: Obj, path: str, has_value: bool) -> Errors:
    errors: Errors = []
    given = 0
    if (ref := source.get("fieldRef")) is not None:
        given += 1
        errors += check_field_ref(ref, f"{path}.fieldRef", _ENV_FIELDS)
    if (ref := source.get("resourceFieldRef")) is not None:
        given += 1
        errors += check_resource_ref(ref, f"{path}.resourceFieldRef", in_volume=False)
    for key in ("configMapKeyRef", "secretKeyRef"):
        if (ref := source.get(key)) is not None:
            given += 1
            errors += named(ref.get("name"), f"{path}.{key}.name", dns_subdomain_faults)
            errors += named(ref.get("key"), f"{path}.{key}.key", config_key_faults)
    if has_value:
        if given:
            errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif given == 0:
        why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        errors.append(invalid(path, "", why))
    elif given > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def check_field_ref(ref: Obj, path: str, allowed: tuple[str, ...] = _VOLUME_FIELDS) -> Errors:
    """A reference to the pod's own metadata or status."""
    errors: Errors = []
    if not ref.get("apiVersion"):
        errors.append(required(f"{path}.apiVersion"))
    elif ref["apiVersion"] != "v1":
        errors.append(invalid(f"{path}.apiVersion", ref["apiVersion"], "pods are known only in version v1"))
    field = ref.get("fieldPath") or ""
    if not field:
        errors.append(required(f"{path}.fieldPath"))
    elif found := _DOWNWARD_KEY.fullmatch(field):
        errors += [invalid(path, found[1], fault) for fault in qualified_name_faults(found[1].lower())]
    elif field not in allowed:
        errors.append(not_supported(f"{path}.fieldPath", field, allowed))
    return errors


def check_resource_ref(ref: Obj, path: str, *, in_volume: bool) -> Errors:
    """A reference to a container's own requests or limits."""
    errors: Errors = []
    if in_volume and not ref.get("containerName"):
        errors.append(required(f"{path}.containerName"))
    resource = ref.get("resource") or ""
    if not resource:
        errors.append(required(f"{path}.resource"))
    elif resource not in _RESOURCE_FIELDS and not resource.startswith(("limits.hugepages-", "requests.hugepages-")):
        errors.append(not_supported(f"{path}.resource", resource, _RESOURCE_FIELDS))
    divisor = ref.get("divisor")
    if divisor is not None and parse_quantity(divisor) is None:
        errors.append(invalid(f"{path}.divisor", divisor, "must be a quantity"))
    return errors


def check_env_from(sources: list[Obj], path: str) -> Errors:
    errors: Errors = []
    for index, source in enumerate(sources):
        at = f"{path}[{index}]"
        errors += optional_named(source.get("prefix"), f"{at}.prefix", env_name_faults)
        given = [key for key in ("configMapRef", "secretRef") if source.get(key) is not None]
        for key in given:
            errors += named(source[key].get("name"), f"{at}.{key}.name", dns_subdomain_faults)
        if not given:
            errors.append(invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(given) > 1:
            errors.append(invalid(at, "", "may not have more than one field specified at a time"))
    return errors
