"""Carries out tasks: reads a task with its pods, group and routes, asks `plan` what is next, and does it.

What it makes in a domain's namespace belongs to the task's pods. A task itself lives in another namespace, so it is held
back by a finalizer until its pods and its group are gone. Pods of a task that does not exist any more (somebody took
the finalizer off) are removed when they are seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as _replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.ids import uid4
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.labels import COTERIE_IDLE
from coterie.kube.api.meta import ApiObject, Object, ObjectKey, find_condition, is_true
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.retries import Outlook, outlook, public_reason, status_message
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS, Pod, ResourceRequirements
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.controller_refs import reference
from coterie.kube.control.deferred import Deferred, earliest
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.finalizers import add_finalizer, remove_finalizer
from coterie.kube.control.preconditions import preconditions
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import MBIT, parse_bits
from coterie.kuscia.api.bandwidth_capacity import domain_bandwidth, never_met, requested_mbit
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_template import EngineTemplateError
from coterie.kuscia.api.jobs.conditions import RESOURCE_CREATED, STALLED, WAITING
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.jobs.retries import TASK_STALLED
from coterie.kuscia.api.partner_policy import Usage, usage_of
from coterie.kuscia.api.reserving import task_resource
from coterie.kuscia.api.types.domain import (
    CLUSTER_DOMAIN_ROUTES,
    DOMAIN_ROUTES,
    DOMAINS,
    GATEWAYS,
    ClusterDomainRoute,
)
from coterie.kuscia.api.types.job import (
    APP_IMAGES,
    CROSS_DOMAIN,
    KUSCIA_TASKS,
    TASK_RESOURCE_GROUPS,
    AppImage,
    GroupParty,
    KusciaTask,
    KusciaTaskStatus,
    PartyAllocatedPorts,
    ServiceOfTask,
    TaskPhase,
    TaskResourceGroup,
)
from coterie.kuscia.api.types.partner_policy import PartnerPolicy
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.control.job_metrics import JobMetrics
from coterie.kuscia.control.log_facts import facts_of_task
from coterie.kuscia.control.nodes_of_domains import NodesOfDomains
from coterie.kuscia.control.partner_quotas import PartnerQuotas, QuotaRefusal
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.control.task_counters import TASK_COUNTERS
from coterie.kuscia.controllers.kusciatask import plan as plans
from coterie.kuscia.controllers.kusciatask import render
from coterie.kuscia.controllers.kusciatask.party_workloads import (
    PartyWorkload,
    PodWorkload,
    numbers_of,
    party_workloads,
)
from coterie.kuscia.controllers.kusciatask.plan import LinkActivity, Refusal, TaskView, only_informs, plan, refused

T = TypeVar("T")
A = TypeVar("A", bound=ApiObject)

BY_TASK = "kusciatask/task"
BY_NAME = "kusciatask/name"
BY_ENDS = "kusciatask/ends"
BY_STATE = "kusciatask/state"
_WAITING, _RUNNING = "waiting", "running"
_IN_THE_WAY = 0.5
"""Seconds after which a pod of an earlier task with the same name is looked for again."""
_USAGE_LASTS = 60.0
"""Seconds for which a gateway's measurement holds; they are written every 15 s at least."""
_BUSY_BITS = 8192
"""Bits per second of one task at one domain, above which its links are not silent."""
_RETRY = Policy(first=0.05, factor=2.0, limit=30.0, jitter=0.1)
"""Shorter pauses than other controllers make: the time that a task may wait is checked at each attempt."""


class TaskObjectsRefused(Exception):
    """The API did not take objects of the task, for reasons that no retry mends soon."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        super().__init__("; ".join(f"{each.what}: {each.message}" for each in refusals))
        self.refusals = refusals


class InTheWay(Exception):
    """An object of another task has the name that one of this task needs; it is on its way out."""


def _resources_of(container: Object) -> ResourceRequirements | None:
    return msgspec.convert(container.get("resources") or {}, ResourceRequirements)


def by_task(pod: Pod) -> tuple[str, ...]:
    uid = (pod.metadata.labels or {}).get(labels.KUSCIA_TASK_UID, "")
    return (uid,) if uid else ()


def by_name(pod: Pod) -> tuple[str, ...]:
    name = (pod.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, "")
    return (name,) if name and by_task(pod) else ()


def by_ends(route: ClusterDomainRoute) -> tuple[str, ...]:
    return (f"{route.spec.source}>{route.spec.destination}",)


def by_state(task: KusciaTask) -> tuple[str, ...]:
    """Whom an engine that comes, or a route that changes, concerns."""
    if task.status.phase in TASK_ENDED:
        return ()
    return (_RUNNING,) if is_true(task.status.conditions, RESOURCE_CREATED) else (_WAITING,)


class KusciaTaskReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        *,
        ports: PortPool,
        quotas: PartnerQuotas,
        events: EventRecorder | None,
        stall_seconds: int = 0,
        clock: Clock,
        metrics: JobMetrics | None = None,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._client = client
        self._metrics = metrics or JobMetrics()
        self._quotas = quotas
        self._events = events
        self._clock = clock
        self.tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.pods = informers.get(PODS)
        self.groups = informers.get(TASK_RESOURCE_GROUPS)
        self.routes = informers.get(CLUSTER_DOMAIN_ROUTES)
        self.domains = informers.get(DOMAINS)
        self.gateways = informers.get(GATEWAYS)
        self.images = informers.get(APP_IMAGES)
        self.nodes = informers.get(NODES)
        self._nodes_of = NodesOfDomains(self.nodes).of
        self.domain_routes = informers.get(DOMAIN_ROUTES)
        self._limits: dict[str, tuple[render.LimitOf, ...]] = {}
        """By uid, of tasks whose spec was changed: the limits that their Services were last given."""
        self.tasks.cache.add_index(BY_STATE, by_state)
        self.pods.cache.add_index(BY_TASK, by_task)
        self.pods.cache.add_index(BY_NAME, by_name)
        self.routes.cache.add_index(BY_ENDS, by_ends)
        self._pool = ports
        self._expected: Expectations[ObjectKey] = Expectations(self.pods, clock)
        self._first_seen: dict[str, float] = {}
        self._trouble: dict[str, str] = {}
        self._made: dict[str, KusciaTaskStatus] = {}
        """By uid, of tasks whose status does not say yet that everything was made."""
        self._later: Deferred[str] = Deferred(clock)
        self._usable: dict[str, bool] = {}
        self._began = clock.now()
        self._links_busy: dict[tuple[str, str], datetime] = {}
        """By task and domain: when links were last seen busy while the engines were idle."""
        self._log = logger("controllers.kusciatask")

    async def reconcile(self, key: ObjectKey) -> Result:
        task = self.tasks.cache.by_key(key)
        if task is None:
            return await self._remove_orphans(key)
        if task.metadata.deleting:
            return await self._remove(task)
        unschedulable = (task.metadata.labels or {}).get(labels.KUSCIA_TASK_UNSCHEDULABLE) == "true"
        if unschedulable and task.status.phase != TaskPhase.FAILED:
            if task.status.phase != TaskPhase.SUCCEEDED:
                await self._write(task, plans.unschedulable(task, rfc3339(self._clock.now())))
            return DONE
        if not task.metadata.has_finalizer(labels.FINALIZER_TASK):
            await add_finalizer(self._client, KUSCIA_TASKS, key.name, key.namespace, labels.FINALIZER_TASK)
            return DONE
        if not self._expected.fulfilled(key):
            return DONE  # the news of our own pods brings us back
        view = self._view(task)
        wanted = plan(view)
        status = wanted.status
        if wanted.allot:
            # The numbers must be on disk before anybody uses them; what comes next need not wait for the news of it.
            task = await self._write(task, self._allotted(view, status))
            view = self._view(task)
            wanted = plan(view)
            status = wanted.status
        if wanted.make:
            try:
                status = await self._make(view, status)
            except InTheWay as reason:
                self._trouble[task.metadata.uid] = f"an earlier task still has {reason}"
                self._log.info("Waiting for an earlier object to go", task=key.name, why=str(reason))
                wanted = _replace(plans.earlier_object(view, str(reason)), after=_IN_THE_WAY)
                status = wanted.status
            except TaskObjectsRefused as problem:
                self._log.warning("Objects of the task were refused", task=key.name, why=str(problem))
                wanted = refused(view, status, problem.refusals)
                status = wanted.status
            except (ApiError, TransportError) as error:
                self._trouble[task.metadata.uid] = str(error)
                raise
            else:
                self._made[task.metadata.uid] = status
        await self._follow_limits(view)
        if wanted.clean:
            await self._clean(view)
        if only_informs(task.status, status):
            left = self._later.wait(task.metadata.uid)
            if left is not None:
                return Result(after=earliest(left, wanted.after))
        self._later.clear(task.metadata.uid)
        await self._write(task, status)
        return Result(after=wanted.after)

    # Reading.

    def _with_made(self, task: KusciaTask) -> KusciaTask:
        """That everything was made is written with the next news. Until then only we know; whoever does not makes the same
        objects again, and finds them."""
        made = self._made.get(task.metadata.uid)
        if made is None:
            return task
        if is_true(task.status.conditions, RESOURCE_CREATED):
            del self._made[task.metadata.uid]
            return task
        known = {each.type: each for each in task.status.conditions or ()}
        known |= {each.type: each for each in made.conditions or () if each.type == RESOURCE_CREATED}
        status = replace(task.status, conditions=tuple(known.values()), service_statuses=made.service_statuses)
        return replace(task, status=status)

    def _view(self, task: KusciaTask) -> TaskView:
        task = self._with_made(task)
        named = {party.app_image_ref for party in task.spec.parties}
        images = {name: found for name in named if (found := self.images.cache.get(name)) is not None}
        parties: tuple[PartyWorkload, ...] = ()
        fault = ""
        try:
            parties = party_workloads(task, images)
        except EngineTemplateError as problem:
            fault = str(problem)
        own = tuple(party for party in parties if self._ours(party.domain))
        pods = {pod.key: pod for pod in self.pods.cache.by_index(BY_TASK, task.metadata.uid)}
        group = self.groups.cache.get(task.metadata.name)
        mine = group is not None and (group.metadata.labels or {}).get(labels.KUSCIA_TASK_UID) == task.metadata.uid
        return TaskView(
            task=task,
            parties=parties,
            fault=fault if any(self._ours(party.domain_id) for party in task.spec.parties) else "",
            own=own,
            initiates=self._ours(task.spec.initiator),
            pods=pods,
            group=group if mine else None,
            routes=self._unusable_routes(task),
            age=self._age(task),
            left_behind=mine or any(_goes(pod) for pod in pods.values()),
            now=self._clock.now(),
            trouble=self._trouble.get(task.metadata.uid, ""),
            over_quota=self._claim(task, own),
            unmet=self._unmet(task, own),
            link_activity=self._link_activity(task, own, pods.values()),
            default_stall_seconds=self._stall_seconds,
        )

    def _link_activity(
        self, task: KusciaTask, own: Sequence[PartyWorkload], pods: Iterable[Pod]
    ) -> dict[str, LinkActivity]:
        """By domain, from what the gateways measure; only looked for while an engine is idle. Gateways write rates, so the
        last time is that of our last look at which they carried something, or our own start."""
        if not any(is_true(pod.status.conditions, COTERIE_IDLE) for pod in pods):
            return {}
        now = self._clock.now()
        out: dict[str, LinkActivity] = {}
        for domain in {party.domain for party in own}:
            rows = [
                row
                for gateway in self.gateways.cache.list(domain)
                for row in (gateway.status.usage or () if gateway.status is not None else ())
                if row.task == task.metadata.name
                and (at := parse_time(row.at)) is not None
                and (now - at).total_seconds() < _USAGE_LASTS
            ]
            if not rows:
                continue
            busy = sum(row.sent_bits_per_second + row.received_bits_per_second for row in rows) > _BUSY_BITS
            key = (task.metadata.uid, domain)
            if busy:
                self._links_busy[key] = now
            last = self._links_busy.get(key, self._began)
            out[domain] = LinkActivity(rfc3339(last), busy)
        return out

    def _unmet(self, task: KusciaTask, own: Sequence[PartyWorkload]) -> str:
        """Why the bandwidth that a new task requests can never be had."""
        if is_true(task.status.conditions, RESOURCE_CREATED) or task.status.phase in TASK_ENDED:
            return ""
        everyone = {party.domain_id for party in task.spec.parties}
        request = parse_bits(task.spec.bandwidth_request) if task.spec.bandwidth_request else 0
        for party in own:
            pod_bits = sum(requested_mbit(each) for each in map(_resources_of, party.containers)) * MBIT
            links = request or pod_bits * len(party.pods)
            if not links:
                continue
            nodes = self._nodes_of(party.domain)
            has = domain_bandwidth(party.domain, nodes, self.domain_routes.cache.list(party.domain))
            if why := never_met(party.domain, has, pod_bits, links, everyone - {party.domain}):
                return why
        return ""

    def _claim(self, task: KusciaTask, own: Sequence[PartyWorkload]) -> QuotaRefusal | None:
        """A place in the quota of the partner that began the task, from before its objects are made until it ended."""
        uid, initiator = task.metadata.uid, task.spec.initiator
        if task.status.phase in TASK_ENDED or not own or not self._quotas.is_partner(initiator):
            self._quotas.release(uid)
            return None
        if is_true(task.status.conditions, RESOURCE_CREATED):
            if not self._quotas.knows(uid):
                self._quotas.note(uid, initiator, _usage(own))
            return None
        if self._quotas.knows(uid):
            return None
        for other in self.tasks.cache.by_index(BY_STATE, _RUNNING):
            # After a restart of ours those that run already come first.
            if not self._quotas.knows(other.metadata.uid) and self._quotas.is_partner(other.spec.initiator):
                self._quotas.note(other.metadata.uid, other.spec.initiator, self._running_usage(other))
        return self._quotas.claim(uid, initiator, _usage(own))

    def _running_usage(self, task: KusciaTask) -> Usage:
        named = {party.app_image_ref for party in task.spec.parties}
        images = {name: found for name in named if (found := self.images.cache.get(name)) is not None}
        try:
            parties = party_workloads(task, images)
        except EngineTemplateError:
            return Usage(tasks=1)
        return _usage([party for party in parties if self._ours(party.domain)])

    def _ours(self, domain: str) -> bool:
        return is_own(self.domains.cache.get(domain))

    def _unusable_routes(self, task: KusciaTask) -> tuple[str, ...]:
        """Routes that exist between two parties, one of them ours, and are not ready. Those nobody made are not missed:
        parties of one machine need none."""
        domains = sorted({party.domain_id for party in task.spec.parties})
        out = []
        for source in domains:
            for destination in domains:
                if source == destination or not (self._ours(source) or self._ours(destination)):
                    continue
                for route in self.routes.cache.by_index(BY_ENDS, f"{source}>{destination}"):
                    ready = route.ready
                    if ready is None or ready.status != "True":
                        why = f": {ready.message or ready.reason}" if ready is not None else ""
                        out.append(f"the route from {source} to {destination} is not ready{why}")
        return tuple(out)

    def _age(self, task: KusciaTask) -> float:
        uid = task.metadata.uid
        if by_state(task) != (_WAITING,):
            self._forget(uid)
            return 0.0
        now = self._clock.monotonic()
        return now - self._first_seen.setdefault(uid, now)

    def _forget(self, uid: str) -> None:
        self._first_seen.pop(uid, None)
        self._trouble.pop(uid, None)

    # Making.

    def _allotted(self, view: TaskView, status: KusciaTaskStatus) -> KusciaTaskStatus:
        task = view.task
        self._pool.release(task.metadata.uid)
        uid = task.metadata.uid
        try:
            allotted = tuple(
                PartyAllocatedPorts(
                    domain_id=party.domain,
                    role=party.role,
                    named_port=self._pool.allot(uid, party.domain, party.port_keys),
                )
                for party in view.own
            )
            return replace(status, allocated_ports=allotted)
        except EngineTemplateError as problem:
            self._pool.release(uid)
            return replace(status, phase=str(TaskPhase.FAILED), reason="NoFreePorts", message=str(problem))

    async def _make(self, view: TaskView, status: KusciaTaskStatus) -> KusciaTaskStatus:
        """The group and its reservations first: pods are made with everything the scheduler has to know of them."""
        numbers = numbers_of(status.allocated_ports)
        reserved = await self._make_reservations(view)
        made = [
            self._make_pod(view, place, party, which, numbers, reserved[party.domain, party.role])
            for place, party in enumerate(view.parties)
            if party in view.own
            for which in party.pods
        ]
        results = await _all(made)
        services = {name: service for found in results for name, service in found.items()}
        return replace(status, service_statuses=services or None)

    async def _make_reservations(self, view: TaskView) -> dict[tuple[str, str], render.Reservation]:
        """By domain and role of the parties whose reservations we keep."""
        task = view.task
        body = render.group(task, view.own, initiates=view.initiates, digits=lambda: uid4()[-12:])
        with _refusing("", "", TASK_RESOURCE_GROUPS, body):
            group = await self._ensure(task, TASK_RESOURCE_GROUPS, body)
        now = rfc3339(self._clock.now())
        owner = reference(TASK_RESOURCE_GROUPS, group.metadata)
        workloads = {(workload.domain, workload.role): workload for workload in view.own}
        parties = [
            party
            for party in (*(group.spec.parties or ()), *(group.spec.out_of_controlled_parties or ()))
            if party.task_resource_name
        ]

        async def reserve(party: GroupParty) -> render.Reservation:
            workload = workloads.get((party.domain_id, party.role))
            pods = [render.reserved_pod(workload, which) for which in workload.pods] if workload is not None else []
            body = task_resource(group, party, owner, pods, now)
            # A partner's own status must not speak of what was refused to us.
            whose = (party.domain_id, party.role) if workload is not None else ("", "")
            with _refusing(*whose, TASK_RESOURCES, body):
                made = await self._ensure(task, TASK_RESOURCES, body)
            return render.Reservation(made.metadata.name, made.metadata.uid, group.metadata.uid)

        found = await _all([reserve(party) for party in parties])
        return {(party.domain_id, party.role): each for party, each in zip(parties, found, strict=True)}

    async def _make_pod(
        self,
        view: TaskView,
        place: int,
        party: PartyWorkload,
        which: PodWorkload,
        numbers: render.Numbers,
        reservation: render.Reservation,
    ) -> dict[str, ServiceOfTask]:
        task = view.task
        runtime_class = self._quotas.runtime_class_of(task.spec.initiator)
        body = render.pod(task, party, which, numbers, reservation, runtime_class, int(view.stall_seconds))
        with _refusing(party.domain, party.role, PODS, body):
            pod = await self._ensure_pod(task, body)
        owner = reference(PODS, pod.metadata)
        services = render.services(task, party, which, numbers, owner)
        maps = [render.values_map(task, view.parties, place, which, numbers, owner)]
        if which.index == 0 and (templates := render.template_map(task, party, owner)) is not None:
            maps.append(templates)
        await _all(
            [
                *(self._create_for(task, party, SERVICES, service) for service in services),
                *(self._create_for(task, party, CONFIG_MAPS, each) for each in maps),
            ]
        )
        now = rfc3339(self._clock.now())
        return {
            f"{party.domain}/{each['metadata']['name']}": ServiceOfTask(
                namespace=party.domain,
                service_name=each["metadata"]["name"],
                port_name=each["spec"]["ports"][0]["name"],
                port_number=each["spec"]["ports"][0]["port"],
                scope=each["metadata"]["labels"][labels.KUSCIA_PORT_SCOPE],
                create_time=now,
            )
            for each in services
        }

    async def _ensure_pod(self, task: KusciaTask, body: Object) -> Pod:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            made = await self._client.create(PODS.as_dynamic, body)
            pod = msgspec.convert(made, Pod)
        except AlreadyExists:
            try:
                pod = await self._client.get(PODS, name, namespace)
            except NotFound as gone:
                raise InTheWay(f"Pod {namespace}/{name}") from gone
            if (pod.metadata.labels or {}).get(labels.KUSCIA_TASK_UID) != task.metadata.uid:
                if task.metadata.name in by_name(pod):
                    await self._delete_pod(pod)  # of a task that had our name, and therefore is gone
                raise InTheWay(f"Pod {namespace}/{name}") from None
        self._expected.expect(task.key, pod.metadata.resource_version)
        return pod

    async def _create_for(self, task: KusciaTask, workload: PartyWorkload, kind: Kind[Any], body: Object) -> None:
        with _refusing(workload.domain, workload.role, kind, body):
            await self._ensure(task, kind, body)

    async def _ensure(self, task: KusciaTask, kind: Kind[A], body: Object) -> A:
        """Created, or as it is there already: it is ours when an earlier attempt was interrupted. What an earlier task of
        our name left is about to be collected, so it must not be taken for ours."""
        try:
            return msgspec.convert(await self._client.create(kind.as_dynamic, body), kind.type)
        except AlreadyExists:
            name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")
            what = f"{kind.resource.kind} {namespace}/{name}" if namespace else f"{kind.resource.kind} {name}"
            try:
                found = await self._client.get(kind, name, namespace)
            except NotFound as gone:
                raise InTheWay(what) from gone
            if (found.metadata.labels or {}).get(labels.KUSCIA_TASK_UID) == task.metadata.uid:
                return found
            if kind.resource == TASK_RESOURCE_GROUPS.resource:  # nothing else collects it
                await self._delete(kind, name, namespace, found.metadata.uid)
            raise InTheWay(what) from None

    async def _follow_limits(self, view: TaskView) -> None:
        """Gives the Services of a running task the limits that its spec has now. Gateways follow the Services."""
        task = view.task
        uid = task.metadata.uid
        if task.metadata.generation <= 1 or task.status.phase in TASK_ENDED:
            self._limits.pop(uid, None)
            return
        if not is_true(task.status.conditions, RESOURCE_CREATED):
            return
        wanted = render.limits_of(view.own)
        if self._limits.get(uid) == wanted:
            return
        selector = f"{labels.KUSCIA_TASK_UID}={uid}"
        for party in view.own:
            annotations = render.limit_annotations(party.bandwidth)
            mine = {name for which in party.pods for name in which.services.values()}
            for service in (await self._client.list(SERVICES, party.domain, labels=selector)).items:
                if service.metadata.name not in mine:
                    continue
                known = {
                    key: value
                    for key, value in (service.metadata.annotations or {}).items()
                    if key.startswith(labels.KUSCIA_BANDWIDTH_LIMIT_PREFIX)
                }
                if known == annotations:
                    continue
                patch = {"metadata": {"annotations": {**dict.fromkeys(known), **annotations}}}
                with contextlib.suppress(NotFound):
                    await self._client.patch(SERVICES, service.metadata.name, party.domain, patch)
        self._limits[uid] = wanted
        self._log.info("Bandwidth limits of the task changed", task=task.metadata.name, limits=len(wanted))

    # Ending.

    async def _clean(self, view: TaskView) -> None:
        """Everything but the pods that failed, which people want to look at."""
        task = view.task
        domains = sorted({pod.metadata.namespace for pod in view.pods.values()} | {party.domain for party in view.own})
        for domain in domains:
            await self._delete_services(task, domain)
        await asyncio.gather(*(self._delete_pod(pod) for pod in view.pods.values() if _goes(pod)))
        if view.group is not None:
            await self._delete(TASK_RESOURCE_GROUPS, view.group.metadata.name, "", view.group.metadata.uid)

    async def _remove(self, task: KusciaTask) -> Result:
        """The task is being deleted: so is everything of it, asked of the server because the cache may be behind."""
        if not task.metadata.has_finalizer(labels.FINALIZER_TASK):
            return DONE
        selector = f"{labels.KUSCIA_TASK_UID}={task.metadata.uid}"
        left = 0
        for domain in sorted({party.domain_id for party in task.spec.parties}):
            pods = (await self._client.list(PODS, domain, labels=selector)).items
            left += len(pods)
            await asyncio.gather(*(self._delete_pod(pod) for pod in pods))
            if pods:
                await self._delete_services(task, domain)
        await self._delete_group(task.metadata.name, lambda uid: uid == task.metadata.uid)
        if left:
            return Result(after=_IN_THE_WAY)
        self._pool.release(task.metadata.uid)
        self._forget(task.metadata.uid)
        self._limits.pop(task.metadata.uid, None)
        meta = task.metadata
        await remove_finalizer(
            self._client, KUSCIA_TASKS, meta.name, meta.namespace, labels.FINALIZER_TASK, uid=meta.uid
        )
        return DONE

    async def _remove_orphans(self, key: ObjectKey) -> Result:
        """Pods and group whose task is gone. The cache may be behind, so the server is asked whether it is."""
        found = self.pods.cache.by_index(BY_NAME, key.name)
        if not found and self.groups.cache.get(key.name) is None:
            return DONE
        try:
            current = (await self._client.get(KUSCIA_TASKS, key.name, key.namespace)).metadata.uid
        except NotFound:
            current = ""
        orphans = [pod for pod in found if current not in by_task(pod)]
        if orphans:
            self._log.warning("Removing pods whose task is gone", task=key.name, pods=len(orphans))
        await asyncio.gather(*(self._delete_pod(pod) for pod in orphans))
        await self._delete_group(key.name, lambda uid: bool(uid) and uid != current)
        return DONE

    async def _delete_group(self, name: str, chosen: Callable[[str], bool]) -> None:
        """The group of this name when it is of a task that is chosen by its uid; groups that carry none are others'."""
        try:
            meta = (await self._client.get(Kind.metadata(TASK_RESOURCE_GROUPS.resource), name)).metadata
        except NotFound:
            return
        if chosen((meta.labels or {}).get(labels.KUSCIA_TASK_UID, "")):
            await self._delete(TASK_RESOURCE_GROUPS, name, "", meta.uid)

    async def _delete_services(self, task: KusciaTask, domain: str) -> None:
        """They belong to the pods, but a pod that stays must not stay reachable."""
        selector = f"{labels.KUSCIA_TASK_UID}={task.metadata.uid}"
        for service in (await self._client.list(SERVICES, domain, labels=selector)).items:
            await self._delete(SERVICES, service.metadata.name, domain, service.metadata.uid)

    async def _delete_pod(self, pod: Pod) -> None:
        if not pod.metadata.deleting:
            await self._delete(PODS, pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)

    async def _delete(self, kind: Kind[Any], name: str, namespace: str, uid: str) -> None:
        try:
            await self._client.delete(kind, name, namespace, uid=uid)
        except NotFound:
            return

    # Writing.

    async def _write(self, task: KusciaTask, status: KusciaTaskStatus) -> KusciaTask:
        if changes(task.status, status) is None:
            return task
        status = replace(status, last_reconcile_time=rfc3339(self._clock.now()))
        meta = task.metadata
        patch = {
            "metadata": preconditions(task),
            "status": changes(task.status, status),
        }
        try:
            written = await self._client.patch_status(KUSCIA_TASKS, meta.name, meta.namespace, patch)
        except ApiError:
            if status.allocated_ports != task.status.allocated_ports:
                self._pool.learn(meta.uid, _ports_of(task))  # nobody knows of the others
            raise
        if status.phase != task.status.phase:
            self._record_event(task, status)
        elif status.phase not in TASK_ENDED:
            self._record_waiting(task, status)
        return written

    def _record_waiting(self, task: KusciaTask, status: KusciaTaskStatus) -> None:
        """An event when the task begins to wait for something else, and when it stalls; not for each attempt."""
        before = find_condition(task.status.conditions, WAITING)
        now = find_condition(status.conditions, WAITING)
        if is_true(status.conditions, STALLED) and not is_true(task.status.conditions, STALLED):
            TASK_COUNTERS.stalls += 1
            self._log.warning("Task is stalled", task=task.metadata.name, why=status.message)
        if self._events is None or now is None or (before is not None and before.reason == now.reason):
            return
        resource = KUSCIA_TASKS.resource
        about = reference_to(task, api_version=resource.api_version, kind=resource.kind)
        if now.reason == STALLED:
            self._events.warning(about, STALLED, status.message)
        else:
            self._events.normal(about, WAITING, status.message)

    def _record_event(self, task: KusciaTask, status: KusciaTaskStatus) -> None:
        first = status.message.partition("\n")[0]
        TASK_COUNTERS.stall_failures += status.reason == TASK_STALLED
        self._log.info("Task phase changed", task=task.metadata.name, phase=status.phase, why=first)
        self._metrics.tasks.ended(status.phase)
        # The status says how a task goes on; an event of its own is for what somebody should look at.
        if self._events is None or status.phase != TaskPhase.FAILED:
            return
        resource = KUSCIA_TASKS.resource
        about = reference_to(task, api_version=resource.api_version, kind=resource.kind)
        self._events.warning(about, status.reason or "Failed", first or "The task failed")

    def phase_to_reconcile(self, key: ObjectKey) -> str | None:
        """For metrics; None: the task is gone or ended, and there is little to do."""
        task = self.tasks.cache.by_key(key)
        return None if task is None or task.status.phase in TASK_ENDED else task.status.phase

    # Whom a change concerns.

    def keys_of_task(self, task: KusciaTask) -> list[ObjectKey]:
        current = self.tasks.cache.by_key(task.key)
        uid = task.metadata.uid
        if current is not None and current.metadata.uid == uid:
            self._pool.learn(uid, _ports_of(current))
            over = current.status.phase in TASK_ENDED
        else:
            self._pool.release(uid)
            self._made.pop(uid, None)
            self._later.clear(uid)
            self._links_busy = {key: at for key, at in self._links_busy.items() if key[0] != uid}
            over = True
        if not over or not self._quotas.knows(uid):
            return [task.key]
        self._quotas.release(uid)
        # Others may have waited for its place.
        return [task.key, *(each.key for each in self.tasks.cache.by_index(BY_STATE, _WAITING))]

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        name = (pod.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, "")
        ours = (pod.metadata.labels or {}).get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_TASK
        return [ObjectKey(CROSS_DOMAIN, name)] if name and ours else []

    def keys_of_group(self, group: TaskResourceGroup) -> list[ObjectKey]:
        return [ObjectKey(CROSS_DOMAIN, group.metadata.name)]

    def keys_of_policy(self, _: PartnerPolicy) -> list[ObjectKey]:
        return [task.key for task in self.tasks.cache.by_index(BY_STATE, _WAITING)]

    def keys_of_image(self, _: AppImage) -> list[ObjectKey]:
        return [task.key for task in self.tasks.cache.by_index(BY_STATE, _WAITING)]

    def keys_of_route(self, route: ClusterDomainRoute) -> list[ObjectKey]:
        """A route's tokens change all the time; only whether it is usable matters here."""
        name = route.metadata.name
        current = self.routes.cache.get(name)
        usable = current is not None and current.ready is not None and current.ready.status == "True"
        if current is None:
            self._usable.pop(name, None)
        elif self._usable.get(name) == usable:
            return []
        else:
            self._usable[name] = usable
        ends = {route.spec.source, route.spec.destination}
        return [
            task.key
            for state in (_WAITING, _RUNNING)
            for task in self.tasks.cache.by_index(BY_STATE, state)
            if ends <= {party.domain_id for party in task.spec.parties}
        ]


def _ports_of(task: KusciaTask) -> tuple[PartyAllocatedPorts, ...] | None:
    return None if task.status.completion_time else task.status.allocated_ports


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; none of them still runs when the first error is raised, so nothing is created after it.
    Refusals are raised together, unless something else went wrong that a retry may mend."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    errors = [each for each in done if isinstance(each, BaseException)]
    refusals = tuple(refusal for each in errors if isinstance(each, TaskObjectsRefused) for refusal in each.refusals)
    others = [each for each in errors if not isinstance(each, TaskObjectsRefused)]
    if any(each.lasting for each in refusals) or (refusals and not others):
        raise TaskObjectsRefused(refusals)
    if others:
        raise others[0]
    return [each for each in done if not isinstance(each, BaseException)]


@contextmanager
def _refusing(domain: str, role: str, kind: Kind[Any], body: Object) -> Iterator[None]:
    """A create that is refused inside raises `TaskObjectsRefused`, unless the error is transient."""
    try:
        yield
    except ApiError as error:
        chance = outlook(error)
        if chance is Outlook.TRANSIENT:
            raise
        what = f"{kind.resource.kind} {body['metadata']['name']}"
        refusal = Refusal(domain, role, what, public_reason(error), status_message(error), chance is Outlook.LASTING)
        raise TaskObjectsRefused((refusal,)) from error


def _usage(own: Sequence[PartyWorkload]) -> Usage:
    total = Usage(tasks=1)
    for party in own:
        total += usage_of(party.containers, len(party.pods))
    return total


def _goes(pod: Pod) -> bool:
    """Whether a pod of an ended task is removed with it."""
    return pod.status.phase != "Failed"


def make(
    client: Client,
    informers: Informers,
    *,
    ports: PortPool | None = None,
    quotas: PartnerQuotas | None = None,
    events: EventRecorder | None = None,
    stall_seconds: int = 0,
    metrics: JobMetrics | None = None,
    workers: int = 8,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`ports`, `quotas`: the control plane's; others that give out numbers, or start partners' work, must use the same.
    `stall_seconds`: after how long without activity tasks are shown as Stalled that do not say it; 0: never."""
    quotas = quotas or PartnerQuotas(informers)
    metrics = metrics or JobMetrics()
    reconciler = KusciaTaskReconciler(
        client,
        informers,
        ports=ports or PortPool(),
        quotas=quotas,
        events=events,
        metrics=metrics,
        stall_seconds=stall_seconds,
        clock=clock,
    )
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.tasks, reconciler.keys_of_task),
        Watches(reconciler.pods, reconciler.keys_of_pod),
        Watches(reconciler.groups, reconciler.keys_of_group),
        Watches(reconciler.routes, reconciler.keys_of_route),
        Watches(reconciler.images, reconciler.keys_of_image),
        Watches(quotas.policies, reconciler.keys_of_policy),
    ]
    reconcile = metrics.tasks.timed(reconciler.reconcile, reconciler.phase_to_reconcile, clock)
    return Controller(
        "kusciatask",
        reconcile,
        watches,
        workers=workers,
        clock=clock,
        retry=_RETRY,
        log_facts=lambda key: facts_of_task(key.name, reconciler.tasks.cache.by_key(key)),
    )
