"""From a step of a job to its KusciaTask. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.meta import Object, find_condition
from coterie.kube.control.controller_refs import reference
from coterie.kuscia.api import labels
from coterie.kuscia.api.appimages import choose_template, replicas_of, share
from coterie.kuscia.api.jobs.conditions import RESTARTED
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, AppImage, JobParty, TaskTemplate
from coterie.kuscia.controllers.kusciajob.plan import JobView

_COPIED = (
    labels.KUSCIA_INITIATOR,
    labels.KUSCIA_SELF_AS_INITIATOR,
    labels.KUSCIA_INITIATOR_MASTER_DOMAIN,
    labels.KUSCIA_PARTY_MASTER_DOMAIN,
    labels.KUSCIA_INTERCONN_KUSCIA_PARTIES,
    labels.KUSCIA_INTERCONN_BFIA_PARTIES,
    labels.KUSCIA_INTERCONN_SELF_PARTIES,
)
_NAME_KEPT = 200


def task_id(job: str, digits: str) -> str:
    """The id that an initiator gives; `digits` are twelve random hexadecimal ones."""
    return f"{job[:_NAME_KEPT]}-{digits}"


def task_of(view: JobView, template: TaskTemplate) -> Object:
    meta = view.job.metadata
    takes_part = any(view.ours(party.domain_id) for party in template.parties)
    copied = {key: value for key in _COPIED if (value := (meta.annotations or {}).get(key)) is not None}
    protocol = (meta.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE)
    spec: dict[str, Any] = {
        "initiator": view.job.spec.initiator,
        "taskInputConfig": template.task_input_config,
        "parties": [_party(party, template, view.images.get(template.app_image)) for party in template.parties],
    }
    if request := template.bandwidth_request or view.job.spec.bandwidth_request:
        spec["bandwidthRequest"] = request
    if template.schedule_config is not None:
        spec["scheduleConfig"] = msgspec.to_builtins(template.schedule_config)
    return {
        "metadata": {
            "name": template.task_id,
            "namespace": CROSS_DOMAIN,
            "finalizers": [labels.FINALIZER_TASK],
            "ownerReferences": [msgspec.to_builtins(reference(KUSCIA_JOBS, meta))],
            "labels": {
                labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_JOB,
                labels.KUSCIA_JOB_UID: meta.uid,
                **({labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: protocol} if protocol else {}),
            },
            "annotations": {
                **copied,
                labels.KUSCIA_JOB_ID: meta.name,
                labels.KUSCIA_TASK_ALIAS: template.alias,
                **_host_task(view, template),
                **({labels.COTERIE_FLOW: view.job.spec.flow_id} if view.job.spec.flow_id else {}),
                **_attempt(view, template),
                labels.KUSCIA_SELF_AS_PARTICIPANT: "true" if takes_part else "false",
            },
        },
        "spec": spec,
    }


def _attempt(view: JobView, template: TaskTemplate) -> dict[str, str]:
    failed = (view.job.status.task_attempts or {}).get(template.task_id, ())
    return {labels.COTERIE_ATTEMPT: str(len(failed) + 1)} if failed else {}


def _host_task(view: JobView, template: TaskTemplate) -> dict[str, str]:
    """Which of the host's tasks of this name it is, where the interconnection told so. After a restart it must tell anew."""
    annotation = (view.job.metadata.annotations or {}).get(labels.COTERIE_HOST_TASK_UIDS, "")
    if not annotation or find_condition(view.job.status.conditions, RESTARTED) is not None:
        return {}
    try:
        uid = msgspec.json.decode(annotation, type=dict[str, str]).get(template.task_id)
    except msgspec.DecodeError:
        return {}  # somebody edited it; the interconnection marks the task itself
    return {labels.COTERIE_HOST_TASK_UID: uid} if uid else {}


def _party(party: JobParty, template: TaskTemplate, image: AppImage | None) -> Object:
    out: Object = {"domainID": party.domain_id, "appImageRef": template.app_image}
    if party.role:
        out["role"] = party.role
    if party.bandwidth_limits:
        out["bandwidthLimits"] = [msgspec.to_builtins(limit) for limit in party.bandwidth_limits]
    containers = _containers(party, image)
    if containers:
        out["template"] = {"spec": {"containers": containers}}
    return out


def _containers(party: JobParty, image: AppImage | None) -> list[Object]:
    """The engine's containers by name, each with its share of what the party was given. The rest of a container stays
    in the AppImage: what is laid over it need not say it again."""
    chosen = choose_template(image.spec.deploy_templates, party.role) if image is not None else None
    if party.resources is None or chosen is None:
        return []
    containers = chosen.spec.get("containers") or []
    parts = max(1, len(containers) * max(1, replicas_of(chosen)))
    given = {"requests": share(party.resources.requests, parts), "limits": share(party.resources.limits, parts)}
    resources = {kind: amounts for kind, amounts in given.items() if amounts}
    return [
        {"name": each["name"], "workingDir": each.get("workingDir", ""), "resources": resources}
        for each in containers
        if resources
    ]
