"""AppImages: what engines are. They belong to the control plane, so a lite has none of its own."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api.types.job import APP_IMAGES
from coterie.kuscia.kusciaapi import appimage_messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite, OperationContext
from coterie.kuscia.kusciaapi.request_checks import check_object_name, page

_PAGE = 10
_PLAIN = APP_IMAGES.as_dynamic
"""Plain data: an AppImage may say more than our types do."""


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    check_object_name("name", request.name)
    appimage_messages.check(request, new=True)
    spec: Object = {
        "image": appimage_messages.image_of(request),
        "deployTemplates": appimage_messages.templates_of(request),
    }
    if request.config_templates:
        spec["configTemplates"] = dict(request.config_templates)
    try:
        await here.client.create(_PLAIN, {"metadata": {"name": request.name}, "spec": spec})
    except AlreadyExists as problem:
        raise CallRefused(ApiErrorCode.IMAGE_EXISTS, f'AppImage "{request.name}" exists already') from problem
    return {}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """The image is replaced; templates are, all of them, when some are given."""
    check_object_name("name", request.name)
    appimage_messages.check(request, new=False)

    async def attempt() -> None:
        before = await _get(here, request.name)
        spec = {**before["spec"], "image": appimage_messages.image_of(request)}
        if request.config_templates:
            spec["configTemplates"] = dict(request.config_templates)
        if request.deploy_templates:
            spec["deployTemplates"] = appimage_messages.templates_of(request, spec.get("deployTemplates") or ())
        await here.client.update(_PLAIN, {**before, "spec": spec})

    try:
        await retry_on_conflict(attempt)
    except NotFound as problem:
        raise _missing(request.name) from problem
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    check_object_name("name", request.name)
    try:
        await here.client.delete(_PLAIN, request.name)
    except NotFound as problem:
        raise _missing(request.name) from problem
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    check_object_name("name", request.name)
    return {"data": appimage_messages.image_response(await _get(here, request.name))}


async def list_(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    found, token = await page(here, _PLAIN, "", request.page_size or _PAGE, request.page_token)
    return {
        "data": {"appimage_list": [appimage_messages.image_response(each) for each in found], "next_page_token": token}
    }


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """All of them, or none."""
    if not request.names:
        raise invalid("names", "must name at least one AppImage")
    for index, name in enumerate(request.names):
        check_object_name(f"names[{index}]", name)
    return {"data": [appimage_messages.image_response(await _get(here, name)) for name in request.names]}


async def _get(here: OperationContext, name: str) -> Object:
    try:
        found: Object = await here.client.get(_PLAIN, name)
    except NotFound as problem:
        raise _missing(name) from problem
    return found


def _missing(name: str) -> CallRefused:
    return CallRefused(ApiErrorCode.NO_IMAGE, f'there is no AppImage "{name}"')


_SERVICE, _BASE, _REFUSED = "AppImageService", "/api/v1/appimage", OnLite.REFUSE
OPERATIONS = (
    ApiOperation(_SERVICE, "CreateAppImage", f"{_BASE}/create", ApiErrorCode.CREATE_IMAGE, create, on_lite=_REFUSED),
    ApiOperation(_SERVICE, "UpdateAppImage", f"{_BASE}/update", ApiErrorCode.UPDATE_IMAGE, update, on_lite=_REFUSED),
    ApiOperation(_SERVICE, "DeleteAppImage", f"{_BASE}/delete", ApiErrorCode.DELETE_IMAGE, delete, on_lite=_REFUSED),
    ApiOperation(_SERVICE, "QueryAppImage", f"{_BASE}/query", ApiErrorCode.QUERY_IMAGE, query, on_lite=_REFUSED),
    ApiOperation(_SERVICE, "ListAppImage", f"{_BASE}/list", ApiErrorCode.LIST_IMAGE, list_, on_lite=_REFUSED),
    ApiOperation(
        _SERVICE,
        "BatchQueryAppImage",
        f"{_BASE}/batchQuery",
        ApiErrorCode.BATCH_QUERY_IMAGE,
        batch_query,
        on_lite=_REFUSED,
    ),
)
