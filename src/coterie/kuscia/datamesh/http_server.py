"""The HTTP port: the same operations as on the gRPC port, as JSON or protobuf in POST requests; and some rows of a table as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from coterie.http.messages import Request, Response
from coterie.kuscia.control.running_engines import engine_of_user
from coterie.kuscia.datamesh.authentication import EngineAuthenticator, EngineCaller
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError
from coterie.kuscia.datamesh.row_reader import ROWS_PATH, RowReader, rows_query
from coterie.kuscia.datamesh.services import MeshOperation

_PROTOBUF = "application/x-protobuf"
_HEALTH = "/healthZ"


class HttpHandler:
    def __init__(self, callers: EngineAuthenticator, operations: Sequence[MeshOperation], rows: RowReader) -> None:
        self._callers = callers
        self._rows = rows
        self._operations = {each.path: each for each in operations}

    async def handle(self, request: Request) -> Response:
        if request.path == _HEALTH and request.method in ("GET", "POST"):
            return _json({"status": _status(0, "success"), "data": {"ready": True}})
        operation = self._operations.get(request.path)
        if operation is None and request.path != ROWS_PATH:
            return _failed(404, f"there is nothing at {request.path}")
        if request.method != "POST":
            return _failed(405, "only POST is taken here")
        try:
            caller = await self._callers.find(engine_of_user(request.peer.certificate_user))
        except MeshError as problem:
            return _failed(503 if problem.kind is GrpcStatusName.UNAVAILABLE else 401, str(problem), int(problem.code))
        if operation is None:
            return await self._read_rows(caller, request)
        protobuf = request.headers.get("content-type", "").split(";")[0].strip() == _PROTOBUF
        try:
            if protobuf:
                message = operation.request.FromString(request.body)
            else:
                message = json_format.Parse(request.body or b"{}", operation.request(), ignore_unknown_fields=True)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as problem:
            return _failed(400, f"the body is no {operation.method}Request: {problem}")
        answer = await operation.run(caller, message)
        if protobuf:
            return Response(body=answer.SerializeToString(), content_type=_PROTOBUF)
        return _json(as_json(answer))

    async def _read_rows(self, caller: EngineCaller, request: Request) -> Response:
        try:
            found = await self._rows.read(caller, rows_query(request.body))
        except MeshError as problem:
            return _failed(_STATUSES.get(problem.kind, 400), str(problem), int(problem.code))
        return Response(200, json.dumps({"rows": found}, ensure_ascii=False, default=str).encode())


_STATUSES = {
    GrpcStatusName.PERMISSION_DENIED: 403,
    GrpcStatusName.NOT_FOUND: 404,
    GrpcStatusName.UNAVAILABLE: 503,
}


def as_json(message: Any) -> dict[str, Any]:
    """Kuscia's form: the names of the definitions, and fields without a value too."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _status(code: int, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "details": []}


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(status, json.dumps(value, ensure_ascii=False).encode())


def _failed(status: int, message: str, code: int = 12100) -> Response:
    return _json({"status": _status(code, message)}, status)
