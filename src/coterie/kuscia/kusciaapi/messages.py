"""The classes of KusciaAPI's messages, from our own definitions in `kuscia/api/definitions/protos`."""

from __future__ import annotations

import json
from functools import cache, cached_property
from typing import Any

from google.protobuf import json_format

from coterie.kube.api.meta import Object
from coterie.kuscia.api.proto_files import ProtoFiles
from coterie.kuscia.kusciaapi import plain_messages

KUSCIA = "kuscia.proto.api.v1alpha1"
PACKAGE = f"{KUSCIA}.kusciaapi"
CONFMANAGER = f"{KUSCIA}.confmanager"

FILES = ProtoFiles(
    "kuscia/proto/api/v1alpha1/common.proto",
    "kuscia/proto/api/v1alpha1/kusciaapi/",
    "kuscia/proto/api/v1alpha1/confmanager/",
)

Status = FILES.message(f"{KUSCIA}.Status")
ErrorResponse = FILES.message(f"{KUSCIA}.ErrorResponse")


@cache
def message(name: str, package: str = PACKAGE) -> Any:
    """By its name, in the package of KusciaAPI if no other is given; KeyError when there is none."""
    return FILES.message(f"{package}.{name}")


def as_json(of: Any) -> Object:
    """As whole answers go over HTTP: the names of the definitions, and fields without a value too."""
    if (plain := plain_messages.shown(of)) is not None:
        return plain
    # The pool: `details` of a status are any messages, which are looked up by name.
    return json_format.MessageToDict(
        of,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=FILES.pool,
    )


def as_event(of: Any) -> Object:
    """As the pieces of a stream go over HTTP: enumerations as numbers, and what has no value is left out."""
    return json_format.MessageToDict(
        of, preserving_proto_field_name=True, use_integers_for_enums=True, descriptor_pool=FILES.pool
    )


def event_text(of: Any) -> bytes:
    return of.text if isinstance(of, Shared) else as_text(as_event(of))


def as_text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def answer_text(of: Any) -> bytes:
    return of.answer_text if isinstance(of, Shared) else as_text(as_json(of))


class Shared:
    """A response for many callers, or a piece of many streams: written once for each way they go. Else it is like the response itself."""

    def __init__(self, response: Any, text: bytes = b"") -> None:
        """`text`: its JSON as a whole answer, where that is known already."""
        self.response = response
        self._answer_text = text

    @property
    def answer_text(self) -> bytes:
        if not self._answer_text:
            self._answer_text = as_text(as_json(self.response))
        return self._answer_text

    @cached_property
    def text(self) -> bytes:
        return as_text(as_event(self.response))

    @cached_property
    def binary(self) -> bytes:
        return bytes(self.response.SerializeToString())

    def SerializeToString(self) -> bytes:
        return self.binary

    def __getattr__(self, name: str) -> Any:
        return getattr(self.response, name)
