"""Rules of APIServices: a group and version, served by this server or by a Service."""

from __future__ import annotations

from coterie.kube.api.errors import invalid, required
from coterie.kube.api.names import PORT_RANGE, dns_label_faults, dns_subdomain_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, setdefaults

LOCAL = {
    "type": "Available",
    "status": "True",
    "reason": "Local",
    "message": "Local APIServices are always available",
}
_GREATEST_GROUP_PRIORITY, _GREATEST_VERSION_PRIORITY = 20000, 1000


def _default(obj: Obj) -> None:
    service = (obj.get("spec") or {}).get("service")
    if service:
        setdefaults(service, port=443)


def _validate(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    group, version, name = (
        spec.get("group") or "",
        spec.get("version") or "",
        (obj.get("metadata") or {}).get("name") or "",
    )
    errors: Errors = []
    if name != f"{version}.{group}":
        errors.append(invalid("metadata.name", name, f'must be `spec.version+"."+spec.group`: "{version}.{group}"'))
    if not group:
        if version != "v1":
            errors.append(required("spec.group", "only v1 may have an empty group and it better be legacy kube"))
    else:
        errors += [invalid("spec.group", group, fault) for fault in dns_subdomain_faults(group)]
    if not version:
        errors.append(required("spec.version"))
    else:
        errors += [invalid("spec.version", version, fault) for fault in dns_label_faults(version)]
    errors += _check_priority(spec, "groupPriorityMinimum", _GREATEST_GROUP_PRIORITY)
    errors += _check_priority(spec, "versionPriority", _GREATEST_VERSION_PRIORITY)
    service = spec.get("service")
    if service is None:
        if spec.get("caBundle"):
            errors.append(invalid("spec.caBundle", "<secret>", "local APIServices may not have a caBundle"))
        if spec.get("insecureSkipTLSVerify"):
            errors.append(
                invalid("spec.insecureSkipTLSVerify", True, "local APIServices may not have insecureSkipTLSVerify")
            )
        return errors
    if not service.get("namespace"):
        errors.append(required("spec.service.namespace"))
    if not service.get("name"):
        errors.append(required("spec.service.name"))
    port = service.get("port")
    if port is not None and not 0 < port < 65536:
        errors.append(invalid("spec.service.port", port, f"port is not valid: {PORT_RANGE}"))
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        errors.append(invalid("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present"))
    return errors


def _check_priority(spec: Obj, field: str, greatest: int) -> Errors:
    value = spec.get(field) or 0
    if value <= 0:
        return [invalid(f"spec.{field}", value, "must be greater than 0")]
    if value > greatest:
        return [invalid(f"spec.{field}", value, f"may not be greater than {greatest}")]
    return []


def _initial_status(obj: Obj) -> Obj:
    if (obj.get("spec") or {}).get("service"):
        return {}
    return {"conditions": [{**LOCAL, "lastTransitionTime": (obj.get("metadata") or {}).get("creationTimestamp")}]}


RULES: dict[tuple[str, str], KindRules] = {
    ("apiregistration.k8s.io", "APIService"): make_rules(
        default=_default, validate=_validate, status=True, initial_status=_initial_status
    ),
}
