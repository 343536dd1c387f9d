"""Rules of persistent volumes, claims and storage classes."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import forbidden_field, invalid, required, too_long
from coterie.kube.api.names import IMMUTABLE, dns_subdomain_faults, qualified_name_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import canonicalize, one_of, optional_named, optional_one_of, parse_quantity
from coterie.kube.api.rules.pod_defaults import SOURCE_DEFAULTS, default_claim_spec
from coterie.kube.api.rules.scheduling import check_node_selector
from coterie.kube.api.rules.volumes import check_access_modes, check_claim_spec

_RECLAIM = ("Delete", "Recycle", "Retain")
_MOST_PARAMETERS, _PARAMETERS_SIZE = 512, 256 * 1024
_NOT_SOURCES = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)


def _pending(obj: Obj) -> Obj:
    return {"phase": "Pending"}


# ---- volumes ------------------------------------------------------------------------------------------------------


def _sources(spec: Obj) -> list[str]:
    return [key for key, value in spec.items() if key not in _NOT_SOURCES and value is not None]


def _default_volume(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")
    canonicalize(spec.get("capacity"))
    for key in _sources(spec):
        if fill := SOURCE_DEFAULTS.get(key):
            fill(spec[key])


def _validate_volume(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = check_access_modes(spec.get("accessModes") or [], "spec.accessModes")
    capacity = spec.get("capacity") or {}
    if not capacity:
        errors.append(required("spec.capacity"))
    elif list(capacity) != ["storage"]:
        errors.append(invalid("spec.capacity", capacity, "must be only storage"))
    for name, value in capacity.items():
        parsed = parse_quantity(value)
        if parsed is None or parsed.nanos <= 0:
            errors.append(invalid(f"spec.capacity[{name}]", value, "must be greater than zero"))
    errors += optional_one_of(spec.get("persistentVolumeReclaimPolicy"), _RECLAIM, "spec.persistentVolumeReclaimPolicy")
    errors += _check_sources(spec, "spec")
    if hard := (spec.get("nodeAffinity") or {}).get("required"):
        errors += check_node_selector(hard, "spec.nodeAffinity.required")
    errors += optional_named(spec.get("storageClassName"), "spec.storageClassName", dns_subdomain_faults)
    return errors + optional_one_of(spec.get("volumeMode"), ("Block", "Filesystem"), "spec.volumeMode")


def _check_sources(spec: Obj, path: str) -> Errors:
    sources = _sources(spec)
    errors: Errors = [] if sources else [required(path, "must specify a volume type")]
    errors += [forbidden_field(f"{path}.{key}", "may not specify more than 1 volume type") for key in sources[1:]]
    if (local := spec.get("hostPath")) is not None and not local.get("path"):
        errors.append(required(f"{path}.hostPath.path"))
    if spec.get("local") is not None and not (spec.get("nodeAffinity") or {}).get("required"):
        errors.append(required(f"{path}.nodeAffinity", "Local volume requires node affinity"))
    return errors


def check_inline_volume_spec(spec: Obj, path: str) -> Errors:
    """Of a volume that has no object of its own: only what says where the data lies."""
    context = "in the context of inline volumes"
    errors = [
        forbidden_field(f"{path}.{key}", f"may not be specified {context}")
        for key in ("claimRef", "capacity", "storageClassName")
        if spec.get(key)
    ]
    if spec.get("csi") is None:
        errors.append(required(f"{path}.csi", f"has to be specified {context}"))
    if spec.get("persistentVolumeReclaimPolicy") not in (None, "", "Retain"):
        errors.append(forbidden_field(f"{path}.persistentVolumeReclaimPolicy", f"may only be Retain {context}"))
    if spec.get("volumeMode") not in (None, "Filesystem"):
        why = f"may not specify volumeMode other than Filesystem {context}"
        errors.append(forbidden_field(f"{path}.volumeMode", why))
    errors += check_access_modes(spec.get("accessModes") or [], f"{path}.accessModes")
    return errors + _check_sources(spec, path)


def _check_volume_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: Errors = []
    if {key: spec[key] for key in _sources(spec)} != {key: before[key] for key in _sources(before)}:
        why = "spec.persistentvolumesource is immutable after creation"
        errors.append(forbidden_field("spec.persistentvolumesource", why))
    if spec.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid("spec.volumeMode", spec.get("volumeMode"), IMMUTABLE))
    if before.get("nodeAffinity") and spec.get("nodeAffinity") != before["nodeAffinity"]:
        errors.append(invalid("spec.nodeAffinity", spec.get("nodeAffinity"), IMMUTABLE))
    return errors


# ---- claims -------------------------------------------------------------------------------------------------------


def _default_claim(obj: Obj) -> None:
    default_claim_spec(section(obj, "spec"))


def _validate_claim(obj: Obj) -> Errors:
    return check_claim_spec(obj.get("spec") or {}, "spec")


def _check_claim_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: Errors = []
    bound = (old.get("status") or {}).get("phase") == "Bound"
    free = {"volumeAttributesClassName", "resources"} if bound else {"volumeAttributesClassName"}
    if not before.get("volumeName"):
        free.add("volumeName")  # the binder fills it in
    if not before.get("storageClassName"):
        free.add("storageClassName")  # a default class may arrive late
    keys = (spec.keys() | before.keys()) - free
    if any((spec.get(key) or None) != (before.get(key) or None) for key in keys):
        why = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        errors.append(forbidden_field("spec", why))
    size, had = _storage(spec), _storage(before)
    if bound and size is not None and had is not None and size < had:
        capacity = parse_quantity(((old.get("status") or {}).get("capacity") or {}).get("storage"))
        if capacity is None or size < capacity:
            why = "field can not be less than status.capacity"
            errors.append(forbidden_field("spec.resources.requests.storage", why))
    return errors


def _storage(spec: Obj) -> Any:
    value = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return None if value is None else parse_quantity(value)


# ---- classes ------------------------------------------------------------------------------------------------------


def _default_class(obj: Obj) -> None:
    setdefaults(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def check_provisioner(name: str, path: str) -> Errors:
    if not name:
        return [required(path)]
    return [invalid(path, name, fault) for fault in qualified_name_faults(name.lower())]


def check_parameters(parameters: Obj, path: str) -> Errors:
    if len(parameters) > _MOST_PARAMETERS:
        return [too_long(path, _MOST_PARAMETERS)]
    errors: Errors = [invalid(path, "", "field can not be empty.")] if "" in parameters else []
    if sum(len(key) + len(value or "") for key, value in parameters.items()) > _PARAMETERS_SIZE:
        errors.append(too_long(path, _PARAMETERS_SIZE))
    return errors


def _validate_class(obj: Obj) -> Errors:
    errors = check_provisioner(obj.get("provisioner") or "", "provisioner")
    errors += optional_one_of(obj.get("reclaimPolicy"), ("Delete", "Retain"), "reclaimPolicy")
    errors += one_of(obj.get("volumeBindingMode"), ("Immediate", "WaitForFirstConsumer"), "volumeBindingMode")
    return errors + check_parameters(obj.get("parameters") or {}, "parameters")


def _check_class_change(new: Obj, old: Obj) -> Errors:
    errors = [
        forbidden_field(key, f"updates to {key} are forbidden.")
        for key in ("parameters", "provisioner", "reclaimPolicy")
        if (new.get(key) or None) != (old.get(key) or None)
    ]
    if new.get("volumeBindingMode") != old.get("volumeBindingMode"):
        errors.append(invalid("volumeBindingMode", new.get("volumeBindingMode"), IMMUTABLE))
    return errors


RULES: dict[tuple[str, str], KindRules] = {
    ("", "PersistentVolume"): make_rules(
        default=_default_volume,
        validate=_validate_volume,
        changed=_check_volume_change,
        status=True,
        initial_status=_pending,
    ),
    ("", "PersistentVolumeClaim"): make_rules(
        default=_default_claim,
        validate=_validate_claim,
        changed=_check_claim_change,
        status=True,
        initial_status=_pending,
    ),
    ("storage.k8s.io", "StorageClass"): make_rules(
        default=_default_class, validate=_validate_class, changed=_check_class_change
    ),
}
