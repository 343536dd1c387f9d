"""Grafana's dashboard documents: from a few typed panels to the JSON that Grafana imports.

    Board("coterie-jobs", "Coterie: jobs", ..., [Section("Now", [stat("Running", 'sum(coterie_jobs{@,phase="Running"})')])])

In an expression `@` stands for the selection of nodes that the reader made (`instance=~"$instance"`). The schema is Grafana 10's and
newer: no panel of a kind that Grafana has removed, no data source that only one installation knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

SCHEMA_VERSION: Final = 39
SELECTION: Final = 'instance=~"$instance"'
_COLUMNS: Final = 24
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

PanelKind = Literal["timeseries", "stat", "table", "state-timeline"]


@dataclass(frozen=True, slots=True)
class PanelQuery:
    expression: str
    legend: str = ""

    @property
    def promql(self) -> str:
        return self.expression.replace("@", SELECTION)


@dataclass(frozen=True, slots=True)
class PanelThreshold:
    """From which value on a panel has the colour."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    queries: Sequence[PanelQuery]
    kind: PanelKind = "timeseries"
    unit: str = "short"
    about: str = ""
    width: int = 12
    height: int = 8
    stacked: bool = False
    thresholds: Sequence[PanelThreshold] = ()
    highest: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    name: str
    """Of its file and of its address in Grafana."""
    title: str
    about: str
    sections: Sequence[Section]

    @property
    def panels(self) -> list[Panel]:
        return [panel for section in self.sections for panel in section.panels]


def graph(title: str, *queries: PanelQuery | str, **options: Any) -> Panel:
    return Panel(title, _queries(queries), **options)


def stat(title: str, *queries: PanelQuery | str, **options: Any) -> Panel:
    return Panel(title, _queries(queries), "stat", **({"width": 4, "height": 4} | options))


def table(title: str, *queries: PanelQuery | str, **options: Any) -> Panel:
    return Panel(title, _queries(queries), "table", **options)


def states(title: str, *queries: PanelQuery | str, **options: Any) -> Panel:
    return Panel(title, _queries(queries), "state-timeline", **options)


def _queries(given: Sequence[PanelQuery | str]) -> list[PanelQuery]:
    return [each if isinstance(each, PanelQuery) else PanelQuery(each) for each in given]


def document(board: Board) -> dict[str, Any]:
    """What Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for section in board.sections:
        panels.append(_row(len(panels) + 1, section.title, top))
        top += 1
        left, tallest = 0, 0
        for panel in section.panels:
            if left + panel.width > _COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            panels.append(_panel(len(panels) + 1, panel, place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return {
        "uid": f"coterie-{board.name}",
        "title": board.title,
        "description": board.about,
        "tags": ["coterie"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_links()],
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
        "panels": [],
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": [_target(index, query, panel.kind) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _target(index: int, query: PanelQuery, kind: PanelKind) -> dict[str, Any]:
    instant = kind == "table"
    return {
        "refId": chr(ord("A") + index),
        "datasource": _DATASOURCE,
        "editorMode": "code",
        "expr": query.promql,
        "legendFormat": query.legend or "__auto",
        "range": not instant,
        "instant": instant,
        "format": "table" if instant else "time_series",
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.thresholds else "text", "value": None}]
    steps += [{"color": each.colour, "value": each.value} for each in panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
    }
    if panel.highest is not None:
        defaults["max"] = panel.highest
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
    return defaults


_REDUCE: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[PanelKind, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _REDUCE, "colorMode": "value", "graphMode": "area", "textMode": "auto"},
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.8,
    },
}


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    return [
        source,
        _label_variable("domain", "Domain", "label_values(coterie_build_info, domain)"),
        _label_variable("instance", "Node", 'label_values(coterie_build_info{domain=~"$domain"}, instance)'),
    ]


def _label_variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }


def _links() -> dict[str, Any]:
    return {"type": "dashboards", "title": "Coterie", "tags": ["coterie"], "asDropdown": True, "includeVars": True}
