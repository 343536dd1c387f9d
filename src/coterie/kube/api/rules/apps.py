"""Rules of the workloads that keep pods running: deployments, replica sets, stateful sets, daemon sets, controllers.

They differ in a handful of defaults and limits; the pod template and its selector are checked in one place for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.kube.api.errors import forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import validate_labels
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import (
    check_int_or_percent,
    immutable,
    is_zero,
    not_negative,
    one_of,
    optional_one_of,
    percent_of,
)
from coterie.kube.api.rules.pod_defaults import default_claim_spec, default_template
from coterie.kube.api.rules.podspec import check_selected_template, check_template
from coterie.kube.api.rules.volumes import check_claim_spec
from coterie.kube.api.selectors import selector_of_map

_SPEC = ("spec",)


def _replicas_status(obj: Obj) -> Obj:
    return {"replicas": 0}


# ---- deployments --------------------------------------------------------------------------------------------------


def _default_deployment(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = section(spec, "strategy")
    setdefaults(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        setdefaults(section(strategy, "rollingUpdate"), maxUnavailable="25%", maxSurge="25%")
    default_template(spec.get("template"))


def _validate_deployment(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = not_negative(
        spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"
    )
    errors += check_selected_template(spec)
    errors += _check_deployment_strategy(spec.get("strategy") or {}, "spec.strategy")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if deadline is not None and deadline >= 0 and deadline <= ready:
        errors.append(invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def _check_deployment_strategy(strategy: Obj, path: str) -> Errors:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            why = "may not be specified when strategy `type` is 'Recreate'"
            return [forbidden_field(f"{path}.rollingUpdate", why)]
        return []
    if kind != "RollingUpdate":
        return [not_supported(f"{path}.type", kind or "", ("Recreate", "RollingUpdate"))]
    if rolling is None:
        return [required(f"{path}.rollingUpdate", "this should be defaulted and never be nil")]
    return _check_surge(rolling, f"{path}.rollingUpdate", "may not be 0 when `maxSurge` is 0", "maxUnavailable")


def _check_surge(rolling: Obj, path: str, both_zero: str, blamed: str) -> Errors:
    errors: Errors = []
    for key in ("maxUnavailable", "maxSurge"):
        if rolling.get(key) is not None:
            errors += check_int_or_percent(rolling[key], f"{path}.{key}")
    if not errors and is_zero(rolling.get("maxUnavailable")) and is_zero(rolling.get("maxSurge")):
        errors.append(invalid(f"{path}.{blamed}", rolling.get(blamed) or 0, both_zero))
    if (percent_of(rolling.get("maxUnavailable")) or 0) > 100:
        errors.append(invalid(f"{path}.maxUnavailable", rolling["maxUnavailable"], "must not be greater than 100%"))
    return errors


def _fixed_selector(new: Obj, old: Obj) -> Errors:
    return immutable(new.get("spec") or {}, old.get("spec") or {}, "spec", "selector")


# ---- replica sets and replication controllers ---------------------------------------------------------------------


def _default_replica_set(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, replicas=1)
    default_template(spec.get("template"))


def _validate_replica_set(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    return not_negative(spec, "spec", "replicas", "minReadySeconds") + check_selected_template(spec)


def _default_replication_controller(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, replicas=1)
    template = spec.get("template") or {}
    if labels := (template.get("metadata") or {}).get("labels"):
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        meta = section(obj, "metadata")
        if not meta.get("labels"):
            meta["labels"] = dict(labels)
    default_template(spec.get("template"))


def _validate_replication_controller(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = not_negative(spec, "spec", "replicas", "minReadySeconds")
    selector, template = spec.get("selector") or {}, spec.get("template")
    if not selector:
        errors.append(required("spec.selector"))
    errors += validate_labels(selector, "spec.selector")
    if not template:
        return [*errors, required("spec.template")]
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector and not selector_of_map(selector).matches(labels):
        why = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, why))
    errors += check_template(template)
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy in ("OnFailure", "Never"):
        errors.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return errors


# ---- stateful sets ------------------------------------------------------------------------------------------------

_STATEFUL_MAY_CHANGE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_STATEFUL_ONLY = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_RETENTION = ("Retain", "Delete")


def _default_stateful_set(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, podManagementPolicy="OrderedReady", replicas=1, revisionHistoryLimit=10)
    strategy = section(spec, "updateStrategy")
    setdefaults(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        setdefaults(section(strategy, "rollingUpdate"), partition=0)
    setdefaults(section(spec, "persistentVolumeClaimRetentionPolicy"), whenDeleted="Retain", whenScaled="Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        setdefaults(claim, apiVersion="v1", kind="PersistentVolumeClaim")
        default_claim_spec(section(claim, "spec"))
        setdefaults(section(claim, "status"), phase="Pending")
    default_template(spec.get("template"))


def _validate_stateful_set(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = one_of(spec.get("podManagementPolicy"), ("OrderedReady", "Parallel"), "spec.podManagementPolicy")
    errors += not_negative(spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit")
    if ordinals := spec.get("ordinals"):
        errors += not_negative(ordinals, "spec.ordinals", "start")
    errors += _check_stateful_strategy(spec.get("updateStrategy") or {}, "spec.updateStrategy")
    retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    for key in ("whenDeleted", "whenScaled"):
        at = f"spec.persistentVolumeClaimRetentionPolicy.{key}"
        errors += optional_one_of(retention.get(key), _RETENTION, at)
    errors += check_selected_template(_with_claims(spec), workload="statefulset")
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
        at = f"spec.volumeClaimTemplates[{index}]"
        if not (claim.get("metadata") or {}).get("name"):
            errors.append(required(f"{at}.metadata.name"))
        errors += check_claim_spec(claim.get("spec") or {}, f"{at}.spec")
    return errors


def _with_claims(spec: Obj) -> Obj:
    """The spec as its pods will be: each claim template is a volume that containers may mount."""
    claims = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for claim in spec.get("volumeClaimTemplates") or ()
        if (name := (claim.get("metadata") or {}).get("name"))
    ]
    template = spec.get("template")
    if not claims or not template:
        return spec
    pod = template.get("spec") or {}
    taken = {claim["name"] for claim in claims}
    volumes = [volume for volume in pod.get("volumes") or () if volume.get("name") not in taken]
    return {**spec, "template": {**template, "spec": {**pod, "volumes": volumes + claims}}}


def _check_stateful_strategy(strategy: Obj, path: str) -> Errors:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "OnDelete":
        if rolling is not None:
            why = "only allowed for updateStrategy 'RollingUpdate'"
            return [invalid(f"{path}.rollingUpdate", rolling, why)]
        return []
    if kind != "RollingUpdate":
        return (
            [invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")] if kind else [required(f"{path}.type")]
        )
    errors = not_negative(rolling or {}, f"{path}.rollingUpdate", "partition")
    if rolling and rolling.get("maxUnavailable") is not None:
        at = f"{path}.rollingUpdate.maxUnavailable"
        errors += check_int_or_percent(rolling["maxUnavailable"], at)
        if not errors and is_zero(rolling["maxUnavailable"]):
            errors.append(invalid(at, 0, "cannot be 0"))
    return errors


def _check_stateful_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    keys = (spec.keys() | before.keys()) - set(_STATEFUL_MAY_CHANGE)
    if all((spec.get(key) or None) == (before.get(key) or None) for key in keys):
        return []
    return [forbidden_field("spec", _STATEFUL_ONLY)]


# ---- daemon sets --------------------------------------------------------------------------------------------------


def _default_daemon_set(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, revisionHistoryLimit=10)
    strategy = section(spec, "updateStrategy")
    setdefaults(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        setdefaults(section(strategy, "rollingUpdate"), maxUnavailable=1, maxSurge=0)
    default_template(spec.get("template"))


def _validate_daemon_set(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = check_selected_template(spec, workload="daemonset")
    errors += not_negative(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    strategy = spec.get("updateStrategy") or {}
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "RollingUpdate":
        why = "cannot be 0 when maxSurge is 0"
        errors += _check_surge(rolling or {}, "spec.updateStrategy.rollingUpdate", why, "maxUnavailable")
        surge, gone = (rolling or {}).get("maxSurge"), (rolling or {}).get("maxUnavailable")
        if not is_zero(surge) and not is_zero(gone):
            why = "may not be set when maxUnavailable is non-zero"
            errors.append(invalid("spec.updateStrategy.rollingUpdate.maxSurge", surge, why))
    elif kind != "OnDelete":
        errors.append(not_supported("spec.updateStrategy.type", kind or "", ("RollingUpdate", "OnDelete")))
    return errors


def _daemon_status(obj: Obj) -> Obj:
    keys = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    return dict.fromkeys(keys, 0)


# ---- controller revisions -----------------------------------------------------------------------------------------


def _validate_revision(obj: Obj) -> Errors:
    errors = not_negative(obj, "", "revision")
    return errors + ([] if obj.get("data") is not None else [required("data", "data is mandatory")])


def _fixed_revision(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "data")


def _workload(
    default: Callable[[Obj], None],
    validate: Callable[[Obj], Errors],
    changed: Callable[[Obj, Obj], Errors],
    initial: Callable[[Obj], Obj] | None = None,
) -> KindRules:
    options: dict[str, Any] = {"status": True, "generation": _SPEC, "initial_status": initial}
    return make_rules(default=default, validate=validate, changed=changed, **options)


def _any_change(new: Obj, old: Obj) -> Errors:
    return []


RULES: dict[tuple[str, str], KindRules] = {
    ("apps", "Deployment"): _workload(_default_deployment, _validate_deployment, _fixed_selector),
    ("apps", "ReplicaSet"): _workload(_default_replica_set, _validate_replica_set, _fixed_selector, _replicas_status),
    ("apps", "StatefulSet"): _workload(
        _default_stateful_set, _validate_stateful_set, _check_stateful_change, _replicas_status
    ),
    ("apps", "DaemonSet"): _workload(_default_daemon_set, _validate_daemon_set, _fixed_selector, _daemon_status),
    ("", "ReplicationController"): _workload(
        _default_replication_controller, _validate_replication_controller, _any_change, _replicas_status
    ),
    ("apps", "ControllerRevision"): make_rules(validate=_validate_revision, changed=_fixed_revision),
}
