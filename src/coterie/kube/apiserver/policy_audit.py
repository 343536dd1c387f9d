"""Audit by a policy: events of `audit.k8s.io/v1`, one for each stage of a request that the policy asks for.

Loaded only when a policy is configured. A request is matched once, when its user is known, by who really asks; what was
decided is kept with the request (`Request.audit`). Bodies of Secrets, tokens and what extensions name are written only by a rule
that names the resource itself: a rule for everything does not mean them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from coterie.base.clock import Clock, rfc3339_micro
from coterie.base.ids import uid4
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response, Sink, Stream, Tunnel, TunnelSink, UserInfo
from coterie.kube.api import errors
from coterie.kube.apiserver import bodies, paths
from coterie.kube.apiserver.audit import AuditObjectReference, AuditRecord, SinkGuard, reference_json, user_json
from coterie.kube.apiserver.audit_policy import (
    COMPLETE,
    LEVEL_NAMES,
    RECEIVED,
    STARTED,
    AuditedRequest,
    AuditLevel,
    AuditPolicy,
    AuditRule,
)
from coterie.kube.apiserver.auth.rbac import RbacDecision

Object = dict[str, Any]
SENSITIVE = frozenset(
    (
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("authentication.k8s.io", "tokenreviews", ""),
    )
)
"""(group, resource, sub-resource) whose bodies are credentials."""
MAX_BODY_BYTES = 100 * 1024
_WRITES = frozenset(("create", "update", "patch", "delete", "deletecollection"))
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOBODY = UserInfo("")
_LONG_RUNNING = frozenset(("attach", "exec", "log", "portforward", "proxy"))


@dataclass(slots=True)
class PendingAudit:
    """What is known of a request that is under way."""

    rule: AuditRule
    audited: AuditedRequest
    reference: AuditObjectReference | None
    id: str
    received: datetime
    decision: RbacDecision | None = None


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    document: Object = field(repr=False)

    def as_json(self) -> Object:
        return self.document


class PolicyAudit:
    def __init__(
        self,
        policy: AuditPolicy,
        record: Callable[[AuditRecord], None],
        clock: Clock,
        sensitive: Collection[tuple[str, str, str]] = (),
    ) -> None:
        """`record`: the sink, which may fail; `sensitive`: more resources whose bodies are secret."""
        self._policy = policy
        self._sink = SinkGuard(record, "audit policy")
        self._clock = clock
        self._sensitive = SENSITIVE | frozenset(sensitive)

    def received(self, request: Request, target: paths.RequestInfo | None) -> None:
        """The user is known."""
        pending = self._pending(request, target, request.impersonator or request.user or _NOBODY)
        request.audit = pending
        if self._wants(pending, RECEIVED):
            self._record(self._event(pending, RECEIVED, request))

    def authorized(self, request: Request, decision: RbacDecision) -> None:
        if isinstance(request.audit, PendingAudit):
            request.audit.decision = decision

    def answered(self, request: Request, target: paths.RequestInfo | None, answer: Response) -> None:
        pending = request.audit
        if not isinstance(pending, PendingAudit):
            # Who asks was not found out, or may not act as somebody else.
            pending = self._pending(request, target, request.user or _NOBODY)
            stage = STARTED if request.user is None else COMPLETE
            if self._wants(pending, stage):
                self._record(self._event(pending, stage, request, answer))
            return
        if not _is_long_running(pending.audited, answer):
            if self._wants(pending, COMPLETE):
                self._record(self._event(pending, COMPLETE, request, answer))
            return
        if self._wants(pending, STARTED):
            self._record(self._event(pending, STARTED, request, answer))
        if self._wants(pending, COMPLETE):
            ended = _Ended(self, pending, request, answer)
            if answer.stream is not None:
                answer.stream = _AuditedStream(answer.stream, ended)
            elif answer.upgrade is not None:
                answer.upgrade = _AuditedTunnel(answer.upgrade, ended)

    def ended(self, pending: PendingAudit, request: Request, answer: Response) -> None:
        self._record(self._event(pending, COMPLETE, request, answer))

    def _pending(self, request: Request, target: paths.RequestInfo | None, user: UserInfo) -> PendingAudit:
        reference = None
        if target is None:
            verb = "get" if request.method == "HEAD" else request.method.lower()
            audited = AuditedRequest(user, verb, request.path)
        else:
            audited = AuditedRequest(
                user, target.verb, request.path, target.group, target.resource, target.subresource,
                target.namespace, target.name,
            )  # fmt: skip
            reference = AuditObjectReference(
                target.group, target.version, target.resource, target.subresource, target.namespace, target.name
            )
        given = request.headers.get("audit-id", "")
        id_ = given if _GIVEN_ID.fullmatch(given) else uid4()
        return PendingAudit(self._policy.rule_for(audited), audited, reference, id_, self._clock.now())

    @staticmethod
    def _wants(pending: PendingAudit, stage: str) -> bool:
        return pending.rule.level > AuditLevel.NONE and stage not in pending.rule.omit_stages

    def _record(self, document: Object) -> None:
        self._sink.record(PolicyEvent(document))

    def _event(self, pending: PendingAudit, stage: str, request: Request, answer: Response | None = None) -> Object:
        audited = pending.audited
        out: Object = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": LEVEL_NAMES[pending.rule.level],
            "auditID": pending.id,
            "stage": stage,
            "requestURI": quote(request.path) + (f"?{request.query}" if request.query else ""),
            "verb": audited.verb,
            "user": user_json(audited.user) if audited.user is not _NOBODY else {},
        }
        if request.impersonator is not None and request.user is not None and stage != RECEIVED:
            out["impersonatedUser"] = user_json(request.user)
        out["sourceIPs"] = [request.peer.address] if request.peer.address else []
        if agent := request.headers.get("user-agent"):
            out["userAgent"] = agent
        annotations = dict(request.annotations or {}) if stage != RECEIVED else {}
        if stage != RECEIVED and pending.decision is not None:
            annotations["authorization.k8s.io/decision"] = "allow" if pending.decision.allowed else "forbid"
            annotations["authorization.k8s.io/reason"] = pending.decision.reason
        sent = self._request_object(pending, request) if stage != RECEIVED else None
        if pending.reference is not None:
            out["objectRef"] = reference_json(pending.reference)
            if audited.verb == "create" and not audited.name and isinstance(sent, dict):
                metadata = sent.get("metadata")
                name = metadata.get("name") if isinstance(metadata, dict) else None
                if isinstance(name, str) and name:
                    out["objectRef"]["name"] = name
        if answer is not None:
            out["responseStatus"] = _response_status(answer, quoting=not self._hides_bodies(pending))
        self._add_bodies(out, pending, sent, answer, annotations)
        out["requestReceivedTimestamp"] = rfc3339_micro(pending.received)
        out["stageTimestamp"] = rfc3339_micro(self._clock.now())
        if annotations:
            out["annotations"] = annotations
        return out

    def _add_bodies(
        self, out: Object, pending: PendingAudit, sent: Any, answer: Response | None, annotations: dict[str, str]
    ) -> None:
        level, audited = pending.rule.level, pending.audited
        if level < AuditLevel.REQUEST or answer is None or not audited.resource:
            return
        if self._hides_bodies(pending):
            return
        if sent is _TOO_LARGE:
            annotations["audit.k8s.io/truncated"] = "true"
        elif sent is not None:
            out["requestObject"] = _without_managed_fields(sent) if pending.rule.omit_managed_fields else sent
        if level < AuditLevel.REQUEST_RESPONSE or answer.stream is not None or answer.upgrade is not None:
            return
        shown = _response_object(answer)
        if shown is _TOO_LARGE:
            annotations["audit.k8s.io/truncated"] = "true"
        elif shown is not None:
            out["responseObject"] = _without_managed_fields(shown) if pending.rule.omit_managed_fields else shown

    def _hides_bodies(self, pending: PendingAudit) -> bool:
        audited = pending.audited
        key = (audited.group, audited.resource, audited.subresource)
        return key in self._sensitive and not pending.rule.names_resource(audited)

    @staticmethod
    def _request_object(pending: PendingAudit, request: Request) -> Any:
        """What was sent; None: nothing, or nothing that can be read."""
        audited = pending.audited
        names_it = audited.verb == "create" and not audited.name
        if audited.verb not in _WRITES or not request.body:
            return None
        if pending.rule.level < AuditLevel.REQUEST and not names_it:
            return None
        if len(request.body) > MAX_BODY_BYTES:
            return _TOO_LARGE
        try:
            kind = bodies.media_type(request.headers.get("content-type", ""))
            if audited.verb != "patch":
                return bodies.read(request.body, request.headers.get("content-type", ""))
            return bodies.read_yaml(request.body) if kind.endswith("+yaml") else bodies.read_json(request.body)
        except (errors.ApiError, HttpProblem):
            return None


_TOO_LARGE: Any = object()


def _is_long_running(audited: AuditedRequest, answer: Response) -> bool:
    """Watches, logs and connections; a list that is sent piece by piece is not."""
    if answer.upgrade is not None:
        return True
    return answer.stream is not None and (audited.verb == "watch" or audited.subresource in _LONG_RUNNING)


def _response_status(answer: Response, *, quoting: bool) -> Object:
    """`quoting`: with the message of an error, which may quote the body."""
    out: Object = {"metadata": {}, "code": answer.status}
    if answer.status >= 400 and answer.body and answer.content_type.startswith("application/json"):
        try:
            status = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return out
        if isinstance(status, dict) and status.get("kind") == "Status":
            shown = ("status", "message", "reason") if quoting else ("status", "reason")
            out.update({key: status[key] for key in shown if key in status})
    return out


def _response_object(answer: Response) -> Any:
    if not answer.body or not answer.content_type.startswith("application/json"):
        return None
    if len(answer.body) > MAX_BODY_BYTES:
        return _TOO_LARGE
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return None


def _without_managed_fields(obj: Any) -> Any:
    if not isinstance(obj, dict):
        return obj
    out = dict(obj)
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        out["metadata"] = {key: value for key, value in metadata.items() if key != "managedFields"}
    if isinstance(obj.get("items"), list):
        out["items"] = [_without_managed_fields(each) for each in obj["items"]]
    return out


class _Ended:
    """Records the end of a long answer, once."""

    def __init__(self, audit: PolicyAudit, pending: PendingAudit, request: Request, answer: Response) -> None:
        self._audit = audit
        self._pending = pending
        self._request = request
        self._answer = Response(answer.status)

    def __call__(self) -> None:
        self._audit.ended(self._pending, self._request, self._answer)


class _AuditedStream:
    def __init__(self, inner: Stream, ended: _Ended) -> None:
        self._inner = inner
        self._ended = ended

    def opened(self, sink: Sink) -> None:
        self._inner.opened(sink)

    def closed(self) -> None:
        self._inner.closed()
        self._ended()


class _AuditedTunnel:
    def __init__(self, inner: Tunnel, ended: _Ended) -> None:
        self._inner = inner
        self._ended = ended

    def opened(self, sink: TunnelSink) -> None:
        self._inner.opened(sink)

    def received(self, data: bytes) -> None:
        self._inner.received(data)

    def closed(self) -> None:
        self._inner.closed()
        self._ended()
