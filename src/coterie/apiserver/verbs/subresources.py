"""Sub-resources with a life of their own: scale, binding, eviction, finalize, ephemeral containers."""

from __future__ import annotations

from typing import Any

import orjson

from coterie.api import errors, patch, selectors
from coterie.apiserver import bodies, options, present
from coterie.apiserver.call import Call
from coterie.apiserver.http.messages import Response
from coterie.apiserver.state.collection import Collection
from coterie.apiserver.verbs.delete import DeleteOptions, Deleter
from coterie.apiserver.verbs.write import Writer
from coterie.base.clock import Clock, rfc3339

Object = dict[str, Any]


class Subresources:
    def __init__(
        self, writer: Writer, deleter: Deleter, presenter: present.Presenter, budgets: Collection, clock: Clock
    ) -> None:
        self._writer = writer
        self._deleter = deleter
        self._present = presenter
        self._budgets = budgets
        self._clock = clock

    # -- scale --------------------------------------------------------------------------------------------------

    def get_scale(self, call: Call) -> Response:
        return _answer(call.strategy.scale_of(call.view.load(call.entry().raw)))

    async def put_scale(self, call: Call) -> Response:
        body = _read(call, "Scale")
        return await self._scale(call, lambda _: body)

    async def patch_scale(self, call: Call) -> Response:
        media = bodies.media_type(call.request.headers.get("content-type", ""))
        # A Scale has no lists, so a strategic merge of it is a merge.
        media = patch.MERGE_PATCH if media == patch.STRATEGIC_MERGE_PATCH else media
        patch.check_media_type(media, None)
        body = bodies.read_json(call.request.body)
        return await self._scale(call, lambda current: patch.apply_patch(media, current, body))

    async def _scale(self, call: Call, change: Any) -> Response:
        def rescaled(current: Object) -> Object:
            scale = change(call.strategy.scale_of(current))
            spec = scale.get("spec") or {}
            metadata = scale.get("metadata") or {}
            replicas = spec.get("replicas", 0) if isinstance(spec, dict) else None
            if not isinstance(replicas, int) or isinstance(replicas, bool) or not isinstance(metadata, dict):
                raise errors.BadRequest("Scale cannot be read: spec.replicas must be an integer")
            if not 0 <= replicas < 2**31:
                fault = errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
                raise errors.invalid_object("Scale", "autoscaling", call.name, [fault])
            version = metadata.get("resourceVersion")
            wanted = call.strategy.apply_scale(current, scale)
            if version and version != current["metadata"]["resourceVersion"]:
                wanted = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": str(version)}}
            return wanted

        asked = options.write_options(call.request)
        raw = await self._writer.change_object(call, rescaled, asked)
        return _answer(call.strategy.scale_of(call.view.load(raw)))

    # -- pods ---------------------------------------------------------------------------------------------------

    async def bind(self, call: Call) -> Response:
        """POST pods/x/binding: the scheduler's decision, taken once."""
        body = _read(call, "Binding")
        target = body.get("target")
        node = target.get("name") if isinstance(target, dict) else None
        if not isinstance(node, str) or not node:
            raise errors.invalid_object("Binding", "", call.name, [errors.required("target.name")])
        now = rfc3339(self._clock.now())
        given = body.get("metadata") if isinstance(body.get("metadata"), dict) else {}

        def bound(pod: Object) -> Object:
            spec, metadata = pod.get("spec") or {}, pod["metadata"]
            if "deletionTimestamp" in metadata:
                raise call.conflict(f"pod {call.name} is being deleted, cannot be assigned to a host")
            if spec.get("nodeName"):
                raise call.conflict(f'pod {call.name} is already assigned to node "{spec["nodeName"]}"')
            if spec.get("schedulingGates"):
                raise call.conflict(f"pod {call.name} has non-empty .spec.schedulingGates")
            if (given or {}).get("uid") not in (None, "", metadata["uid"]):
                raise call.conflict("the binding is for another pod of this name")
            annotations = {**(metadata.get("annotations") or {}), **((given or {}).get("annotations") or {})}
            status = dict(pod.get("status") or {})
            others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
            status["conditions"] = [*others, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
            if annotations:
                metadata = {**metadata, "annotations": annotations}
            return {**pod, "metadata": metadata, "spec": {**spec, "nodeName": node}, "status": status}

        await self._writer.change_object(call, bound, options.write_options(call.request))
        return _success(201)

    async def evict(self, call: Call) -> Response:
        """POST pods/x/eviction: a deletion that a disruption budget may delay."""
        body = _read(call, "Eviction")
        pod = call.entry().load()
        given = body.get("deleteOptions")
        given = given if isinstance(given, dict) else {}
        blocking = self._blocking_budget(pod)
        if blocking is not None:
            raise errors.TooManyRequests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                causes=[errors.Cause("DisruptionBudget", f"The disruption budget {blocking} does not allow it now.")],
                retry_after=10,
            )
        preconditions = given.get("preconditions")
        preconditions = preconditions if isinstance(preconditions, dict) else {}
        grace = given.get("gracePeriodSeconds")
        if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool) or grace < 0):
            raise errors.Invalid("gracePeriodSeconds: Invalid value: must be a non-negative integer")
        asked = DeleteOptions(
            grace=grace,
            uid=str(preconditions.get("uid") or ""),
            resource_version=str(preconditions.get("resourceVersion") or ""),
            dry_run=options.write_options(call.request).dry_run or given.get("dryRun") == ["All"],
        )
        await self._deleter.delete_object(call, call.namespace, call.name, asked)
        return _success(201)

    def _blocking_budget(self, pod: Object) -> str | None:
        """The name of a budget that covers the pod and has no disruption left to give."""
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending"):
            return None
        for entry in self._budgets.entries(pod["metadata"]["namespace"]):
            budget = entry.load()
            selector = selectors.selector_of((budget.get("spec") or {}).get("selector"))
            if selector.matches(pod["metadata"].get("labels")):
                allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
                if allowed <= 0:
                    return entry.name
        return None

    async def put_ephemeral(self, call: Call) -> Response:
        body = _read(call, "Pod")
        return await self._ephemeral(call, lambda _: body)

    async def patch_ephemeral(self, call: Call) -> Response:
        media = bodies.media_type(call.request.headers.get("content-type", ""))
        patch.check_media_type(media, call.strategy.schema)
        body = bodies.read_json(call.request.body)
        return await self._ephemeral(call, lambda pod: patch.apply_patch(media, pod, body, call.strategy.schema))

    async def _ephemeral(self, call: Call, change: Any) -> Response:
        """Only ephemeral containers are taken from what is sent, and they can only be added."""

        def added(pod: Object) -> Object:
            sent = change(pod)
            call.warnings += call.strategy.read(sent, "Ignore")
            wanted = (sent.get("spec") or {}).get("ephemeralContainers") or []
            present_now = (pod.get("spec") or {}).get("ephemeralContainers") or []
            if wanted[: len(present_now)] != present_now:
                fault = errors.forbidden_field(
                    "spec.ephemeralContainers", "existing ephemeral containers may not be changed or removed"
                )
                raise errors.invalid_object("Pod", "", call.name, [fault])
            return {**pod, "spec": {**(pod.get("spec") or {}), "ephemeralContainers": wanted}}

        raw = await self._writer.change_object(call, added, options.write_options(call.request))
        return Response(200, raw)

    # -- namespaces ---------------------------------------------------------------------------------------------

    async def finalize(self, call: Call) -> Response:
        """PUT namespaces/x/finalize: who cleaned up takes its name off; with the last one the namespace goes."""
        body = _read(call, "Namespace")
        spec = body.get("spec")
        wanted = (spec if isinstance(spec, dict) else {}).get("finalizers") or []
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            raise errors.BadRequest("spec.finalizers must be a list of strings")

        def finalized(namespace: Object) -> Object:
            kept = {**namespace, "spec": {**(namespace.get("spec") or {}), "finalizers": wanted}}
            if not wanted:
                kept["spec"].pop("finalizers")
            metadata = body.get("metadata")
            version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
            if version:
                kept["metadata"] = {**kept["metadata"], "resourceVersion": str(version)}
            return kept

        raw = await self._writer.change_object(call, finalized, options.write_options(call.request))
        return Response(200, raw)


def _read(call: Call, kind: str) -> Object:
    body = bodies.read(call.request.body, call.request.headers.get("content-type", ""))
    if body.get("kind") not in (None, kind):
        raise errors.BadRequest(f"the body must be of kind {kind}, not {str(body['kind'])[:64]}")
    return body


def _answer(obj: Object) -> Response:
    return Response(200, orjson.dumps(obj))


def _success(code: int) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
    return Response(code, orjson.dumps(status) + b"\n")
