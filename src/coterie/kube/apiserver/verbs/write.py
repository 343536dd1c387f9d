"""create, update, patch: read the body, admit it, decide on the current entry, write.

All checks of one write run in one turn of the loop, between reading the current entry and handing the new bytes to
the store, so no other write can come between. A dry run does everything but the handing over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base import ids
from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Response
from coterie.kube.api import errors, names, patch
from coterie.kube.api.fields import apply as server_side_apply
from coterie.kube.api.fields import entries, ownership
from coterie.kube.api.schema.decode import TypeFault
from coterie.kube.apiserver import bodies, content_negotiation, options, presentation, stored_only
from coterie.kube.apiserver.admission.chain import Admission, AdmissionRequest, AdmissionReservations
from coterie.kube.apiserver.call import STALE, ResourceRequest
from coterie.kube.apiserver.kinds import NotDecodable
from coterie.kube.apiserver.state.entry import ObjectEntry, encode, splice
from coterie.kube.apiserver.state.state import Decide, GuardChanged, ObjectWrite, ResourceStorage
from coterie.kube.apiserver.webhooks.registry import WebhookRegistry

if TYPE_CHECKING:
    from coterie.kube.api.rules import pods
    from coterie.kube.apiserver.webhooks import conversion
    from coterie.kube.apiserver.webhooks.dispatcher import AdmissionReviewer
else:
    pods = lazy_import("coterie.kube.api.rules.pods")
    conversion = lazy_import("coterie.kube.apiserver.webhooks.conversion")

Object = dict[str, Any]
Change = Callable[[Object], Object]
"""Current object (in the version of the request) -> wanted object."""

_NAME_TRIES = 8
_GUARD_TRIES = 200
"""Of all who want room or an address at once, one gets it in each round."""
_OTHERS_BUSY = "other servers give away what it needs all the time; please try again"
_MAX_PREFIX = 58
"""Of `generateName`: with five random letters the name is still a label."""
_APPLY = frozenset(("application/apply-patch+yaml", "application/apply-patch+json"))
_EXACT = frozenset(("binding", "ephemeralcontainers", "finalize"))
"""Sub-resources that change just what they are for, also what an update of the object may not touch."""
_COLLECTIONS = frozenset(("annotations", "finalizers", "labels", "managedFields", "ownerReferences"))
"""Of metadata: an empty one is the same as none and is not kept, or `kubectl diff` would show it as a change."""
_LONGEST_SHOWN = 4096
_SUMMARY = 30
_REVIEWED_BY_BODY = frozenset(("binding",))
"""Sub-resources of which webhooks see what was sent, and not the object that it changes."""
REVIEW_ATTEMPTS = 5
"""How often a write is done again because its object changed while webhooks looked at it."""
_KEPT_BY_SERVER = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


class EntryChanged(Exception):
    """The object is not the one that webhooks looked at."""


class WriteVerbs:
    def __init__(
        self,
        state: ResourceStorage,
        admission: Admission,
        presenter: presentation.Presenter,
        clock: Clock,
        stored_only_kinds: Mapping[tuple[str, str], str],
        webhooks: WebhookRegistry,
    ) -> None:
        self._state = state
        self._admission = admission
        self._present = presenter
        self._clock = clock
        self._stored_only = stored_only_kinds
        self._webhooks = webhooks

    # -- create -------------------------------------------------------------------------------------------------

    async def create(self, call: ResourceRequest) -> Response:
        asked = options.write_options(call.request)
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        obj = self._read(call, asked)
        metadata = self._metadata(call, obj)
        if _is_revision(metadata.get("resourceVersion")):
            raise errors.BadRequest("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and not metadata.get("generateName"):
            self._refuse(call, obj, [errors.required("metadata.name", "name or generateName is required")])
        raw = await self.create_object(call, obj, asked)
        return await self._answer(call, raw, want, status=201)

    async def create_object(self, call: ResourceRequest, obj: Object, asked: options.WriteOptions) -> bytes:
        """Create an object that was read and belongs here; returns its stored bytes with revision."""
        generated = not obj["metadata"].get("name")
        for attempt in range(_GUARD_TRIES):
            try:
                return await self._create_once(call, deepcopy(obj) if self._state.store.shared else dict(obj), asked)
            except errors.AlreadyExists:
                if not generated or attempt >= _NAME_TRIES - 1:
                    raise
            except GuardChanged:
                continue
        raise call.conflict(_OTHERS_BUSY)

    async def _create_once(self, call: ResourceRequest, obj: Object, asked: options.WriteOptions) -> bytes:
        strategy, resource, collection = call.strategy, call.resource, call.collection
        given = obj["metadata"]
        name = given.get("name") or given["generateName"][:_MAX_PREFIX] + ids.suffix()
        now = rfc3339(self._clock.now())
        metadata: Object = {"name": name}
        if given.get("generateName"):
            metadata["generateName"] = given["generateName"]
        if resource.namespaced:
            metadata["namespace"] = call.namespace
        metadata["uid"] = ids.uid4()
        metadata["creationTimestamp"] = now
        for key, value in given.items():
            if key not in metadata and key not in _SERVER_ONLY and (value or key not in _COLLECTIONS):
                metadata[key] = value
        obj["metadata"] = metadata
        obj = call.view.to_stored(obj)
        strategy.default(obj)
        strategy.prepare_create(obj)
        owners: list[Object] = []
        if asked.manager:
            # Before admission: what that adds is nobody's, so another manager may apply it later without a conflict.
            owners = ownership.track_update(
                [], None, obj, strategy.storage_schema, manager=asked.manager, operation="Update",
                api_version=resource.api_version, subresource="", now=now, has_status=strategy.has_status,
            )  # fmt: skip
        attempt = AdmissionRequest(
            "create", resource, call.namespace, name, obj, None, call.user, asked.dry_run,
            warnings=call.warnings, request=call.request,
        )  # fmt: skip
        stored: Object | None = None
        if self._webhooks.active or call.converts:
            shown = given.get("name") or ""
            reviewer = self._webhooks.reviewer(
                call, "CREATE", name=shown, dry_run=asked.dry_run, options=_options_json("CreateOptions", asked)
            )
            if reviewer is not None or call.converts:
                obj = attempt.obj = await self._reviewed_create(call, attempt, owners, reviewer)
                attempt.repeated = True
                stored = await self._converted(call, obj)
        with self._admission.reserving() as reserved:
            reserved.admit(attempt)
            self._refuse(call, obj, [*names.validate_meta(obj, resource), *strategy.validate_create(obj)])

            def decide(entry: ObjectEntry | None) -> ObjectWrite:
                if entry is not None:
                    raise errors.AlreadyExists(
                        f'{resource.group_resource} "{name}" already exists',
                        name=name,
                        group=resource.group,
                        kind=resource.plural,
                    )
                return ObjectWrite(encode(stored or obj, collection.api_version, collection.kind))

            if owners:
                obj["metadata"]["managedFields"] = owners
            if asked.dry_run:
                value = decide(collection.get(call.namespace, name)).value
                assert value is not None
                return value
            entry = await self._state.modify(collection, call.namespace, name, decide, reserved)
        assert entry is not None
        return entry.raw

    async def _reviewed_create(
        self, call: ResourceRequest, attempt: AdmissionRequest, owners: list[Object], reviewer: AdmissionReviewer | None
    ) -> Object:
        """The object as webhooks left it. What admission holds meanwhile is given back: they may take their time."""
        strategy = call.strategy
        with self._admission.reserving() as held:
            held.admit(replace(attempt, release=[], preview=True))
        obj = attempt.obj
        if owners:
            obj["metadata"]["managedFields"] = owners
        if reviewer is not None:
            mutated = await reviewer.mutate(obj, None)
            assert mutated is not None
            if mutated is not obj:
                obj = mutated
                strategy.default(obj)
                strategy.prepare_create(obj)
        if reviewer is None or reviewer.validating:
            with self._admission.reserving() as held:
                held.admit(replace(attempt, obj=obj, release=[], repeated=True))
            self._refuse(call, obj, [*names.validate_meta(obj, call.resource), *strategy.validate_create(obj)])
            if reviewer is not None:
                await reviewer.validate(obj, None)
        return obj

    @staticmethod
    async def _converted(call: ResourceRequest, obj: Object) -> Object:
        """As it is stored, where a webhook converts it."""
        webhook = call.view.conversion
        return await webhook.to_storage(call.collection, obj) if isinstance(webhook, conversion.CrdConversion) else obj

    # -- update -------------------------------------------------------------------------------------------------

    async def update(self, call: ResourceRequest) -> Response:
        asked = options.write_options(call.request)
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        obj = self._read(call, asked)
        metadata = self._metadata(call, obj)
        if not metadata.get("name"):
            raise errors.BadRequest("name must be provided")
        if metadata["name"] != call.name:
            raise errors.BadRequest(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({call.name})"
            )
        raw = await self.change_object(call, lambda _: obj, asked)
        return await self._answer(call, raw, want)

    async def change_object(
        self, call: ResourceRequest, change: Change, asked: options.WriteOptions, *, applying: bool = False
    ) -> bytes:
        """Change an existing object; returns its bytes as they are afterwards."""
        if (self._webhooks.active or call.converts) and call.target.subresource not in _REVIEWED_BY_BODY:
            scale = call.target.subresource == "scale"
            reviewer = self._webhooks.reviewer(
                call,
                "UPDATE",
                name=call.name,
                dry_run=asked.dry_run,
                options=_options_json("UpdateOptions", asked),
                kind=("autoscaling", "v1", "Scale") if scale else None,
            )
            if reviewer is not None or call.converts:
                return await self._change_reviewed(call, change, asked, reviewer, track=not applying)

        def decide(entry: ObjectEntry | None) -> ObjectWrite | None:
            if entry is None:
                raise call.not_found()
            return self._decide_update(call, entry, change, asked, reserved, track=not applying)

        for _ in range(_GUARD_TRIES):
            with self._admission.reserving() as reserved:
                try:
                    return await self._written(call, asked, decide, reserved)
                except GuardChanged:
                    continue
        raise call.conflict(_OTHERS_BUSY)

    async def _written(
        self, call: ResourceRequest, asked: options.WriteOptions, decide: Decide, reserved: AdmissionReservations
    ) -> bytes:
        if asked.dry_run:
            entry = call.entry()
            write = decide(entry)
            if write is None or write.value is None:
                return entry.raw
            return splice(write.value, len(call.collection.head), entry.revision)
        written = await self._state.modify(call.collection, call.namespace, call.name, decide, reserved)
        assert written is not None
        return written.raw

    async def _change_reviewed(
        self,
        call: ResourceRequest,
        change: Change,
        asked: options.WriteOptions,
        reviewer: AdmissionReviewer | None,
        *,
        track: bool,
    ) -> bytes:
        """As `change_object`, with webhooks that look at the change first. They see one revision of the object, and the
        write is made only if that is still the current one; else everything is done again."""
        for _ in range(REVIEW_ATTEMPTS):
            entry = call.entry()
            old, current = await self._snapshot(call, entry)
            new, owners = self._draft_update(call, current, old, change, asked, track=track)
            with self._admission.reserving() as held:
                held.admit(self._update_attempt(call, new, old, asked, preview=True))
            if owners:
                new["metadata"]["managedFields"] = owners
            if reviewer is not None:
                new = await self._mutated_update(call, new, old, reviewer)
            if reviewer is None or reviewer.validating:
                with self._admission.reserving() as held:
                    held.admit(self._update_attempt(call, new, old, asked, repeated=True))
                self._check_update(call, new, old)
                if reviewer is not None:
                    await reviewer.validate(*self._shown_update(call, new, old))
            stored = await self._converted(call, new) if call.converts else new
            try:
                with self._admission.reserving() as reserved:
                    return await self._written(
                        call,
                        asked,
                        self._decide_reviewed(call, entry.revision, new, stored, old, owners, asked, reserved),
                        reserved,
                    )
            except (EntryChanged, GuardChanged):
                continue
        raise call.conflict(STALE)

    def _decide_reviewed(
        self,
        call: ResourceRequest,
        revision: int,
        new: Object,
        stored: Object,
        old: Object,
        owners: list[Object],
        asked: options.WriteOptions,
        reserved: AdmissionReservations,
    ) -> Decide:
        def decide(found: ObjectEntry | None) -> ObjectWrite | None:
            if found is None:
                raise call.not_found()
            if found.revision != revision:
                raise EntryChanged
            reserved.admit(self._update_attempt(call, new, old, asked, repeated=True))
            self._check_update(call, new, old)
            write = self._write_of(call, new, old, owners)
            if stored is new or write is None or write.value is None:
                return write
            return ObjectWrite(encode(stored, call.collection.api_version, call.collection.kind))

        return decide

    @staticmethod
    async def _snapshot(call: ResourceRequest, entry: ObjectEntry) -> tuple[Object, Object]:
        """The object as the write path compares with, and a copy of it in the version of the request."""
        webhook = call.view.conversion
        if call.converts and isinstance(webhook, conversion.CrdConversion):
            old = await webhook.load(call.view, call.collection, entry)
            return old, deepcopy(old)
        return entry.load(), call.view.load(entry.raw)

    async def _mutated_update(
        self, call: ResourceRequest, new: Object, old: Object, reviewer: AdmissionReviewer
    ) -> Object:
        strategy, subresource = call.strategy, call.target.subresource
        shown, shown_old = self._shown_update(call, new, old)
        mutated = await reviewer.mutate(shown, shown_old)
        assert mutated is not None
        if mutated is shown:
            return new
        if subresource == "scale":
            mutated = strategy.apply_scale(new, mutated)
        elif subresource == "finalize":
            # Nothing else of the namespace is checked on this path.
            wanted = (mutated.get("spec") or {}).get("finalizers") or []
            mutated = {**new, "spec": {**(new.get("spec") or {}), "finalizers": wanted}}
        self._prepare_update(call, mutated, old)
        return mutated

    @staticmethod
    def _shown_update(call: ResourceRequest, new: Object, old: Object) -> tuple[Object, Object]:
        if call.target.subresource != "scale":
            return new, old
        return call.strategy.scale_of(new), call.strategy.scale_of(old)

    def _decide_update(
        self,
        call: ResourceRequest,
        entry: ObjectEntry,
        change: Change,
        asked: options.WriteOptions,
        reserved: AdmissionReservations,
        *,
        track: bool,
    ) -> ObjectWrite | None:
        old = entry.load()
        new, owners = self._draft_update(call, call.view.load(entry.raw), old, change, asked, track=track)
        reserved.admit(self._update_attempt(call, new, old, asked))
        self._check_update(call, new, old)
        return self._write_of(call, new, old, owners)

    def _draft_update(
        self,
        call: ResourceRequest,
        current: Object,
        old: Object,
        change: Change,
        asked: options.WriteOptions,
        *,
        track: bool,
    ) -> tuple[Object, list[Object]]:
        """The object as the client wants it, before admission, and the owners of its fields. `current` is `old` in the version
        of the request, in a copy of its own: what a change leaves alone it shares, and defaults are filled in in place."""
        strategy, resource, subresource = call.strategy, call.resource, call.target.subresource
        wanted = change(current)
        new = self._with_kept_metadata(call, wanted, old)
        new = call.view.to_stored(new)
        self._prepare_update(call, new, old)
        owners: list[Object] = wanted["metadata"].get("managedFields") or []
        if track:
            owners = ownership.track_update(
                entries.choose_managed_fields(old, wanted, subresource), old, new, strategy.storage_schema,
                manager=asked.manager, operation="Update", api_version=resource.api_version,
                subresource=subresource, now=rfc3339(self._clock.now()), has_status=strategy.has_status,
            )  # fmt: skip
        return new, owners

    @staticmethod
    def _prepare_update(call: ResourceRequest, new: Object, old: Object) -> None:
        strategy, subresource = call.strategy, call.target.subresource
        if subresource == "status":
            strategy.prepare_status(new, old)
        elif subresource == "approval":
            strategy.prepare_approval(new, old)
        elif subresource == "ephemeralcontainers":
            strategy.default(new)
        elif subresource == "resize":
            pods.prepare_resize(new, old)
            strategy.default(new)
        elif subresource not in _EXACT:
            strategy.default(new)
            strategy.prepare_update(new, old)

    @staticmethod
    def _update_attempt(
        call: ResourceRequest,
        new: Object,
        old: Object,
        asked: options.WriteOptions,
        *,
        preview: bool = False,
        repeated: bool = False,
    ) -> AdmissionRequest:
        return AdmissionRequest(
            "update", call.resource, call.namespace, call.name, new, old, call.user, asked.dry_run,
            call.target.subresource, warnings=call.warnings, request=call.request, preview=preview, repeated=repeated,
        )  # fmt: skip

    def _check_update(self, call: ResourceRequest, new: Object, old: Object) -> None:
        strategy, resource, subresource = call.strategy, call.resource, call.target.subresource
        faults = [*names.validate_meta(new, resource), *names.validate_meta_update(new, old)]
        if subresource == "status":
            faults += strategy.validate_status(new, old)
        elif subresource == "approval":
            faults += strategy.validate_approval(new, old)
        elif subresource == "ephemeralcontainers":
            faults += pods.validate_ephemeral_update(new, old)
        elif subresource == "resize":
            faults += pods.validate_resize(new, old)
        elif subresource not in _EXACT:
            faults += strategy.validate_update(new, old)
        self._refuse(call, new, faults)

    @staticmethod
    def _write_of(call: ResourceRequest, new: Object, old: Object, owners: list[Object]) -> ObjectWrite | None:
        if owners:
            new["metadata"]["managedFields"] = owners
        else:
            new["metadata"].pop("managedFields", None)
        if is_gone(new):
            return ObjectWrite(None)
        if same(new, old):
            return None
        return ObjectWrite(encode(new, call.collection.api_version, call.collection.kind))

    def _with_kept_metadata(self, call: ResourceRequest, wanted: Object, old: Object) -> Object:
        """The wanted object with what only the server may set taken from the old one; preconditions checked."""
        if not isinstance(wanted.get("metadata"), dict):
            raise errors.BadRequest("metadata must be an object")
        metadata = {k: v for k, v in wanted["metadata"].items() if v or k not in _COLLECTIONS}
        kept = old["metadata"]
        version = metadata.pop("resourceVersion", None)
        if version not in (None, "", "0"):
            if version != kept["resourceVersion"]:
                raise call.conflict(STALE)
        elif not call.strategy.unconditional_update and call.verb == "update":
            self._refuse(
                call, wanted, [errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")]
            )
        if metadata.get("uid") not in (None, "", kept.get("uid")):
            raise call.conflict(
                f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {kept.get('uid')}"
            )
        for key in _KEPT_BY_SERVER:
            if key in kept:
                metadata[key] = kept[key]
            else:
                metadata.pop(key, None)
        if "generation" in kept:
            metadata["generation"] = kept["generation"]
        if "generateName" in kept:
            metadata.setdefault("generateName", kept["generateName"])
        metadata.setdefault("name", kept["name"])
        if "namespace" in kept:
            metadata.setdefault("namespace", kept["namespace"])
        return {**wanted, "metadata": metadata}

    # -- patch --------------------------------------------------------------------------------------------------

    async def patch(self, call: ResourceRequest) -> Response:
        asked = options.write_options(call.request)
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        media = bodies.media_type(call.request.headers.get("content-type", ""))
        if media in _APPLY:
            return await self._apply(call, asked, want)
        schema = call.strategy.schema if call.strategy.strategic_merge else None
        patch.check_media_type(media, schema)
        body = bodies.read_json(call.request.body)
        if asked.force:
            raise errors.Invalid("force: Forbidden: may not be specified for non-apply patch")

        def change(current: Object) -> Object:
            patched = patch.apply_patch(media, current, body, schema)
            self._check_identity(call, patched, current, body)
            try:
                call.warnings += call.strategy.read(patched, asked.validation)
            except NotDecodable as problem:
                raise _bad_patch(media, body, problem.fault) from None
            self._warn(call, patched)
            return patched

        raw = await self.change_object(call, change, asked)
        return await self._answer(call, raw, want)

    async def _apply(
        self, call: ResourceRequest, asked: options.WriteOptions, want: content_negotiation.NegotiatedFormat
    ) -> Response:
        if not asked.explicit_manager:
            raise errors.Invalid("fieldManager: Required value: is required for apply patch")
        applied = bodies.read_yaml(call.request.body) if not call.request.body.startswith(b"{") else bodies.read_json(call.request.body)  # fmt: skip
        if not isinstance(applied, dict):
            raise errors.BadRequest("an apply patch must be one object")
        self._check_kind(call, applied)
        metadata = self._metadata(call, applied)
        if metadata.setdefault("name", call.name) != call.name:
            raise errors.BadRequest(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({call.name})"
            )
        call.warnings += call.strategy.read(applied, asked.validation)
        self._warn(call, applied)
        resource = call.resource

        def merged(live: Object | None) -> Object:
            obj, managed = server_side_apply.apply(
                live, applied, call.strategy.schema, manager=asked.manager, force=asked.force,
                api_version=resource.api_version, subresource=call.target.subresource,
                now=rfc3339(self._clock.now()), has_status=call.strategy.has_status,
            )  # fmt: skip
            metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
            return {**obj, "metadata": {**metadata, "managedFields": managed} if managed else metadata}

        # Others may create or delete the object between the look at it and the write: then look again.
        while True:
            if call.collection.get(call.namespace, call.name) is not None:
                try:
                    raw = await self.change_object(call, merged, asked, applying=True)
                    return await self._answer(call, raw, want)
                except errors.NotFound:
                    continue
            if call.target.subresource:
                raise call.not_found()
            if metadata.get("resourceVersion") not in (None, "", "0") or metadata.get("uid"):
                raise call.conflict("the object does not exist, but the patch names a version or uid of it")
            try:
                raw = await self._create_once(call, merged(None), replace(asked, manager=""))
                return await self._answer(call, raw, want, status=201)
            except errors.AlreadyExists:
                continue

    @staticmethod
    def _check_identity(call: ResourceRequest, patched: Object, current: Object, body: Any) -> None:
        """A patch may not turn an object into another one, or leave one that cannot be read."""
        for key in ("apiVersion", "kind"):
            if patched.get(key) == current.get(key):
                continue
            if patched.get(key) is not None:
                raise errors.invalid_object(
                    call.resource.kind, call.resource.group, call.name,
                    [errors.invalid(key, patched[key], f"must be {current.get(key)}")],
                )  # fmt: skip
            if call.resource.custom and key == "kind":
                raise _bad_patch(patch.MERGE_PATCH, body, "Object 'Kind' is missing")
            patched[key] = current[key]
        if not isinstance(patched.get("metadata"), dict):
            raise errors.BadRequest("metadata: a patch may not remove it")
        metadata = WriteVerbs._metadata(call, patched)
        if metadata.get("name", call.name) != call.name:
            raise errors.BadRequest(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({call.name})"
            )

    # -- shared -------------------------------------------------------------------------------------------------

    async def _answer(
        self, call: ResourceRequest, raw: bytes, want: content_negotiation.NegotiatedFormat, *, status: int = 200
    ) -> Response:
        """With the object as it is now, in the version of the request."""
        if call.converts:
            await conversion.show(call, raw)
        return self._present.one(call, raw, want, status=status)

    def _read(self, call: ResourceRequest, asked: options.WriteOptions) -> Object:
        request = call.request
        obj = bodies.read(request.body, request.headers.get("content-type", ""))
        if call.resource.custom and not obj.get("kind"):
            text = request.body.decode("utf-8", "replace")
            summary = text if len(text) <= _SUMMARY else text[:_SUMMARY] + " ..."
            raise errors.BadRequest(
                f"the object provided is unrecognized (must be of type {call.resource.kind}): "
                f"{_missing_kind(text)} ({summary})"
            )
        self._check_kind(call, obj)
        if asked.explicit_validation and asked.validation != "Ignore" and request.body[:1] == b"{":
            # Only for who asked: the parser that tells is several times slower than the one that does not.
            repeated = [f'duplicate field "{name}"' for name in bodies.duplicate_fields(request.body)]
            if repeated and asked.validation == "Strict":
                raise errors.BadRequest("strict decoding error: " + ", ".join(repeated))
            call.warnings += repeated
        call.warnings += call.strategy.read(obj, asked.validation)
        self._warn(call, obj)
        return obj

    def _warn(self, call: ResourceRequest, obj: Object) -> None:
        """Of what is stored and has no effect."""
        if not call.target.subresource:
            resource = call.resource
            for sentence in stored_only.warnings_for(resource.group, resource.kind, obj, self._stored_only):
                if sentence not in call.warnings:
                    call.warnings.append(sentence)

    @staticmethod
    def _check_kind(call: ResourceRequest, obj: Object) -> None:
        resource = call.resource
        kind, version = obj.setdefault("kind", resource.kind), obj.setdefault("apiVersion", resource.api_version)
        if kind != resource.kind or version != resource.api_version:
            raise errors.BadRequest(
                f"{kind} in version {str(version)!r} cannot be handled as a {resource.kind}: "
                f"this path takes {resource.kind} of {resource.api_version}"
            )

    @staticmethod
    def _metadata(call: ResourceRequest, obj: Object) -> Object:
        if obj.get("metadata") is None:
            obj["metadata"] = {}
        metadata: Object = obj["metadata"]
        if not isinstance(metadata, dict):
            raise errors.BadRequest("metadata must be an object")
        if call.resource.namespaced:
            given = metadata.get("namespace")
            if given not in (None, "", call.namespace):
                raise errors.BadRequest(
                    f"the namespace of the provided object does not match the namespace sent on the request: "
                    f"{given} is not {call.namespace}"
                )
            metadata["namespace"] = call.namespace
        elif metadata.get("namespace"):
            raise errors.BadRequest(f"metadata.namespace must be empty: {call.resource.kind} belongs to no namespace")
        return metadata

    @staticmethod
    def _refuse(call: ResourceRequest, obj: Object, faults: list[errors.FieldError]) -> None:
        if faults:
            metadata = obj.get("metadata") or {}
            name = metadata.get("name") or metadata.get("generateName") or ""
            raise errors.invalid_object(call.resource.kind, call.resource.group, name, faults)


def _options_json(kind: str, asked: options.WriteOptions) -> Object:
    """As webhooks see them."""
    out: Object = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if asked.dry_run:
        out["dryRun"] = ["All"]
    if asked.manager:
        out["fieldManager"] = asked.manager
    if asked.explicit_validation:
        out["fieldValidation"] = asked.validation
    return out


_SERVER_ONLY = frozenset(
    ("selfLink", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
)


def _missing_kind(text: str) -> str:
    return f"Object 'Kind' is missing in '{text[:_LONGEST_SHOWN]}'"


def _bad_patch(media: str, body: Any, fault: str) -> errors.Invalid:
    """The answer of Kubernetes to a patch whose result is no object of the kind. It shows the patch, not the result: that
    may be a Secret, and errors are logged by clients."""
    shown = orjson.dumps(body).decode()
    if media == patch.STRATEGIC_MERGE_PATCH:
        shown = _go_text(body)
        fault = fault.conversion if isinstance(fault, TypeFault) else fault
    quoted = orjson.dumps(shown[:_LONGEST_SHOWN]).decode()
    detail = f"Invalid value: {quoted}: {fault}"
    return errors.invalid_object("", "", "", [errors.FieldError("patch", "FieldValueInvalid", detail)])


def _go_text(value: Any) -> str:
    """As Go prints maps and lists (`%+v`)."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_go_text(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(_go_text, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)


def _is_revision(value: Any) -> bool:
    """Kubernetes takes everything that is no number, or zero, for none."""
    return isinstance(value, str) and value.isascii() and value.isdigit() and int(value) > 0


def is_gone(obj: Object) -> bool:
    """Deletion was asked for, nobody holds the object any more, and no grace is left to wait for."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (obj.get("spec") or {}).get("finalizers") if obj.get("kind") == "Namespace" else True


def same(new: Object, old: Object) -> bool:
    """Nothing changed, so nothing is written and the resourceVersion stays."""
    return _compared(new) == _compared(old)


def _compared(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    if "managedFields" in metadata:
        # When an apply finds everything as it wants it (defaults filled in), its time alone is no change.
        metadata["managedFields"] = [{**entry, "time": ""} for entry in metadata["managedFields"]]
    return {**obj, "metadata": metadata, "apiVersion": "", "kind": ""}
