"""Tables as text: the same characters that kubectl prints."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli.tables import elastic_tabs, render_table


def column(name: str, priority: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "string", "format": "", "description": "", "priority": priority, **more}


def table_row(*cells: Any, namespace: str = "default", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"cells": list(cells), "object": {"metadata": {"name": cells[0], "namespace": namespace, "labels": labels}}}


TABLE: dict[str, Any] = {
    "kind": "Table",
    "columnDefinitions": [
        column("Name", format="name"),
        column("Ready"),
        column("Status"),
        column("Age"),
        column("Node", 1),
    ],
    "rows": [
        table_row("web-1", "1/1", "Running", "5m", "n1", labels={"b": "2", "a": "1"}),
        table_row("database-0", "0/1", "CrashLoopBackOff", "3h20m", "<none>", namespace="other"),
    ],
}

RENDERED = {
    "plain": ({}, """\
        NAME         READY   STATUS             AGE
        web-1        1/1     Running            5m
        database-0   0/1     CrashLoopBackOff   3h20m
        """),
    "wide": ({"wide": True}, """\
        NAME         READY   STATUS             AGE     NODE
        web-1        1/1     Running            5m      n1
        database-0   0/1     CrashLoopBackOff   3h20m   <none>
        """),
    "no-headers": ({"no_headers": True}, """\
        web-1        1/1   Running            5m
        database-0   0/1   CrashLoopBackOff   3h20m
        """),
    "kind": ({"kind": "pod"}, """\
        NAME             READY   STATUS             AGE
        pod/web-1        1/1     Running            5m
        pod/database-0   0/1     CrashLoopBackOff   3h20m
        """),
    "namespaces": ({"namespaces": True}, """\
        NAMESPACE   NAME         READY   STATUS             AGE
        default     web-1        1/1     Running            5m
        other       database-0   0/1     CrashLoopBackOff   3h20m
        """),
    "labels": ({"show_labels": True}, """\
        NAME         READY   STATUS             AGE     LABELS
        web-1        1/1     Running            5m      a=1,b=2
        database-0   0/1     CrashLoopBackOff   3h20m   <none>
        """),
    "label-columns": ({"label_columns": ["x.io/b", "a"], "no_headers": False}, """\
        NAME         READY   STATUS             AGE     B     A
        web-1        1/1     Running            5m            1
        database-0   0/1     CrashLoopBackOff   3h20m         """),
}  # fmt: skip


@pytest.mark.parametrize(("options", "told"), RENDERED.values(), ids=RENDERED.keys())
def test_render(options: dict[str, Any], told: str) -> None:
    got = render_table(TABLE, **options)
    assert [line.rstrip() for line in got.splitlines()] == [line.rstrip() for line in dedent(told).splitlines()]
    assert got.endswith("\n")


def test_short_columns_are_six_wide_and_the_last_is_not_padded() -> None:
    table = {"columnDefinitions": [column("A"), column("B")], "rows": [table_row("x", "y")]}
    assert render_table(table) == "A     B\nx     y\n"


def test_nothing_to_print() -> None:
    assert render_table({"columnDefinitions": [column("Name")], "rows": []}, no_headers=True) == ""
    assert render_table({"columnDefinitions": None, "rows": None}, no_headers=True) == ""


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (None, ""),
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ("one\ntwo", "one..."),
        ("\x1b[31mred", "^[[31mred"),
        ("a\tb", "a b"),
        ("größe", "größe"),
    ],
)
def test_cells(cell: Any, told: str) -> None:
    table = {"columnDefinitions": [column("A"), column("B")], "rows": [table_row("x", cell)]}
    assert render_table(table, no_headers=True) == f"x     {told}\n"


def test_a_watch_keeps_its_columns() -> None:
    widths: list[int] = []
    head = render_table({**TABLE, "rows": TABLE["rows"][1:]}, widths=widths)
    more = render_table({**TABLE, "rows": TABLE["rows"][:1]}, widths=widths, no_headers=True)
    assert head.splitlines()[1].index("CrashLoopBackOff") == more.index("Running")


def test_colour_changes_no_column() -> None:
    plain = render_table(TABLE, wide=True)
    painted = render_table(TABLE, wide=True, colour=True)
    assert "\x1b[32mRunning\x1b[0m" in painted
    assert "\x1b[31mCrashLoopBackOff\x1b[0m" in painted
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"):
        painted = painted.replace(code, "")
    assert painted == plain


def test_elastic_tabs_align_each_paragraph_for_itself() -> None:
    assert elastic_tabs("a\tb\nlong\tc\n\nx\ty\tz\nxx\tyyy\tz") == "a     b\nlong  c\n\nx   y    z\nxx  yyy  z"


@given(st.lists(st.lists(st.text("ab ", max_size=4), min_size=1, max_size=4), min_size=1, max_size=6))
def test_elastic_tabs_lose_no_text(cells: list[list[str]]) -> None:
    text = "\n".join("\t".join(line) for line in cells)
    told = elastic_tabs(text).split("\n")
    for line, got in zip(cells, told, strict=True):
        assert got.replace(" ", "") == "".join(line).replace(" ", "")
