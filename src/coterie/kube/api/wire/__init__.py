"""Bodies in the binary form of Kubernetes: kubectl sends protobuf for all it builds itself, and the components of
Kubernetes ask for it.

    envelope ──▶ protobuf.decode(body) ──▶ {"apiVersion": ..., "kind": ..., "metadata": ...}
                     │  looks up                    ▲
                     ▼                              │ `finish` of the few messages that are no JSON objects
    table.py: messages.tsv, one row per field    values.py: times, quantities, raw JSON, unions

`encode.py` is the way back. The table is read when the first such body arrives or leaves and a message is compiled
when it is first met, so a server that never sees one pays nothing.
"""

from coterie.kube.api.wire.protobuf import MEDIA_TYPE, DecodeError, decode
from coterie.kube.api.wire.table import message_of_kind

__all__ = ["MEDIA_TYPE", "DecodeError", "decode", "message_of_kind"]
