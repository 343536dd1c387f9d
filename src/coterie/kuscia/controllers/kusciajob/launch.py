"""From a step of a job to its KusciaTask. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.meta import Object, find_condition
from coterie.kube.control.controller_refs import reference
from coterie.kuscia.api import labels
from coterie.kuscia.api.appimages import party_containers
from coterie.kuscia.api.engine_versions import newest_first, version_of
from coterie.kuscia.api.jobs.conditions import RESTARTED
from coterie.kuscia.api.jobs.recorded_events import run_of
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, JobParty, TaskTemplate
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


def task_of(view: JobView, template: TaskTemplate, agreement: str = "") -> Object:
    """`agreement`: the digest of what the parties agree on."""
    meta = view.job.metadata
    takes_part = any(view.ours(party.domain_id) for party in template.parties)
    copied = {key: value for key in _COPIED if (value := (meta.annotations or {}).get(key)) is not None}
    protocol = (meta.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE)
    spec: dict[str, Any] = {
        "initiator": view.job.spec.initiator,
        "taskInputConfig": template.task_input_config,
        "parties": [_party(party, view, template) for party in template.parties],
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
                **_bfia_task_ids(view),
                **({labels.COTERIE_AGREEMENT: agreement} if agreement else {}),
                labels.COTERIE_RUN: run_of(view.job),
                labels.KUSCIA_SELF_AS_PARTICIPANT: "true" if takes_part else "false",
            },
        },
        "spec": spec,
    }


def _bfia_task_ids(view: JobView) -> dict[str, str]:
    if not view.bfia:
        return {}
    named = {task.alias: task.task_id for task in view.job.spec.tasks if task.task_id}
    return {labels.COTERIE_BFIA_TASK_IDS: msgspec.json.encode(named).decode()}


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


def app_image_of(view: JobView, template: TaskTemplate, domain: str) -> str:
    """The AppImage of ours that a party is made from. For a partner's party: that of its version where we have it, else the one that our own
    party has; only names and ports of its services are taken from it."""
    pins = (view.job.status.engine_pins or {}).get(template.alias, {})
    pin = pins.get(domain)
    if pin is not None and pin.app_image:
        return pin.app_image
    own = next((each.app_image for each in pins.values() if each.app_image), "")
    if pin is not None and pin.version and own:
        engine = version_of(view.images[own]).engine if own in view.images else ""
        same = newest_first(
            found
            for name, image in view.images.items()
            if name == image.metadata.name
            and (found := version_of(image)).engine == engine
            and found.version == pin.version
        )
        if same:
            return same[0].app_image
    resolved = view.images.get(template.app_image)
    return own or (resolved.metadata.name if resolved is not None else template.app_image)


def _party(party: JobParty, view: JobView, template: TaskTemplate) -> Object:
    reference = app_image_of(view, template, party.domain_id)
    image = view.images.get(reference)
    out: Object = {"domainID": party.domain_id, "appImageRef": reference}
    pin = (view.job.status.engine_pins or {}).get(template.alias, {}).get(party.domain_id)
    if pin is not None and pin.app_image and pin.version and pin.digest:
        out["imageDigest"] = pin.digest
    if party.role:
        out["role"] = party.role
    if party.bandwidth_limits:
        out["bandwidthLimits"] = [msgspec.to_builtins(limit) for limit in party.bandwidth_limits]
    containers = party_containers(party, image)
    if containers:
        out["template"] = {"spec": {"containers": containers}}
    return out
