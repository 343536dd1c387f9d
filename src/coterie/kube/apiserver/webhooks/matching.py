"""Rules and selectors of webhooks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.kube.api.admission_match import MatchedRequest, rule_matches
from coterie.kube.api.resources import Resource
from coterie.kube.api.selectors import LabelSelector, selector_of

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration."""

    configuration: str
    name: str
    mutating: bool
    spec: Object = field(repr=False)
    namespaces: LabelSelector
    objects: LabelSelector

    @property
    def kind(self) -> str:
        """As metrics name it."""
        return "admit" if self.mutating else "validating"

    @property
    def fails_open(self) -> bool:
        return bool(self.spec.get("failurePolicy") == "Ignore")

    @property
    def reinvocable(self) -> bool:
        return bool(self.spec.get("reinvocationPolicy") == "IfNeeded")

    @property
    def timeout(self) -> int:
        return int(self.spec.get("timeoutSeconds") or 10)

    @property
    def review_version(self) -> str:
        """The first that both sides know."""
        versions = self.spec.get("admissionReviewVersions") or ()
        return next((version for version in versions if version in ("v1", "v1beta1")), "v1")

    @property
    def conditions(self) -> Sequence[Object]:
        return self.spec.get("matchConditions") or ()


def webhooks_of(configuration: Object, *, mutating: bool) -> list[Webhook]:
    name = configuration["metadata"]["name"]
    return [
        Webhook(
            name,
            spec["name"],
            mutating,
            spec,
            selector_of(spec.get("namespaceSelector") or {}),
            selector_of(spec.get("objectSelector") or {}),
        )
        for spec in configuration.get("webhooks") or ()
    ]


def matched_resource(
    webhook: Webhook, operation: str, resource: Resource, subresource: str, equivalents: Iterable[Resource]
) -> Resource | None:
    """The version in which the webhook wants to see the object: that of the request, or, where its match policy allows it,
    another in which the same object is served. None: its rules do not concern the request."""
    rules = webhook.spec.get("rules") or ()
    request = MatchedRequest(operation, (resource,), subresource, "", None, ())
    if any(rule_matches(rule, request, resource) for rule in rules):
        return resource
    if webhook.spec.get("matchPolicy") == "Exact":
        return None
    for rule in rules:
        for other in equivalents:
            if rule_matches(rule, request, other):
                return other
    return None


def matches_objects(selector: LabelSelector, obj: Object | None, old: Object | None) -> bool:
    """One of the two is enough: nobody gets around a webhook by a change of labels."""
    if selector.everything:
        return True
    return any(selector.matches((each.get("metadata") or {}).get("labels")) for each in (obj, old) if each is not None)
