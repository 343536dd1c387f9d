"""Entries of the catalogue, as callers ask for them and are told of them. Pure.

    request ──asked──> spec ──completed──> DomainData ──told──> message

The data mesh and KusciaAPI have the same words for them, and the same rules for what callers leave out.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DATA_TYPES, DEFAULT_SOURCE, DataColumn, DomainData, DomainDataSpec
from coterie.kuscia.sources.protocol import FileFormat

_NAME_PART = 16
FILE_SOURCES = ("localfs", "oss", "azure", "gcs", "http")
"""Kinds whose tables are files of some format."""


class InvalidEntry(ValueError):
    """`field` cannot be taken; the message is a sentence."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def new_name(text: str) -> str:
    """A name that nobody has: the beginning of what people call it, and 32 random hexadecimal digits."""
    head = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_NAME_PART].strip("-")
    tail = uuid.uuid4().hex
    return f"{head}-{tail}" if head else f"d{tail}"


def without_empty(values: Mapping[str, Any]) -> Object:
    """On the wire nothing tells what is empty from what was left out."""
    return {key: value for key, value in values.items() if value not in ("", None, {}, [], ())}


# What is asked for.


def spec_of_request(request: Any) -> Object:
    """The spec in a request to create or update; empty where it says nothing."""
    number = request.file_format
    if number not in set(FileFormat):
        raise InvalidEntry("file_format", f"{number} is unknown")
    fields = [_column(each) for each in request.partition.fields]
    return {
        "name": request.name,
        "type": request.type,
        "relativeURI": request.relative_uri,
        "dataSource": request.datasource_id,
        "attributes": dict(request.attributes),
        "partitions": {"type": request.partition.type, "fields": fields} if request.HasField("partition") else None,
        "columns": [_column(each) for each in request.columns],
        "vendor": request.vendor,
        "fileFormat": FileFormat(number).name.lower() if number else "",
    }


def _column(column: Any) -> Object:
    out: Object = {"name": column.name, "type": column.type}
    if column.comment:
        out["comment"] = column.comment
    if column.not_nullable:
        out["notNullable"] = True
    return out


def chosen_source(spec: Mapping[str, Any]) -> str:
    return str(spec.get("dataSource") or DEFAULT_SOURCE)


def completed(spec: Mapping[str, Any], name: str, author: str, source_kind: str) -> Object:
    """With what was left out. BadEntry when it cannot be."""
    out = without_empty(spec)
    out.setdefault("name", name)
    out.setdefault("relativeURI", name)
    out.setdefault("type", "unknown")
    out.setdefault("vendor", "manual")
    out["dataSource"] = chosen_source(out)
    out["author"] = author
    if source_kind not in FILE_SOURCES:
        out["fileFormat"] = "unknown"
    out.setdefault("fileFormat", "unknown")
    _check(name, out)
    return out


def _check(name: str, spec: Mapping[str, Any]) -> None:
    if spec["type"] not in DATA_TYPES:
        raise InvalidEntry("type", f'must be one of {", ".join(DATA_TYPES)}, not "{spec["type"]}"')
    uri = str(spec["relativeURI"])
    if ".." in uri.split("/") or "\0" in uri:
        raise InvalidEntry("relative_uri", "must stay inside of the data source")
    try:
        typed = msgspec.convert(dict(spec), DomainDataSpec)
    except msgspec.ValidationError as problem:
        raise InvalidEntry(f'DomainData "{name}"', f"is not complete: {problem}") from problem
    names = [each.name for each in typed.columns or ()]
    if not all(names):
        raise InvalidEntry("columns", "need names")
    if len(set(names)) < len(names):
        raise InvalidEntry("columns", "must not have the same name")


# What the API keeps.


def entry(name: str, spec: Mapping[str, Any], marks: Mapping[str, str]) -> Object:
    """A DomainData to create. `spec`: completed; `marks`: annotations."""
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "DomainData",
        "metadata": {
            "name": name,
            "labels": _labels(spec),
            "annotations": {labels.KUSCIA_INITIATOR: spec["author"], **marks},
        },
        "spec": dict(spec),
    }


def merged(data: DomainData, spec: Mapping[str, Any]) -> Object:
    """What `spec` does not name stays. To be completed."""
    return {**msgspec.to_builtins(data.spec), **without_empty(spec)}


def change(data: DomainData, spec: Mapping[str, Any]) -> Object:
    """The patch that leaves just `spec` (completed), if nobody wrote meanwhile."""
    fresh = {**dict.fromkeys(("attributes", "partitions", "columns")), **spec}
    # A merge would keep attributes that are gone.
    before, after = data.spec.attributes, spec.get("attributes")
    fresh["attributes"] = {**dict.fromkeys(before or ()), **(after or {})} if before or after else None
    return {
        "metadata": {"labels": _labels(spec), "resourceVersion": data.metadata.resource_version},
        "spec": fresh,
    }


def _labels(spec: Mapping[str, Any]) -> dict[str, str]:
    return {
        labels.KUSCIA_DOMAINDATA_TYPE: label(spec["type"]),
        labels.KUSCIA_DOMAINDATA_VENDOR: label(spec["vendor"]),
        labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: "kuscia",
    }


def label(text: str) -> str:
    """As near to the text as a label can be."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-_.")


# What callers are told.


def file_format(text: str) -> FileFormat:
    return FileFormat.__members__.get(text.upper(), FileFormat.UNKNOWN)


def data_response(data: DomainData, only: frozenset[str] | None = None) -> Object:
    """`only`: the columns that may be told."""
    spec = data.spec
    out: Object = {
        "domaindata_id": data.metadata.name,
        "name": spec.name,
        "type": spec.type,
        "relative_uri": spec.relative_uri,
        "datasource_id": spec.data_source,
        "attributes": spec.attributes or {},
        "columns": [_column_response(each) for each in spec.columns or () if only is None or each.name in only],
        "vendor": spec.vendor,
        "file_format": int(file_format(spec.file_format)),
        "author": spec.author,
    }
    if spec.partitions is not None:
        fields = [_column_response(each) for each in spec.partitions.fields or ()]
        out["partition"] = {"type": spec.partitions.type, "fields": fields}
    return out


def _column_response(column: DataColumn) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "comment": column.comment,
        "not_nullable": column.not_nullable,
    }
