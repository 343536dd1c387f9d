"""POST pods/x/eviction: a deletion that a disruption budget may delay.

The budget is spent before the pod is deleted, in one write that looks at what is left; so of many evictions at once
only as many go through as the budget allows. Who keeps budgets gives the allowance back once the pod is replaced.
"""

from __future__ import annotations

from typing import Any

import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.http.messages import Response
from coterie.kube.api import errors, selectors
from coterie.kube.api.schema.node import Schema
from coterie.kube.apiserver import bodies, options
from coterie.kube.apiserver.call import Call
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import Entry, encode
from coterie.kube.apiserver.state.state import State, Write
from coterie.kube.apiserver.verbs.delete import DeleteOptions, Deleter

Object = dict[str, Any]
_NOT_RUNNING = frozenset(("Succeeded", "Failed", "Pending"))


class Evictions:
    def __init__(self, state: State, deleter: Deleter, budgets: Collection, schema: Schema, clock: Clock) -> None:
        self._state = state
        self._deleter = deleter
        self._budgets = budgets
        self._schema = schema
        self._clock = clock

    async def evict(self, call: Call) -> Response:
        request = call.request
        body = bodies.read_kind(request.body, request.headers.get("content-type", ""), "Eviction", self._schema)
        asked = _options(call, body.get("deleteOptions") or {})
        budget = self._budget_of(call.entry().load())
        if budget is not None:
            await self._spend(budget, call.name, asked)
        await self._deleter.delete_object(call, call.namespace, call.name, asked)
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Response(201, orjson.dumps(status) + b"\n")

    def _budget_of(self, pod: Object) -> Entry | None:
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

    async def _spend(self, budget: Entry, pod: str, asked: DeleteOptions) -> None:
        budgets = self._budgets

        def decide(entry: Entry | None) -> Write | None:
            if entry is None:
                return None
            obj = entry.load()
            status: Object = obj.get("status") or {}
            allowed = status.get("disruptionsAllowed") or 0
            if allowed <= 0:
                # Without Retry-After: client libraries would wait that long ten times before their caller sees it.
                raise errors.TooManyRequests(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    causes=[errors.Cause("DisruptionBudget", f"The disruption budget {entry.name} does not allow it now.")],
                )  # fmt: skip
            disrupted = {**(status.get("disruptedPods") or {}), pod: rfc3339(self._clock.now())}
            obj["status"] = {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
            return Write(encode(obj, budgets.api_version, budgets.kind))

        if asked.dry_run:
            decide(budget)
        else:
            await self._state.modify(budgets, budget.namespace, budget.name, decide)


def _options(call: Call, given: Object) -> DeleteOptions:
    preconditions = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    if grace is not None and grace < 0:
        raise errors.Invalid("gracePeriodSeconds: Invalid value: must be a non-negative integer")
    return DeleteOptions(
        grace=grace,
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        dry_run=options.write_options(call.request).dry_run or options.dry_run(given.get("dryRun")),
    )
