"""Whole tables: their JSON, custom columns, what each row carries of its object, and speed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.apiserver.tables.build import build_table, builder_for, columns_for, row
from coterie.kuscia.api.definitions import crds

NOW = datetime(2026, 11, 15, 9, 0, tzinfo=UTC)
CONFIGMAPS = next(r for r in BUILTIN if r.plural == "configmaps")
PODS = next(r for r in BUILTIN if (r.group, r.plural) == ("", "pods"))
WIDGETS = Resource("lab.io", "v1", "widgets", "Widget", True, singular="widget", storage=("lab.io", "v1"), custom=True)
META = {"name": "a", "namespace": "n", "resourceVersion": "5", "creationTimestamp": "2026-11-15T08:55:00Z"}
OBJ: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": META, "data": {"k": "v"}}


def test_table_json() -> None:
    raw = build_table(CONFIGMAPS, [OBJ], now=NOW, resource_version="17", continue_token="abc", remaining=4)
    table = orjson.loads(raw)
    assert list(table) == ["kind", "apiVersion", "metadata", "columnDefinitions", "rows"]
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["metadata"] == {"resourceVersion": "17", "continue": "abc", "remainingItemCount": 4}
    assert table["columnDefinitions"] == columns_for(CONFIGMAPS)
    assert list(table["columnDefinitions"][0]) == ["name", "type", "format", "description", "priority"]
    assert table["rows"] == [
        {
            "cells": ["a", 1, "5m"],
            "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": META},
        }
    ]


def test_empty_table() -> None:
    table = orjson.loads(build_table(CONFIGMAPS, [], now=NOW))
    assert (table["metadata"], table["rows"]) == ({}, [])
    assert table["columnDefinitions"]


def test_a_watch_tells_the_columns_only_once() -> None:
    first, second = (orjson.loads(build_table(CONFIGMAPS, [OBJ], now=NOW, no_headers=n)) for n in (False, True))
    assert first["columnDefinitions"]
    assert second["columnDefinitions"] is None
    assert first["rows"] == second["rows"]


@pytest.mark.parametrize(("include", "told"), [("None", None), ("Object", OBJ)])
def test_include_object(include: Any, told: Any) -> None:
    table = orjson.loads(build_table(CONFIGMAPS, [OBJ], now=NOW, include_object=include))
    assert table["rows"][0]["object"] == told
    builder = builder_for(CONFIGMAPS)
    raw = builder.row_json(orjson.dumps(OBJ), "9", NOW.timestamp(), include)
    assert orjson.loads(raw) == table["rows"][0]


@pytest.mark.parametrize("resource", [CONFIGMAPS, PODS], ids=["whole", "in-part"])
def test_bytes_without_resource_version_get_one(resource: Resource) -> None:
    bare = {**OBJ, "metadata": {k: v for k, v in META.items() if k != "resourceVersion"}}
    builder = builder_for(resource)
    stored = orjson.loads(builder.row_json(orjson.dumps(bare), "42", NOW.timestamp()))
    assert stored["object"]["metadata"] == {**META, "resourceVersion": "42"}
    kept = orjson.loads(builder.row_json(orjson.dumps(OBJ), "42", NOW.timestamp()))
    assert kept["object"]["metadata"] == META


def column(name: str, kind: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **more}


WIDGET = {
    "apiVersion": "lab.io/v1",
    "kind": "Widget",
    "metadata": META,
    "spec": {"size": 3, "ratio": 0.5, "on": True, "tags": ["a", "b"], "map": {"x": 1}, "text": "hi", "nil": None},
    "status": {"at": "2026-11-15T08:59:00Z", "bad": "noon", "conditions": [{"type": "Ready", "status": "True"}]},
}
CELLS: dict[str, tuple[str, str, Any]] = {
    "string": ("string", ".spec.text", "hi"),
    "string-of-integer": ("string", ".spec.size", "3"),
    "string-of-number": ("string", ".spec.ratio", "0.5"),
    "string-of-boolean": ("string", ".spec.on", "true"),
    "string-of-list": ("string", ".spec.tags", '["a","b"]'),
    "string-of-map": ("string", ".spec.map", '{"x":1}'),
    "string-of-null": ("string", ".spec.nil", None),
    "string-first-of-many": ("string", ".spec.tags[*]", "a"),
    "string-of-filter": ("string", '.status.conditions[?(@.type=="Ready")].status', "True"),
    "missing": ("string", ".spec.nope", None),
    "integer": ("integer", ".spec.size", 3),
    "integer-of-number": ("integer", ".spec.ratio", 0),
    "integer-of-text": ("integer", ".spec.text", None),
    "integer-of-boolean": ("integer", ".spec.on", None),
    "number": ("number", ".spec.ratio", 0.5),
    "boolean": ("boolean", ".spec.on", True),
    "boolean-of-text": ("boolean", ".spec.text", None),
    "date": ("date", ".status.at", "60s"),
    "date-invalid": ("date", ".status.bad", "<invalid>"),
    "date-missing": ("date", ".status.nope", None),
}


@pytest.mark.parametrize(("kind", "path", "told"), CELLS.values(), ids=CELLS.keys())
def test_custom_cells(kind: str, path: str, told: Any) -> None:
    assert row(WIDGETS, WIDGET, NOW, [column("C", kind, path)]) == ["a", told]


def test_custom_columns() -> None:
    columns = columns_for(
        WIDGETS, [column("Size", "integer", ".spec.size", format="int32", priority=1, description="how big")]
    )
    assert [c["name"] for c in columns] == ["Name", "Size"]
    assert columns[1] == {
        "name": "Size",
        "type": "integer",
        "format": "int32",
        "description": "how big",
        "priority": 1,
    }


def test_custom_resources_without_columns_have_an_age() -> None:
    assert [c["name"] for c in columns_for(WIDGETS)] == ["Name", "Age"]
    assert row(WIDGETS, WIDGET, NOW) == ["a", "5m"]


def test_kuscia_columns_work_on_kuscia_objects() -> None:
    (definition,) = crds.load({"clusterdomainroutes.kuscia.secretflow"})
    resource = replace(WIDGETS, group=crds.GROUP, plural="clusterdomainroutes", kind="ClusterDomainRoute")
    route = {
        "metadata": META,
        "spec": {"source": "alice", "destination": "bob", "endpoint": {"host": "h"}, "authenticationType": "Token"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    columns = definition["spec"]["versions"][0]["additionalPrinterColumns"]
    assert row(resource, route, NOW, columns) == ["a", "alice", "bob", "h", "Token", "True"]
