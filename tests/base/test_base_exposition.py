"""Prometheus' text format: escaping, merging, bounds, histograms."""

from __future__ import annotations

from coterie.base.exposition import MAX_ROWS, Family, labels, merged, openmetrics_pieces, render


def test_a_page() -> None:
    page = render(
        [
            Family("load", "Load.", "gauge", [("", 0.25)]),
            Family(
                "bytes_total", "Bytes.", "counter", [(labels(device="eth0"), 2**53), (labels(device='a"b\\c\n'), 1)]
            ),
        ]
    )
    assert page.splitlines() == [
        "# HELP load Load.",
        "# TYPE load gauge",
        "load 0.25",
        "# HELP bytes_total Bytes.",
        "# TYPE bytes_total counter",
        'bytes_total{device="eth0"} 9007199254740992',
        'bytes_total{device="a\\"b\\\\c\\n"} 1',
    ]
    assert page.endswith("\n")


def test_a_long_label_is_cut() -> None:
    assert labels(path="x" * 10_000) == f'path="{"x" * 100}"'


def test_families_of_one_name_become_one() -> None:
    """A page that names a family twice is refused by Prometheus as a whole."""
    found = merged(
        [
            Family("fds", "Open files.", "gauge", [('process="a"', 1)]),
            Family("load", "Load.", "gauge", [("", 2)]),
            Family("fds", "Other words.", "gauge", [('process="b"', 3), ('process="a"', 4)]),
        ]
    )
    assert [(family.name, family.help, list(family.rows)) for family in found] == [
        ("fds", "Open files.", [('process="a"', 1), ('process="b"', 3)]),
        ("load", "Load.", [("", 2)]),
    ]


def test_too_many_rows_are_dropped() -> None:
    family = Family("many", "Many.", "gauge", [(f'n="{n}"', n) for n in range(MAX_ROWS + 7)])
    assert render([family]).count("\nmany{") == MAX_ROWS


def test_rows_with_a_suffix() -> None:
    rows = [('_bucket queue="jobs",le="+Inf"', 4), ('_sum queue="jobs"', 3.65), ("_count", 4)]
    assert render([Family("seconds", "Time.", "histogram", rows)]).splitlines()[2:] == [
        'seconds_bucket{queue="jobs",le="+Inf"} 4',
        'seconds_sum{queue="jobs"} 3.65',
        "seconds_count 4",
    ]


def test_openmetrics() -> None:
    families = [
        Family("a_total", "Help.", "counter", [("", 1)]),
        Family("b", 'A "counter"\nwithout its suffix.', "counter", [('x="1"', 2)]),
        Family("c", "Help.", "untyped", [("", 3)]),
        Family("d", "Help.", "gauge", []),
        Family("d_total", "Help.", "counter", [("", 4)]),
    ]
    assert "".join(openmetrics_pieces(families)).splitlines() == [
        "# HELP a Help.", "# TYPE a counter", "a_total 1",
        '# HELP b A \\"counter\\"\\nwithout its suffix.', "# TYPE b unknown", 'b{x="1"} 2',
        "# HELP c Help.", "# TYPE c unknown", "c 3",
        "# HELP d Help.", "# TYPE d gauge",
        "# HELP d_total Help.", "# TYPE d_total unknown", "d_total 4",
        "# EOF",
    ]  # fmt: skip


def test_help_is_one_line() -> None:
    assert render([Family("a", "one\ntwo\\", "gauge", [])]).splitlines()[0] == "# HELP a one\\ntwo\\\\"
