"""Which admission webhooks a request concerns.

While there is no configuration, `active` is false and nothing else of this package is loaded. The webhooks of a resource and
operation are found once and remembered until a configuration or the set of served resources changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.kube.api.admission_match import is_exempt
from coterie.kube.apiserver.auth.nodes import NodeAuthorizer
from coterie.kube.apiserver.bootstrap import LOOPBACK
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.kinds import Strategy
from coterie.kube.apiserver.metrics import Metrics
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.state import ResourceStorage
from coterie.kube.apiserver.state.watching import StoredChange

if TYPE_CHECKING:
    from coterie.kube.api.schema.builtin import BuiltinSchemas
    from coterie.kube.apiserver.outgoing import Outgoing
    from coterie.kube.apiserver.webhooks import dispatcher, matching
else:
    dispatcher = lazy_import("coterie.kube.apiserver.webhooks.dispatcher")
    matching = lazy_import("coterie.kube.apiserver.webhooks.matching")

Object = dict[str, Any]
GROUP = "admissionregistration.k8s.io"
_MUTATING = f"/registry/{GROUP}/mutatingwebhookconfigurations"
_VALIDATING = f"/registry/{GROUP}/validatingwebhookconfigurations"
Selected = tuple[tuple["dispatcher.SelectedWebhook", ...], tuple["dispatcher.SelectedWebhook", ...]]
"""Mutating and validating webhooks, in the order in which they are called."""


@dataclass(slots=True)
class WebhookMetrics:
    """Under the names of Kubernetes."""

    requests: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    """By name, type, operation, code and whether it was rejected."""
    rejections: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    """By name, type, operation, type of error and code of the rejection."""
    opened: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By name and type: failures that were ignored."""
    seconds: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By name, type and operation: time spent waiting for answers."""

    def describe(self, metrics: Metrics) -> None:
        prefix = "apiserver_admission_webhook"
        for name, text, labels, counter in (
            (f"{prefix}_request_total", "Requests to admission webhooks.",
             ("name", "type", "operation", "code", "rejected"), self.requests),
            (f"{prefix}_rejection_count", "Requests that admission webhooks rejected or failed.",
             ("name", "type", "operation", "error_type", "rejection_code"), self.rejections),
            (f"{prefix}_fail_open_count", "Failures of admission webhooks that were ignored.",
             ("name", "type"), self.opened),
            (f"{prefix}_admission_duration_seconds_sum", "Seconds spent waiting for admission webhooks.",
             ("name", "type", "operation"), self.seconds),
        ):  # fmt: skip
            metrics.gauge(name, text, _reader(labels, counter), "counter")


def _reader(labels: Sequence[str], counter: Mapping[Any, float]) -> Callable[[], Iterable[tuple[str, float]]]:
    return lambda: [
        (",".join(f'{label}="{value}"' for label, value in zip(labels, key, strict=True)), count)
        for key, count in counter.items()
    ]


@dataclass(frozen=True, slots=True)
class ReviewServices:
    """What calling webhooks needs of the server."""

    outgoing: Callable[[], Outgoing]
    strategies: Mapping[tuple[str, str, str], Strategy]
    schemas: BuiltinSchemas
    authorizer: NodeAuthorizer
    namespaces: Collection
    clock: Clock
    metrics: WebhookMetrics


class WebhookRegistry:
    def __init__(self, state: ResourceStorage, services: ReviewServices) -> None:
        self.active = False
        """Whether there is any configuration."""
        self._state = state
        self._services = services
        self._selected: dict[tuple[str, str, str, str, str], Selected] = {}
        for key in (_MUTATING, _VALIDATING):
            state.observe(key, self._changed)

    def refresh(self) -> None:
        """Configurations were loaded, or other resources are served."""
        self._selected.clear()
        self.active = any(len(self._state.collection(key)) for key in (_MUTATING, _VALIDATING))

    def _changed(self, _: Sequence[StoredChange]) -> None:
        self.refresh()

    def reviewer(
        self,
        call: ResourceRequest,
        operation: str,
        *,
        name: str,
        dry_run: bool = False,
        options: Object | None = None,
        kind: tuple[str, str, str] | None = None,
    ) -> dispatcher.AdmissionReviewer | None:
        """None when no webhook concerns the request. `kind`: group, version and kind of what is reviewed, where it is not
        the resource itself."""
        resource, target = call.resource, call.target
        # What the server itself needs to start must not depend on others, and nobody may lock out who can repair it.
        if is_exempt(resource) or call.user is LOOPBACK:
            return None
        key = (resource.group, resource.version, resource.plural, target.subresource, operation)
        found = self._selected.get(key)
        if found is None:
            found = self._selected[key] = (self._select(call, operation, _MUTATING), self._select(call, operation, _VALIDATING))  # fmt: skip
        if not found[0] and not found[1]:
            return None
        mutating, validating = (dispatcher.in_namespace(each, call, self._services.namespaces) for each in found)
        if not mutating and not validating:
            return None
        return dispatcher.AdmissionReviewer(
            self._services,
            call,
            operation,
            mutating,
            validating,
            name=name,
            dry_run=dry_run,
            options=options,
            kind=kind,
        )

    def _select(self, call: ResourceRequest, operation: str, key: str) -> tuple[dispatcher.SelectedWebhook, ...]:
        resource, subresource = call.resource, call.target.subresource
        views = {view.resource: view for view in self._state.views() if view.resource.key == resource.key}
        found = []
        for entry in self._state.collection(key).entries():
            for webhook in matching.webhooks_of(entry.load(), mutating=key == _MUTATING):
                matched = matching.matched_resource(webhook, operation, resource, subresource, views)
                if matched is not None:
                    found.append(dispatcher.SelectedWebhook(webhook, views[matched]))
        return tuple(found)
