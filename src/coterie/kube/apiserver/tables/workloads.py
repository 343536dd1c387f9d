"""Rows of what makes pods and watches over them: controllers, jobs, disruption budgets."""

from __future__ import annotations

from coterie.kube.apiserver.tables.ages import age, human_duration, parse_time
from coterie.kube.apiserver.tables.columns import (
    AGE,
    CONTAINERS,
    IMAGES,
    NAME,
    NONE,
    SELECTOR,
    UNSET,
    Cells,
    Object,
    TableColumn,
    TableLayout,
    number,
    text,
)
from coterie.kube.apiserver.tables.formats import (
    bool_word,
    containers,
    created,
    has_condition,
    items,
    labels,
    name_of,
    part,
    selector,
)

_DESIRED = number("Desired", "Pods that should exist.")
_CURRENT = number("Current", "Pods that exist.")
_READY = number("Ready", "Pods that are ready.")


def _template(obj: Object) -> tuple[str, str]:
    return containers(part(part(obj, "spec"), "template"))


def deployment(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    return [
        name_of(obj),
        f"{status.get('readyReplicas') or 0}/{spec.get('replicas') or 0}",
        status.get("updatedReplicas") or 0,
        status.get("availableReplicas") or 0,
        age(created(obj), now),
        *_template(obj),
        selector(spec.get("selector")),
    ]


def replica_set(obj: Object, now: float) -> Cells:
    return [*_replicas(obj, now), *_template(obj), selector(part(obj, "spec").get("selector")) or NONE]


def replication_controller(obj: Object, now: float) -> Cells:
    return [*_replicas(obj, now), *_template(obj), labels(part(obj, "spec").get("selector"))]


def _replicas(obj: Object, now: float) -> Cells:
    status = part(obj, "status")
    return [
        name_of(obj),
        part(obj, "spec").get("replicas") or 0,
        status.get("replicas") or 0,
        status.get("readyReplicas") or 0,
        age(created(obj), now),
    ]


def stateful_set(obj: Object, now: float) -> Cells:
    ready = part(obj, "status").get("readyReplicas") or 0
    return [name_of(obj), f"{ready}/{part(obj, 'spec').get('replicas') or 0}", age(created(obj), now), *_template(obj)]


def daemon_set(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    return [
        name_of(obj),
        status.get("desiredNumberScheduled") or 0,
        status.get("currentNumberScheduled") or 0,
        status.get("numberReady") or 0,
        status.get("updatedNumberScheduled") or 0,
        status.get("numberAvailable") or 0,
        labels(part(part(spec, "template"), "spec").get("nodeSelector")),
        age(created(obj), now),
        *_template(obj),
        selector(spec.get("selector")) or NONE,
    ]


def job(obj: Object, now: float) -> Cells:
    return [
        name_of(obj),
        job_state(obj),
        _completions(obj),
        _job_duration(part(obj, "status"), now),
        age(created(obj), now),
        *_template(obj),
        selector(part(obj, "spec").get("selector")) or NONE,
    ]


def job_state(obj: Object) -> str:
    status = part(obj, "status")
    if has_condition(status, "Complete"):
        return "Complete"
    if has_condition(status, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if has_condition(status, "Suspended"):
        return "Suspended"
    return "FailureTarget" if has_condition(status, "FailureTarget") else "Running"


def _completions(obj: Object) -> str:
    spec = part(obj, "spec")
    succeeded = part(obj, "status").get("succeeded") or 0
    wanted = spec.get("completions")
    if wanted is not None:
        return f"{succeeded}/{wanted}"
    parallelism = spec.get("parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(status: Object, now: float) -> str:
    start = parse_time(status.get("startTime"))
    if start is None:
        return ""
    end = parse_time(status.get("completionTime"))
    return human_duration((now if end is None else end) - start)


def cron_job(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    last = status.get("lastScheduleTime")
    suspend = spec.get("suspend")
    of_job = part(part(spec, "jobTemplate"), "spec")
    return [
        name_of(obj),
        spec.get("schedule") or "",
        NONE if spec.get("timeZone") is None else spec["timeZone"],
        UNSET if suspend is None else bool_word(suspend),
        len(items(status, "active")),
        age(last, now) if last else NONE,
        age(created(obj), now),
        *containers(part(of_job, "template")),
        selector(of_job.get("selector")) or NONE,
    ]


def disruption_budget(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    return [
        name_of(obj),
        _or_not_applicable(spec.get("minAvailable")),
        _or_not_applicable(spec.get("maxUnavailable")),
        part(obj, "status").get("disruptionsAllowed") or 0,
        age(created(obj), now),
    ]


def _or_not_applicable(value: object) -> str:
    return "N/A" if value is None else str(value)


def controller_revision(obj: Object, now: float) -> Cells:
    owner = next((ref for ref in items(obj["metadata"], "ownerReferences") if ref.get("controller")), None)
    controller_text = NONE
    if owner is not None:
        group = (owner.get("apiVersion") or "").rpartition("/")[0]
        kind = (owner.get("kind") or "").lower()
        controller_text = f"{kind}.{group}/{owner.get('name')}" if group else f"{kind}/{owner.get('name')}"
    return [name_of(obj), controller_text, obj.get("revision") or 0, age(created(obj), now)]


def pod_template(obj: Object, now: float) -> Cells:
    template = part(obj, "template")
    return [name_of(obj), *containers(template), labels(part(template, "metadata").get("labels"))]


_WIDE = (CONTAINERS, IMAGES, SELECTOR)
_REPLICAS = (NAME, _DESIRED, _CURRENT, _READY, AGE, *_WIDE)

WORKLOADS: dict[tuple[str, str], TableLayout] = {
    ("", "podtemplates"): TableLayout(
        (
            NAME,
            text("Containers", "Names of the containers in the template."),
            text("Images", "Images of the containers in the template."),
            text("Pod Labels", "Labels of the template."),
        ),
        pod_template,
    ),
    ("", "replicationcontrollers"): TableLayout(_REPLICAS, replication_controller),
    ("apps", "controllerrevisions"): TableLayout(
        (NAME, text("Controller", "Owner of the revision."), text("Revision", "Number of the revision."), AGE),
        controller_revision,
    ),
    ("apps", "daemonsets"): TableLayout(
        (
            NAME,
            number("Desired", "Nodes that should run the pod."),
            number("Current", "Nodes that run at least one pod."),
            number("Ready", "Nodes whose pod is ready."),
            number("Up-to-date", "Nodes that run the newest template."),
            number("Available", "Nodes whose pod is available."),
            text("Node Selector", "Labels of the nodes that run the pod."),
            AGE,
            *_WIDE,
        ),
        daemon_set,
    ),
    ("apps", "deployments"): TableLayout(
        (
            NAME,
            text("Ready", "Pods that are ready, of all that should be."),
            text("Up-to-date", "Pods of the newest template."),
            text("Available", "Pods that are available."),
            AGE,
            *_WIDE,
        ),
        deployment,
    ),
    ("apps", "replicasets"): TableLayout(_REPLICAS, replica_set),
    ("apps", "statefulsets"): TableLayout(
        (NAME, text("Ready", "Pods that are ready, of all that should be."), AGE, CONTAINERS, IMAGES), stateful_set
    ),
    ("batch", "cronjobs"): TableLayout(
        (
            NAME,
            text("Schedule", "When jobs start, in cron format."),
            text("Timezone", "Time zone of the schedule."),
            TableColumn("Suspend", type="boolean", description="Whether no new jobs are started."),
            number("Active", "Jobs that run."),
            text("Last Schedule", "Time since a job was last started."),
            AGE,
            *_WIDE,
        ),
        cron_job,
    ),
    ("batch", "jobs"): TableLayout(
        (
            NAME,
            text("Status", "State of the job."),
            text("Completions", "Pods that succeeded, of all that should."),
            text("Duration", "Time the job took or takes."),
            AGE,
            *_WIDE,
        ),
        job,
    ),
    ("policy", "poddisruptionbudgets"): TableLayout(
        (
            NAME,
            text("Min Available", "Fewest pods that must stay available."),
            text("Max Unavailable", "Most pods that may be unavailable."),
            number("Allowed Disruptions", "Pods that may be disrupted now."),
            AGE,
        ),
        disruption_budget,
    ),
}
