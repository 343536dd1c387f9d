"""Keeps the status of PodDisruptionBudgets: how many of their pods may be evicted now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object, ObjectKey, OwnerReference, controller_of
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.apps import DEPLOYMENTS, REPLICA_SETS, Deployment, ReplicaSet
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.policy import POD_DISRUPTION_BUDGETS, PodDisruptionBudget, PodDisruptionBudgetStatus
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, discover
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.controllers.disruption.plan import (
    ControllerScale,
    ExpectedPodsUnknown,
    failed,
    has_failed,
    needs_scale,
    status_patch,
    sync,
)

_RETRY_SECONDS = 30.0
"""How often a budget is tried again whose pods have no controller with a scale: nothing that is watched may announce one."""


class DisruptionReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._catalogue = RestMapper(())
        self.budgets = informers.get(POD_DISRUPTION_BUDGETS)
        self.pods = informers.get(PODS)
        self.replica_sets = informers.get(REPLICA_SETS)
        self.deployments = informers.get(DEPLOYMENTS)
        self._log = logger("controllers.disruption")

    async def reconcile(self, key: ObjectKey) -> Result:
        budget = self.budgets.cache.by_key(key)
        if budget is None or budget.metadata.deleting:
            return DONE
        selector = selector_of(budget.spec.selector)
        pods = [pod for pod in self.pods.cache.list(key.namespace) if selector.matches(pod.metadata.labels)]
        try:
            scales = await self._scales(pods) if needs_scale(budget.spec) else {}
            outcome = sync(budget, pods, scales, self._clock.now())
        except ExpectedPodsUnknown as problem:
            await self._fail(budget, str(problem))
            return Result(after=_RETRY_SECONDS)
        except Conflict:
            raise
        except ApiError as problem:
            await self._fail(budget, problem.message)
            raise
        if not pods and budget.status.observed_generation != budget.metadata.generation:
            self._record(budget, "Normal", "NoPods", "No matching pods found")
        for pod in outcome.not_deleted:
            self._record(pod, "Warning", "NotDeleted", f"Pod was expected by PDB {key} to be deleted but it wasn't")
        await self._write(budget, outcome.status)
        return Result(after=outcome.recheck)

    async def _fail(self, budget: PodDisruptionBudget, message: str) -> None:
        if not has_failed(budget.status):
            message_text = f"Failed to calculate the number of expected pods: {message}"
            self._record(budget, "Warning", "CalculateExpectedPodCountFailed", message_text)
            self._log.warning("Cannot compute a disruption budget", budget=str(budget.key), why=message)
        await self._write(budget, failed(budget, message, self._clock.now()))

    async def _write(self, budget: PodDisruptionBudget, status: PodDisruptionBudgetStatus) -> None:
        patch = status_patch(budget.status, status)
        if patch is None:
            return
        meta = budget.metadata
        # The version protects what an eviction has written since: a conflict computes again from the new state.
        body: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch}
        try:
            await self._client.patch_status(POD_DISRUPTION_BUDGETS, meta.name, meta.namespace, body)
        except NotFound:
            return

    async def _scales(self, pods: Sequence[Pod]) -> dict[str, ControllerScale | None]:
        out: dict[str, ControllerScale | None] = {}
        for pod in pods:
            owner = controller_of(pod.metadata)
            if owner is not None and owner.uid not in out:
                out[owner.uid] = await self._scale(owner, pod.metadata.namespace)
        return out

    async def _scale(self, owner: OwnerReference, namespace: str) -> ControllerScale | None:
        """None when the controller does not exist any more."""
        group = owner.api_version.rpartition("/")[0]
        if (group, owner.kind) != ("apps", "ReplicaSet"):
            return await self._scale_subresource(owner, group, namespace)
        replica_set = self.replica_sets.cache.get(owner.name, namespace)
        if replica_set is None or replica_set.metadata.uid != owner.uid:
            return None
        above = controller_of(replica_set.metadata)
        if above is not None and above.kind == "Deployment":
            deployment = self.deployments.cache.get(above.name, namespace)
            if deployment is not None and deployment.metadata.uid == above.uid:
                return ControllerScale(above.uid, deployment.replicas)
        return ControllerScale(owner.uid, replica_set.replicas)

    async def _scale_subresource(self, owner: OwnerReference, group: str, namespace: str) -> ControllerScale | None:
        resource = self._catalogue.of_group_kind(group, owner.kind)
        if resource is None:
            self._catalogue = await discover(self._client)
            resource = self._catalogue.of_group_kind(group, owner.kind)
        if resource is None:
            raise ExpectedPodsUnknown(f'no matches for kind "{owner.kind}" in group "{group}"')
        if resource.subresource("scale") is None:
            raise ExpectedPodsUnknown(f"{resource.group_resource} does not implement the scale subresource")
        try:
            scale = await self._client.get(Kind.dynamic(resource), owner.name, namespace, subresource="scale")
        except NotFound:
            return None
        if (scale.get("metadata") or {}).get("uid") != owner.uid:
            return None
        return ControllerScale(owner.uid, int((scale.get("spec") or {}).get("replicas") or 0))

    def _record(
        self, about: PodDisruptionBudget | Pod, type_: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        if self._events is None:
            return
        of_budget = isinstance(about, PodDisruptionBudget)
        api_version, kind = ("policy/v1", "PodDisruptionBudget") if of_budget else ("v1", "Pod")
        self._events.record(reference_to(about, api_version=api_version, kind=kind), type_, reason, message)

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        return self._matching(pod.metadata.namespace, pod.metadata.labels)

    def keys_of_workload(self, workload: ReplicaSet | Deployment) -> list[ObjectKey]:
        """A new scale counts at once: it need not change any pod, since a quota may refuse the new ones."""
        template = (workload.spec.template or {}).get("metadata") or {}
        return self._matching(workload.metadata.namespace, template.get("labels"))

    def _matching(self, namespace: str, labels: Mapping[str, str] | None) -> list[ObjectKey]:
        return [
            budget.key
            for budget in self.budgets.cache.list(namespace)
            if selector_of(budget.spec.selector).matches(labels)
        ]


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 2,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `disruption-controller`; the caller runs it."""
    reconciler = DisruptionReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.budgets, own_key),
        Watches(reconciler.pods, reconciler.keys_of_pod),
        Watches(reconciler.replica_sets, reconciler.keys_of_workload),
        Watches(reconciler.deployments, reconciler.keys_of_workload),
    ]
    return Controller("disruption", reconciler.reconcile, watches, workers=workers, clock=clock)
