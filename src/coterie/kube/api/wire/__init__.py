"""Bodies in the binary form of Kubernetes: since 1.32 kubectl sends protobuf for all it builds itself.

    envelope ──▶ protobuf.decode(body) ──▶ {"apiVersion": ..., "kind": ..., "metadata": ...}
                     │  looks up                    ▲
                     ▼                              │ `finish` of the few messages that are no JSON objects
    table.py: messages.tsv, one row per field    values.py: times, quantities, raw JSON, unions

Only reading is needed: every client that sends protobuf also takes JSON answers. The table is read when the first
such body arrives and a message is compiled when it is first met, so a server that never sees one pays nothing.
"""

from coterie.kube.api.wire.protobuf import MEDIA_TYPE, DecodeError, decode

__all__ = ["MEDIA_TYPE", "DecodeError", "decode"]
