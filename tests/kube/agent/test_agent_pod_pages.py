"""Pages of metrics that engines serve themselves: what a good one becomes, and that a bad one does no harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.exposition import Family, render
from coterie.kube.agent.server.page_parser import MAX_SERIES, PageError, PageMerger, parse_page
from coterie.kube.agent.server.pod_pages import MAX_BYTES, PodPage, PodPagesSource
from coterie.kube.metrics.sources import MetricsPage

OWN = {"namespace": "alice", "pod": "psi-0", "task": "psi", "party": "alice"}
WHERE = 'namespace="alice",pod="psi-0",task="psi",party="alice"'
GOOD = """\
# HELP rows_total Rows.
# TYPE rows_total counter
rows_total{kind="a\\"b\\\\c\\n",pod="mine"} 12 1700000000000
# TYPE seconds histogram
seconds_bucket{le="1"} 2
seconds_bucket{le="+Inf"} 3
seconds_sum 4.5
seconds_count 3
# TYPE size summary
size{quantile="0.5"} NaN
size_sum 1e3
size_count 4

free_text {} +Inf
"""


def rows(text: str) -> list[str]:
    merger = PageMerger(("product_",), frozenset(("cpu",)))
    merger.add(parse_page(text, OWN))
    return [line for line in render(merger.families()).splitlines() if not line.startswith("# HELP")]


def test_a_page_gets_the_labels_of_its_pod() -> None:
    assert rows(GOOD) == [
        "# TYPE rows_total counter",
        f'rows_total{{{WHERE},kind="a\\"b\\\\c\\n",exported_pod="mine"}} 12',
        "# TYPE seconds histogram",
        f'seconds_bucket{{{WHERE},le="1"}} 2',
        f'seconds_bucket{{{WHERE},le="+Inf"}} 3',
        f"seconds_sum{{{WHERE}}} 4.5",
        f"seconds_count{{{WHERE}}} 3",
        "# TYPE size summary",
        f'size{{{WHERE},quantile="0.5"}} NaN',
        f"size_sum{{{WHERE}}} 1000",
        f"size_count{{{WHERE}}} 4",
        "# TYPE free_text untyped",
        f"free_text{{{WHERE}}} +Inf",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<html>hello</html>",
        "a 1\nb",
        "a{b=c} 1",
        'a{b="c} 1',
        'a{b="c"d="e"} 1',
        'a{b="1",b="2"} 1',
        'a{b="\\q"} 1',
        "a one",
        "a 1_000",
        "a 1 2 3",
        "9a 1",
        "\0",
        "a" * 9000 + " 1",
        "\n" * 30_000,
    ],
)
def test_what_is_no_page(text: str) -> None:
    with pytest.raises(PageError):
        parse_page(text, OWN)


def test_names_of_ours_are_not_taken_from_a_pod() -> None:
    merger = PageMerger(("product_",), frozenset(("cpu",)))
    merger.add(parse_page("node_load1 9\ncoterie_jobs 9\nproduct_x 1\ncpu 1\nup 1\nprocess_open_fds 1\nfine 1\n", OWN))
    assert [family.name for family in merger.families()] == ["fine"]
    assert merger.dropped["reserved"] == 6


def test_rows_that_do_not_fit_their_type_are_left_out() -> None:
    text = '# TYPE a histogram\na 1\na_bucket 1\na_bucket{le="x"} 1\na_sum 2\n# TYPE b summary\nb 1\nb_count 1\n'
    assert [line for line in rows(text) if line[0] != "#"] == [f"a_sum{{{WHERE}}} 2", f"b_count{{{WHERE}}} 1"]


def test_the_first_pod_says_the_type_of_a_family() -> None:
    merger = PageMerger()
    merger.add(parse_page("# TYPE a gauge\na 1\n# TYPE h histogram\nh_sum 1\n", OWN))
    merger.add(parse_page("# TYPE a counter\na 2\n# TYPE h_sum gauge\nh_sum 2\n", {**OWN, "pod": "evil"}))
    merger.add(parse_page("# TYPE a gauge\na 3\n", {**OWN, "pod": "third"}))
    assert [(family.name, family.kind, len(family.rows)) for family in merger.families()] == [
        ("a", "gauge", 2),
        ("h", "histogram", 1),
    ]
    assert merger.dropped["conflict"] == 2


def test_series_of_one_pod_are_bounded() -> None:
    page = parse_page("".join(f"a{n} 1\n" for n in range(MAX_SERIES + 10)), OWN)
    assert (len(page.families), page.dropped["limit"]) == (MAX_SERIES, 10)


_TOKENS = st.sampled_from(
    [
        *(
            "a",
            "a_bucket",
            "a_sum",
            "a_total",
            "node_x",
            "# TYPE",
            "# HELP",
            "histogram",
            "summary",
            "counter",
            "gauge",
        ),
        *(
            "{",
            "}",
            ",",
            "=",
            '"',
            "\\",
            "\n",
            "\n",
            " ",
            " ",
            "le",
            "quantile",
            "pod",
            "1",
            "NaN",
            "+Inf",
            "-1e3",
            "é",
            "\0",
            "\x85",
        ),
    ]
)


@given(st.lists(_TOKENS, max_size=60).map("".join))
def test_whatever_comes_of_it_is_a_page(text: str) -> None:
    merger = PageMerger()
    try:
        merger.add(parse_page(text, OWN))
    except PageError:
        return
    page = render(merger.families())
    for line in page.split("\n")[:-1]:
        assert line.startswith("# ") or WHERE in line
    assert sum(len(each.rows) for each in parse_page(page, {}).families.values()) == page.count(WHERE)


# Pods that answer, or do something else.


class Runtime:
    """`dial` leads to a function that gets the connection's two ends."""

    def __init__(self, serve: Any) -> None:
        self._serve = serve
        self.tasks: list[asyncio.Task[None]] = []

    async def dial(self, uid: str, port: int) -> Any:
        reader = asyncio.StreamReader()
        self.tasks.append(asyncio.create_task(self._serve(uid, reader)))
        return reader, Writer()


class Writer:
    def write(self, data: bytes) -> None:
        assert data.startswith(b"GET /metrics HTTP/1.1\r\n")

    async def drain(self) -> None: ...

    def close(self) -> None: ...


def answer(body: bytes, head: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + head + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


async def scraped(serve: Any, *uids: str) -> list[str]:
    runtime: Any = Runtime(serve)
    pages = [PodPage(uid, 8000, "/metrics", {**OWN, "pod": uid}) for uid in uids]
    source = PodPagesSource(runtime, lambda: pages, timeout=0.05)
    try:
        page = MetricsPage([Own()], foreign=[source])
        await page.text()
        return (await page.text()).splitlines()
    finally:
        for task in runtime.tasks:
            task.cancel()


class Own:
    name = "own"

    async def families(self) -> list[Family]:
        return [Family("rows", "Ours.", "histogram", [("_sum", 1), ("_count", 1), ('_bucket le="+Inf"', 1)])]


EVIL = {
    "endless": b"HTTP/1.1 200 OK\r\n\r\n" + b"a 1\n" * 400_000,
    "headers": b"HTTP/1.1 200 OK\r\nX: " + b"x" * (3 * MAX_BYTES),
    "redirect": answer(b"", b"302 Found\r\nLocation: http://127.0.0.1:6443/"),
    "broken": b"SSH-2.0-nothing\r\n",
    "html": answer(b"<html>"),
    "binary": answer(bytes(range(256))),
    "silent": b"",
    "closed": None,
}


async def test_an_evil_engine_harms_nobody() -> None:
    async def serve(uid: str, reader: asyncio.StreamReader) -> None:
        data = answer(b"good_total 1\n") if uid == "good" else EVIL[uid]
        if data is None:
            reader.feed_eof()
        else:
            reader.feed_data(data)  # and then nothing more

    lines = await scraped(serve, "good", *EVIL)
    up = {line.split('pod="')[1].split('"')[0]: line[-1] for line in lines if 'source_up{source="engine"' in line}
    assert up == {"good": "1", **dict.fromkeys(EVIL, "0")}
    assert 'good_total{namespace="alice",pod="good",task="psi",party="alice"} 1' in lines
    assert len([line for line in lines if line.startswith("# TYPE coterie_source_up")]) == 1


async def test_what_collides_with_a_family_of_ours_is_dropped_and_counted() -> None:
    async def serve(uid: str, reader: asyncio.StreamReader) -> None:
        reader.feed_data(answer(b"# TYPE rows gauge\nrows 5\n# TYPE rows_sum gauge\nrows_sum 7\nfine 1\n"))

    lines = await scraped(serve, "evil")
    assert [line for line in lines if line.startswith("rows")] == [
        "rows_sum 1",
        "rows_count 1",
        'rows_bucket{le="+Inf"} 1',
    ]
    assert 'coterie_series_dropped_total{family="rows"} 4' in lines, "two rows, two scrapes"
    assert any(line.startswith("fine{") for line in lines)
