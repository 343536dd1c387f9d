"""DomainData: what domains have. The catalogue says where it lies; only `deleteDataAndRaw` touches the data itself."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DOMAIN_DATAS, DomainData, DomainDataSource
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.datasources import get_source, settings_of
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OperationContext
from coterie.kuscia.kusciaapi.request_checks import check_domain, check_known, check_object_name, find, find_all, page
from coterie.kuscia.sources import catalogue_entries, sealed_sources
from coterie.kuscia.sources.data_records import DataRecords, foreign_fault
from coterie.kuscia.sources.protocol import DataLocation, DataNotFound, SourceError, SourceInfo

if TYPE_CHECKING:
    from coterie.kuscia.sources import source_registry
else:
    source_registry = lazy_import("coterie.kuscia.sources.source_registry")

AVAILABLE = "Available"


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """An entry that exists is updated."""
    domain, name = request.domain_id, request.domaindata_id
    check_domain(here, caller, domain, "domain_id", "create data")
    for field in ("type", "relative_uri"):
        if not getattr(request, field):
            raise invalid(field, "must be given")
    spec = _spec_of_request(request)
    if name:
        check_object_name("domaindata_id", name)
    await check_known(here, domain)
    if name and await find(here, DOMAIN_DATAS, name, domain) is not None:
        return await update(here, caller, request) | {"data": {"domaindata_id": name}}
    spec["name"] = spec["name"] or spec["relativeURI"].rstrip("/").rpartition("/")[2]
    name = name or catalogue_entries.new_name(spec["name"])
    full = await _completed(here, domain, name, spec)
    await _check_place(here, domain, full, ApiErrorCode.CREATE_DATA)
    try:
        await here.client.create(DOMAIN_DATAS.as_dynamic, catalogue_entries.entry(name, full, {}), domain)
    except AlreadyExists as problem:
        raise CallRefused(ApiErrorCode.DATA_EXISTS, f'DomainData "{name}" of {domain} exists already') from problem
    return {"data": {"domaindata_id": name}}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """What the request leaves empty stays as it is."""
    domain, name = request.domain_id, request.domaindata_id
    check_domain(here, caller, domain, "domain_id", "update data")
    check_object_name("domaindata_id", name)
    spec = _spec_of_request(request)

    async def attempt() -> None:
        before = await get(here, domain, name)
        _check_own(before, ApiErrorCode.PATCH_DATA)
        full = await _completed(here, domain, name, catalogue_entries.merged(before, spec))
        if (full["relativeURI"], full["dataSource"]) != (before.spec.relative_uri, before.spec.data_source):
            await _check_place(here, domain, full, ApiErrorCode.PATCH_DATA)
        await here.client.patch(DOMAIN_DATAS, name, domain, catalogue_entries.change(before, full))

    try:
        await retry_on_conflict(attempt)
    except NotFound as problem:
        raise _missing(domain, name) from problem
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain, name = request.domain_id, request.domaindata_id
    check_domain(here, caller, domain, "domain_id", "delete data")
    check_object_name("domaindata_id", name)
    await _delete(here, await get(here, domain, name))
    return {}


async def delete_with_raw(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """The data first: what cannot be removed stays known."""
    domain, name = request.domain_id, request.domaindata_id
    check_domain(here, caller, domain, "domain_id", "delete data")
    check_object_name("domaindata_id", name)
    if here.mode is Mode.MASTER or domain != here.domain:
        raise CallRefused(ApiErrorCode.DELETE_DATA, f"the data lies at {domain}; ask its own node, which can remove it")
    found = await get(here, domain, name)
    _check_own(found, ApiErrorCode.DELETE_DATA)
    await _remove_raw(here, found, await get_source(here, domain, found.spec.data_source))
    await _delete(here, found)
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    asked = request.data
    check_domain(here, caller, asked.domain_id, "data.domain_id", "query data")
    check_object_name("data.domaindata_id", asked.domaindata_id)
    return {"data": _response(await get(here, asked.domain_id, asked.domaindata_id))}


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """Those that exist."""
    if not request.data:
        raise invalid("data", "must name at least one DomainData")
    for index, asked in enumerate(request.data):
        check_domain(here, caller, asked.domain_id, f"data[{index}].domain_id", "query data")
        check_object_name(f"data[{index}].domaindata_id", asked.domaindata_id)
    found = await find_all(here, DOMAIN_DATAS, ((asked.domaindata_id, asked.domain_id) for asked in request.data))
    return {"data": {"domaindata_list": [_response(each) for each in found]}}


async def list_(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    asked = request.data
    check_domain(here, caller, asked.domain_id, "data.domain_id", "list data")
    await check_known(here, asked.domain_id)
    wanted = {
        labels.KUSCIA_DOMAINDATA_TYPE: asked.domaindata_type,
        labels.KUSCIA_DOMAINDATA_VENDOR: asked.domaindata_vendor,
    }
    selector = ",".join(f"{key}={catalogue_entries.label(value)}" for key, value in wanted.items() if value)
    found, token = await page(here, DOMAIN_DATAS, asked.domain_id, asked.page_size, asked.page_token, "data.", selector)
    return {"data": {"domaindata_list": [_response(each) for each in found], "next_page_token": token}}


async def get(here: OperationContext, domain: str, name: str) -> DomainData:
    found = await find(here, DOMAIN_DATAS, name, domain)
    if found is None:
        raise _missing(domain, name)
    return found


def _missing(domain: str, name: str) -> CallRefused:
    return CallRefused(ApiErrorCode.NO_DATA, f'there is no DomainData "{name}" of {domain}')


def is_copy(data: DomainData) -> bool:
    """Of what another domain granted; the original lies there."""
    return data.spec.author != data.metadata.namespace


def _check_own(data: DomainData, code: ApiErrorCode) -> None:
    if is_copy(data):
        raise CallRefused(
            code, f'"{data.metadata.name}" is a copy of what {data.spec.author} granted, and only changed there'
        )


def _spec_of_request(request: Any) -> Object:
    try:
        spec = catalogue_entries.spec_of_request(request)
    except catalogue_entries.InvalidEntry as problem:
        raise invalid(problem.field, problem.problem) from problem
    if request.relative_uri:
        spec["relativeURI"] = request.relative_uri.lstrip("/")
        if not spec["relativeURI"]:
            raise invalid("relative_uri", "must name something inside of the data source")
    return spec


async def _completed(here: OperationContext, domain: str, name: str, spec: Object) -> Object:
    chosen = catalogue_entries.chosen_source(spec)
    check_object_name("datasource_id", chosen)
    source = await get_source(here, domain, chosen)
    try:
        return catalogue_entries.completed(spec, name, domain, source.spec.type)
    except catalogue_entries.InvalidEntry as problem:
        raise invalid(problem.field, problem.problem) from problem


async def _check_place(here: OperationContext, domain: str, full: Object, code: ApiErrorCode) -> None:
    """What a partner's task made is not taken for the domain's own. Only the domain's own node knows its places."""
    if domain != here.domain or here.mode is Mode.MASTER:
        return
    source = await get_source(here, domain, full["dataSource"])
    try:
        info = await _source_info(here, source)
    except SourceError:
        return  # nobody can write there either
    location = sealed_sources.location(info, full["relativeURI"])
    record = await DataRecords(here.client, domain).find(location)
    if fault := foreign_fault(record, domain, full["relativeURI"]):
        raise CallRefused(code, fault)


async def _source_info(here: OperationContext, source: DomainDataSource) -> SourceInfo:
    return await asyncio.to_thread(
        sealed_sources.source_info, source, here.identity.key, await settings_of(here, [source])
    )


async def _delete(here: OperationContext, data: DomainData) -> None:
    meta = data.metadata
    try:
        await here.client.delete(DOMAIN_DATAS, meta.name, meta.namespace, uid=meta.uid)
    except NotFound as problem:
        raise _missing(meta.namespace, meta.name) from problem


def _response(data: DomainData) -> Object:
    return {**catalogue_entries.data_response(data), "domain_id": data.metadata.namespace, "status": AVAILABLE}


# The data itself.


async def _remove_raw(here: OperationContext, data: DomainData, source: DomainDataSource) -> None:
    if source.spec.type not in sealed_sources.BUILT_IN:
        raise CallRefused(
            ApiErrorCode.DELETE_DATA,
            f"data in a source of type {source.spec.type} cannot be removed here; remove it there and use delete",
        )
    try:
        found = await _source_info(here, source)
        info, place = _removable(found, data, str(here.paths.data))
        async with source_registry.open_source(info) as opened:
            await opened.delete(place)
        await DataRecords(here.client, here.domain).remove(sealed_sources.location(found, data.spec.relative_uri))
    except DataNotFound:
        return
    except SourceError as problem:
        raise CallRefused(ApiErrorCode.DELETE_DATA, f"the data cannot be removed: {problem}") from problem


def _removable(info: SourceInfo, data: DomainData, root: str) -> tuple[SourceInfo, DataLocation]:
    """Files only below the domain's own data directory, seen from there: a source may have been led anywhere."""
    uri = data.spec.relative_uri
    if info.kind == "localfs":
        try:
            root = os.path.realpath(root)
            below = PurePath(os.path.realpath(info.path)).relative_to(root)
        except ValueError as problem:
            raise SourceError(
                "it lies outside of the domain's data directory; remove it yourself and use delete"
            ) from problem
        info, uri = replace(info, path=root), f"{below}/{uri}"
    return info, DataLocation(uri, catalogue_entries.file_format(data.spec.file_format), "", data.spec.attributes or {})


_SERVICE, _BASE = "DomainDataService", "/api/v1/domaindata"
OPERATIONS = (
    ApiOperation(_SERVICE, "CreateDomainData", f"{_BASE}/create", ApiErrorCode.CREATE_DATA, create, for_domains=True),
    ApiOperation(_SERVICE, "UpdateDomainData", f"{_BASE}/update", ApiErrorCode.PATCH_DATA, update, for_domains=True),
    ApiOperation(_SERVICE, "DeleteDomainData", f"{_BASE}/delete", ApiErrorCode.DELETE_DATA, delete, for_domains=True),
    ApiOperation(
        _SERVICE,
        "DeleteDomainDataAndRaw",
        f"{_BASE}/deleteDataAndRaw",
        ApiErrorCode.DELETE_DATA,
        delete_with_raw,
        request_name="DeleteDomainDataRequest",
        response_name="DeleteDomainDataResponse",
    ),
    ApiOperation(_SERVICE, "QueryDomainData", f"{_BASE}/query", ApiErrorCode.GET_DATA, query, for_domains=True),
    ApiOperation(
        _SERVICE, "BatchQueryDomainData", f"{_BASE}/batchQuery", ApiErrorCode.GET_DATA, batch_query, for_domains=True
    ),
    ApiOperation(_SERVICE, "ListDomainData", f"{_BASE}/list", ApiErrorCode.LIST_DATA, list_, for_domains=True),
)
