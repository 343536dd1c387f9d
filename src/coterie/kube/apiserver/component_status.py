"""ComponentStatus, which Kubernetes keeps for old clients: here it tells of the store, the one component the server knows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from coterie.http.messages import Request, Response
from coterie.kube.api import errors
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.content_negotiation import negotiate
from coterie.kube.apiserver.presentation import warning_header
from coterie.kube.apiserver.tables.build import build_table

Object = dict[str, Any]
STORE = "etcd-0"
_DEPRECATED = "v1 ComponentStatus is deprecated in v1.19+"


def respond(request: Request, resource: Resource, name: str, ready: bool, now: datetime) -> Response:
    healthy = {"type": "Healthy", "status": "True" if ready else "False", "message": "ok" if ready else "starting"}
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    item: Object = {**head, "metadata": {"name": STORE}, "conditions": [healthy]}
    if name not in ("", STORE):
        raise errors.NotFound(f'{resource.plural} "{name}" not found', name=name, kind=resource.plural)
    headers = [warning_header(_DEPRECATED)]
    if negotiate(request.headers.get("accept", "")).shape == "table":
        return Response(200, build_table(resource, [item], now=now), headers=headers)
    body = (
        item
        if name
        else {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": {}, "items": [item]}
    )
    return Response(200, orjson.dumps(body), headers=headers)
