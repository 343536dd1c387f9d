"""The service of online services (`ServingService`): KusciaDeployments in the words of KusciaAPI (`servingforms`).

A domain that asks through the gateway sees services that it takes part in, and changes those that it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from coterie.kube.api.errors import AlreadyExists, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network import SERVICES, Service
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_versions import images_named
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS, KusciaDeployment, party_deployment
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, AppImage
from coterie.kuscia.kusciaapi import serving_messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.job_messages import named
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OnLite, OperationContext, Work

_PLAIN = KUSCIA_DEPLOYMENTS.as_dynamic
_TRACES = Kind.metadata(DEPLOYMENTS.resource)


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    serving_messages.check_parties(request)
    if not caller.is_one_of(named("initiator", request.initiator)):
        raise CallRefused(ApiErrorCode.PERMISSION, f"domain {caller.domain} may only create services that it initiates")
    images = await _images(here, {party.app_image for party in request.parties})
    obj = serving_messages.deployment_object(request, images)
    if here.mode is Mode.AUTONOMY and request.initiator != here.domain:
        raise invalid("initiator", f"must be {here.domain}, the domain of this node")
    for party in request.parties:
        await _check_free(here, party.domain_id, party_deployment(request.serving_id, party.role))
    try:
        await here.client.create(_PLAIN, obj)
    except AlreadyExists as problem:
        words = f"there is a service {request.serving_id} already; choose another serving_id"
        raise CallRefused(ApiErrorCode.CREATE_SERVING, words) from problem
    return {}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """What the request leaves empty stays as it is."""
    name = named("serving_id", request.serving_id)

    async def attempt() -> None:
        found = await _own(here, caller, name, ApiErrorCode.UPDATE_SERVING, "update")
        if host := (found.metadata.annotations or {}).get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN):
            raise CallRefused(
                ApiErrorCode.UPDATE_SERVING, f"service {name} was begun at {host}; it can only be changed there"
            )
        before = await here.client.get(_PLAIN, name, CROSS_DOMAIN)
        if before["metadata"]["uid"] != found.metadata.uid:  # another has its name now, perhaps of another domain
            raise _none(name, ApiErrorCode.UPDATE_SERVING)
        spec = dict(before["spec"])
        given = {party.app_image for party in request.parties if party.app_image}
        images = await _images(here, given | {party["appImageRef"] for party in spec["parties"]})
        spec["parties"] = serving_messages.changed_parties(request, spec["parties"], images)
        if request.serving_input_config:
            spec["inputConfig"] = request.serving_input_config
        if spec != before["spec"]:
            await here.client.update(_PLAIN, {**before, "spec": spec})

    try:
        await retry_on_conflict(attempt)
    except Conflict as problem:
        raise CallRefused(ApiErrorCode.UPDATE_SERVING, f"service {name} changes too quickly; try again") from problem
    except NotFound as problem:
        raise _none(name, ApiErrorCode.UPDATE_SERVING) from problem
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = named("serving_id", request.serving_id)
    found = await _own(here, caller, name, ApiErrorCode.DELETE_SERVING, "delete")
    try:
        await here.client.delete(KUSCIA_DEPLOYMENTS, name, CROSS_DOMAIN, uid=found.metadata.uid)
    except (NotFound, Conflict) as problem:
        raise _none(name, ApiErrorCode.DELETE_SERVING) from problem
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = named("serving_id", request.serving_id)
    found = await _get_serving(here, name, ApiErrorCode.QUERY_SERVING)
    if not caller.is_one_of(*serving_messages.domains_of(found)):
        raise _none(name, ApiErrorCode.QUERY_SERVING)  # strangers are not told whether there is one
    services = await _services(here, found)
    return {"data": serving_messages.serving_data(found, services, brief=not caller.everything)}


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """Those that there are, and that the caller may see."""
    if not request.serving_ids:
        raise invalid("serving_ids", "name at least one")
    for place, name in enumerate(request.serving_ids):
        named(f"serving_ids[{place}]", name)
    statuses = []
    for name in dict.fromkeys(request.serving_ids):
        try:
            found = await here.client.get(KUSCIA_DEPLOYMENTS, name, CROSS_DOMAIN)
        except NotFound:
            continue
        if not caller.is_one_of(*serving_messages.domains_of(found)):
            continue
        detail = serving_messages.status_detail(found, await _services(here, found), brief=not caller.everything)
        statuses.append({"serving_id": name, **({"status": detail} if detail is not None else {})})
    return {"data": {"servings": statuses}}


# What they share.


async def _get_serving(here: OperationContext, name: str, code: ApiErrorCode) -> KusciaDeployment:
    try:
        return await here.client.get(KUSCIA_DEPLOYMENTS, name, CROSS_DOMAIN)
    except NotFound as problem:
        raise _none(name, code) from problem


async def _own(here: OperationContext, caller: ApiCaller, name: str, code: ApiErrorCode, verb: str) -> KusciaDeployment:
    """One that the caller began."""
    found = await _get_serving(here, name, code)
    caller.must_be_one_of(found.spec.initiator, to=f"{verb} service {name}, which it did not begin")
    return found


def _none(name: str, code: ApiErrorCode) -> CallRefused:
    return CallRefused(code, f"there is no service {name}")


async def _images(here: OperationContext, names: Iterable[str]) -> dict[str, AppImage]:
    """Those of them that exist, and for an engine or a range its newest version."""
    out = {}
    wanted = set(names)
    for name in sorted(each for each in wanted if not dns_subdomain_faults(each)):
        try:
            out[name] = await here.client.get(APP_IMAGES, name)
        except NotFound:
            continue
    if missing := sorted(wanted - out.keys()):
        known = {each.metadata.name: each for each in (await here.client.list(APP_IMAGES)).items}
        found = images_named(missing, known)
        out |= {name: found[name] for name in missing if name in found}
    return out


async def _check_free(here: OperationContext, domain: str, name: str) -> None:
    try:
        await here.client.get(_TRACES, name, domain)
    except NotFound:
        return
    raise CallRefused(
        ApiErrorCode.CREATE_SERVING, f"{domain} has a Deployment {name} already; choose another serving_id"
    )


async def _services(here: OperationContext, deployment: KusciaDeployment) -> list[Service]:
    """Of parties that are hosted here; the names of partners' services are theirs to tell."""
    selector = f"{labels.KUSCIA_KD_UID}={deployment.metadata.uid}"
    domains = dict.fromkeys(party.domain_id for party in deployment.spec.parties)
    listed = await asyncio.gather(*(here.client.list(SERVICES, domain, labels=selector) for domain in domains))
    return [service for page in listed for service in page.items]


def _operation(method: str, path: str, failure: ApiErrorCode, work: Work) -> ApiOperation:
    where = f"/api/v1/serving/{path}"
    return ApiOperation("ServingService", method, where, failure, work, for_domains=True, on_lite=OnLite.FORWARD)


OPERATIONS = (
    _operation("CreateServing", "create", ApiErrorCode.CREATE_SERVING, create),
    _operation("QueryServing", "query", ApiErrorCode.QUERY_SERVING, query),
    _operation("UpdateServing", "update", ApiErrorCode.UPDATE_SERVING, update),
    _operation("DeleteServing", "delete", ApiErrorCode.DELETE_SERVING, delete),
    _operation("BatchQueryServingStatus", "status/batchQuery", ApiErrorCode.QUERY_SERVING_STATUS, batch_query),
)
