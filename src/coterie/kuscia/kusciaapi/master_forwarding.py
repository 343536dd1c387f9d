"""A lite's calls to its master: through the own gateway, as `http://kusciaapi.master.svc`, protobuf in the body.

Whole answers come as protobuf. Those of a stream come as JSON objects one after the other, as over every HTTP door.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from coterie.base.json_stream import Objects
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.transport import ByteStream, TransportError, TransportRequest, TransportResponse
from coterie.kube.client.wrappers import FixedHost
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.operations import ApiOperation

HOST = "kusciaapi.master.svc"
PROTOBUF = "application/x-protobuf"
_REQUEST_TIMEOUT = 30.0
_LARGEST_OBJECT = 16 << 20
"""Characters of one object of a stream."""
_LIMITS = ResponseLimits(body=64 << 20)


class MasterForwarder:
    def __init__(self, gateway: str) -> None:
        """`gateway`: the Unix socket on which the own gateway takes what leaves."""
        connection = ClusterConnection(server="http://gateway")
        way = HttpTransport(connection, timeout=_REQUEST_TIMEOUT, socket=Path(gateway), limits=_LIMITS)
        self._transport = FixedHost(way, HOST)

    async def close(self) -> None:
        await self._transport.close()

    async def ask(self, operation: ApiOperation, request: Any) -> Any:
        reply = await self._send(operation, request, stream=False)
        try:
            return operation.response.FromString(reply.body)
        except DecodeError as problem:
            raise _failed("its answer cannot be read; it may be of another version") from problem

    async def listen(self, operation: ApiOperation, request: Any) -> AsyncGenerator[Any, None]:
        reply = await self._send(operation, request, stream=True)
        lines, objects = reply.lines, Objects(_LARGEST_OBJECT)
        assert isinstance(lines, ByteStream), "what HttpTransport gives"
        try:
            while chunk := await lines.chunk():
                for each in objects.feed(chunk):
                    if not operation.reports_status and each.keys() == {"status"}:
                        raise _refusal_of(each["status"])
                    yield json_format.ParseDict(each, operation.response(), ignore_unknown_fields=True)
        except TransportError as problem:
            raise _failed(str(problem)) from problem
        except (ValueError, KeyError, TypeError, RecursionError, json_format.ParseError) as problem:
            raise _failed("its answer cannot be read; it may be of another version") from problem
        finally:
            await lines.close()

    async def _send(self, operation: ApiOperation, request: Any, *, stream: bool) -> TransportResponse:
        headers = {"Content-Type": PROTOBUF, "Accept": PROTOBUF}
        call = TransportRequest(
            "POST", operation.path, headers=headers, body=request.SerializeToString(), stream=stream
        )
        try:
            reply = await self._transport.send(call)
        except TransportError as problem:
            raise _failed(str(problem)) from problem
        if reply.status != 200:
            raise _failed(f"it answers {reply.status}: {_sentence(reply.body)}")
        return reply


def _failed(why: str) -> CallRefused:
    return CallRefused(ApiErrorCode.CALL_TO_MASTER, f"the master could not be asked: {why}")


def _refusal_of(status: Any) -> CallRefused:
    """What the master refused."""
    return CallRefused(ApiErrorCode(int(status["code"])), str(status["message"]))


def _sentence(body: bytes) -> str:
    return body[:500].decode("utf-8", "replace").strip() or "nothing more"
