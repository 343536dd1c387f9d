"""Rules of namespaces, nodes, leases and priority classes: what the cluster itself is made of."""

from __future__ import annotations

from dataclasses import replace

from coterie.kube.api import labels as well_known
from coterie.kube.api.errors import forbidden_field, invalid, not_supported
from coterie.kube.api.names import finalizer_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import (
    canonicalize,
    check_quantity,
    immutable,
    not_negative,
    optional_one_of,
    valid_cidr,
)
from coterie.kube.api.rules.scheduling import check_taints

# ---- namespaces ---------------------------------------------------------------------------------------------------


def _default_namespace(obj: Obj) -> None:
    meta = section(obj, "metadata")
    if name := meta.get("name"):
        section(meta, "labels")[well_known.NAMESPACE_NAME] = name


def _create_namespace(obj: Obj) -> None:
    _default_namespace(obj)
    spec = section(obj, "spec")
    finalizers = spec.get("finalizers") or []
    if well_known.FINALIZER_KUBERNETES not in finalizers:
        finalizers = [*finalizers, well_known.FINALIZER_KUBERNETES]
    spec["finalizers"] = finalizers


def _active(obj: Obj) -> Obj:
    return {"phase": "Active"}


def _validate_namespace(obj: Obj) -> Errors:
    return [
        invalid("spec.finalizers", name, fault)
        for name in (obj.get("spec") or {}).get("finalizers") or ()
        for fault in finalizer_faults(name)
    ]


def _keep_finalizers(new: Obj, old: Obj) -> None:
    """Only `/finalize` may touch `spec.finalizers`."""
    finalizers = (old.get("spec") or {}).get("finalizers")
    spec = section(new, "spec")
    if finalizers:
        spec["finalizers"] = finalizers
    else:
        spec.pop("finalizers", None)


def _check_phase(new: Obj, old: Obj) -> Errors:
    phase = (new.get("status") or {}).get("phase")
    deleting = (new.get("metadata") or {}).get("deletionTimestamp")
    if deleting and phase != "Terminating":
        why = "may only be 'Terminating' if `deletionTimestamp` is not empty"
        return [invalid("status.Phase", phase, why)]
    if not deleting and phase not in (None, "", "Active"):
        return [invalid("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")]
    return []


# ---- nodes --------------------------------------------------------------------------------------------------------


def _default_node(obj: Obj) -> None:
    spec = section(obj, "spec")
    if spec.get("podCIDR") and spec["podCIDR"] not in (spec.get("podCIDRs") or ())[:1]:
        spec["podCIDRs"] = [spec["podCIDR"]]
    elif spec.get("podCIDRs") and not spec.get("podCIDR"):
        spec["podCIDR"] = spec["podCIDRs"][0]
    _default_node_status(obj)


def _default_node_status(obj: Obj) -> None:
    status = obj.get("status") or {}
    canonicalize(status.get("capacity"))
    canonicalize(status.get("allocatable"))
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _status_of_node(new: Obj, old: Obj) -> None:
    _default_node_status(new)


def _validate_node(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = check_taints(spec.get("taints") or [], "spec.taints")
    for index, block in enumerate(spec.get("podCIDRs") or ()):
        if not valid_cidr(block):
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid(f"spec.podCIDRs[{index}]", block, why))
    families = [":" in block for block in spec.get("podCIDRs") or ()]
    if len(families) != len(set(families)):
        why = "may specify no more than one CIDR for each IP family"
        errors.append(invalid("spec.podCIDRs", spec["podCIDRs"], why))
    return errors + _check_node_status(obj, obj)


def _check_node_status(new: Obj, old: Obj) -> Errors:
    status = new.get("status") or {}
    errors: Errors = []
    for key in ("capacity", "allocatable"):
        for name, value in (status.get(key) or {}).items():
            errors += check_quantity(value, f"status.{key}.{name}")
    return errors


def _check_node_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: Errors = []
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        why = 'node updates may not change podCIDR except from "" to valid'
        errors.append(forbidden_field("spec.podCIDRs", why))
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        why = 'node updates may not change providerID except from "" to valid'
        errors.append(forbidden_field("spec.providerID", why))
    return errors


def _keep_node_status(new: Obj, old: Obj) -> None:
    if "status" in old:
        new["status"] = old["status"]
    else:
        new.pop("status", None)


def _node_rules() -> KindRules:
    # An agent registers its node together with the status, so a create does not drop it as other kinds do.
    plain = make_rules(
        default=_default_node,
        validate=_validate_node,
        changed=_check_node_change,
        update=_keep_node_status,
        status_update=_status_of_node,
        validate_status=_check_node_status,
    )
    return replace(plain, has_status=True)


# ---- leases -------------------------------------------------------------------------------------------------------


def _validate_lease(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    duration = spec.get("leaseDurationSeconds")
    errors = not_negative(spec, "spec", "leaseTransitions")
    if duration is not None and duration <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if spec.get("strategy") and spec["strategy"] not in ("OldestEmulationVersion",) and "/" not in spec["strategy"]:
        errors.append(not_supported("spec.strategy", spec["strategy"], ("OldestEmulationVersion",)))
    if spec.get("preferredHolder") and not spec.get("strategy"):
        why = "preferredHolder must be set only if strategy is set"
        errors.append(forbidden_field("spec.preferredHolder", why))
    return errors


# ---- priority classes ---------------------------------------------------------------------------------------------

HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def _default_priority_class(obj: Obj) -> None:
    setdefaults(obj, preemptionPolicy="PreemptLowerPriority")
    if obj.get("value") is None:
        obj["value"] = 0


def _validate_priority_class(obj: Obj) -> Errors:
    name, value = (obj.get("metadata") or {}).get("name") or "", obj.get("value") or 0
    errors: Errors = []
    if name.startswith("system-"):
        if _SYSTEM_CLASSES.get(name) != value:
            why = "priority class names with 'system-' prefix are reserved for system use only"
            errors.append(
                forbidden_field("metadata.name", f"{why}. error: {name} is not a known system priority class")
            )
    elif value > HIGHEST_USER_PRIORITY:
        why = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        errors.append(forbidden_field("value", why))
    allowed = ("Never", "PreemptLowerPriority")
    return errors + optional_one_of(obj.get("preemptionPolicy"), allowed, "preemptionPolicy")


def _check_priority_change(new: Obj, old: Obj) -> Errors:
    errors = immutable(new, old, "", "preemptionPolicy")
    if (new.get("value") or 0) != (old.get("value") or 0):
        errors.append(forbidden_field("value", "may not be changed in an update."))
    return errors


RULES: dict[tuple[str, str], KindRules] = {
    ("", "Namespace"): make_rules(
        default=_default_namespace,
        validate=_validate_namespace,
        status=True,
        initial_status=_active,
        create=_create_namespace,
        update=_keep_finalizers,
        validate_status=_check_phase,
    ),
    ("", "Node"): _node_rules(),
    ("coordination.k8s.io", "Lease"): make_rules(validate=_validate_lease),
    ("scheduling.k8s.io", "PriorityClass"): make_rules(
        default=_default_priority_class,
        validate=_validate_priority_class,
        changed=_check_priority_change,
        generation=("value",),
    ),
}
