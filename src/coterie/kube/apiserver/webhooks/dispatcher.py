"""Calls the webhooks that one request concerns: mutating ones in series, validating ones at once.

Objects come and go in the form in which the write path has them (as stored); each webhook sees and patches the version that its
rules name.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base import ids
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.kube.api import errors
from coterie.kube.apiserver import bodies
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.outgoing import OutgoingError, destination
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import VersionView
from coterie.kube.apiserver.webhooks import review
from coterie.kube.apiserver.webhooks.conversion import CrdConversion
from coterie.kube.apiserver.webhooks.matching import Webhook, matches_objects
from coterie.kube.apiserver.webhooks.review import AdmissionDenied, AdmissionVerdict, BadAnswer, ReviewedKind

if TYPE_CHECKING:
    from coterie.kube.api.cel import errors as cel_errors
    from coterie.kube.apiserver.webhooks import conditions
    from coterie.kube.apiserver.webhooks.registry import ReviewServices
else:
    cel_errors = lazy_import("coterie.kube.api.cel.errors")
    conditions = lazy_import("coterie.kube.apiserver.webhooks.conditions")

log = logger("apiserver.webhooks")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SelectedWebhook:
    webhook: Webhook
    view: VersionView
    """The version in which it sees objects."""


class CallFailed(Exception):
    """A webhook gave no answer that counts; its failure policy says what follows."""

    def __init__(self, why: str, error_type: str = "calling_webhook_error") -> None:
        super().__init__(why)
        self.error_type = error_type


def in_namespace(
    selected: Sequence[SelectedWebhook], call: ResourceRequest, namespaces: Collection
) -> tuple[SelectedWebhook, ...]:
    """Those whose namespace selector admits the namespace of the request. For a Namespace its own labels count, which only
    the reviewer knows."""
    if all(each.webhook.namespaces.everything for each in selected):
        return tuple(selected)
    if not call.namespace:
        return tuple(selected)
    entry = namespaces.get("", call.namespace)
    labels = entry.labels if entry is not None else None
    return tuple(each for each in selected if each.webhook.namespaces.matches(labels))


class AdmissionReviewer:
    """The webhooks of one request."""

    def __init__(
        self,
        services: ReviewServices,
        call: ResourceRequest,
        operation: str,
        mutating: tuple[SelectedWebhook, ...],
        validating: tuple[SelectedWebhook, ...],
        *,
        name: str,
        dry_run: bool,
        options: Object | None,
        kind: tuple[str, str, str] | None,
    ) -> None:
        self.mutating = mutating
        self.validating = validating
        self._services = services
        self._call = call
        self._operation = operation
        self._name = name
        self._dry_run = dry_run
        self._options = options
        self._kind = ReviewedKind(*kind) if kind is not None else None

    # -- mutating -----------------------------------------------------------------------------------------------

    async def mutate(self, obj: Object | None, old: Object | None) -> Object | None:
        """The object as the webhooks want it; the very one that was given when they leave it alone."""
        current = obj
        invoked: list[SelectedWebhook] = []
        again: list[SelectedWebhook] = []
        for selected in self.mutating:
            new = await self._mutated(selected, current, old)
            if new is not current:
                # Those before it may want to look at what it did.
                again += [each for each in invoked if each not in again]
                current = new
            if selected.webhook.reinvocable:
                invoked.append(selected)
        for selected in self.mutating:
            if selected in again:
                current = await self._mutated(selected, current, old)
        return current

    async def _mutated(self, selected: SelectedWebhook, obj: Object | None, old: Object | None) -> Object | None:
        name = selected.webhook.name
        shown, shown_old = await self._shown(selected, obj), await self._shown(selected, old)
        verdict = await self._ask(selected, shown, shown_old)
        if verdict is None or not verdict.patch:
            return obj
        if shown is None:
            raise review.internal(
                f'admission webhook "{name}" attempted to modify the object, which is not supported for this operation'
            )
        new = review.patched(shown, verdict.patch, name)
        if new == shown:
            return obj
        try:
            return await self._taken(selected, new)
        except errors.BadRequest as problem:
            raise review.internal(f'admission webhook "{name}" returned a patch: {problem.message}') from problem

    async def _shown(self, selected: SelectedWebhook, obj: Object | None) -> Object | None:
        if obj is None or self._kind is not None:
            return obj
        if isinstance(selected.view.conversion, CrdConversion):
            return (await selected.view.conversion.convert([obj], selected.view.resource.api_version))[0]
        if selected.view.is_storage:
            return obj
        return selected.view.of_stored(deepcopy(obj))

    async def _taken(self, selected: SelectedWebhook, obj: Object) -> Object:
        """What a webhook made of an object, with the types of its kind checked, in the form that was given."""
        if self._kind is not None:
            kind = self._kind
            api_version = f"{kind.group}/{kind.version}" if kind.group else kind.version
            schema = self._services.schemas.get(f"{api_version}/{kind.kind}")
            if schema is not None:
                bodies.check_types(obj, kind.kind, schema)
            return obj
        resource = selected.view.resource
        obj = deepcopy(obj)
        self._services.strategies[(resource.group, resource.version, resource.plural)].read(obj, "Ignore")
        if isinstance(selected.view.conversion, CrdConversion):
            return (await selected.view.conversion.convert([obj], self._call.resource.api_version))[0]
        return selected.view.to_stored(obj)

    # -- validating ---------------------------------------------------------------------------------------------

    async def validate(self, obj: Object | None, old: Object | None) -> None:
        if len(self.validating) == 1:
            await self._validated(self.validating[0], obj, old)
            return
        done = await asyncio.gather(
            *(self._validated(each, obj, old) for each in self.validating), return_exceptions=True
        )
        for problem in done:
            if problem is not None:
                raise problem

    async def _validated(self, selected: SelectedWebhook, obj: Object | None, old: Object | None) -> None:
        await self._ask(selected, await self._shown(selected, obj), await self._shown(selected, old))

    # -- one webhook --------------------------------------------------------------------------------------------

    async def _ask(self, selected: SelectedWebhook, obj: Object | None, old: Object | None) -> AdmissionVerdict | None:
        """Its verdict, which allows the request. None when it is not asked, or its failure is to be ignored."""
        webhook, metrics = selected.webhook, self._services.metrics
        labels = (webhook.name, webhook.kind, self._operation)
        if not self._concerns(webhook, obj, old):
            return None
        request = self._request(selected)
        try:
            if webhook.conditions and not self._conditions_hold(webhook, request, obj, old):
                return None
            started = perf_counter()
            try:
                verdict = await self._call_webhook(webhook, request, obj, old)
            finally:
                metrics.seconds[labels] = metrics.seconds.get(labels, 0.0) + perf_counter() - started
        except CallFailed as failure:
            if webhook.fails_open:
                metrics.opened[labels[:2]] += 1
                log.debug("A failure of a webhook is ignored", webhook=webhook.name, error=failure)
                return None
            metrics.rejections[(*labels, failure.error_type, "0")] += 1
            raise review.internal(f'failed calling webhook "{webhook.name}": {failure}') from failure
        self._noted(webhook, verdict)
        if verdict.allowed:
            metrics.requests[(*labels, "200", "false")] += 1
            return verdict
        denied = AdmissionDenied(webhook.name, verdict.status)
        code = str(denied.rejection_code)
        metrics.requests[(*labels, code, "true")] += 1
        metrics.rejections[(*labels, "no_error", code)] += 1
        raise denied

    def _concerns(self, webhook: Webhook, obj: Object | None, old: Object | None) -> bool:
        resource = self._call.resource
        if resource.kind == "Namespace" and not resource.group and not webhook.namespaces.everything:
            shown = obj if obj is not None else old
            if shown is not None and not webhook.namespaces.matches((shown.get("metadata") or {}).get("labels")):
                return False
        return matches_objects(webhook.objects, obj, old)

    def _conditions_hold(self, webhook: Webhook, request: Object, obj: Object | None, old: Object | None) -> bool:
        values = conditions.variables(self._services.authorizer, self._call.user, request, obj, old)
        try:
            return conditions.hold(webhook, values)
        except (cel_errors.CelError, cel_errors.CompileError) as problem:
            raise CallFailed(f"match condition {problem}", "match_condition_error") from problem

    def _request(self, selected: SelectedWebhook) -> Object:
        call, resource = self._call, self._call.resource
        matched = selected.view.resource
        # For webhooks a namespace lies in itself.
        own = resource.kind == "Namespace" and not resource.group
        return review.admission_request(
            ids.uid4(),
            operation=self._operation,
            kind=self._kind or ReviewedKind.of(matched),
            resource=matched,
            request_kind=self._kind or ReviewedKind.of(resource),
            request_resource=resource,
            subresource=call.target.subresource,
            namespace=self._name if own else call.namespace,
            name=self._name,
            user=call.user,
            dry_run=self._dry_run,
            options=self._options,
        )

    async def _call_webhook(
        self, webhook: Webhook, request: Object, obj: Object | None, old: Object | None
    ) -> AdmissionVerdict:
        version, client = webhook.review_version, webhook.spec.get("clientConfig") or {}
        body = {
            "kind": "AdmissionReview",
            "apiVersion": f"{review.GROUP}/{version}",
            "request": {**request, "object": obj, "oldObject": old},
        }
        try:
            where = destination(client)
            where = replace(where, path=f"{where.path}?timeout={webhook.timeout}s")
        except OutgoingError as problem:
            raise CallFailed(f"failed to call webhook: {problem}") from problem
        try:
            ca_bundle = binascii.a2b_base64(client.get("caBundle") or "")
            answer = await self._services.outgoing().post(where, ca_bundle, orjson.dumps(body), timeout=webhook.timeout)
        except (OutgoingError, ValueError) as problem:
            raise CallFailed(f'failed to call webhook: Post "{where.url}": {problem}') from problem
        try:
            return review.read_verdict(answer, request["uid"], version, mutating=webhook.mutating)
        except BadAnswer as problem:
            raise CallFailed(f"received invalid webhook response: {problem}") from problem

    def _noted(self, webhook: Webhook, verdict: AdmissionVerdict) -> None:
        call = self._call
        call.warnings += [text for text in verdict.warnings if text not in call.warnings]
        for key, text in verdict.annotations.items():
            call.request.annotate(f"{webhook.name}/{key}", text)
