"""Writes to the API that are evidence: recorded before they happen, and refused when they cannot be recorded.

What the node's own controllers write all the time (status, pods, leases) is not; what they decide about jobs and grants follows from objects
(`follower.py`). A write that validation refuses afterwards has its event all the same: it says that somebody tried.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from coterie.http.messages import UserInfo
from coterie.kube.api.errors import ServiceUnavailable
from coterie.kube.apiserver.audit import CONNECTIONS
from coterie.kube.apiserver.paths import RequestInfo
from coterie.kuscia.api import evidence, labels
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder

_KUSCIA, _COTERIE, _RBAC = "kuscia.secretflow", "coterie.io", "rbac.authorization.k8s.io"

KINDS: Final = {
    (_KUSCIA, "domaindatagrants"): evidence.GRANT_MADE,
    (_COTERIE, "actiongrants"): evidence.GRANT_MADE,
    (_KUSCIA, "domainroutes"): evidence.ROUTE_CHANGED,
    (_KUSCIA, "clusterdomainroutes"): evidence.ROUTE_CHANGED,
    (_KUSCIA, "interopconfigs"): evidence.ROUTE_CHANGED,
    (_KUSCIA, "appimages"): evidence.ENGINE_CHANGED,
    (_KUSCIA, "partnerpolicies"): evidence.POLICY_CHANGED,
    (_KUSCIA, "domains"): evidence.CERTIFICATE_CHANGED,
    ("certificates.k8s.io", "certificatesigningrequests"): evidence.CERTIFICATE_CHANGED,
    (_KUSCIA, "domaindatas"): evidence.DATA_CHANGED,
    (_KUSCIA, "domaindatasources"): evidence.DATA_CHANGED,
    (_KUSCIA, "kusciajobs"): evidence.JOB_CREATED,
    (_KUSCIA, "logrequests"): evidence.LOGS_ASKED,
    (_KUSCIA, "jobplanrequests"): evidence.PLAN_ASKED,
}
"""What a write of these is called; all others are `api.write`."""
_CREATED: Final = frozenset((evidence.JOB_CREATED, evidence.LOGS_ASKED))
"""Later writes of such an object are something else."""
_LONGEST_FACT = 128
_DELETED: Final = {evidence.GRANT_MADE: evidence.GRANT_REVOKED, evidence.PLAN_ASKED: evidence.API_WRITE}
_STATUS: Final = {(_KUSCIA, "jobplanrequests"): evidence.PLAN_ANSWERED}
"""Kinds whose status is an answer that leaves the domain."""
_JOBS: Final = (_KUSCIA, "kusciajobs")
_DEPLOYMENTS: Final = (_KUSCIA, "kusciadeployments")
_ACTIONS: Final = (_COTERIE, "actions")
_MOST_TABLES = 64
_MIRRORED: Final = frozenset(("kusciajobsummaries", "kusciatasksummaries", "kusciadeploymentsummaries"))
"""What partners report of their side all the time, in the namespace that is theirs; what follows from it is `follower.py`'s."""
_UNRECORDED: Final = frozenset(("system:apiserver", "system:coterie-bootstrap"))
"""What a server or node makes of itself at its start; it must start also when nothing can be recorded, to say so."""
_SYSTEM = ("system:coterie-controllers", "system:node:")
"""The node's own controllers and agents. Other names of Kubernetes' system are used by nobody here but people."""
_ADMINISTRATION: Final = frozenset(
    ("", each)
    for each in (
        "limitranges",
        "namespaces",
        "nodes",
        "persistentvolumes",
        "resourcequotas",
        "secrets",
        "serviceaccounts",
    )
)
_ADMINISTRATION_GROUPS: Final = frozenset(
    (
        _RBAC,
        _KUSCIA,
        _COTERIE,
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "certificates.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "scheduling.k8s.io",
        "storage.k8s.io",
    )
)
"""Who may do what, and what protects it. Workloads of the domain's own people (pods, ConfigMaps, Deployments) are not evidence, but
connections into their pods are."""


class EvidenceGate:
    """A WriteGate of the API server."""

    def __init__(self, recorder: EvidenceRecorder) -> None:
        self._recorder = recorder

    def wants(self, user: UserInfo, target: RequestInfo) -> bool:
        if user.name in _UNRECORDED:
            return False
        if user.name.startswith(_SYSTEM):
            # What controllers decide by themselves about these is evidence too.
            kind = (target.group, target.resource)
            if kind == _JOBS and (target.verb != "create" or target.namespace != CROSS_DOMAIN):
                return False  # what becomes of a job, and its mirror at a partner
            if kind == _DEPLOYMENTS:
                # A partner's service that is taken, accepted, changed or ended here; not its mirror at a partner.
                return target.namespace == CROSS_DOMAIN and not target.subresource
            return kind in _STATUS if target.subresource == "status" else kind in KINDS and not target.subresource
        if target.resource in _MIRRORED and user.name == f"system:serviceaccount:{target.namespace}:{target.namespace}":
            return False
        if target.subresource in CONNECTIONS or target.group in _ADMINISTRATION_GROUPS:
            return True
        if target.group:
            return False
        return (target.group, target.resource) in _ADMINISTRATION or (
            target.resource == "configmaps" and target.name == DOMAIN_CONFIG
        )

    async def before(self, user: UserInfo, target: RequestInfo, body: bytes) -> None:
        try:
            await self._recorder.record(request_of(user, target, body))
        except EvidenceError as problem:
            raise ServiceUnavailable(f"{evidence.NOT_RECORDED}: {problem}", retry_after=5) from problem


def request_of(user: UserInfo, target: RequestInfo, body: bytes) -> EventRequest:
    """Pure. The body itself is never recorded; its digest goes through a commitment, since small bodies can be guessed."""
    kind = KINDS.get((target.group, target.resource), evidence.API_WRITE)
    if target.subresource == "status":
        kind = _STATUS.get((target.group, target.resource), evidence.API_WRITE)
    elif target.subresource or (kind in _CREATED and target.verb != "create"):
        kind = evidence.API_WRITE
    if target.verb.startswith("delete"):
        kind = _DELETED.get(kind, kind)
    what = f"{target.group or 'core'}/{target.resource}" + (f"/{target.subresource}" if target.subresource else "")
    name = f"{target.namespace}/{target.name or _name_in(body)}#{hashlib.sha256(body).hexdigest()}"
    job = target.name or _name_in(body) if kind == evidence.JOB_CREATED else ""
    more = _engine_in(body) if kind == evidence.ENGINE_CHANGED else {}
    event = EvidenceEvent(kind=kind, verb=target.verb, object=(what,), job=job, more=more)
    tables = _tables_in(body) if (target.group, target.resource) == _ACTIONS else ()
    return EventRequest(event=event, person=user.name, object_name=name, tables=tables)


class _EngineMetadata(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}


class _EngineImage(msgspec.Struct, frozen=True):
    id: str = ""


class _EngineSpec(msgspec.Struct, frozen=True):
    image: _EngineImage = _EngineImage()


class _EngineBody(msgspec.Struct, frozen=True):
    metadata: _EngineMetadata = _EngineMetadata()
    spec: _EngineSpec = _EngineSpec()


def _engine_in(body: bytes) -> dict[str, str]:
    """Which version of which engine an AppImage is, and the digest that it requires, as far as the body says so."""
    try:
        found = msgspec.json.decode(body, type=_EngineBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    marks = found.metadata.annotations
    facts = {
        "engine": marks.get(labels.COTERIE_ENGINE, ""),
        "version": marks.get(labels.COTERIE_ENGINE_VERSION, ""),
        "digest": found.spec.image.id,
    }
    return {key: value[:_LONGEST_FACT] for key, value in facts.items() if value}


class _ActionBodySpec(msgspec.Struct, frozen=True):
    tables: tuple[str, ...] | None = None


class _ActionBody(msgspec.Struct, frozen=True):
    spec: _ActionBodySpec = _ActionBodySpec()


def _tables_in(body: bytes) -> tuple[str, ...]:
    """The domain's own tables that an Action may read from now on, as far as the body says so: as the inputs of a task of its own, they are
    recorded when it is decided, not at each read."""
    try:
        tables = msgspec.json.decode(body, type=_ActionBody).spec.tables or ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(each[:253] for each in tables[:_MOST_TABLES])


class _NamedMetadata(msgspec.Struct, frozen=True):
    name: str = ""


class _NamedBody(msgspec.Struct, frozen=True):
    metadata: _NamedMetadata = _NamedMetadata()


def _name_in(body: bytes) -> str:
    """Of what is created; empty for bodies that are not JSON."""
    try:
        return msgspec.json.decode(body, type=_NamedBody).metadata.name[:253]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
