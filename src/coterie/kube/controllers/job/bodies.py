"""The pods of a job as they are sent to the server. Pure."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.labels import FINALIZER_JOB_TRACKING, JOB_COMPLETION_INDEX
from coterie.kube.api.meta import Object
from coterie.kube.api.types.batch import JOBS, Job
from coterie.kube.control.pod_control import pod_from_template

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_HOSTNAME_LENGTH = 63


def pod_body(job: Job, index: int | None, index_failures: int | None = None) -> Object:
    """A pod that is counted when it ends: the finalizer keeps it until it is."""
    body = pod_from_template(JOBS, job.metadata, job.spec.template or {})
    meta = body["metadata"]
    meta["finalizers"] = [*meta.get("finalizers", ()), FINALIZER_JOB_TRACKING]
    if index is None:
        return body
    text = str(index)
    meta["generateName"] = f"{job.metadata.name}-{text}-"
    meta["annotations"] = {**meta.get("annotations", {}), JOB_COMPLETION_INDEX: text}
    meta["labels"] = {**meta.get("labels", {}), JOB_COMPLETION_INDEX: text}
    if index_failures is not None:
        meta["annotations"][INDEX_FAILURES] = str(index_failures)
    spec = dict(body["spec"])
    if not spec.get("hostname"):
        name = f"{job.metadata.name}-{text}"
        spec["hostname"] = name if len(name) <= _HOSTNAME_LENGTH else name[-_HOSTNAME_LENGTH:].lstrip("-")
    for key in ("containers", "initContainers"):
        if spec.get(key):
            spec[key] = [_with_index_variable(container) for container in spec[key]]
    return {**body, "spec": spec}


def _with_index_variable(container: dict[str, Any]) -> dict[str, Any]:
    """The container with its index in the environment, unless it defines the variable itself."""
    environment = container.get("env") or []
    if any(variable.get("name") == INDEX_VARIABLE for variable in environment):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{JOB_COMPLETION_INDEX}']"}}
    return {**container, "env": [*environment, {"name": INDEX_VARIABLE, "valueFrom": source}]}
