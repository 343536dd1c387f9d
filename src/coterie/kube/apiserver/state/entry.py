"""How one object is kept: as the JSON bytes that clients get, beside the few facts that selectors ask for.

The store holds an object without `resourceVersion`, because a revision exists only once the write is committed. It is
spliced in at a place known beforehand: every stored object begins with the same head up to `"metadata":{`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import orjson

from coterie.kube.api.resources import Resource

Object = dict[str, Any]
Selectable = Callable[[Object], dict[str, str]]
"""Object -> the values of the fields that selectors may ask for."""


class _Meta(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None


class _Header(msgspec.Struct):
    metadata: _Meta


_read_header = msgspec.json.Decoder(_Header).decode


class ObjectEntry:
    """One version of one object. Immutable; `raw` is its JSON in the stored API version."""

    __slots__ = ("_fields", "created", "labels", "name", "namespace", "raw", "revision", "uid")

    def __init__(self, namespace: str, name: str, raw: bytes, revision: int, created: int) -> None:
        header = _read_header(raw).metadata
        self.namespace = namespace
        self.name = name
        self.raw = raw
        self.revision = revision
        self.created = created
        self.labels = header.labels
        self.uid = header.uid
        self._fields: tuple[Selectable, dict[str, str]] | None = None

    def load(self) -> Object:
        """A fresh copy of the object, the caller's to change."""
        obj: Object = orjson.loads(self.raw)
        return obj

    def fields(self, selectable: Selectable) -> dict[str, str]:
        """What field selectors may ask of this object, kept for whoever asks the same way next (each served version
        has its own way)."""
        known = self._fields
        if known is None or known[0] != selectable:
            known = self._fields = (selectable, selectable(self.load()))
        return known[1]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def head_of(api_version: str, kind: str) -> bytes:
    return b'{"apiVersion":%b,"kind":%b,"metadata":{' % (orjson.dumps(api_version), orjson.dumps(kind))


def encode(obj: Object, api_version: str, kind: str) -> bytes:
    """The bytes to store: head first, no resourceVersion, everything else in the order it was given."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    out: Object = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    for key, value in obj.items():
        if key not in out:
            out[key] = value
    return orjson.dumps(out)


def splice(value: bytes, head_length: int, revision: int) -> bytes:
    """Stored bytes -> what clients see, with the resourceVersion as first field of the metadata."""
    return b'%b"resourceVersion":"%d",%b' % (value[:head_length], revision, value[head_length:])


def respliced(raw: bytes, head_length: int, old: int, new: int) -> bytes:
    """The same object under another revision (a deletion event shows the revision of the deletion)."""
    tail = head_length + len(b'"resourceVersion":"%d",' % old)
    return b'%b"resourceVersion":"%d",%b' % (raw[:head_length], new, raw[tail:])


class NotConverted(Exception):
    """These stored objects are needed in a version that only a webhook can make of them."""

    def __init__(self, raws: list[bytes]) -> None:
        super().__init__(f"{len(raws)} objects are not converted")
        self.raws = raws


class VersionView:
    """One served version of a collection: how stored objects look in that version, and back."""

    def __init__(
        self,
        resource: Resource,
        *,
        storage_head: bytes,
        to_view: Callable[[Object], Object] | None = None,
        to_storage: Callable[[Object], Object] | None = None,
        warning: str = "",
        conversion: object | None = None,
    ) -> None:
        self.resource = resource
        self.key = resource.key
        self.conversion = conversion
        """The webhook that converts objects of other versions (`webhooks/conversion.py`)."""
        self.warning = warning
        """Sent with every answer: this version is deprecated."""
        self._storage_head = storage_head
        self._head = head_of(resource.api_version, resource.kind)
        self._to_view = to_view
        self._to_storage = to_storage
        self.is_storage = self._head == storage_head and to_view is None

    def render(self, raw: bytes) -> bytes:
        if self.is_storage:
            return raw
        if self._to_view is None:
            return self._head + raw[len(self._storage_head) :]
        return orjson.dumps(self._to_view(orjson.loads(raw)))

    def require(self, entries: Sequence[ObjectEntry]) -> None:
        """They are about to be shown. Raises NotConverted."""

    def load(self, raw: bytes) -> Object:
        obj: Object = orjson.loads(raw)
        return self.of_stored(obj)

    def of_stored(self, obj: Object) -> Object:
        if self.is_storage:
            return obj
        if self._to_view is not None:
            return self._to_view(obj)
        return {**obj, "apiVersion": self.resource.api_version, "kind": self.resource.kind}

    def to_stored(self, obj: Object) -> Object:
        return self._to_storage(obj) if self._to_storage is not None else obj
