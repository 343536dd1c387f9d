"""Rules of jobs and cron jobs.

A job's selector is made from its uid, so that no two jobs ever share pods; a user who insists on an own selector has to
say `manualSelector`. Nearly all of a job is fixed once it exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.api import labels as well_known
from coterie.kube.api.errors import forbidden_field, invalid, not_supported, required, too_many
from coterie.kube.api.names import IMMUTABLE
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import immutable, not_negative, one_of
from coterie.kube.api.rules.cron import schedule_fault
from coterie.kube.api.rules.pod_defaults import default_template
from coterie.kube.api.rules.podspec import check_template
from coterie.kube.api.selectors import selector_of, validate_selector

if TYPE_CHECKING:
    import zoneinfo
else:
    # It brings the whole configuration that Python was built with.
    zoneinfo = lazy_import("zoneinfo")

_UNLIMITED = 2**31 - 1
_UID_LABELS = (well_known.JOB_CONTROLLER_UID, well_known.LEGACY_JOB_CONTROLLER_UID)
_NAME_LABELS = (well_known.JOB_NAME, well_known.LEGACY_JOB_NAME)
_POLICIES = ("Allow", "Forbid", "Replace")
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_SCHEDULABLE_TEMPLATE = ("nodeSelector", "tolerations", "affinity", "schedulingGates")


# ---- jobs ---------------------------------------------------------------------------------------------------------


def _default_job(obj: Obj) -> None:
    spec = section(obj, "spec")
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    setdefaults(spec, parallelism=1, completionMode="NonIndexed", suspend=False)
    setdefaults(spec, backoffLimit=_UNLIMITED if spec.get("backoffLimitPerIndex") is not None else 6)
    setdefaults(spec, podReplacementPolicy="Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for condition in rule.get("onPodConditions") or ():
            setdefaults(condition, status="True")
    template = spec.get("template") or {}
    template_labels = (template.get("metadata") or {}).get("labels")
    meta = section(obj, "metadata")
    if template_labels and not meta.get("labels"):
        meta["labels"] = dict(template_labels)
    default_template(spec.get("template"))


def generate_selector(obj: Obj) -> None:
    """Tie the job to its pods by its uid; needs `metadata.name` and `metadata.uid`."""
    spec = section(obj, "spec")
    if spec.get("manualSelector"):
        return
    meta = obj.get("metadata") or {}
    name, uid = meta.get("name") or "", meta.get("uid") or ""
    template_labels = section(section(section(spec, "template"), "metadata"), "labels")
    for key in _UID_LABELS:
        template_labels[key] = uid
    for key in _NAME_LABELS:
        template_labels[key] = name
    section(section(spec, "selector"), "matchLabels")[well_known.JOB_CONTROLLER_UID] = uid


def _validate_job(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = _check_job_spec(spec, "spec")
    if spec.get("selector") is None:
        return [*errors, required("spec.selector")]
    errors += validate_selector(spec["selector"], "spec.selector")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if not errors and not selector_of(spec["selector"]).matches(labels):
        why = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, why))
    return errors


def _validate_new_job(obj: Obj) -> Errors:
    errors = _validate_job(obj)
    spec = obj.get("spec") or {}
    if spec.get("manualSelector") or spec.get("selector") is None:
        return errors
    uid = (obj.get("metadata") or {}).get("uid") or ""
    if not uid:
        errors.append(required("metadata.uid"))
    if spec["selector"] != {"matchLabels": {well_known.JOB_CONTROLLER_UID: uid}}:
        errors.append(invalid("spec.selector", spec["selector"], "`selector` not auto-generated"))
    return errors


def _check_job_spec(spec: Obj, path: str) -> Errors:
    errors = not_negative(
        spec,
        path,
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    mode = spec.get("completionMode")
    if mode not in (None, "NonIndexed", "Indexed"):
        errors.append(not_supported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed")))
    if mode == "Indexed":
        if spec.get("completions") is None:
            errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
        if (spec.get("parallelism") or 0) > 100_000:
            why = "must be less than or equal to 100000 when completion mode is Indexed"
            errors.append(invalid(f"{path}.parallelism", spec["parallelism"], why))
    elif spec.get("backoffLimitPerIndex") is not None:
        why = "requires indexed completion mode"
        errors.append(invalid(f"{path}.backoffLimitPerIndex", spec["backoffLimitPerIndex"], why))
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        why = "when maxFailedIndexes is specified"
        errors.append(required(f"{path}.backoffLimitPerIndex", why))
    replacement = spec.get("podReplacementPolicy")
    if replacement not in (None, "Failed", "TerminatingOrFailed"):
        allowed = ("Failed", "TerminatingOrFailed")
        errors.append(not_supported(f"{path}.podReplacementPolicy", replacement, allowed))
    errors += check_template(spec.get("template"), f"{path}.template")
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy")
    if policy == "Always":
        errors.append(required(f"{path}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    if failure := spec.get("podFailurePolicy"):
        errors += _check_failure_policy(failure, spec, policy, f"{path}.podFailurePolicy")
    return errors


def _check_failure_policy(failure: Obj, spec: Obj, restart: str | None, path: str) -> Errors:
    errors: Errors = []
    if restart == "OnFailure":
        at = path.replace("podFailurePolicy", "template.spec.restartPolicy")
        errors.append(invalid(at, restart, 'only "Never" is supported when podFailurePolicy is specified'))
    rules = failure.get("rules") or []
    if len(rules) > 20:
        errors.append(too_many(f"{path}.rules", len(rules), 20))
    for index, rule in enumerate(rules):
        at = f"{path}.rules[{index}]"
        errors += one_of(rule.get("action"), _ACTIONS, f"{at}.action")
        if rule.get("action") == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            errors.append(invalid(f"{at}.action", "FailIndex", "requires the backoffLimitPerIndex to be set"))
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        if codes and conditions:
            why = "specifying both OnExitCodes and OnPodConditions is not supported"
            errors.append(invalid(at, rule, why))
        elif not codes and not conditions:
            errors.append(invalid(at, rule, "specifying one of OnExitCodes and OnPodConditions is required"))
        if codes:
            errors += one_of(codes.get("operator"), ("In", "NotIn"), f"{at}.onExitCodes.operator")
            values = codes.get("values") or []
            if not values:
                errors.append(invalid(f"{at}.onExitCodes.values", values, "at least one value is required"))
            if 0 in values and codes.get("operator") == "In":
                errors.append(invalid(f"{at}.onExitCodes.values", 0, "must not be 0 for the In operator"))
    return errors


def _check_job_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors = immutable(
        spec,
        before,
        "spec",
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    )
    completions, had = spec.get("completions"), before.get("completions")
    if completions != had:
        elastic = spec.get("completionMode") == "Indexed" and completions == spec.get("parallelism")
        if not (elastic and completions is not None and had is not None):
            errors.append(invalid("spec.completions", completions, IMMUTABLE))
    template, kept = spec.get("template") or {}, before.get("template") or {}
    started = (old.get("status") or {}).get("startTime")
    if before.get("suspend") and not started:
        # A job that has not started yet may still be steered to other nodes.
        template, kept = _unscheduled(template), _unscheduled(kept)
    if template != kept:
        errors.append(invalid("spec.template", template, IMMUTABLE))
    return errors


def _unscheduled(template: Obj) -> Obj:
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    return {
        "metadata": {key: value for key, value in meta.items() if key not in ("labels", "annotations")},
        "spec": {key: value for key, value in spec.items() if key not in _SCHEDULABLE_TEMPLATE},
    }


# ---- cron jobs ----------------------------------------------------------------------------------------------------


def _default_cron_job(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    default_template(job.get("template"))


def _validate_cron_job(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    schedule, path = spec.get("schedule") or "", "spec"
    errors: Errors = []
    name = (obj.get("metadata") or {}).get("name") or ""
    if len(name) > 52:
        errors.append(invalid("metadata.name", name, "must be no more than 52 characters"))
    if not schedule:
        errors.append(required("spec.schedule"))
    elif "TZ" in schedule:
        errors.append(
            invalid("spec.schedule", schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
        )
    elif fault := schedule_fault(schedule):
        errors.append(invalid("spec.schedule", schedule, fault))
    errors += _check_time_zone(spec.get("timeZone"), "spec.timeZone")
    errors += not_negative(
        spec, path, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"
    )
    errors += one_of(spec.get("concurrencyPolicy"), _POLICIES, "spec.concurrencyPolicy")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    errors += _check_job_spec(job, "spec.jobTemplate.spec")
    for key in ("manualSelector", "selector"):
        if job.get(key) is not None:
            why = f"`{key}` will be auto-generated" if key == "selector" else "not allowed in a job template"
            errors.append(forbidden_field(f"spec.jobTemplate.spec.{key}", why))
    return errors


def _check_time_zone(zone: str | None, path: str) -> Errors:
    if zone is None:
        return []
    if not zone:
        return [invalid(path, zone, "timeZone must be nil or non-empty string")]
    if zone.lower() == "local":
        return [
            invalid(path, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
        ]
    try:
        zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return [invalid(path, zone, f"unknown time zone {zone}")]
    return []


RULES: dict[tuple[str, str], KindRules] = {
    ("batch", "Job"): make_rules(
        default=_default_job,
        validate=_validate_job,
        validate_create=_validate_new_job,
        changed=_check_job_change,
        status=True,
        generation=("spec",),
        create=generate_selector,
    ),
    ("batch", "CronJob"): make_rules(
        default=_default_cron_job, validate=_validate_cron_job, status=True, generation=("spec",)
    ),
}
