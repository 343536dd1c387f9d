"""delete and deletecollection: preconditions, grace, propagation, finalizers.

An object goes at once only when nobody holds it. Otherwise `deletionTimestamp` is set, and the last one to let go
(the write that removes the last finalizer, or the node agent that ends a pod's grace) makes it vanish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Response
from coterie.kube.api import errors
from coterie.kube.api.labels import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from coterie.kube.api.schema.node import Schema
from coterie.kube.apiserver import bodies, content_negotiation, options, presentation
from coterie.kube.apiserver.admission.chain import AdmissionRequest, LazyStep, Step, admit_all
from coterie.kube.apiserver.admission.steps import PROTECTED_NAMESPACES
from coterie.kube.apiserver.call import STALE, ResourceRequest
from coterie.kube.apiserver.state.entry import ObjectEntry, encode
from coterie.kube.apiserver.state.state import ObjectWrite, ResourceStorage
from coterie.kube.apiserver.verbs import read
from coterie.kube.apiserver.verbs.write import REVIEW_ATTEMPTS, EntryChanged, is_gone
from coterie.kube.apiserver.webhooks.registry import WebhookRegistry

if TYPE_CHECKING:
    from coterie.kube.apiserver.webhooks import conversion
else:
    conversion = lazy_import("coterie.kube.apiserver.webhooks.conversion")

Object = dict[str, Any]
_POLICIES = ("Background", "Foreground", "Orphan")
_FINALIZER_OF = {"Foreground": FINALIZER_FOREGROUND, "Orphan": FINALIZER_ORPHAN}
"""Who has to let go before the object vanishes: the garbage collector, once dependents are dealt with."""
_PARALLEL = 64
_LONGEST_GRACE = 10**9
"""Seconds: some thirty years, so that the moment it ends can be written down."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace: int | None = None
    policy: str = ""
    """Background, Foreground or Orphan; empty when the client does not say, and the object's finalizers decide."""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False
    condition: tuple[str, str, str] | None = None
    """Type, reason and message of a condition that becomes true together with the deletion."""


class DeleteVerbs:
    def __init__(
        self,
        state: ResourceStorage,
        presenter: presentation.Presenter,
        schema: Schema,
        clock: Clock,
        webhooks: WebhookRegistry,
        *,
        admit: LazyStep = admit_all,
        by_kind: Mapping[tuple[str, str], Step] = MappingProxyType({}),
    ) -> None:
        self._admit = admit
        """Who may refuse a deletion that a client asks for."""
        self._by_kind = by_kind
        """The same, by group and plural."""
        self._state = state
        self._present = presenter
        self._schema = schema
        """That of DeleteOptions."""
        self._clock = clock
        self._webhooks = webhooks

    async def delete(self, call: ResourceRequest) -> Response:
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        asked = delete_options(call, self._schema)
        resource = call.resource
        if resource.kind == "Namespace" and not resource.group and call.name in PROTECTED_NAMESPACES:
            raise errors.Forbidden(
                f'namespaces "{call.name}" is forbidden: this namespace may not be deleted',
                name=call.name,
                kind="namespaces",
            )
        before = call.entry()
        entry, gone = await self._delete_reviewed(call, call.namespace, call.name, asked)
        if not gone or resource.returns_deleted:
            if call.converts:
                await conversion.show(call, entry.raw)
            return self._present.one(call, entry.raw, want)
        details = {"name": call.name, "group": resource.group, "kind": resource.plural, "uid": before.uid}
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {key: value for key, value in details.items() if value},
        }
        headers = presentation.warning_headers(call.warnings)
        return Response(200, orjson.dumps(status) + b"\n", headers=headers)

    async def _delete_reviewed(
        self, call: ResourceRequest, namespace: str, name: str, asked: DeleteOptions
    ) -> tuple[ObjectEntry, bool]:
        """As `delete_object`, after the webhooks that deletions concern."""
        if not self._webhooks.active:
            return await self.delete_object(call, namespace, name, asked)
        reviewer = self._webhooks.reviewer(
            call, "DELETE", name=name, dry_run=asked.dry_run, options=_options_json(asked)
        )
        if reviewer is None:
            return await self.delete_object(call, namespace, name, asked)
        for _ in range(REVIEW_ATTEMPTS):
            entry = call.collection.get(namespace, name)
            if entry is None:
                raise call.not_found()
            webhook = call.view.conversion if call.converts else None
            if isinstance(webhook, conversion.CrdConversion):
                old = await webhook.load(call.view, call.collection, entry)
            else:
                old = entry.load()
            await reviewer.mutate(None, old)
            await reviewer.validate(None, old)
            try:
                return await self.delete_object(call, namespace, name, asked, revision=entry.revision)
            except EntryChanged:
                continue
        raise call.conflict(STALE)

    async def delete_object(
        self,
        call: ResourceRequest,
        namespace: str,
        name: str,
        asked: DeleteOptions,
        *,
        revision: int = 0,
        admitted: bool = False,
    ) -> tuple[ObjectEntry, bool]:
        """Delete one object, or mark it for deletion; returns its last state and whether it is gone.

        `revision`: the one that was reviewed; raises EntryChanged when it is another by now. `admitted`: the caller has passed
        admission with another request.
        """
        outcome: list[bool] = []

        def decide(entry: ObjectEntry | None) -> ObjectWrite | None:
            if entry is None:
                raise call.not_found()
            if revision and entry.revision != revision:
                raise EntryChanged
            if not admitted:
                self._admit(lambda: self._attempt(call, entry, asked))
                if step := self._by_kind.get((call.resource.group, call.resource.plural)):
                    step(self._attempt(call, entry, asked))
            write = self._decide(call, entry, asked)
            outcome.append(write is not None and write.value is None)
            return write

        collection = call.collection
        if asked.dry_run:
            entry = collection.get(namespace, name)
            decide(entry)
            assert entry is not None
            return entry, outcome[0]
        written = await self._state.modify(collection, namespace, name, decide)
        assert written is not None
        return written, outcome[-1]

    @staticmethod
    def _attempt(call: ResourceRequest, entry: ObjectEntry, asked: DeleteOptions) -> AdmissionRequest:
        return AdmissionRequest(
            "delete", call.resource, entry.namespace, entry.name, {}, entry.load(), call.user, asked.dry_run,
            warnings=call.warnings, request=call.request,
        )  # fmt: skip

    def _decide(self, call: ResourceRequest, entry: ObjectEntry, asked: DeleteOptions) -> ObjectWrite | None:
        obj = entry.load()
        metadata = obj["metadata"]
        if asked.uid and asked.uid != metadata.get("uid"):
            raise call.conflict(
                f"Precondition failed: UID in precondition: {asked.uid}, UID in object meta: {metadata.get('uid')}"
            )
        if asked.resource_version and asked.resource_version != metadata["resourceVersion"]:
            raise call.conflict(
                f"Precondition failed: ResourceVersion in precondition: {asked.resource_version}, "
                f"ResourceVersion in object meta: {metadata['resourceVersion']}"
            )
        new = marked_for_deletion(obj, asked, self._clock)
        if is_gone(new):
            return ObjectWrite(None)
        if new["metadata"] == metadata and new.get("status") == obj.get("status"):
            return None
        return ObjectWrite(encode(new, call.collection.api_version, call.collection.kind))

    async def delete_collection(self, call: ResourceRequest) -> Response:
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        asked = delete_options(call, self._schema)
        selected = options.list_options(call.request)
        wanted = read.filter_of(call, selected)
        entries, _ = call.collection.page(wanted, "", selected.limit)
        for start in range(0, len(entries), _PARALLEL):
            batch = entries[start : start + _PARALLEL]
            await asyncio.gather(*(self._delete_found(call, entry, asked) for entry in batch))
        if call.converts:
            await conversion.show(call, *(entry.raw for entry in entries))
        return self._present.many(call, entries, want, self._state.revision, "", 0)

    async def _delete_found(self, call: ResourceRequest, entry: ObjectEntry, asked: DeleteOptions) -> None:
        try:
            await self._delete_reviewed(call, entry.namespace, entry.name, asked)
        except errors.NotFound:
            # Somebody else was faster, which is what was wanted.
            return


def delete_options(call: ResourceRequest, schema: Schema) -> DeleteOptions:
    """Options from the body, with those from the query for what it leaves out."""
    request = call.request
    body: Object = {}
    if request.body:
        body = bodies.read_kind(request.body, request.headers.get("content-type", ""), "DeleteOptions", schema)
    preconditions: Object = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is None and request.param("gracePeriodSeconds"):
        grace = options.integer(request, "gracePeriodSeconds")
    if grace is not None and grace < 0:
        raise errors.Invalid("gracePeriodSeconds: Invalid value: must be a non-negative integer")
    policy = body.get("propagationPolicy") or request.param("propagationPolicy")
    orphan = body.get("orphanDependents")
    if orphan is not None and policy:
        raise errors.Invalid("orphanDependents and propagationPolicy are mutually exclusive")
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy and policy not in _POLICIES:
        raise errors.Invalid(
            f'propagationPolicy: Unsupported value: "{str(policy)[:64]}": supported values: '
            '"Background", "Foreground", "Orphan"'
        )
    return DeleteOptions(
        grace=grace,
        policy=policy,
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        dry_run=options.dry_run(body.get("dryRun") or request.params.get("dryRun")),
    )


def _options_json(asked: DeleteOptions) -> Object:
    """As webhooks see them."""
    out: Object = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
    if asked.grace is not None:
        out["gracePeriodSeconds"] = asked.grace
    if asked.policy:
        out["propagationPolicy"] = asked.policy
    given = {"uid": asked.uid, "resourceVersion": asked.resource_version}
    if preconditions := {key: value for key, value in given.items() if value}:
        out["preconditions"] = preconditions
    if asked.dry_run:
        out["dryRun"] = ["All"]
    return out


def marked_for_deletion(obj: Object, asked: DeleteOptions, clock: Clock) -> Object:
    """The object as a deletion leaves it: who must let go, and how long it may take."""
    metadata = dict(obj["metadata"])
    # The first deletion chooses how dependents are treated.
    if asked.policy and "deletionTimestamp" not in metadata:
        finalizers = [name for name in metadata.get("finalizers") or () if name not in _FINALIZER_OF.values()]
        if asked.policy in _FINALIZER_OF:
            finalizers.append(_FINALIZER_OF[asked.policy])
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
    grace = min(_grace(obj, asked), _LONGEST_GRACE)
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = rfc3339(clock.now() + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
        if "generation" in metadata:
            metadata["generation"] += 1
    elif grace < metadata.get("deletionGracePeriodSeconds", 0):
        metadata["deletionTimestamp"] = rfc3339(clock.now() + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
    new = {**obj, "metadata": metadata}
    if obj.get("kind") == "Namespace":
        new["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    if asked.condition is not None and "deletionTimestamp" not in obj["metadata"]:
        new["status"] = _with_condition(obj.get("status") or {}, *asked.condition, rfc3339(clock.now()))
    return new


def _with_condition(status: Object, type_: str, reason: str, message: str, now: str) -> Object:
    others = [each for each in status.get("conditions") or () if each.get("type") != type_]
    new = {"type": type_, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
    return {**status, "conditions": [*others, new]}


def _grace(obj: Object, asked: DeleteOptions) -> int:
    """Only a pod that runs somewhere is given time to end."""
    if obj.get("kind") != "Pod" or obj.get("apiVersion") != "v1":
        return 0
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked.grace is not None:
        return asked.grace
    current = obj["metadata"].get("deletionGracePeriodSeconds")
    if current is not None:
        return int(current)
    return int(spec.get("terminationGracePeriodSeconds", 30))
