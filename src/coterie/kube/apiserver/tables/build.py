"""Tables as the API answers them: `Accept: application/json;as=Table`.

Objects come as the bytes that the store keeps and leave as the bytes of a row; in between only the fields that the
cells need are decoded where a layout says which these are (pods, of which there may be many). A `TableBuilder` is
made once for a resource and used for every list and watch of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypedDict

import msgspec
import orjson

from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.tables.columns import Cells, Object, TableLayout
from coterie.kube.apiserver.tables.layouts import PrinterColumn, layout_for

Include = Literal["None", "Metadata", "Object"]
"""What of each object goes into its row: the query parameter `includeObject`."""

_PARTIAL = b'"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'


class _Meta(TypedDict, total=False):
    """The metadata that layouts with `parts` may read."""

    name: str
    creationTimestamp: str | None
    deletionTimestamp: str | None
    resourceVersion: str


_meta_decoder = msgspec.json.Decoder(_Meta)


class TableBuilder:
    """Tables of one resource in one version."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._columns = orjson.dumps([column.as_json() for column in layout.columns])
        self._decoder = msgspec.json.Decoder(layout.parts) if layout.parts is not None else None

    @property
    def columns(self) -> list[dict[str, Any]]:
        return [column.as_json() for column in self._layout.columns]

    def row(self, obj: Object, now: float) -> Cells:
        return self._layout.cells(obj, now)

    def row_of(self, obj: Object, now: float, include: Include = "Metadata") -> bytes:
        """The row of a decoded object, whose resourceVersion is in its metadata."""
        whole = orjson.dumps(obj) if include == "Object" else b""
        return self._encode(obj, whole, orjson.dumps(obj["metadata"]), now, include)

    def row_json(self, raw: bytes, resource_version: str, now: float, include: Include = "Metadata") -> bytes:
        """The row of an object kept as bytes. `resource_version` is put into its metadata unless it has one.

        With include="Object" the bytes must have it already: they go into the row as they are.
        """
        obj, metadata = self._read(raw)
        if resource_version and "resourceVersion" not in obj["metadata"]:
            metadata = b'{"resourceVersion":"' + resource_version.encode() + b'",' + metadata[1:]
        return self._encode(obj, raw, metadata, now, include)

    def table(
        self,
        rows: Iterable[bytes],
        *,
        resource_version: str = "",
        continue_token: str = "",
        remaining: int | None = None,
        no_headers: bool = False,
    ) -> bytes:
        """A Table of encoded rows. Without headers it is what follows the first event of a watch."""
        meta: dict[str, Any] = {}
        if resource_version:
            meta["resourceVersion"] = resource_version
        if continue_token:
            meta["continue"] = continue_token
        if remaining:
            meta["remainingItemCount"] = remaining
        return b"".join(
            (
                b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":',
                orjson.dumps(meta),
                b',"columnDefinitions":',
                b"null" if no_headers else self._columns,
                b',"rows":[',
                b",".join(rows),
                b"]}",
            )
        )

    def _read(self, raw: bytes) -> tuple[Object, bytes]:
        """The object, whole or in part, and the bytes of its metadata."""
        if self._decoder is not None:
            try:
                obj: Object = self._decoder.decode(raw)
                metadata = bytes(obj["metadata"])
                obj["metadata"] = _meta_decoder.decode(metadata)
            except msgspec.ValidationError:
                # Something has a type that the parts do not foresee, such as null for a text: read it all.
                pass
            else:
                return obj, metadata
        obj = orjson.loads(raw)
        return obj, orjson.dumps(obj["metadata"])

    def _encode(self, obj: Object, whole: bytes, metadata: bytes, now: float, include: Include) -> bytes:
        cells = orjson.dumps(self._layout.cells(obj, now))
        conditions = self._layout.conditions(obj) if self._layout.conditions is not None else None
        conditions_json = b',"conditions":' + orjson.dumps(conditions) + b"," if conditions else b","
        if include == "Metadata":
            return b'{"cells":' + cells + conditions_json + _PARTIAL + metadata + b"}}"
        if include == "Object":
            return b'{"cells":' + cells + conditions_json + b'"object":' + whole + b"}"
        return b'{"cells":' + cells + conditions_json + b'"object":null}'


def builder_for(resource: Resource, printer_columns: Sequence[PrinterColumn] = ()) -> TableBuilder:
    """The builder of a resource. For custom resources keep what this returns: paths are compiled each time."""
    if resource.custom:
        return TableBuilder(layout_for(resource, printer_columns))
    return _builtin_builder(resource)


@cache
def _builtin_builder(resource: Resource) -> TableBuilder:
    return TableBuilder(layout_for(resource))


def columns_for(resource: Resource, printer_columns: Sequence[PrinterColumn] = ()) -> list[dict[str, Any]]:
    """`columnDefinitions` of a resource."""
    return builder_for(resource, printer_columns).columns


def row(resource: Resource, obj: Object, now: datetime, printer_columns: Sequence[PrinterColumn] = ()) -> Cells:
    """The cells of one object."""
    return builder_for(resource, printer_columns).row(obj, now.timestamp())


def build_table(
    resource: Resource,
    objects: Iterable[Object],
    *,
    now: datetime,
    resource_version: str = "",
    continue_token: str = "",
    remaining: int | None = None,
    include_object: Include = "Metadata",
    no_headers: bool = False,
    printer_columns: Sequence[PrinterColumn] = (),
) -> bytes:
    """A whole Table of decoded objects."""
    builder = builder_for(resource, printer_columns)
    moment = now.timestamp()
    return builder.table(
        (builder.row_of(obj, moment, include_object) for obj in objects),
        resource_version=resource_version,
        continue_token=continue_token,
        remaining=remaining,
        no_headers=no_headers,
    )
