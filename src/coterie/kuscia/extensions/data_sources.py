"""Data sources of lites: a lite's own account cannot open directories outside of the lite's data directory.

The settings of a source are encrypted for the domain, so the control plane cannot see the path. Therefore the lite's data mesh
refuses paths outside of its data directory unless the source has the annotation OUTSIDE_ANNOTATION, and accounts of
domains may neither set it nor change a source that has it.
"""

from __future__ import annotations

from coterie.http.messages import UserInfo
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.sources.local_roots import OUTSIDE_ANNOTATION

_ACCOUNTS = "system:serviceaccount:"


def check_data_source(attempt: AdmissionRequest) -> None:
    resource = DOMAIN_DATA_SOURCES.resource
    if (attempt.resource.group, attempt.resource.plural) != (resource.group, resource.plural):
        return
    if attempt.verb == "delete" or not of_domain(attempt.user, attempt.namespace):
        return
    if fault := annotation_fault(attempt.obj, attempt.old):
        raise Forbidden(f'{resource.plural} "{attempt.name}" is forbidden: {fault}')


def of_domain(user: UserInfo, namespace: str) -> bool:
    """Whether it is the account with which a domain's node calls."""
    return user.name == f"{_ACCOUNTS}{namespace}:{namespace}"


def annotation_fault(obj: Object, old: Object | None) -> str:
    """Pure."""
    before, after = (((each or {}).get("metadata") or {}).get("annotations") or {} for each in (old, obj))
    if OUTSIDE_ANNOTATION not in before and OUTSIDE_ANNOTATION not in after:
        return ""
    if before.get(OUTSIDE_ANNOTATION) == after.get(OUTSIDE_ANNOTATION) and (old or {}).get("spec") == obj.get("spec"):
        return ""
    return (
        "data sources outside of the domain's data directory are opened and changed by the operator at the control plane, "
        "not by the domain's node"
    )
