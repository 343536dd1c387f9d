"""LogRequests at the API server: who asked and who decided is written here, and what was asked stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.state.collection import Collection
from coterie.kuscia.api.types.log_request import LOG_REQUESTS
from coterie.kuscia.extensions.data_sources import of_domain

REQUESTS_KEY: Final = "/registry/kuscia.secretflow/logrequests"
MOST_REQUESTS: Final = 500
"""LogRequests in the namespace of a domain that its own account may make: a partner has no other limit in its namespace here."""


class LogRequestAdmission:
    def __init__(self, find: Callable[[str], Collection | None]) -> None:
        self._find = find

    def __call__(self, attempt: AdmissionRequest) -> None:
        resource = LOG_REQUESTS.resource
        if (attempt.resource.group, attempt.resource.plural) != (resource.group, resource.plural):
            return
        if attempt.verb == "delete" or attempt.subresource:
            return
        spec = attempt.obj.get("spec")
        if not isinstance(spec, dict):
            return  # the schema says so
        if attempt.old is None:
            self._create(attempt, spec)
            return
        before = attempt.old.get("spec") or {}
        if fault := change_fault(before, spec):
            raise _forbidden(attempt, fault)
        _sign_review(spec, before, attempt.user.name)

    def _create(self, attempt: AdmissionRequest, spec: Object) -> None:
        # The account of a domain is its node or its control plane, which passes on who asked there.
        if not of_domain(attempt.user, attempt.namespace):
            if spec.get("requester") == attempt.namespace:
                spec["requestedBy"] = attempt.user.name
        elif (found := self._find(REQUESTS_KEY)) is not None and len(found.names(attempt.namespace)) >= MOST_REQUESTS:
            raise _forbidden(attempt, f"there are {MOST_REQUESTS} log requests in {attempt.namespace} already")
        _sign_review(spec, {}, attempt.user.name)


def _forbidden(attempt: AdmissionRequest, fault: str) -> Forbidden:
    return Forbidden(f'{attempt.resource.plural} "{attempt.name}" is forbidden: {fault}')


def change_fault(before: Object, after: Object) -> str:
    """Pure."""
    changed = sorted(key for key in {*before, *after} if key != "review" and before.get(key) != after.get(key))
    if changed:
        return f"{', '.join(changed)}: only the review of a log request can be changed; make a new request"
    return ""


def _sign_review(spec: Object, before: Object, user: str) -> None:
    review, old = spec.get("review"), before.get("review") or {}
    if isinstance(review, dict) and review != old:
        review["by"] = user
