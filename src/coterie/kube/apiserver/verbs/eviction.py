"""POST pods/x/eviction: a deletion that a disruption budget may delay.

The budget is spent before the pod is deleted, in one write that looks at what is left; so of many evictions at once
only as many go through as the budget allows. The disruption controller recomputes the allowance when pods change.

A pod that is not ready disrupts nobody when it goes, so it may be evicted without spending the budget:
`unhealthyPodEvictionPolicy: AlwaysAllow` always, `IfHealthyBudget` (the default) when enough other pods are healthy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.http.messages import Response
from coterie.kube.api import errors, selectors
from coterie.kube.api.pod_state import DISRUPTION_TARGET
from coterie.kube.api.schema.node import Schema
from coterie.kube.apiserver import bodies, options
from coterie.kube.apiserver.admission.chain import LazyStep, admit_all
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, encode
from coterie.kube.apiserver.state.state import ObjectWrite, ResourceStorage
from coterie.kube.apiserver.verbs.delete import DeleteOptions, DeleteVerbs
from coterie.kube.apiserver.verbs.subresources import body_attempt, review_body
from coterie.kube.apiserver.webhooks.registry import WebhookRegistry

Object = dict[str, Any]
_NOT_RUNNING = frozenset(("Succeeded", "Failed", "Pending"))
_MAX_DISRUPTED_PODS = 2000
"""Evictions that the disruption controller has not confirmed yet; more would make the object too large."""
_ATTEMPTS = 5
_KIND = ("policy", "v1", "Eviction")


class EvictionVerb:
    def __init__(
        self,
        state: ResourceStorage,
        deleter: DeleteVerbs,
        budgets: Collection,
        schema: Schema,
        clock: Clock,
        webhooks: WebhookRegistry,
        *,
        admit: LazyStep = admit_all,
    ) -> None:
        self._admit = admit
        self._state = state
        self._deleter = deleter
        self._budgets = budgets
        self._schema = schema
        self._clock = clock
        self._webhooks = webhooks

    async def evict(self, call: ResourceRequest) -> Response:
        request = call.request
        body = bodies.read_kind(request.body, request.headers.get("content-type", ""), "Eviction", self._schema)
        if self._webhooks.active:
            body = await review_body(self._webhooks, call, body, _KIND)
        self._admit(lambda: body_attempt(call, body, _KIND))
        asked = _options(call, body.get("deleteOptions") or {})
        for attempt in range(1, _ATTEMPTS + 1):
            pod = call.entry().load()
            budget = self._budget_of(pod)
            guarded = asked
            if budget is not None and not _unhealthy_pod_may_go(pod, budget.load()):
                await self._spend(budget, call.name, asked)
            elif not asked.resource_version:
                # Evicted without a budget because of the state it is in: it must still be in that state when deleted.
                guarded = replace(asked, resource_version=pod["metadata"]["resourceVersion"])
            try:
                await self._deleter.delete_object(call, call.namespace, call.name, guarded, admitted=True)
            except errors.Conflict:
                if guarded is asked or attempt == _ATTEMPTS:
                    raise
                continue
            break
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Response(201, orjson.dumps(status) + b"\n")

    def _budget_of(self, pod: Object) -> ObjectEntry | None:
        """The budget that has a say in this eviction. What does not run, or ends already, is not disrupted by it."""
        metadata = pod["metadata"]
        if (pod.get("status") or {}).get("phase") in _NOT_RUNNING or "deletionTimestamp" in metadata:
            return None
        found = [
            entry
            for entry in self._budgets.entries(metadata["namespace"])
            if selectors.selector_of((entry.load().get("spec") or {}).get("selector")).matches(metadata.get("labels"))
        ]
        if len(found) > 1:
            raise errors.InternalError(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            )
        return found[0] if found else None

    async def _spend(self, budget: ObjectEntry, pod: str, asked: DeleteOptions) -> None:
        budgets = self._budgets

        def decide(entry: ObjectEntry | None) -> ObjectWrite | None:
            if entry is None:
                return None
            new = _spent(entry.load(), pod, rfc3339(self._clock.now()))
            return ObjectWrite(encode(new, budgets.api_version, budgets.kind))

        if asked.dry_run:
            decide(budget)
        else:
            await self._state.modify(budgets, budget.namespace, budget.name, decide)


def _unhealthy_pod_may_go(pod: Object, budget: Object) -> bool:
    """Whether the pod is not ready and the budget lets such pods go without spending anything."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy") or 0
    return desired > 0 and (status.get("currentHealthy") or 0) >= desired


def _spent(budget: Object, pod: str, now: str) -> Object:
    """The budget after one more eviction. Raises when it does not allow one."""
    name: str = budget["metadata"]["name"]
    status: Object = budget.get("status") or {}
    disrupted: Object = status.get("disruptedPods") or {}
    allowed = status.get("disruptionsAllowed") or 0
    generation = budget["metadata"].get("generation") or 0
    if (status.get("observedGeneration") or 0) < generation:
        raise _refused(f"The disruption budget {name} is still being processed by the server.")
    if len(disrupted) > _MAX_DISRUPTED_PODS:
        raise errors.Forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
    if allowed <= 0:
        raise _refused(_why_not(name, status))
    new: Object = {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": {**disrupted, pod: now}}
    if allowed == 1:
        new["conditions"] = _insufficient(status, generation, now)
    return {**budget, "status": new}


def _why_not(name: str, status: Object) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionAllowed" and condition.get("reason") == "SyncFailed":
            message = condition.get("message") or ""
            return (
                f"The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            )
    desired, healthy = status.get("desiredHealthy") or 0, status.get("currentHealthy") or 0
    return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"


def _refused(cause: str) -> errors.TooManyRequests:
    # Without Retry-After: client libraries would wait that long ten times before their caller sees it.
    return errors.TooManyRequests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        causes=[errors.StatusCause("DisruptionBudget", cause)],
    )


def _insufficient(status: Object, generation: int, now: str) -> list[Object]:
    others = [each for each in status.get("conditions") or () if each.get("type") != "DisruptionAllowed"]
    condition = {
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "message": "",
        "lastTransitionTime": now,
        "observedGeneration": generation,
    }
    return [*others, condition]


def _options(call: ResourceRequest, given: Object) -> DeleteOptions:
    preconditions = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    if grace is not None and grace < 0:
        raise errors.Invalid("gracePeriodSeconds: Invalid value: must be a non-negative integer")
    return DeleteOptions(
        condition=(DISRUPTION_TARGET, "EvictionByEvictionAPI", "Eviction API: evicting"),
        grace=grace,
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        dry_run=options.write_options(call.request).dry_run or options.dry_run(given.get("dryRun")),
    )
