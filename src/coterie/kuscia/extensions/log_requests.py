"""LogRequests at the API server: who asked and who decided is written here, and what was asked stays as it was."""

from __future__ import annotations

from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kuscia.api.types.log_request import LOG_REQUESTS
from coterie.kuscia.extensions.data_sources import of_domain


def check_log_request(attempt: AdmissionRequest) -> None:
    resource = LOG_REQUESTS.resource
    if (attempt.resource.group, attempt.resource.plural) != (resource.group, resource.plural):
        return
    if attempt.verb == "delete" or attempt.subresource:
        return
    spec = attempt.obj.get("spec")
    if not isinstance(spec, dict):
        return  # the schema says so
    if attempt.old is None:
        # The account of a domain is its node or its control plane, which passes on who asked there.
        if spec.get("requester") == attempt.namespace and not of_domain(attempt.user, attempt.namespace):
            spec["requestedBy"] = attempt.user.name
        _sign_review(spec, {}, attempt.user.name)
        return
    before = attempt.old.get("spec") or {}
    if fault := change_fault(before, spec):
        raise Forbidden(f'{resource.plural} "{attempt.name}" is forbidden: {fault}')
    _sign_review(spec, before, attempt.user.name)


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
