"""Calls of functions through the API server: `services/proxy` of the gateway, so the roles of the caller hold."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.cli.app import CliError
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Forbidden, NotFound, from_status
from coterie.kube.api.types.core import SECRETS
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kuscia.api.functions.types import GATEWAY_NAME, GATEWAY_PORT

START_SECONDS = 10.0
"""For which a gateway without a ready pod is waited for: it is made with the first Action."""
_RETRY_SECONDS = 0.2
_REQUEST_HEADER = "coterie-request"
"""What the gateway says itself has none."""
_TOKEN_HEADER, _TOKEN_KEY = "Coterie-Invoke-Token", "invoke-token"
_SLACK = 5.0
"""Seconds for the way, beside the time of the call itself."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def as_object(self) -> dict[str, Any]:
        """Of `-o json`: a JSON body as such."""
        content = self.headers.get("content-type", "")
        try:
            body = json.loads(self.body) if content.startswith("application/json") else self.text
        except ValueError:
            body = self.text
        return {"status": self.status, "contentType": content, "body": body}


async def call_gateway(
    session: CliSession,
    method: str,
    path: str,
    *,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout: float,
) -> CallAnswer:
    """What the gateway answers, whatever its status; CliError when it was not reached."""
    reply = await _send(session, method, path, query, headers or {}, body, timeout)
    if reply.status == 403 and _REQUEST_HEADER not in reply.headers and (token := await _invoke_token(session)):
        # Pods without networks of their own: the gateway cannot see that it is the API server who calls.
        reply = await _send(session, method, path, query, {**(headers or {}), _TOKEN_HEADER: token}, body, timeout)
    return CallAnswer(reply.status, reply.headers, reply.body)


async def _invoke_token(session: CliSession) -> str:
    """Of the gateway, for those who may read it; empty: not for us."""
    try:
        found = await session.client.get(SECRETS.as_dynamic, GATEWAY_NAME, session.namespace)
    except (Forbidden, NotFound):
        return ""
    return base64.b64decode((found.get("data") or {}).get(_TOKEN_KEY) or "").decode()


async def _send(
    session: CliSession,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
    timeout: float,
) -> TransportResponse:
    where = f"/api/v1/namespaces/{session.namespace}/services/{GATEWAY_NAME}:{GATEWAY_PORT}/proxy{path}"
    asked = TransportRequest(method, where, query, {"Accept": "*/*", **headers}, body, timeout=timeout + _SLACK)
    deadline = asyncio.get_running_loop().time() + min(START_SECONDS, timeout)
    while True:
        reply = await session.client.transport.send(asked)
        # The first pod of the gateway is being started; the call was certainly not passed on.
        starting = reply.status == 503 and b"no endpoints available" in reply.body
        if not starting or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(_RETRY_SECONDS)
    if reply.status >= 400 and (refused := _status_of(reply.body)) is not None:
        raise _not_reached(session, refused, reply.status)
    return reply


def _status_of(body: bytes) -> dict[str, Any] | None:
    """The API server's own refusal, as opposed to an answer of the gateway."""
    try:
        found = json.loads(body)
    except ValueError:
        return None
    if isinstance(found, dict) and (found.get("kind"), found.get("apiVersion")) == ("Status", "v1"):
        return found
    return None


def _not_reached(session: CliSession, status: dict[str, Any], code: int) -> CliError:
    error = from_status(status, code)
    if code == 404:
        why = f"namespace {session.namespace} has no gateway for functions; it is made with the first Action"
        return CliError(f"Error: {why}: `coterie action ls` shows the functions")
    if code in (502, 503, 504):
        return CliError(
            f"Error: the gateway for functions does not answer ({error.message}); "
            f"`coterie get pods -n {session.namespace} -l app.kubernetes.io/name={GATEWAY_NAME}` shows its pods"
        )
    return CliError(f"Error: {error.message}")
