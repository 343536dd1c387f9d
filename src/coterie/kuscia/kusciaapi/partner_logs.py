"""PartnerLogService: log requests of a domain to its partners, and theirs to it (`docs/guide/log-requests.md`)."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.base.clock import rfc3339
from coterie.base.ids import suffix
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.log_query import LogQueryRefused, moment
from coterie.kuscia.api.log_requests import participation_fault, request_fault
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.api.types.log_request import APPROVE, LOG_REQUESTS, REJECT, REVOKE, LogRequest, LogRequestSpec
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.job_messages import named
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite, OperationContext


async def ask(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = await _own_domain(here, caller, request, ApiErrorCode.ASK_PARTNER_LOG)
    job_id = named("job_id", request.job_id)
    try:
        job = await here.client.get(KUSCIA_JOBS, job_id, CROSS_DOMAIN)
    except NotFound:
        job = None
    spec = LogRequestSpec(
        requester=domain,
        owner=named("owner_id", request.owner_id),
        job=job_id,
        reason=request.reason,
        task=request.task_alias,
        sources=tuple(request.sources) or None,
        since=_time(here, "since", request.since),
        until=_time(here, "until", request.until),
        grep=request.grep,
        max_lines=request.max_lines,
        expires_seconds=request.expires_seconds,
        keep_seconds=request.keep_seconds,
    )
    if not spec.reason.strip():
        raise invalid("reason", "must be given")
    if fault := request_fault(spec) or participation_fault(job, spec):
        raise CallRefused(ApiErrorCode.ASK_PARTNER_LOG, fault)
    name = f"{job_id[:200]}-{suffix(5)}"
    body = {"metadata": {"name": name, "namespace": domain}, "spec": msgspec.to_builtins(spec)}
    await here.client.create(LOG_REQUESTS.as_dynamic, body)
    return {"data": {"request_id": name}}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = await _own_domain(here, caller, request, ApiErrorCode.QUERY_PARTNER_LOG)
    return {"data": shown(await _found(here, domain, request, ApiErrorCode.QUERY_PARTNER_LOG), text=True)}


async def list_all(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = await _own_domain(here, caller, request, ApiErrorCode.QUERY_PARTNER_LOG)
    page = await here.client.list(LOG_REQUESTS, domain)
    return {"data": {"requests": [shown(each, text=False) for each in page.items]}}


async def review(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = await _own_domain(here, caller, request, ApiErrorCode.REVIEW_PARTNER_LOG)
    if request.decision not in (APPROVE, REJECT, REVOKE):
        raise invalid("decision", f"must be {APPROVE}, {REJECT} or {REVOKE}")
    if request.decision == APPROVE and not request.digest:
        raise invalid("digest", "must be that of the preview which is approved")
    found = await _found(here, domain, request, ApiErrorCode.REVIEW_PARTNER_LOG)
    if found.spec.owner != domain:
        raise CallRefused(ApiErrorCode.REVIEW_PARTNER_LOG, f"{found.spec.owner} decides about it, not {domain}")
    fields = {"decision": request.decision, "reason": request.reason, "digest": request.digest}
    meta = {"resourceVersion": found.metadata.resource_version}
    await here.client.patch(LOG_REQUESTS, found.metadata.name, domain, {"metadata": meta, "spec": {"review": fields}})
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = await _own_domain(here, caller, request, ApiErrorCode.REVIEW_PARTNER_LOG)
    found = await _found(here, domain, request, ApiErrorCode.REVIEW_PARTNER_LOG)
    await here.client.delete(LOG_REQUESTS, found.metadata.name, domain, uid=found.metadata.uid)
    return {}


async def _own_domain(here: OperationContext, caller: ApiCaller, request: Any, failure: ApiErrorCode) -> str:
    """A domain of this control plane that the caller may speak for."""
    domain = named("domain_id", request.domain_id)
    caller.must_be_one_of(domain, to=f"ask or decide about logs for {domain}")
    try:
        known = await here.client.get(DOMAINS, domain)
    except NotFound as problem:
        raise CallRefused(failure, f"there is no domain {domain}") from problem
    if not is_own(known):
        raise CallRefused(failure, f"{domain} is a partner; ask at its own control plane")
    return domain


async def _found(here: OperationContext, domain: str, request: Any, failure: ApiErrorCode) -> LogRequest:
    name = named("request_id", request.request_id)
    try:
        return await here.client.get(LOG_REQUESTS, name, domain)
    except NotFound as problem:
        raise CallRefused(failure, f"{domain} has no log request {name}") from problem


def _time(here: OperationContext, field: str, text: str) -> str:
    try:
        found = moment(field, text, here.clock.now())
    except LogQueryRefused as refused:
        raise invalid(field, refused.reason) from refused
    return rfc3339(found) if found is not None else ""


def shown(request: LogRequest, *, text: bool) -> Object:
    """Pure."""
    spec, status = request.spec, request.status
    excerpt = status.answer or status.preview
    out: Object = {
        "request_id": request.metadata.name,
        "requester_id": spec.requester,
        "owner_id": spec.owner,
        "job_id": spec.job,
        "task_alias": spec.task,
        "reason": spec.reason,
        "phase": status.phase,
        "message": status.message,
        "expire_time": status.expire_time,
        "decided_by": status.decided_by,
        "digest": excerpt.digest if excerpt is not None else status.digest,
    }
    if excerpt is not None:
        out |= {"lines": excerpt.lines, "redactions": excerpt.redactions, "truncated": excerpt.truncated}
        if text:
            out["text"] = excerpt.text
    return out


def _operation(method: str, path: str, failure: ApiErrorCode, work: Any) -> ApiOperation:
    where = f"/api/v1/partnerlog/{path}"
    return ApiOperation("PartnerLogService", method, where, failure, work, for_domains=True, on_lite=OnLite.FORWARD)


OPERATIONS = (
    _operation("AskPartnerLog", "ask", ApiErrorCode.ASK_PARTNER_LOG, ask),
    _operation("QueryPartnerLog", "query", ApiErrorCode.QUERY_PARTNER_LOG, query),
    _operation("ListPartnerLog", "list", ApiErrorCode.QUERY_PARTNER_LOG, list_all),
    _operation("ReviewPartnerLog", "review", ApiErrorCode.REVIEW_PARTNER_LOG, review),
    _operation("DeletePartnerLog", "delete", ApiErrorCode.REVIEW_PARTNER_LOG, delete),
)
