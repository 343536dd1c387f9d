"""Keeps the reservations of a task's parties together: reads a group with its reservations and pods, asks `plan`, acts."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.ids import uid4
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object, ObjectKey, controller_of, find_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.controller_refs import reference
from coterie.kube.control.deferred import Deferred, earliest
from coterie.kube.control.preconditions import preconditions, write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.reserving import task_resource
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import (
    TASK_RESOURCE_GROUPS,
    GroupParty,
    GroupPhase,
    TaskResourceGroup,
    TaskResourceGroupStatus,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource
from coterie.kuscia.control.task_resources import move_reservation
from coterie.kuscia.controllers.taskresourcegroup.plan import GroupView, Plan, only_informs, refused, settle

_RETRY = Policy(first=0.05, factor=2.0, limit=30.0, jitter=0.1)
"""Shorter pauses than other controllers make: the group's life is checked at each attempt."""


class TaskResourceGroupReconciler:
    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.groups = informers.get(TASK_RESOURCE_GROUPS)
        self.reservations = informers.get(TASK_RESOURCES)
        self.pods = informers.get(PODS)
        self.domains = informers.get(DOMAINS)
        self._later: Deferred[str] = Deferred(clock)
        self._log = logger("controllers.taskresourcegroup")

    async def reconcile(self, key: ObjectKey) -> Result:
        group = self.groups.cache.get(key.name)
        if group is None or group.metadata.deleting:
            self._later.clear(key.name)
            return DONE  # the reservations have an owner, and go with it
        view, wanted = settle(self._view(group))
        informs = only_informs(group.status, wanted.status)
        try:
            if wanted.name_parties:
                await self._name_parties(group, view.kept)
                return DONE
            await self._carry_out(view, wanted)
        except ApiError as error:
            chance = outlook(error)
            if chance is Outlook.TRANSIENT or group.status.phase == GroupPhase.FAILED:
                raise
            self._log.warning("Objects of the group were refused", group=key.name, why=status_message(error))
            wanted = refused(view, status_message(error), lasting=chance is Outlook.LASTING)
            informs = False
        if wanted.status != group.status and informs:
            left = self._later.wait(key.name)
            if left is not None:
                return Result(after=earliest(left, wanted.after))
        self._later.clear(key.name)
        await self._write(group, wanted.status)
        return Result(after=wanted.after)

    def _view(self, group: TaskResourceGroup) -> GroupView:
        initiator = self.domains.cache.get(group.spec.initiator)
        parties = (*(group.spec.parties or ()), *(group.spec.out_of_controlled_parties or ()))
        keys = [ObjectKey(party.domain_id, pod.name) for party in group.spec.parties or () for pod in party.pods or ()]
        now = self._clock.now()
        began = parse_time(group.status.start_time or group.metadata.creation_timestamp)
        moved = parse_time(group.status.last_transition_time)
        return GroupView(
            group=group,
            reservations={
                party.task_resource_name: found
                for party in parties
                if party.task_resource_name
                and (found := self.reservations.cache.get(party.task_resource_name, party.domain_id)) is not None
            },
            pods={key: pod.metadata for key in keys if (pod := self.pods.cache.by_key(key)) is not None},
            waits=self._waits(keys),
            initiates=is_own(initiator),
            age=(now - began).total_seconds() if began is not None else 0.0,
            resting=(now - moved).total_seconds() if moved is not None else 0.0,
            now=rfc3339(now),
        )

    def _waits(self, keys: list[ObjectKey]) -> dict[str, str]:
        found = {key: self.pods.cache.by_key(key) for key in keys}
        pod_conditions = {
            key.namespace: find_condition(pod.status.conditions, "PodScheduled")
            for key, pod in found.items()
            if pod is not None
        }
        return {
            domain: condition.message
            for domain, condition in pod_conditions.items()
            if condition is not None and condition.status == "False"
        }

    # Doing.

    async def _carry_out(self, view: GroupView, wanted: Plan) -> None:
        """Everything but the status."""
        for party in wanted.create:
            await self._create(view.group, party)
        for pod, mark in wanted.mark_pods.items():
            await self._mark(pod, mark)
        for reservation, phase, why in wanted.move:
            await move_reservation(self._client, reservation, phase, why, view.now)

    async def _name_parties(self, group: TaskResourceGroup, kept: tuple[GroupParty, ...]) -> None:
        def named(parties: tuple[GroupParty, ...] | None) -> list[Any]:
            return [
                msgspec.to_builtins(
                    replace(party, task_resource_name=f"{group.metadata.name}-{uid4()[-12:]}")
                    if party in kept and not party.task_resource_name
                    else party
                )
                for party in parties or ()
            ]

        spec = {"parties": named(group.spec.parties)}
        if group.spec.out_of_controlled_parties:
            spec["outOfControlledParties"] = named(group.spec.out_of_controlled_parties)
        patch = {"metadata": preconditions(group), "spec": spec}
        await self._client.patch(TASK_RESOURCE_GROUPS, group.metadata.name, "", patch)

    async def _create(self, group: TaskResourceGroup, party: GroupParty) -> None:
        owner = reference(TASK_RESOURCE_GROUPS, group.metadata)
        pods = [self._pod(party, pod.name) for pod in party.pods or ()]
        body = task_resource(group, party, owner, pods, rfc3339(self._clock.now()))
        try:
            await self._client.create(TASK_RESOURCES.as_dynamic, body)
        except AlreadyExists:
            return  # the cache is behind

    def _pod(self, party: GroupParty, name: str) -> Object:
        pod = self.pods.cache.get(name, party.domain_id)
        asked = [each.resources for each in pod.spec.containers if each.resources is not None] if pod else []
        return {"name": name, "resources": msgspec.to_builtins(asked[0])} if len(asked) == 1 else {"name": name}

    async def _mark(self, key: ObjectKey, mark: Object) -> None:
        try:
            await self._client.patch(PODS, key.name, key.namespace, {"metadata": mark})
        except NotFound:
            return  # it is gone; the task's controller sees to that

    async def _write(self, group: TaskResourceGroup, status: TaskResourceGroupStatus) -> None:
        written = await write_status(self._client, TASK_RESOURCE_GROUPS, group, group.status, status)
        if written and status.phase != group.status.phase:
            self._log.info("Group phase changed", group=group.metadata.name, phase=status.phase)

    # Whom a change concerns.

    def keys_of_reservation(self, reservation: TaskResource) -> list[ObjectKey]:
        owner = controller_of(reservation.metadata)
        return [ObjectKey("", owner.name)] if owner is not None else []

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        """Only until it knows its reservation: what becomes of it afterwards is others' business."""
        noted = pod.metadata.annotations or {}
        group = noted.get(labels.KUSCIA_TASK_RESOURCE_GROUP, "")
        return [ObjectKey("", group)] if group and not noted.get(labels.KUSCIA_TASK_RESOURCE) else []


def make(
    client: Client, informers: Informers, *, workers: int = 4, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = TaskResourceGroupReconciler(client, informers, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.groups, own_key),
        Watches(reconciler.reservations, reconciler.keys_of_reservation),
        Watches(reconciler.pods, reconciler.keys_of_pod),
    ]
    return Controller(
        "taskresourcegroup",
        reconciler.reconcile,
        watches,
        workers=workers,
        clock=clock,
        retry=_RETRY,
        log_facts=lambda key: {"task": key.name},
    )
