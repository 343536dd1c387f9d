"""DomainDataSources: where a domain's data lies. Users, passwords and keys go in, sealed under the domain's key, and
never out.

Only the domain itself has them: whoever sealed with another key could not open them again.
"""

from __future__ import annotations

import asyncio
import posixpath
import uuid
from collections.abc import Iterable
from typing import Any

from google.protobuf import json_format

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES, SOURCE_TYPES, DomainDataSource
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.domains import check_name
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OperationContext
from coterie.kuscia.kusciaapi.request_checks import check_object_name, find, find_all, page
from coterie.kuscia.sources import local_roots, sealed_sources
from coterie.kuscia.sources.source_creation import PART, source_object

_NEEDED = {
    "localfs": ("path",),
    "oss": ("endpoint", "bucket", "access_key_id", "access_key_secret"),
    "database": ("endpoint", "user", "database"),
    "odps": ("endpoint", "project", "access_key_id", "access_key_secret"),
}
"""By the name under which the settings of a type stand; a database may do without a password."""
_SIGNATURES = ("", "s3v2", "s3v4")


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain, kind = request.domain_id, request.type
    _check_domain(here, domain)
    if request.datasource_id:
        check_object_name("datasource_id", request.datasource_id)
    if kind not in SOURCE_TYPES:
        raise invalid("type", f"must be one of {', '.join(SOURCE_TYPES)}")
    if not request.info_key and not request.HasField("info"):
        raise invalid("info", "or info_key must be given")
    name = request.datasource_id or f"{kind}-{uuid.uuid4().hex}"
    obj = await _source_of_request(here, name, kind, request)
    obj["spec"] |= {"name": request.name or name, "accessDirectly": request.access_directly}
    try:
        await here.client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, domain)
    except AlreadyExists as problem:
        raise CallRefused(
            ApiErrorCode.SOURCE_EXISTS, f'DomainDataSource "{name}" of {domain} exists already'
        ) from problem
    return {"data": {"datasource_id": name}}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """What the request does not say stays; settings are replaced as a whole, so that none goes to another server."""
    domain, name = request.domain_id, request.datasource_id
    _check_domain(here, domain)
    check_object_name("datasource_id", name)

    async def attempt() -> None:
        patch = await _change(here, await get_source(here, domain, name), request)
        await here.client.patch(DOMAIN_DATA_SOURCES, name, domain, patch)

    try:
        await retry_on_conflict(attempt)
    except NotFound as problem:
        raise _missing(domain, name) from problem
    return {}


async def _change(here: OperationContext, before: DomainDataSource, request: Any) -> Object:
    """The patch for what the request says, if nobody wrote meanwhile."""
    name, kind = before.metadata.name, request.type or before.spec.type
    if kind not in SOURCE_TYPES:
        raise invalid("type", f"must be one of {', '.join(SOURCE_TYPES)}")
    spec: Object = {}
    if request.info_key or request.HasField("info"):
        made = await _source_of_request(here, name, kind, request)
        spec = {"infoKey": None, "data": None, **made["spec"]}
        if "data" in made["spec"] and before.spec.data:
            spec["data"] = {**dict.fromkeys(before.spec.data), **made["spec"]["data"]}
        del spec["name"], spec["accessDirectly"]
    elif kind != before.spec.type:
        raise invalid("info", "or info_key must be given with another type")
    if request.name:
        spec["name"] = request.name
    if request.HasField("access_directly"):
        spec["accessDirectly"] = request.access_directly
    marks = {labels.KUSCIA_DOMAINDATASOURCE_TYPE: kind}
    return {"metadata": {"labels": marks, "resourceVersion": before.metadata.resource_version}, "spec": spec}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """One that is not there is as good as deleted."""
    domain, name = request.domain_id, request.datasource_id
    _check_domain(here, domain)
    check_object_name("datasource_id", name)
    try:
        await here.client.delete(DOMAIN_DATA_SOURCES, name, domain)
    except NotFound:
        return {}
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain, name = request.domain_id, request.datasource_id
    _check_domain(here, domain)
    check_object_name("datasource_id", name)
    return {"data": (await _responses(here, [await get_source(here, domain, name)]))[0]}


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """Those that exist."""
    if not request.data:
        raise invalid("data", "must name at least one data source")
    for index, asked in enumerate(request.data):
        _check_domain(here, asked.domain_id, f"data[{index}].")
        check_object_name(f"data[{index}].datasource_id", asked.datasource_id)
    wanted = ((asked.datasource_id, asked.domain_id) for asked in request.data)
    return {"data": {"datasource_list": await _responses(here, await find_all(here, DOMAIN_DATA_SOURCES, wanted))}}


async def list_(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    _check_domain(here, request.domain_id)
    found, token = await page(here, DOMAIN_DATA_SOURCES, request.domain_id, request.page_size, request.page_token)
    return {"data": {"datasource_list": await _responses(here, found), "next_page_token": token}}


async def settings_of(here: OperationContext, sources: Iterable[DomainDataSource]) -> dict[str, str]:
    """What the config store holds, sealed, when one of the sources has its settings there."""
    return await _config_store(here) if any(each.spec.info_key for each in sources) else {}


async def _config_store(here: OperationContext) -> dict[str, str]:
    found = await find(here, CONFIG_MAPS, DOMAIN_CONFIG, here.domain)
    return (found.data or {}) if found is not None else {}


def _check_domain(here: OperationContext, domain: str, at: str = "") -> None:
    check_name(f"{at}domain_id", domain)
    if here.mode is Mode.MASTER:
        raise invalid(f"{at}domain_id", f"a master has no data sources; ask {domain} itself")
    if domain != here.domain:
        raise invalid(f"{at}domain_id", f"must be {here.domain}: the data sources of others are with them")


async def get_source(here: OperationContext, domain: str, name: str) -> DomainDataSource:
    found = await find(here, DOMAIN_DATA_SOURCES, name, domain)
    if found is None:
        raise _missing(domain, name)
    return found


def _missing(domain: str, name: str) -> CallRefused:
    return CallRefused(ApiErrorCode.NO_SOURCE, f'there is no DomainDataSource "{name}" of {domain}')


# Settings.


async def _source_of_request(here: OperationContext, name: str, kind: str, request: Any) -> Object:
    """The object with the settings that the request brings; a key of the config store goes before settings."""
    key = here.identity.key.public_key()
    if request.info_key:
        if request.info_key not in await _config_store(here):
            raise invalid("info_key", "there is no such key in the config store; create it first")
        obj = source_object(here.domain, name, kind, {}, key)
        del obj["spec"]["data"]
        obj["spec"]["infoKey"] = request.info_key
        return obj
    info = info_of(request.info, kind)
    if kind == "localfs" and (fault := _directory_fault(here, info["path"])):
        raise invalid("info.localfs.path", fault)
    return await asyncio.to_thread(source_object, here.domain, name, kind, info, key)


def _directory_fault(here: OperationContext, path: str) -> str:
    if fault := local_roots.directory_fault(path, here.paths.home):
        return fault
    if here.mode is Mode.LITE and not local_roots.within_data(path, here.paths.home):
        return f"is outside of {here.paths.data}; the operator of the control plane opens such data sources"
    return ""


def info_of(message: Any, kind: str) -> Object:
    """The settings of this kind, checked. Pure."""
    part = PART[kind]
    given = getattr(message, part)
    if not message.HasField(part):
        raise invalid(f"info.{part}", f"must be given for type {kind}")
    for field in _NEEDED[part]:
        if not getattr(given, field):
            raise invalid(f"info.{part}.{field}", "must be given")
    if part != "localfs" and "@" in given.endpoint:
        # Endpoints are shown to callers, who may see no password.
        raise invalid(f"info.{part}.endpoint", "must not hold a user or password; they have fields of their own")
    if kind == "localfs" and (not posixpath.isabs(given.path) or "\0" in given.path):
        raise invalid("info.localfs.path", "must be an absolute path")
    if kind == "oss" and given.version not in _SIGNATURES:
        raise invalid("info.oss.version", "must be s3v2 or s3v4")
    found: Object = json_format.MessageToDict(given, preserving_proto_field_name=True)
    return found


async def _responses(here: OperationContext, sources: list[DomainDataSource]) -> list[Object]:
    settings = await settings_of(here, sources)

    def respond() -> list[Object]:
        return [_response(each, sealed_sources.public_settings(each, here.identity.key, settings)) for each in sources]

    return await asyncio.to_thread(respond)


def _response(source: DomainDataSource, info: Object) -> Object:
    spec = source.spec
    return {
        "domain_id": source.metadata.namespace,
        "datasource_id": source.metadata.name,
        "name": spec.name,
        "type": spec.type,
        "status": "Available",
        "info": info,
        "info_key": spec.info_key,
        "access_directly": spec.access_directly,
    }


_SERVICE, _BASE = "DomainDataSourceService", "/api/v1/domaindatasource"
OPERATIONS = (
    ApiOperation(
        _SERVICE, "CreateDomainDataSource", f"{_BASE}/create", ApiErrorCode.CREATE_SOURCE, create, secret=True
    ),
    ApiOperation(
        _SERVICE, "UpdateDomainDataSource", f"{_BASE}/update", ApiErrorCode.UPDATE_SOURCE, update, secret=True
    ),
    ApiOperation(_SERVICE, "DeleteDomainDataSource", f"{_BASE}/delete", ApiErrorCode.DELETE_SOURCE, delete),
    ApiOperation(_SERVICE, "QueryDomainDataSource", f"{_BASE}/query", ApiErrorCode.QUERY_SOURCE, query),
    ApiOperation(
        _SERVICE, "BatchQueryDomainDataSource", f"{_BASE}/batchQuery", ApiErrorCode.BATCH_QUERY_SOURCE, batch_query
    ),
    ApiOperation(_SERVICE, "ListDomainDataSource", f"{_BASE}/list", ApiErrorCode.LIST_SOURCE, list_),
)
