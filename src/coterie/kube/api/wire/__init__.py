"""Bodies in the binary form of Kubernetes: kubectl sends protobuf for all it builds itself, and the components of
Kubernetes ask for it.

    envelope ──▶ protobuf.decode(body) ──▶ {"apiVersion": ..., "kind": ..., "metadata": ...}
                     │  looks up                    ▲
                     ▼                              │ `finish` of the few messages that are no JSON objects
    table.py: messages.tsv, one row per field    values.py: times, quantities, raw JSON, unions

`encode.py` is the way back. The table is read when the first such body arrives or leaves and a message is compiled
when it is first met, so a server that never sees one pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import BadRequest

if TYPE_CHECKING:
    from coterie.kube.api.wire import protobuf, table
else:
    protobuf = lazy_import("coterie.kube.api.wire.protobuf")
    table = lazy_import("coterie.kube.api.wire.table")

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"


class DecodeError(BadRequest):
    """The body is not what its media type says."""


def decode(body: bytes) -> dict[str, Any]:
    return protobuf.decode(body)


def message_of_kind(api_version: str, kind: str) -> table.Message | None:
    """None: the kind has no such form, as all kinds that are not built in."""
    return table.message_of_kind(api_version, kind)


__all__ = ["MEDIA_TYPE", "DecodeError", "decode", "message_of_kind"]
