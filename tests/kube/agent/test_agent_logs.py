"""Reading container logs as `kubectl logs` asks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coterie.base import container_logs
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kube.agent.server import logs
from coterie.kube.api.errors import BadRequest

NOW = datetime(2026, 1, 2, 3, 4, 10, tzinfo=UTC)


def line(second: int, text: str, stream: str = "stdout", tag: str = "F") -> str:
    return f"2026-01-02T03:04:{second:02d}.000000001Z {stream} {tag} {text}\n"


LOG = line(1, "one") + line(2, "two", "stderr") + line(3, "thr", tag="P") + line(3, "ee") + line(9, "four")


def options(**query: str) -> container_logs.LogOptions:
    return logs.read_options({name: [value] for name, value in query.items()}, NOW)


async def read(path: Path, asked: container_logs.LogOptions, running: bool = False) -> str:
    return b"".join([piece async for piece in container_logs.read(path, asked, lambda: running, SYSTEM_CLOCK)]).decode()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "one\ntwo\nthree\nfour\n"),
        ({"tailLines": "1"}, "four\n"),
        ({"tailLines": "0"}, ""),
        ({"tailLines": "99"}, "one\ntwo\nthree\nfour\n"),
        ({"sinceSeconds": "2"}, "four\n"),
        ({"sinceTime": "2026-01-02T03:04:02Z"}, "two\nthree\nfour\n"),
        ({"stream": "Stderr"}, "two\n"),
        ({"limitBytes": "5"}, "one\nt"),
        ({"tailLines": "1", "timestamps": "true"}, "2026-01-02T03:04:09.000000001Z four\n"),
        ({"follow": "true"}, "one\ntwo\nthree\nfour\n"),
    ],
    ids=str,
)
async def test_options(tmp_path: Path, query: dict[str, str], expected: str) -> None:
    path = tmp_path / "0.log"
    path.write_text(LOG)
    assert await read(path, options(**query)) == expected


@pytest.mark.parametrize(("lines", "expected"), [("2", "three\nfour\n"), ("3", "old2\nthree\nfour\n"), ("9", None)])
async def test_rotated_files_come_first(tmp_path: Path, lines: str, expected: str | None) -> None:
    (tmp_path / "0.log.1").write_text(line(1, "old1") + line(2, "old2"))
    (tmp_path / "0.log").write_text(line(3, "three") + line(4, "four"))
    got = await read(tmp_path / "0.log", options(tailLines=lines))
    assert got == (expected or "old1\nold2\nthree\nfour\n")


async def test_following_sees_what_is_written_and_rotated(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(line(1, "one"))
    looks = 0

    def running() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            with path.open("a") as file:
                file.write(line(2, "two"))
        if looks == 3:
            path.rename(tmp_path / "0.log.1")
            path.write_text(line(3, "three"))
        return looks < 5

    pieces = [piece async for piece in container_logs.read(path, options(follow="true"), running, SYSTEM_CLOCK)]
    assert b"".join(pieces) == b"one\ntwo\nthree\n"


async def test_a_log_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    assert await read(tmp_path / "0.log", options()) == ""


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "-1"},
        {"tailLines": "x"},
        {"sinceSeconds": "0"},
        {"sinceTime": "yesterday"},
        {"sinceTime": "2026-01-02T03:04:02Z", "sinceSeconds": "1"},
        {"limitBytes": "0"},
        {"stream": "Both"},
    ],
    ids=str,
)
def test_nonsense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        options(**query)
