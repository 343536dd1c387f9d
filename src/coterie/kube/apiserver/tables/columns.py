"""What a table is made of: columns, and for each kind a function that turns one object into cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Cell = str | int | float | bool | None
Cells = list[Cell]
CellsOf = Callable[[Object, float], Cells]
"""Cells of an object at a moment (seconds since 1970)."""

NONE = "<none>"
UNSET = "<unset>"


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    """0 is always shown, more only in wide output."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How objects of one resource are shown."""

    columns: tuple[TableColumn, ...]
    cells: CellsOf
    parts: Any = None
    """A TypedDict with the fields that `cells` reads: objects kept as bytes are then read only in part."""
    conditions: Callable[[Object], list[dict[str, str]]] | None = None
    """Row conditions, e.g. that a pod has completed."""


NAME = TableColumn("Name", format="name", description="Name of the object, unique within its namespace.")
AGE = TableColumn("Age", description="Time since the object was created.")
CONTAINERS = TableColumn("Containers", description="Names of the containers in the template.", priority=1)
IMAGES = TableColumn("Images", description="Images of the containers in the template.", priority=1)
SELECTOR = TableColumn("Selector", description="Labels of the pods that are selected.", priority=1)


def text(name: str, description: str = "", priority: int = 0) -> TableColumn:
    return TableColumn(name, description=description, priority=priority)


def number(name: str, description: str = "") -> TableColumn:
    return TableColumn(name, type="integer", description=description)
