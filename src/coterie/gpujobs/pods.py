"""A GpuJob as a pod: the manifest, and what the pod's status means. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from coterie.base.clock import parse_rfc3339, rfc3339
from coterie.gpujobs.job_script import pod_script, result_script
from coterie.gpujobs.plan import failed, gpu_seconds
from coterie.gpujobs.storage import owner_of, part_name
from coterie.gpujobs.types import FAILED, JOB_LABEL, POD, RUNNING, SUCCEEDED, WAITING, GpuJob, GpuJobStatus
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import ContainerStatus, Pod

DIRECTORY, PARTS = "/coterie/job", "/coterie/in"
JOB_CONTAINER, RESULT_CONTAINER = "job", "artifacts"
RESULT_SECONDS = 20.0
"""How long after the program's end its artifacts are waited for."""


def pod_name(name: str, uid: str) -> str:
    """The same each time, so that a job never has two."""
    return f"{name[:40].rstrip('-.')}-{uid[:8]}"


def pod_body(job: GpuJob, parts: int) -> Object:
    """`parts`: the number of Secrets that hold the files."""
    spec = job.spec
    options = spec.pod
    limits: dict[str, Any] = {options.resource_name: spec.gpus} if spec.gpus else {}
    requests: dict[str, Any] = dict(limits)
    if spec.cpus:
        requests["cpu"] = str(spec.cpus)
    if spec.memory is not None:
        limits["memory"] = requests["memory"] = spec.memory
    mounts = [{"name": "job", "mountPath": DIRECTORY}]
    files = [
        {"secret": {"name": part_name(job.metadata.uid, "files", n), "items": [{"key": "data", "path": f"{n:03d}"}]}}
        for n in range(parts)
    ]
    containers: list[Object] = [
        {
            "name": JOB_CONTAINER,
            "image": spec.image,
            "command": ["sh", "-c", pod_script(spec, DIRECTORY, PARTS)],
            "resources": {"limits": limits, "requests": requests},
            "volumeMounts": [*mounts, {"name": "files", "mountPath": PARTS, "readOnly": True}],
        }
    ]
    if spec.artifacts:
        containers.append(
            {
                "name": RESULT_CONTAINER,
                "image": spec.image,
                "command": ["sh", "-c", result_script(DIRECTORY)],
                "volumeMounts": mounts,
            }
        )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.metadata.name, job.metadata.uid),
            "namespace": job.metadata.namespace,
            "labels": {JOB_LABEL: job.metadata.name[:63].rstrip("-.")},
            "ownerReferences": [owner_of(job, controller=True)],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": bool(options.service_account_name),
            **_given("serviceAccountName", options.service_account_name),
            **_given("runtimeClassName", options.runtime_class_name),
            **_given("nodeSelector", options.node_selector),
            **_given("activeDeadlineSeconds", spec.time_limit_seconds),
            "containers": containers,
            "volumes": [
                {"name": "job", "emptyDir": {}},
                {"name": "files", "projected": {"defaultMode": 0o400, "sources": files}},
            ],
        },
    }


def _given(name: str, value: Any) -> Object:
    return {name: value} if value else {}


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How the program of a pod ended."""

    code: int
    reason: str = ""
    started: str = ""
    ended: str = ""


def container_status(pod: Pod, name: str) -> ContainerStatus | None:
    return next((each for each in pod.status.container_statuses or () if each.name == name), None)


def program_end(pod: Pod) -> ProgramEnd | None:
    """None while it runs, or will."""
    found = container_status(pod, JOB_CONTAINER)
    ended = (found.state or {}).get("terminated") if found is not None else None
    if ended is not None:
        times = ended.get("startedAt") or "", ended.get("finishedAt") or ""
        return ProgramEnd(int(ended.get("exitCode") or 0), ended.get("reason") or "", *times)
    if pod.ended:  # evicted, or refused by its node
        return ProgramEnd(0 if pod.status.phase == "Succeeded" else 1, pod.status.reason or pod.status.phase)
    return None


def results_ready(pod: Pod) -> bool:
    """Whether the container that prints the artifacts is done, or there is none."""
    if not any(each.name == RESULT_CONTAINER for each in pod.spec.containers):
        return True
    found = container_status(pod, RESULT_CONTAINER)
    return pod.ended or (found is not None and "terminated" in (found.state or {}))


def pod_status(status: GpuJobStatus, pod: Pod, gpus: int, now: datetime) -> GpuJobStatus:
    """The job's status after the pod's."""
    found = container_status(pod, JOB_CONTAINER)
    running = ((found.state or {}) if found is not None else {}).get("running")
    base = msgspec.structs.replace(
        status, backend=POD, pod_name=pod.metadata.name, nodes=pod.spec.node_name, gpus=gpus, reason="", message=""
    )
    end = program_end(pod)
    if end is None:
        if running is not None:
            return msgspec.structs.replace(base, phase=RUNNING, start_time=running.get("startedAt"))
        return msgspec.structs.replace(base, phase=WAITING, **_why_waiting(pod, found))
    times = [int(parse_rfc3339(each).timestamp()) if each else None for each in (end.started, end.ended)]
    used = gpu_seconds(times[0], times[1], gpus)
    done = msgspec.structs.replace(
        base,
        phase=SUCCEEDED if end.code == 0 else FAILED,
        exit_code=end.code,
        start_time=end.started or base.start_time,
        completion_time=end.ended or rfc3339(now),
        gpu_seconds=used,
    )
    if end.code == 0:
        return done
    reason = pod.status.reason or (end.reason if end.reason not in ("", "Completed") else "Error")
    return failed(done, reason, pod.status.message or f"exit code {end.code}", now)


def _why_waiting(pod: Pod, found: ContainerStatus | None) -> dict[str, str]:
    waiting = ((found.state or {}) if found is not None else {}).get("waiting") or {}
    if waiting.get("reason") and waiting.get("reason") not in ("PodInitializing", "ContainerCreating"):
        return {"reason": waiting["reason"], "message": waiting.get("message") or ""}
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return {"reason": condition.reason, "message": condition.message}
    return {}
