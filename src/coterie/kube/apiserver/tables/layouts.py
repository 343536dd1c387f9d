"""Which layout a resource has: one of the built-in ones, or one made from the printer columns of a definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.tables.ages import age
from coterie.kube.apiserver.tables.autoscaling import AUTOSCALING
from coterie.kube.apiserver.tables.cluster import CLUSTER, PLAIN
from coterie.kube.apiserver.tables.columns import NAME, Cell, Cells, Object, TableColumn, TableLayout
from coterie.kube.apiserver.tables.formats import name_of
from coterie.kube.apiserver.tables.jsonpath import compile_path
from coterie.kube.apiserver.tables.network import NETWORK
from coterie.kube.apiserver.tables.pods import PODS
from coterie.kube.apiserver.tables.rare import RARE
from coterie.kube.apiserver.tables.storage import STORAGE
from coterie.kube.apiserver.tables.workloads import WORKLOADS

PrinterColumn = dict[str, Any]
"""One entry of `additionalPrinterColumns`: name, type, jsonPath; format, description, priority when given."""

BUILTIN: dict[tuple[str, str], TableLayout] = {
    ("", "pods"): PODS,
    **WORKLOADS,
    **AUTOSCALING,
    **NETWORK,
    **CLUSTER,
    **STORAGE,
    **RARE,
}

_AGE: PrinterColumn = {
    "name": "Age",
    "type": "date",
    "jsonPath": ".metadata.creationTimestamp",
    "description": "Time since the object was created.",
}


def layout_for(resource: Resource, printer_columns: Sequence[PrinterColumn] = ()) -> TableLayout:
    """The layout of a resource; for a custom one `printer_columns` are those of the version that is shown."""
    if resource.custom:
        return custom_layout(printer_columns)
    return BUILTIN.get((resource.group, resource.plural), PLAIN)


def custom_layout(printer_columns: Sequence[PrinterColumn]) -> TableLayout:
    column_specs = printer_columns or (_AGE,)
    columns = [NAME]
    readers: list[Callable[[Object, float], Cell]] = []
    for column in column_specs:
        columns.append(
            TableColumn(
                name=column["name"],
                type=column["type"],
                format=column.get("format") or "",
                description=column.get("description") or f"Value of {column['jsonPath']}",
                priority=column.get("priority") or 0,
            )
        )
        readers.append(_reader(column["type"], column["jsonPath"]))

    def cells(obj: Object, now: float) -> Cells:
        return [name_of(obj), *(read(obj, now) for read in readers)]

    return TableLayout(tuple(columns), cells)


def _reader(kind: str, json_path: str) -> Callable[[Object, float], Cell]:
    find = compile_path(json_path)

    def read(obj: Object, now: float) -> Cell:
        found = find(obj)
        return _cell(kind, found[0], now) if found else None

    return read


def _cell(kind: str, value: Any, now: float) -> Cell:
    """The value as a cell of the column's type; None when it is of another type."""
    if kind == "string":
        return _as_text(value)
    if kind == "date":
        return age(value, now) if isinstance(value, str) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if kind == "integer" else float(value)


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    return str(value)
