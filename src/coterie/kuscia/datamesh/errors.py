"""What goes wrong, with the numbers that Kuscia's clients know and the status that gRPC has for it."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from coterie.kuscia.sources.protocol import DataNotFound, SourceError, SourceForbidden, SourceUnreachable


class MeshErrorCode(IntEnum):
    OK = 0
    INVALID = 12100
    UNEXPECTED = 12101
    CREATE_DATA = 12200
    QUERY_DATA = 12201
    GET_DATA = 12202
    MERGE_DATA = 12203
    PATCH_DATA = 12204
    DELETE_DATA = 12205
    QUERY_SOURCE = 12302
    SOURCE_NOT_THERE = 12305
    GET_SOURCE = 12306
    DECODE_INFO = 12307
    ENCODE_INFO = 12308
    CREATE_GRANT = 12400
    UPDATE_GRANT = 12401
    QUERY_GRANT = 12402
    DELETE_GRANT = 12403
    GRANT_EXISTS = 12404
    GRANT_NOT_THERE = 12405


class GrpcStatusName(StrEnum):
    """As gRPC spells them."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    UNAVAILABLE = "UNAVAILABLE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"


class MeshError(Exception):
    """The message is a sentence for the caller; it holds no secret."""

    def __init__(
        self, code: MeshErrorCode, message: str, kind: GrpcStatusName = GrpcStatusName.INVALID_ARGUMENT
    ) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


class NotPermitted(MeshError):
    """The caller may not; the message names the limit."""

    def __init__(self, code: MeshErrorCode, message: str) -> None:
        super().__init__(code, message, GrpcStatusName.PERMISSION_DENIED)


def mesh_error(problem: SourceError) -> MeshError:
    match problem:
        case DataNotFound():
            return MeshError(MeshErrorCode.QUERY_DATA, str(problem), GrpcStatusName.NOT_FOUND)
        case SourceForbidden():
            return NotPermitted(MeshErrorCode.QUERY_DATA, str(problem))
        case SourceUnreachable():
            return MeshError(MeshErrorCode.QUERY_SOURCE, str(problem), GrpcStatusName.UNAVAILABLE)
    return MeshError(MeshErrorCode.QUERY_DATA, str(problem), GrpcStatusName.FAILED_PRECONDITION)
