"""Rules of the CSI kinds: drivers, nodes, capacities, attachments, and classes of volume attributes."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required, too_long
from coterie.kube.api.names import IMMUTABLE, dns_subdomain_faults, qualified_name_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import check_quantity, immutable, not_negative, optional_one_of
from coterie.kube.api.rules.storage import check_inline_volume_spec, check_parameters, check_provisioner
from coterie.kube.api.selectors import validate_selector

_GROUP = "storage.k8s.io"
_DRIVER_NAME_LENGTH = 63
_NODE_ID_LENGTH = 256
_ATTACHMENT_SIZE = 256 * 1024
_ERROR_SIZE = 1024
_FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
_LIFECYCLE_MODES = ("Persistent", "Ephemeral")
_SHORTEST_TOKEN, _LONGEST_TOKEN = 600, 2**32
_ONE_SOURCE = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"


def check_driver_name(name: str, path: str) -> Errors:
    """Names of CSI drivers, and of drivers of devices, which follow the same rule."""
    if not name:
        return [required(path)]
    errors: Errors = [too_long(path, _DRIVER_NAME_LENGTH)] if len(name) > _DRIVER_NAME_LENGTH else []
    return errors + [invalid(path, name, fault) for fault in dns_subdomain_faults(name.lower())]


# ---- drivers --------------------------------------------------------------------------------------------------------


def _default_driver(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(
        spec,
        attachRequired=True,
        podInfoOnMount=False,
        storageCapacity=False,
        fsGroupPolicy="ReadWriteOnceWithFSType",
        requiresRepublish=False,
        seLinuxMount=False,
    )
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def _validate_driver(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = optional_one_of(spec.get("fsGroupPolicy"), _FS_GROUP_POLICIES, "spec.fsGroupPolicy")
    requests = spec.get("tokenRequests") or []
    audiences: set[str] = set()
    for index, request in enumerate(requests):
        errors += _check_token_request(request, f"spec.tokenRequests[{index}]", audiences)
    for mode in spec.get("volumeLifecycleModes") or ():
        if mode not in _LIFECYCLE_MODES:
            errors.append(not_supported("spec.volumeLifecycleModes", mode, _LIFECYCLE_MODES))
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < 10:
        path = "spec.nodeAllocatableUpdatePeriodSeconds"
        errors.append(invalid(path, period, "must be greater than or equal to 10 seconds"))
    in_secrets = spec.get("serviceAccountTokenInSecrets")
    if in_secrets is not None and not requests:
        why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        errors.append(invalid("spec.serviceAccountTokenInSecrets", in_secrets, why))
    return errors


def _check_token_request(request: Obj, path: str, audiences: set[str]) -> Errors:
    audience, seconds = request.get("audience") or "", request.get("expirationSeconds")
    if audience in audiences:
        return [duplicate(f"{path}.audience", audience)]
    audiences.add(audience)
    if seconds is not None and seconds < _SHORTEST_TOKEN:
        return [invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")]
    if seconds is not None and seconds > _LONGEST_TOKEN:
        return [invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")]
    return []


def _check_driver_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    # Kubernetes names the first field like this.
    names = {"attachRequired": "attachedRequired", "volumeLifecycleModes": "volumeLifecycleModes"}
    return [
        invalid(f"spec.{shown}", spec.get(key), IMMUTABLE)
        for key, shown in names.items()
        if spec.get(key) != before.get(key)
    ]


# ---- nodes ----------------------------------------------------------------------------------------------------------


def _validate_node(obj: Obj) -> Errors:
    errors: Errors = []
    names: set[str] = set()
    for index, driver in enumerate((obj.get("spec") or {}).get("drivers") or ()):
        path = f"spec.drivers[{index}]"
        name, node_id = driver.get("name") or "", driver.get("nodeID") or ""
        errors += check_driver_name(name, f"{path}.name")
        if not node_id:
            errors.append(required(f"{path}.nodeID"))
        elif len(node_id) > _NODE_ID_LENGTH:
            errors.append(invalid(f"{path}.nodeID", node_id, f"must be {_NODE_ID_LENGTH} characters or less"))
        errors += not_negative(driver.get("allocatable") or {}, f"{path}.allocatable", "count")
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
        errors += _check_topology_keys(driver.get("topologyKeys") or [], path)
    return errors


def _check_topology_keys(keys: list[str], path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for key in keys:
        if not key:
            errors.append(required(path))
        if key in seen:
            errors.append(duplicate(path, key))
        seen.add(key)
        errors += [invalid(path, key, fault) for fault in qualified_name_faults(key)]
    return errors


def _check_node_change(new: Obj, old: Obj) -> Errors:
    before = (old.get("spec") or {}).get("drivers") or []
    errors: Errors = []
    for driver in (new.get("spec") or {}).get("drivers") or ():
        known = [{**each, "allocatable": None} for each in before if each.get("name") == driver.get("name")]
        # How many volumes fit may change, everything else was registered once.
        if known and {**driver, "allocatable": None} not in known:
            errors.append(invalid("spec.drivers", driver, IMMUTABLE))
    return errors


# ---- capacities -----------------------------------------------------------------------------------------------------


def _validate_capacity(obj: Obj) -> Errors:
    errors = validate_selector(obj.get("nodeTopology") or {}, "nodeTopology")
    name = obj.get("storageClassName") or ""
    errors += [invalid("storageClassName", name, fault) for fault in dns_subdomain_faults(name)]
    if obj.get("capacity") is not None:
        errors += check_quantity(obj["capacity"], "capacity")
    return errors


def _check_capacity_change(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "nodeTopology", "storageClassName")


# ---- attachments ----------------------------------------------------------------------------------------------------


def _validate_attachment(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = check_driver_name(spec.get("attacher") or "", "spec.attacher")
    source = spec.get("source") or {}
    inline, volume = source.get("inlineVolumeSpec"), source.get("persistentVolumeName")
    if inline is None and volume is None:
        errors.append(required("spec.source", _ONE_SOURCE))
    elif inline is not None and volume is not None:
        errors.append(forbidden_field("spec.source", _ONE_SOURCE))
    elif inline is not None:
        errors += check_inline_volume_spec(inline, "spec.source.inlineVolumeSpec")
    elif not volume:
        errors.append(required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName"))
    if volume:
        path = "spec.source.persistentVolumeName"
        errors += [invalid(path, volume, fault) for fault in dns_subdomain_faults(volume)]
    node = spec.get("nodeName") or ""
    errors += [invalid("spec.nodeName", node, fault) for fault in dns_subdomain_faults(node)]
    return errors + _check_attachment_status(obj.get("status") or {})


def _check_attachment_status(status: Obj) -> Errors:
    errors: Errors = []
    size = sum(len(key) + len(value or "") for key, value in (status.get("attachmentMetadata") or {}).items())
    if size > _ATTACHMENT_SIZE:
        errors.append(too_long("status.attachmentMetadata", _ATTACHMENT_SIZE))
    for key in ("attachError", "detachError"):
        error = status.get(key) or {}
        if len(error.get("message") or "") > _ERROR_SIZE:
            errors.append(too_long(f"status.{key}.message", _ATTACHMENT_SIZE))
        code = error.get("errorCode")
        if code is not None and code < 0:
            errors.append(invalid(f"status.{key}.errorCode", code, "must be between 0 and 2147483647, inclusive"))
    return errors


def _check_attachment_change(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "spec")


def _validate_attachment_status(new: Obj, old: Obj) -> Errors:
    return _check_attachment_status(new.get("status") or {})


def _not_attached(obj: Obj) -> Obj:
    return {"attached": False}


# ---- classes of attributes ------------------------------------------------------------------------------------------


def _validate_attributes_class(obj: Obj) -> Errors:
    parameters: Any = obj.get("parameters") or {}
    errors = check_provisioner(obj.get("driverName") or "", "driverName")
    if not parameters:
        errors.append(required("parameters", "must contain at least one key/value pair"))
    return errors + check_parameters(parameters, "parameters")


def _check_attributes_class_change(new: Obj, old: Obj) -> Errors:
    return [
        forbidden_field(key, f"updates to {key} are forbidden.")
        for key in ("driverName", "parameters")
        if (new.get(key) or None) != (old.get(key) or None)
    ]


RULES: dict[tuple[str, str], KindRules] = {
    (_GROUP, "CSIDriver"): make_rules(
        default=_default_driver, validate=_validate_driver, changed=_check_driver_change, generation=("spec",)
    ),
    (_GROUP, "CSINode"): make_rules(validate=_validate_node, changed=_check_node_change),
    (_GROUP, "CSIStorageCapacity"): make_rules(validate=_validate_capacity, changed=_check_capacity_change),
    (_GROUP, "VolumeAttachment"): make_rules(
        validate=_validate_attachment,
        changed=_check_attachment_change,
        status=True,
        initial_status=_not_attached,
        validate_status=_validate_attachment_status,
    ),
    (_GROUP, "VolumeAttributesClass"): make_rules(
        validate=_validate_attributes_class, changed=_check_attributes_class_change
    ),
}
