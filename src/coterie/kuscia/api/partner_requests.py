"""What is taken from a workload that a partner wrote, and what it asks for. Pure.

A partner's object is data. Of it are taken, field by field: which AppImage of ours, our role, the input, how many
replicas, how much of the counted resources, limits of bandwidth, and how the tasks of a job hang together. Everything
that says *how* something runs (command, arguments, variables, volumes, images, security settings, ports, affinity,
restart policy, update strategy) comes from our AppImage. Fields that are not named here do not exist.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import orjson

from coterie.kube.api.meta import Object
from coterie.kube.api.quantity import NANO, QuantityError
from coterie.kube.api.types.pods import QuantityText, ResourceRequirements
from coterie.kuscia.api import grants
from coterie.kuscia.api.appimages import choose_template, replicas_of
from coterie.kuscia.api.bandwidth import bandwidth_problem, mbit_up, parse_bits
from coterie.kuscia.api.engine_versions import EngineVersion, version_of
from coterie.kuscia.api.jobs.retries import most_retries
from coterie.kuscia.api.partner_policy import (
    PartnerRequest,
    Usage,
    WorkloadRequest,
    container_amounts,
    counted_names,
    image_matches,
    is_gpu,
    nanos,
    usage_from,
)
from coterie.kuscia.api.types.deployment import (
    DeploymentParty,
    KusciaDeployment,
    KusciaDeploymentSpec,
    PartyDeploymentTemplate,
)
from coterie.kuscia.api.types.job import (
    AppImage,
    BandwidthLimit,
    DeployTemplate,
    JobParty,
    KusciaJobSpec,
    ScheduleConfig,
    TaskRetry,
    TaskTemplate,
)
from coterie.kuscia.api.types.partner_policy import DEPLOYMENT, JOB, PartnerPolicySpec

_MOST_CONTAINERS = 64
T = TypeVar("T")


class PartnerRequestError(Exception):
    """Nothing can be taken from it; the message is a sentence for the partner."""


# What is taken.


def job_taken(spec: object) -> KusciaJobSpec:
    """From the spec of a KusciaJob that a partner wrote. Task ids are ours to give, or the host's to tell later."""
    given = _typed(spec, KusciaJobSpec)
    return KusciaJobSpec(
        initiator=given.initiator,
        tasks=tuple(_task(each) for each in given.tasks),
        flow_id=given.flow_id,
        schedule_mode=given.schedule_mode,
        max_parallelism=given.max_parallelism,
        bandwidth_request=_bandwidth_request(given.bandwidth_request),
    )


def _bandwidth_request(given: str) -> str:
    if given and (problem := bandwidth_problem(given)):
        raise PartnerRequestError(f"bandwidthRequest: {problem}")
    return given


def _task(given: TaskTemplate) -> TaskTemplate:
    return TaskTemplate(
        alias=given.alias,
        app_image=given.app_image,
        task_input_config=given.task_input_config,
        parties=tuple(_job_party(each) for each in given.parties),
        dependencies=given.dependencies,
        tolerable=given.tolerable,
        schedule_config=_schedule(given.schedule_config),
        priority=given.priority,
        bandwidth_request=_bandwidth_request(given.bandwidth_request),
    )


def _job_party(given: JobParty) -> JobParty:
    limits = tuple(
        BandwidthLimit(destination_id=each.destination_id, limit_kbps=each.limit_kbps)
        for each in given.bandwidth_limits or ()
    )
    return JobParty(
        domain_id=given.domain_id,
        role=given.role,
        resources=_resources(given.resources),
        bandwidth_limits=limits or None,
    )


def _schedule(given: ScheduleConfig | None) -> ScheduleConfig | None:
    if given is None:
        return None
    return ScheduleConfig(
        min_reserved_members=given.min_reserved_members,
        resource_reserved_seconds=given.resource_reserved_seconds,
        lifecycle_seconds=given.lifecycle_seconds,
        retry_interval_seconds=given.retry_interval_seconds,
        active_deadline_seconds=given.active_deadline_seconds,
        stall_seconds=given.stall_seconds,
        stall_action=given.stall_action,
        retry=TaskRetry(count=given.retry.count, backoff_seconds=given.retry.backoff_seconds) if given.retry else None,
    )


def deployment_taken(spec: object) -> KusciaDeploymentSpec:
    """From the spec of a KusciaDeployment that a partner wrote."""
    given = _typed(spec, KusciaDeploymentSpec)
    return KusciaDeploymentSpec(
        initiator=given.initiator,
        input_config=given.input_config,
        parties=tuple(_deployment_party(each) for each in given.parties),
    )


def _deployment_party(given: DeploymentParty) -> DeploymentParty:
    return DeploymentParty(
        domain_id=given.domain_id,
        app_image_ref=given.app_image_ref,
        role=given.role,
        # Both sides must know under which name the other's services are reached.
        service_name_prefix=given.service_name_prefix,
        template=_template(given.template),
    )


def _template(given: PartyDeploymentTemplate | None) -> PartyDeploymentTemplate | None:
    """How many replicas, and how much each container may have."""
    if given is None:
        return None
    containers = _containers((given.spec or {}).get("containers"))
    if given.replicas is None and not containers:
        return None
    return PartyDeploymentTemplate(replicas=given.replicas, spec={"containers": containers} if containers else None)


def deployment_digest(spec: KusciaDeploymentSpec) -> str:
    """Names what is approved: the fields that are taken, and nothing else."""
    taken = msgspec.to_builtins(deployment_taken(msgspec.to_builtins(spec)))
    return hashlib.sha256(orjson.dumps(taken, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


class _Container(msgspec.Struct, frozen=True):
    name: str = ""
    resources: ResourceRequirements | None = None


def _containers(given: object) -> list[Object]:
    if given is None:
        return []
    found = _typed(given, list[_Container])
    if len(found) > _MOST_CONTAINERS:
        raise PartnerRequestError(f"it names {len(found)} containers of one pod")
    out: list[Object] = []
    for each in found:
        resources = _resources(each.resources)
        if each.name and resources is not None:
            # The schema wants a working directory; nothing takes it from here.
            out.append({"name": each.name, "workingDir": "", "resources": msgspec.to_builtins(resources)})
    return out


def _resources(given: ResourceRequirements | None) -> ResourceRequirements | None:
    if given is None:
        return None
    requests, limits = _amounts(given.requests), _amounts(given.limits)
    return ResourceRequirements(requests=requests, limits=limits) if requests or limits else None


def _amounts(given: Mapping[str, QuantityText] | None) -> dict[str, QuantityText] | None:
    taken: dict[str, QuantityText] = {}
    for name in counted_names(given or {}):
        if (text := (given or {}).get(name)) is None:
            continue
        try:
            amount = nanos(text) or 0
        except QuantityError as problem:
            raise PartnerRequestError(f"{name}: {str(text)[:64]!r} is no quantity") from problem
        if amount < 0:
            raise PartnerRequestError(f"{name}: {str(text)[:64]} is less than nothing")
        if is_gpu(name) and amount % NANO:
            raise PartnerRequestError(f"{name}: {str(text)[:64]} is no whole number")
        taken[name] = text
    return taken or None


def _typed(given: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as problem:
        raise PartnerRequestError(f"it cannot be read: {problem}") from problem


# What it asks for.


def job_request(
    spec: KusciaJobSpec, ours: Collection[str], images: Mapping[str, AppImage], tables: Mapping[str, Collection[str]]
) -> PartnerRequest:
    """`ours`: domains of ours. `tables`: ids of the tables that each of them owns."""
    works: list[WorkloadRequest] = []
    for task in spec.tasks:
        own = [party for party in task.parties if party.domain_id in ours]
        if not own:
            continue
        image = images.get(task.app_image)
        usage = Usage(tasks=1)
        for party in own:
            usage += _with_request(
                _party_usage(image, party.role, party.resources, None, ()),
                task.bandwidth_request or spec.bandwidth_request,
            )
        known = {name for party in own for name in tables.get(party.domain_id, ())}
        works.append(_work(f"task {task.alias}", task.app_image, image, task.task_input_config, known, usage, task))
    return PartnerRequest(spec.initiator, JOB, tuple(works))


def versions_allowed(policy: PartnerPolicySpec | None, found: Sequence[EngineVersion]) -> tuple[EngineVersion, ...]:
    """Those that a partner's policy lets it use; the newest of all where there is none, which admission then refuses."""
    return tuple([each for each in found if version_allowed(policy, each)] or found[:1])


def version_allowed(policy: PartnerPolicySpec | None, each: EngineVersion) -> bool:
    """Whether a partner's policy names it, or no policy names any."""
    entries = policy.app_images if policy is not None else None
    return not entries or any(image_matches(entry, _version_request(each)) for entry in entries)


def _version_request(each: EngineVersion) -> WorkloadRequest:
    return _work("", each.app_image, each.image, "", (), Usage(), None)


def _with_request(usage: Usage, request: str) -> Usage:
    """A task's `bandwidthRequest` is reserved for each party that names no amount of its own, and on its links in any case."""
    if not request:
        return usage
    return replace(usage, bandwidth=max(usage.bandwidth, mbit_up(parse_bits(request)) * NANO))


def deployment_request(
    deployment: KusciaDeployment,
    ours: Collection[str],
    images: Mapping[str, AppImage],
    tables: Mapping[str, Collection[str]],
) -> PartnerRequest:
    spec = deployment.spec
    works: list[WorkloadRequest] = []
    for party in spec.parties:
        if party.domain_id not in ours:
            continue
        image = images.get(party.app_image_ref)
        template = party.template or PartyDeploymentTemplate()
        containers = (template.spec or {}).get("containers") or ()
        usage = _party_usage(image, party.role, None, template.replicas, containers)
        known = tables.get(party.domain_id, ())
        name = f"{party.domain_id} as {party.role}" if party.role else party.domain_id
        works.append(_work(name, party.app_image_ref, image, spec.input_config, known, usage, None))
    return PartnerRequest(spec.initiator, DEPLOYMENT, tuple(works))


def _work(
    name: str,
    app_image: str,
    image: AppImage | None,
    input_config: str,
    known: Collection[str],
    usage: Usage,
    task: TaskTemplate | None,
) -> WorkloadRequest:
    known_version = version_of(image) if image is not None else None
    return WorkloadRequest(
        name=name,
        app_image=image.metadata.name if image is not None else app_image,
        version=image.spec.image.tag if image is not None else "",
        digest=image.spec.image.id if image is not None else "",
        engine=known_version.engine if known_version is not None and known_version.version else "",
        engine_version=known_version.version if known_version is not None else "",
        components=grants.components_of(input_config),
        tables=grants.data_named(input_config, known),
        usage=usage,
        priority=task.priority if task is not None else 0,
        retries=most_retries(task.schedule_config) if task is not None else 0,
    )


def _party_usage(
    image: AppImage | None,
    role: str,
    total: ResourceRequirements | None,
    replicas: int | None,
    containers: Iterable[Mapping[str, Any]],
) -> Usage:
    """`total`: for all containers of the party together; `containers`: overrides for one each, by name."""
    chosen = choose_template(image.spec.deploy_templates, role) if image is not None else None
    if chosen is None:
        return Usage()
    pods = replicas_of(chosen) if replicas is None else replicas
    sums = _sums(chosen, list(containers), pods)
    given = container_amounts(msgspec.to_builtins(total) if total is not None else {})
    # The AppImage's own amounts hold for what the party does not name.
    return usage_from({**sums, **{name: max(amount, 0) for name, amount in given.items()}}, pods)


def _sums(chosen: DeployTemplate, overrides: Sequence[Mapping[str, Any]], pods: int) -> dict[str, int]:
    named = {each.get("name"): container_amounts(each.get("resources") or {}) for each in overrides}
    out: dict[str, int] = {}
    for container in chosen.spec.get("containers") or ():
        own = container_amounts(container.get("resources") or {})
        for name, amount in {**own, **named.get(container["name"], {})}.items():
            out[name] = out.get(name, 0) + amount * pods
    return out
