"""The classes of the messages that engines send and get, from our own definitions in
`kuscia/api/definitions/protos`."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from coterie.kuscia.api.proto_files import ProtoFiles

KUSCIA = "kuscia.proto.api.v1alpha1"
DATAMESH = f"{KUSCIA}.datamesh"
FLIGHT = "arrow.flight.protocol"
_PREFIX = "type.googleapis.com/"

FILES = ProtoFiles(
    "kuscia/proto/api/v1alpha1/common.proto", "kuscia/proto/api/v1alpha1/datamesh/", "arrow/flight/protocol/"
)


def mesh(name: str) -> Any:
    return FILES.message(f"{DATAMESH}.{name}")


def flight(name: str) -> Any:
    return FILES.message(f"{FLIGHT}.{name}")


Any_ = FILES.message("google.protobuf.Any")
Status = FILES.message(f"{KUSCIA}.Status")

TABLE, RAW = 0, 1
"""ContentType; what is called CSV there is a table too."""


def unpacked(data: bytes) -> tuple[str, bytes]:
    """(name of the command without its package, its bytes) of an `Any`; ValueError when it is none of ours."""
    box = Any_()
    try:
        box.ParseFromString(data)
    except DecodeError as problem:
        raise ValueError("not a google.protobuf.Any") from problem
    full = box.type_url.removeprefix(_PREFIX)
    package, _, name = full.rpartition(".")
    if package != DATAMESH:
        raise ValueError(f"{box.type_url or 'nothing'} is no command of the data mesh")
    return name, box.value
