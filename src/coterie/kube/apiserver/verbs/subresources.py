"""Sub-resources with a life of their own: scale, binding, finalize, ephemeral containers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Response
from coterie.kube.api import errors, names, patch
from coterie.kube.api.schema.builtin import BuiltinSchemas
from coterie.kube.apiserver import bodies, options
from coterie.kube.apiserver.admission.chain import AdmissionRequest, LazyStep, admit_all
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.verbs.write import WriteVerbs
from coterie.kube.apiserver.webhooks.registry import WebhookRegistry

if TYPE_CHECKING:
    from coterie.kube.apiserver.webhooks import conversion
else:
    conversion = lazy_import("coterie.kube.apiserver.webhooks.conversion")

ConnectVerb = Callable[[ResourceRequest], Response | Awaitable[Response]]
Object = dict[str, Any]
_BINDING = ("", "v1", "Binding")


class Subresources:
    def __init__(
        self,
        writer: WriteVerbs,
        schemas: BuiltinSchemas,
        clock: Clock,
        webhooks: WebhookRegistry,
        *,
        admit: LazyStep = admit_all,
    ) -> None:
        self._admit = admit
        self._writer = writer
        self._schemas = schemas
        self._clock = clock
        self._webhooks = webhooks

    def _read(self, call: ResourceRequest, kind: str, schema_name: str) -> Object:
        request = call.request
        content_type = request.headers.get("content-type", "")
        return bodies.read_kind(request.body, content_type, kind, self._schemas[schema_name])

    # -- admission ----------------------------------------------------------------------------------------------

    async def reviewed(self, call: ResourceRequest, body: Object, kind: tuple[str, str, str]) -> Object:
        """What was sent, as webhooks left it; policies may refuse it."""
        if self._webhooks.active:
            body = await review_body(self._webhooks, call, body, kind)
        self._admit(lambda: body_attempt(call, body, kind))
        return body

    def connected(self, verb: ConnectVerb) -> ConnectVerb:
        """The verb of a connection to a pod, after the policies and webhooks that it concerns."""

        def connect(call: ResourceRequest) -> Response | Awaitable[Response]:
            self._admit(lambda: _connect_attempt(call))
            return self._connect(call, verb) if self._webhooks.active else verb(call)

        return connect

    async def _connect(self, call: ResourceRequest, verb: ConnectVerb) -> Response:
        subresource = call.resource.subresource(call.target.subresource)
        assert subresource is not None
        kind = (subresource.group, subresource.version, subresource.kind)
        reviewer = self._webhooks.reviewer(call, "CONNECT", name=call.name, kind=kind)
        if reviewer is not None:
            if subresource.name != "proxy":
                call.entry()  # of a proxied name scheme and port may be part
            shown = _connect_options(call, subresource.kind)
            if await reviewer.mutate(shown, None) is not shown:
                raise errors.InternalError(
                    "Internal error occurred: an admission webhook attempted to modify the options of a connection, "
                    "which is not supported"
                )
            await reviewer.validate(shown, None)
        answer = verb(call)
        return answer if isinstance(answer, Response) else await answer

    # -- scale --------------------------------------------------------------------------------------------------

    def get_scale(self, call: ResourceRequest) -> Response:
        return _answer(call.strategy.scale_of(call.view.load(call.entry().raw)))

    async def put_scale(self, call: ResourceRequest) -> Response:
        body = self._read(call, "Scale", "autoscaling/v1/Scale")
        return await self._scale(call, lambda _: body)

    async def patch_scale(self, call: ResourceRequest) -> Response:
        media = bodies.media_type(call.request.headers.get("content-type", ""))
        # A Scale has no lists, so a strategic merge of it is a merge.
        media = patch.MERGE_PATCH if media == patch.STRATEGIC_MERGE_PATCH else media
        patch.check_media_type(media, None)
        body = bodies.read_json(call.request.body)
        return await self._scale(call, lambda current: patch.apply_patch(media, current, body))

    async def _scale(self, call: ResourceRequest, change: Any) -> Response:
        def rescaled(current: Object) -> Object:
            scale = change(call.strategy.scale_of(current))
            bodies.check_types(scale, "Scale", self._schemas["autoscaling/v1/Scale"])
            return call.strategy.apply_scale(current, scale)

        asked = options.write_options(call.request)
        raw = await self._writer.change_object(call, rescaled, asked)
        if call.converts:
            await conversion.show(call, raw)
        return _answer(call.strategy.scale_of(call.view.load(raw)))

    # -- pods ---------------------------------------------------------------------------------------------------

    async def bind(self, call: ResourceRequest) -> Response:
        """POST pods/x/binding: the scheduler's decision, taken once."""
        body = self._read(call, "Binding", "v1/Binding")
        if self._webhooks.active:
            body = await review_body(self._webhooks, call, body, _BINDING)
        self._admit(lambda: body_attempt(call, body, _BINDING))
        target, given = body.get("target") or {}, body.get("metadata") or {}
        node = target.get("name")
        faults = (
            [errors.invalid("target.name", node, fault) for fault in names.dns_subdomain_faults(node)]
            if node
            else [errors.required("target.name")]
        )
        if target.get("kind") not in (None, "", "Node"):
            faults.append(errors.not_supported("target.kind", target["kind"], ("Node", "<empty>")))
        if faults:
            raise errors.invalid_object("Binding", "", call.name, faults)
        if given.get("name") not in (None, "", call.name):
            raise errors.BadRequest("the name in the binding does not match the name on the URL")
        now = rfc3339(self._clock.now())

        def bound(pod: Object) -> Object:
            spec, metadata = pod.get("spec") or {}, pod["metadata"]
            if "deletionTimestamp" in metadata:
                raise call.conflict(f"pod {call.name} is being deleted, cannot be assigned to a host")
            if spec.get("nodeName"):
                raise call.conflict(f'pod {call.name} is already assigned to node "{spec["nodeName"]}"')
            if spec.get("schedulingGates"):
                raise call.conflict(f"pod {call.name} has non-empty .spec.schedulingGates")
            if given.get("uid") not in (None, "", metadata["uid"]):
                raise call.conflict("the binding is for another pod of this name")
            annotations = {**(metadata.get("annotations") or {}), **(given.get("annotations") or {})}
            status = dict(pod.get("status") or {})
            others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
            status["conditions"] = [*others, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
            if annotations:
                metadata = {**metadata, "annotations": annotations}
            return {**pod, "metadata": metadata, "spec": {**spec, "nodeName": node}, "status": status}

        await self._writer.change_object(call, bound, options.write_options(call.request))
        return _success(201)

    async def put_ephemeral(self, call: ResourceRequest) -> Response:
        body = self._read(call, "Pod", "v1/Pod")
        return await self._ephemeral(call, lambda _: body)

    async def patch_ephemeral(self, call: ResourceRequest) -> Response:
        media = bodies.media_type(call.request.headers.get("content-type", ""))
        patch.check_media_type(media, call.strategy.schema)
        body = bodies.read_json(call.request.body)
        return await self._ephemeral(call, lambda pod: patch.apply_patch(media, pod, body, call.strategy.schema))

    async def _ephemeral(self, call: ResourceRequest, change: Any) -> Response:
        """Only ephemeral containers are taken from what is sent, and they can only be added."""

        def added(pod: Object) -> Object:
            sent = change(pod)
            call.warnings += call.strategy.read(sent, "Ignore")
            spec = {k: v for k, v in (pod.get("spec") or {}).items() if k != "ephemeralContainers"}
            if wanted := (sent.get("spec") or {}).get("ephemeralContainers"):
                spec["ephemeralContainers"] = wanted
            return {**pod, "spec": spec}

        raw = await self._writer.change_object(call, added, options.write_options(call.request))
        return Response(200, raw)

    # -- namespaces ---------------------------------------------------------------------------------------------

    async def finalize(self, call: ResourceRequest) -> Response:
        """PUT namespaces/x/finalize: who cleaned up takes its name off; with the last one the namespace goes."""
        body = self._read(call, "Namespace", "v1/Namespace")
        wanted = (body.get("spec") or {}).get("finalizers") or []

        def finalized(namespace: Object) -> Object:
            kept = {**namespace, "spec": {**(namespace.get("spec") or {}), "finalizers": wanted}}
            if not wanted:
                kept["spec"].pop("finalizers")
            version = (body.get("metadata") or {}).get("resourceVersion")
            if version:
                kept["metadata"] = {**kept["metadata"], "resourceVersion": version}
            return kept

        raw = await self._writer.change_object(call, finalized, options.write_options(call.request))
        return Response(200, raw)


async def review_body(
    webhooks: WebhookRegistry, call: ResourceRequest, body: Object, kind: tuple[str, str, str]
) -> Object:
    """A body that creates something else than the resource (an Eviction, a Binding), as webhooks left it."""
    group, version, name = kind
    dry_run = options.dry_run(call.request.params.get("dryRun")) if call.request.query else False
    created = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", **({"dryRun": ["All"]} if dry_run else {})}
    reviewer = webhooks.reviewer(call, "CREATE", name=call.name, dry_run=dry_run, options=created, kind=kind)
    if reviewer is None:
        return body
    call.entry()
    metadata = {"name": call.name, "namespace": call.namespace, **(body.get("metadata") or {})}
    shown = {**body, "kind": name, "apiVersion": f"{group}/{version}" if group else version, "metadata": metadata}
    mutated = await reviewer.mutate(shown, None)
    assert mutated is not None
    await reviewer.validate(mutated, None)
    return mutated


def body_attempt(call: ResourceRequest, body: Object, kind: tuple[str, str, str]) -> AdmissionRequest:
    """A body that creates something else than the resource, as an attempt for admission."""
    group, version, name = kind
    shown = {**body, "kind": name, "apiVersion": f"{group}/{version}" if group else version}
    return _attempt("create", call, shown)


def _connect_attempt(call: ResourceRequest) -> AdmissionRequest:
    subresource = call.resource.subresource(call.target.subresource)
    assert subresource is not None
    return _attempt("connect", call, _connect_options(call, subresource.kind))


def _attempt(verb: str, call: ResourceRequest, shown: Object) -> AdmissionRequest:
    dry_run = options.dry_run(call.request.params.get("dryRun")) if call.request.query else False
    return AdmissionRequest(
        verb, call.resource, call.namespace, call.name, shown, None, call.user, dry_run, call.target.subresource,
        warnings=call.warnings, request=call.request,
    )  # fmt: skip


def _connect_options(call: ResourceRequest, kind: str) -> Object:
    """The query of a connection as the object that it stands for."""
    request = call.request
    out: Object = {"kind": kind, "apiVersion": "v1"}
    if kind == "PodPortForwardOptions":
        ports = [int(port) for each in request.params.get("ports", []) for port in each.split(",") if port.isdecimal()]
        return {**out, "ports": ports} if ports else out
    if call.target.subresource == "proxy":
        return {**out, "path": call.target.rest} if call.target.rest else out
    for name in ("stdin", "stdout", "stderr", "tty"):
        if options.boolean(request, name):
            out[name] = True
    if container := request.param("container"):
        out["container"] = container
    if commands := request.params.get("command"):
        out["command"] = commands
    return out


def _answer(obj: Object) -> Response:
    return Response(200, orjson.dumps(obj))


def _success(code: int) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
    return Response(code, orjson.dumps(status) + b"\n")
