"""Whether this node's API works: it does when the objects behind it can be read."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OperationContext


async def health(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """Not ready is an answer, not a failure."""
    if here.mode is Mode.LITE:
        return {"data": {"ready": True}}
    try:
        await here.client.get(DOMAINS, here.domain)
    except (ApiError, TransportError):
        return {"data": {"ready": False}}
    return {"data": {"ready": True}}


OPERATIONS = (
    ApiOperation(
        "HealthService",
        "healthZ",
        "/healthZ",
        ApiErrorCode.UNEXPECTED,
        health,
        request_name="HealthRequest",
        response_name="HealthResponse",
    ),
)
