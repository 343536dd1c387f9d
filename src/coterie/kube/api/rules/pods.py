"""Rules of pods: what a new one must be, what little of a spec may change later, and the quality-of-service class."""

from __future__ import annotations

from coterie.kube.api import quantity
from coterie.kube.api.errors import forbidden_field, invalid
from coterie.kube.api.names import IMMUTABLE
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules
from coterie.kube.api.rules.common import immutable, parse_quantity
from coterie.kube.api.rules.pod_defaults import default_pod, default_template
from coterie.kube.api.rules.podspec import check_pod_spec, check_template

_ONLY = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_CHECKED_ELSEWHERE = (
    "containers",
    "initContainers",
    "ephemeralContainers",
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
    "schedulingGates",
)
_RESIZABLE = frozenset(("cpu", "memory"))
"""Resources of a container that can change while it runs."""


# ---- quality of service -------------------------------------------------------------------------------------------


def qos_class(spec: Obj) -> str:
    """Guaranteed when every container limits cpu and memory and requests just that; BestEffort when none asks."""
    asked, guaranteed = False, True
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            requests, limits = _nonzero(resources.get("requests")), _nonzero(resources.get("limits"))
            if requests or limits:
                asked = True
            if len(limits) < 2 or (requests and requests != limits):
                guaranteed = False
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _nonzero(values: Obj | None) -> dict[str, quantity.Quantity]:
    out = {}
    for name in ("cpu", "memory"):
        if values and (text := values.get(name)) is not None and (parsed := parse_quantity(text)):
            out[name] = parsed
    return out


def _initial_status(pod: Obj) -> Obj:
    return {"phase": "Pending", "qosClass": qos_class(pod.get("spec") or {})}


# ---- validation ---------------------------------------------------------------------------------------------------


def validate_pod(pod: Obj) -> Errors:
    return check_pod_spec(pod.get("spec") or {})


def validate_new_pod(pod: Obj) -> Errors:
    spec = pod.get("spec") or {}
    errors = check_pod_spec(spec)
    if spec.get("ephemeralContainers"):
        errors.append(forbidden_field("spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("schedulingGates") and spec.get("nodeName"):
        why = "cannot be set until all schedulingGates have been cleared"
        errors.append(forbidden_field("spec.nodeName", why))
    return errors


def _check_change(pod: Obj, old_pod: Obj) -> Errors:
    spec, old = pod.get("spec") or {}, old_pod.get("spec") or {}
    if spec == old:
        return []
    errors: Errors = []
    for key in ("containers", "initContainers"):
        if len(spec.get(key) or ()) != len(old.get(key) or ()):
            errors.append(forbidden_field(f"spec.{key}", "pod updates may not add or remove containers"))
    if errors:
        return errors
    errors += _check_deadline(spec, old)
    errors += _check_more_tolerations(spec, old)
    errors += _check_fewer_gates(spec, old)
    grace, before = spec.get("terminationGracePeriodSeconds"), old.get("terminationGracePeriodSeconds")
    same = grace == before or (grace == 1 and before is not None and before < 0)
    same = same and _fixed_part(spec, old) == _fixed_part(old, old)
    same = same and all(
        _without_image(spec, key) == _without_image(old, key) for key in ("containers", "initContainers")
    )
    same = same and (spec.get("ephemeralContainers") or []) == (old.get("ephemeralContainers") or [])
    if not same:
        errors.append(forbidden_field("spec", _ONLY))
    return errors


def _fixed_part(spec: Obj, old: Obj) -> Obj:
    """What may not change; a pod that still waits at a scheduling gate may be steered to fewer nodes."""
    fixed = {key: value for key, value in spec.items() if key not in _CHECKED_ELSEWHERE and value is not None}
    if old.get("schedulingGates"):
        selector = old.get("nodeSelector") or {}
        wanted = fixed.pop("nodeSelector", None) or {}
        fixed["nodeSelector"] = {key: wanted.get(key) for key in selector}
        affinity = dict(fixed.pop("affinity", None) or {})
        if not (old.get("affinity") or {}).get("nodeAffinity"):
            affinity.pop("nodeAffinity", None)
        fixed["affinity"] = affinity
    return fixed


def _without_image(spec: Obj, key: str) -> list[Obj]:
    return [{name: value for name, value in container.items() if name != "image"} for container in spec.get(key) or ()]


def _check_deadline(spec: Obj, old: Obj) -> Errors:
    deadline, before = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    path = "spec.activeDeadlineSeconds"
    if before is None or deadline == before:
        return []
    if deadline is None:
        return [invalid(path, None, "must not update from a positive integer to nil value")]
    return [invalid(path, deadline, "must be less than or equal to previous value")] if deadline > before else []


def _check_more_tolerations(spec: Obj, old: Obj) -> Errors:
    def bare(toleration: Obj) -> Obj:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    kept = [bare(toleration) for toleration in spec.get("tolerations") or ()]
    if all(bare(toleration) in kept for toleration in old.get("tolerations") or ()):
        return []
    why = "existing toleration can not be modified except its tolerationSeconds"
    return [forbidden_field("spec.tolerations", why)]


def _check_fewer_gates(spec: Obj, old: Obj) -> Errors:
    before = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    return [
        forbidden_field(
            f"spec.schedulingGates[{index}]",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for index, gate in enumerate(spec.get("schedulingGates") or ())
        if gate.get("name") not in before
    ]


def _check_status_change(pod: Obj, old_pod: Obj) -> Errors:
    """A container that ended for good cannot come back to life in the status."""
    status, old = pod.get("status") or {}, old_pod.get("status") or {}
    errors: Errors = []
    if old.get("qosClass") and status.get("qosClass") != old["qosClass"]:
        errors.append(invalid("status.qosClass", status.get("qosClass"), IMMUTABLE))
    policy = (old_pod.get("spec") or {}).get("restartPolicy")
    if policy == "Always":
        return errors
    now = {item.get("name"): item for item in status.get("containerStatuses") or ()}
    for index, before in enumerate(old.get("containerStatuses") or ()):
        ended = (before.get("state") or {}).get("terminated")
        if not ended or (policy == "OnFailure" and (ended.get("exitCode") or 0) != 0):
            continue
        state = (now.get(before.get("name")) or {}).get("state")
        if state is not None and not state.get("terminated"):
            why = "may not be transitioned to non-terminated state"
            errors.append(forbidden_field(f"status.containerStatuses[{index}].state", why))
    return errors


def _keep_owners(pod: Obj, old: Obj) -> None:
    meta, before = pod.setdefault("metadata", {}), old.get("metadata") or {}
    if before.get("ownerReferences"):
        meta["ownerReferences"] = before["ownerReferences"]
    else:
        meta.pop("ownerReferences", None)
    qos = (old.get("status") or {}).get("qosClass")
    if qos and (status := pod.get("status")) is not None and not status.get("qosClass"):
        status["qosClass"] = qos


def validate_ephemeral_update(pod: Obj, old: Obj) -> Errors:
    """Ephemeral containers may only be added."""
    errors = validate_pod(pod)
    now = {item.get("name"): item for item in (pod.get("spec") or {}).get("ephemeralContainers") or ()}
    for before in (old.get("spec") or {}).get("ephemeralContainers") or ():
        name = before.get("name")
        if name not in now:
            why = f'existing ephemeral containers "{name}" may not be removed\n'
            errors.append(forbidden_field("spec.ephemeralContainers", why))
        elif now[name] != before:
            why = f'existing ephemeral containers "{name}" may not be changed\n'
            errors.append(forbidden_field("spec.ephemeralContainers", why))
    return errors


# ---- resize -------------------------------------------------------------------------------------------------------


def prepare_resize(pod: Obj, old: Obj) -> None:
    """Of what is sent to pods/resize only the resources of containers count; all else stays as it is."""
    metadata = {key: value for key, value in old["metadata"].items() if key != "resourceVersion"}
    spec, before = pod.get("spec") or {}, old.get("spec") or {}
    containers = {key: _only_resized(spec.get(key), before.get(key)) for key in ("containers", "initContainers")}
    pod["metadata"] = metadata
    pod["spec"] = {**before, **{key: found for key, found in containers.items() if found or before.get(key)}}
    if "status" in old:
        pod["status"] = old["status"]
    else:
        pod.pop("status", None)


def _only_resized(sent: list[Obj] | None, before: list[Obj] | None) -> list[Obj]:
    known = {container.get("name"): container for container in before or ()}
    found = []
    for container in sent or ():
        kept = known.get(container.get("name"))
        if kept is None:
            found.append(container)
            continue
        merged = {**kept, "resources": container.get("resources") or {}}
        if policy := container.get("resizePolicy"):
            merged["resizePolicy"] = policy
        else:
            merged.pop("resizePolicy", None)
        found.append(merged)
    return found


def validate_resize(pod: Obj, old_pod: Obj) -> Errors:
    """CPU and memory of containers and sidecars may change, within the quality-of-service class."""
    spec, old = pod.get("spec") or {}, old_pod.get("spec") or {}
    errors = validate_pod(pod)
    known = (old_pod.get("status") or {}).get("qosClass") or qos_class(old)
    if qos_class(spec) != known:
        errors.append(invalid("spec", known, "Pod QOS Class may not change as a result of resizing"))
    for key in ("containers", "initContainers"):
        now, before = spec.get(key) or [], old.get(key) or []
        path = f"spec.{key}"
        if len(now) != len(before):
            return [*errors, forbidden_field(path, f"{key} may not be added or removed on resize")]
        for index, (container, was) in enumerate(zip(now, before, strict=True)):
            at = f"{path}[{index}]"
            if container.get("name") != was.get("name"):
                errors.append(forbidden_field(f"{at}.name", f"{key} may not be renamed or reordered on resize"))
            elif key == "containers" or was.get("restartPolicy") == "Always":
                errors += _check_resized(container, was, at)
            elif container != was:
                errors.append(forbidden_field(f"{at}.resources", "only sidecars among init containers can be resized"))
    return errors


def _check_resized(container: Obj, was: Obj, path: str) -> Errors:
    errors: Errors = []
    now, before = container.get("resources") or {}, was.get("resources") or {}
    for part in ("requests", "limits"):
        if any(name not in (now.get(part) or {}) for name in before.get(part) or {} if name in _RESIZABLE):
            errors.append(forbidden_field(f"{path}.resources.{part}", f"resource {part} cannot be removed"))
    if _without_resizable(container) != _without_resizable(was):
        errors.append(forbidden_field("spec", "only cpu and memory resources are mutable"))
    return errors


def _without_resizable(container: Obj) -> Obj:
    """The container without what a resize may change."""
    resources = dict(container.get("resources") or {})
    for part in ("requests", "limits"):
        left = {name: value for name, value in (resources.pop(part, None) or {}).items() if name not in _RESIZABLE}
        if left:
            resources[part] = left
    return {**container, "resources": resources}


def _check_binding(binding: Obj) -> Errors:
    target = binding.get("target") or {}
    if target.get("kind") not in (None, "", "Node"):
        return [invalid("target.kind", target["kind"], "must be empty or 'Node'")]
    return [] if target.get("name") else [invalid("target.name", "", "must not be empty")]


POD = make_rules(
    default=default_pod,
    validate=validate_pod,
    validate_create=validate_new_pod,
    changed=_check_change,
    status=True,
    initial_status=_initial_status,
    status_update=_keep_owners,
    validate_status=_check_status_change,
)


def _default_pod_template(obj: Obj) -> None:
    default_template(obj.get("template"))


def _validate_pod_template(obj: Obj) -> Errors:
    return check_template(obj.get("template"), "template")


def _fixed_binding(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "target")


RULES: dict[tuple[str, str], KindRules] = {
    ("", "Pod"): POD,
    ("", "PodTemplate"): make_rules(
        default=_default_pod_template, validate=_validate_pod_template, generation=("template",)
    ),
    ("", "Binding"): make_rules(validate=_check_binding, changed=_fixed_binding),
}
