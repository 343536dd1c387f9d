"""DomainDataGrants: who may have a domain's engines work on its data. Times are nanoseconds here.

A grant of the own domain is signed with its key. For other domains of a master nobody here has the key: what the caller
signed is kept, and the controller that looks at the grant says whether it is good.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, NORMAL, DomainData, DomainDataGrant
from coterie.kuscia.kusciaapi import domaindata
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.domains import check_name
from coterie.kuscia.kusciaapi.operations import ApiOperation, OperationContext
from coterie.kuscia.kusciaapi.request_checks import check_domain, check_known, check_object_name, find, page_by_name
from coterie.kuscia.sources import catalogue_entries, grant_entries
from coterie.kuscia.sources.grant_entries import NANOSECOND


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain, name = request.domain_id, request.domaindatagrant_id or grant_entries.new_name()
    check_domain(here, caller, domain, "domain_id", "grant data")
    check_object_name("domaindatagrant_id", name)
    check_object_name("domaindata_id", request.domaindata_id)
    check_name("grant_domain", request.grant_domain)
    asked = _spec_of_request(request)
    await check_known(here, domain)
    data = await find(here, DOMAIN_DATAS, request.domaindata_id, domain)
    if data is None:
        raise invalid("domaindata_id", f'there is no DomainData "{request.domaindata_id}" of {domain}')
    if domaindata.is_copy(data):
        raise invalid("domaindata_id", f"is of {data.spec.author}, which alone can grant it")
    spec = _signed(here, {**asked, "author": domain}, request.signature)
    obj = grant_entries.grant(name, spec)
    obj["metadata"]["ownerReferences"] = [_owner(data)]
    try:
        await here.client.create(DOMAIN_DATA_GRANTS.as_dynamic, obj, domain)
    except AlreadyExists as problem:
        raise CallRefused(
            ApiErrorCode.GRANT_EXISTS, f'DomainDataGrant "{name}" of {domain} exists already'
        ) from problem
    return {"data": {"domaindatagrant_id": name}}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """What the request leaves out stays, limits above all; a limit that is given replaces all of them."""
    domain, name = request.domain_id, request.domaindatagrant_id
    check_domain(here, caller, domain, "domain_id", "update a grant")
    check_object_name("domaindatagrant_id", name)
    asked = _spec_of_request(request)

    async def attempt() -> None:
        before = await _own(here, domain, name, ApiErrorCode.UPDATE_GRANT)
        for field, old in (("domaindata_id", before.spec.domain_data_id), ("grant_domain", before.spec.grant_domain)):
            if getattr(request, field) not in ("", old):
                raise invalid(field, f"is {old} and cannot be changed; make another grant")
        # Who sends back what a query told does not mean to keep a signature of what the grant said before.
        signature = "" if request.signature == before.spec.signature else request.signature
        merged = {**msgspec.to_builtins(before.spec), **catalogue_entries.without_empty(asked), "author": domain}
        steps = grant_entries.change(before, _signed(here, merged, signature))
        await here.client.patch(DOMAIN_DATA_GRANTS, name, domain, steps, type="json")

    try:
        await retry_on_conflict(attempt)
    except NotFound as problem:
        raise _missing(domain, name) from problem
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain, name = request.domain_id, request.domaindatagrant_id
    check_domain(here, caller, domain, "domain_id", "delete a grant")
    check_object_name("domaindatagrant_id", name)
    found = await _own(here, domain, name, ApiErrorCode.DELETE_GRANT)
    try:
        await here.client.delete(DOMAIN_DATA_GRANTS, name, domain, uid=found.metadata.uid)
    except NotFound as problem:
        raise _missing(domain, name) from problem
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain, name = request.domain_id, request.domaindatagrant_id
    check_domain(here, caller, domain, "domain_id", "query a grant")
    check_object_name("domaindatagrant_id", name)
    return {"data": _response(await _get(here, domain, name))}


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    if not request.data:
        raise invalid("data", "must name at least one grant")
    for index, asked in enumerate(request.data):
        check_domain(here, caller, asked.domain_id, f"data[{index}].domain_id", "query a grant")
        check_object_name(f"data[{index}].domaindatagrant_id", asked.domaindatagrant_id)
    found, missing = [], []
    for asked in request.data:
        try:
            found.append(_response(await _get(here, asked.domain_id, asked.domaindatagrant_id)))
        except CallRefused as problem:
            missing.append((problem.code, str(problem)))
    if missing:
        sentence = f"{len(missing)} of {len(request.data)} grants were not found; the details name them"
        raise CallRefused(ApiErrorCode.QUERY_GRANT, sentence, missing, {"data": found})
    return {"data": found}


async def list_(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    asked = request.data
    check_domain(here, caller, asked.domain_id, "data.domain_id", "list grants")
    await check_known(here, asked.domain_id)
    found = (await here.client.list(DOMAIN_DATA_GRANTS, asked.domain_id)).items
    if asked.grant_domain:
        found = [each for each in found if each.spec.grant_domain == asked.grant_domain]
    if asked.domaindata_vendor:
        datas = (await here.client.list(DOMAIN_DATAS, asked.domain_id)).items
        wanted = {each.metadata.name for each in datas if each.spec.vendor == asked.domaindata_vendor}
        found = [each for each in found if each.spec.domain_data_id in wanted]
    some, token = page_by_name(found, asked.page_size, asked.page_token, "data.")
    return {"data": {"domaindatagrant_list": [_response(each) for each in some], "next_page_token": token}}


async def _get(here: OperationContext, domain: str, name: str) -> DomainDataGrant:
    try:
        found: DomainDataGrant = await here.client.get(DOMAIN_DATA_GRANTS, name, domain)
    except NotFound as problem:
        raise _missing(domain, name) from problem
    return found


def _missing(domain: str, name: str) -> CallRefused:
    return CallRefused(ApiErrorCode.NO_GRANT, f'there is no DomainDataGrant "{name}" of {domain}')


async def _own(here: OperationContext, domain: str, name: str, code: ApiErrorCode) -> DomainDataGrant:
    found = await _get(here, domain, name)
    if found.spec.author != domain:
        raise CallRefused(code, f'grant "{name}" is of {found.spec.author}, which alone can change it')
    return found


# Pure.


def _spec_of_request(request: Any) -> Object:
    try:
        spec = grant_entries.spec_of_request(request, NANOSECOND)
    except catalogue_entries.InvalidEntry as problem:
        raise invalid(problem.field, problem.problem) from problem
    if request.HasField("limit"):
        spec["limit"] = {**spec["limit"], "grantMode": [NORMAL]}
    return spec


def _signed(here: OperationContext, spec: Object, signature: str) -> Object:
    try:
        plain = grant_entries.completed(spec)
    except catalogue_entries.InvalidEntry as problem:
        raise invalid(problem.field, problem.problem) from problem
    if plain["author"] != here.domain:
        return {**plain, "signature": signature} if signature else plain
    if not signature:
        return grant_entries.signed(plain, here.identity.key)
    signed = {**plain, "signature": signature}
    if not grant_entries.signature_good(signed, here.identity.key.public_key()):
        raise invalid("signature", f"is not {here.domain}'s for this grant; leave it out to have the grant signed")
    return signed


def _owner(data: DomainData) -> Object:
    meta = data.metadata
    return {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "DomainData", "name": meta.name, "uid": meta.uid}


def _response(grant: DomainDataGrant) -> Object:
    out: Object = {"data": {**grant_entries.grant_response(grant, NANOSECOND), "domain_id": grant.metadata.namespace}}
    records = [
        {
            "use_time": grant_entries.moment(each.use_time, NANOSECOND),
            "grant_domain": each.grant_domain,
            "component": each.component,
            "output": each.output,
        }
        for each in grant.uses
    ]
    status = grant.status
    out["status"] = {
        "phase": status.phase if status is not None else "",
        "message": status.message if status is not None else "",
        "records": records,
    }
    return out


_SERVICE, _BASE = "DomainDataGrantService", "/api/v1/domaindatagrant"
OPERATIONS = (
    ApiOperation(_SERVICE, "CreateDomainDataGrant", f"{_BASE}/create", ApiErrorCode.CREATE_GRANT, create),
    ApiOperation(_SERVICE, "UpdateDomainDataGrant", f"{_BASE}/update", ApiErrorCode.UPDATE_GRANT, update),
    ApiOperation(_SERVICE, "DeleteDomainDataGrant", f"{_BASE}/delete", ApiErrorCode.DELETE_GRANT, delete),
    ApiOperation(_SERVICE, "QueryDomainDataGrant", f"{_BASE}/query", ApiErrorCode.QUERY_GRANT, query),
    ApiOperation(_SERVICE, "BatchQueryDomainDataGrant", f"{_BASE}/batchQuery", ApiErrorCode.QUERY_GRANT, batch_query),
    ApiOperation(_SERVICE, "ListDomainDataGrant", f"{_BASE}/list", ApiErrorCode.LIST_DATA, list_),
)
