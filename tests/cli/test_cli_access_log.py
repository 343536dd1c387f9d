"""Access logs of gateways, explained."""

from __future__ import annotations

import gzip
import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coterie.cli.app import App
from coterie.cli.diagnosis.access_log import (
    EXTERNAL,
    FLAGS,
    INTERNAL,
    MOST_GROUPS,
    MOST_SLOW,
    STATUSES,
    AccessLogReport,
    explain,
    parse_line,
)
from coterie.cli.diagnosis.log_reading import last_lines, rotated_files
from coterie.cli.main import main
from coterie.kuscia.gateway.listeners import EXTERNAL_LOG, FAILED_LOG, INTERNAL_LOG

NOW = datetime.now(UTC)


def out(
    host: str,
    code: int,
    flags: str = "-",
    took: int = 5,
    path: str = "/x",
    at: datetime = NOW,
    why: str = "via_upstream",
) -> str:
    """A line of internal.log."""
    stamp = at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return f'100.96.0.7 - [{stamp}] alice {host} "POST {path} HTTP/2" - - {code} {flags} 12 67 {took} 1 2 3 - - {why}\n'


def into(source: str, host: str, code: int, flags: str = "-", took: int = 5) -> str:
    stamp = NOW.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return f'10.0.0.2 - [{stamp}] {source} {host} "GET / HTTP/2" - - {code} {flags} - 67 {took} - - via_upstream\n'


def test_lines_of_both_logs() -> None:
    line = parse_line(out("psi-1a2b-0-spu.bob.svc", 503, "UF,URX", 12, "/a?token=geheim"), INTERNAL)
    assert line is not None
    assert (line.partner, line.task, line.code, line.flags, line.milliseconds) == (
        "bob",
        "psi-1a2b",
        503,
        ("UF", "URX"),
        12,
    )
    assert line.path == "/a"
    line = parse_line(into("carol", "psi-1a2b-0-spu.alice.svc", 200), EXTERNAL)
    assert line is not None
    assert (line.partner, line.failed) == ("carol", False)
    refused = (
        "10.0.0.9 - [2026-11-16T18:12:49.808Z] - - - - - - - - - - - - connection_refused{TLS error: HTTP request}"
    )
    line = parse_line(refused, EXTERNAL)
    assert line is not None
    assert (line.partner, line.failed, line.details) == ("(unknown)", True, "TLS error: HTTP request")
    for text in ("", "nonsense", out("a.bob.svc", 200)[:60], "x" * 20_000, '" ' * 8_000):
        assert parse_line(text, INTERNAL) is None


@pytest.mark.parametrize(
    ("pattern", "side"), [(EXTERNAL_LOG, EXTERNAL), (INTERNAL_LOG, INTERNAL), (FAILED_LOG, EXTERNAL)]
)
def test_the_lines_that_our_gateways_write_are_understood(pattern: str, side: str) -> None:
    values = {
        "START_TIME": "2026-11-16T18:12:49.808Z",
        "REQ(:METHOD)": "GET",
        "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)": '/a b"c',
        "REQ(kuscia-host?:authority)": "a.bob.svc",
        "RESPONSE_CODE": "503",
        "RESPONSE_FLAGS": "UF",
        "DURATION": "7",
        "DOWNSTREAM_TRANSPORT_FAILURE_REASON": "TLS_error: wrong version",
    }
    text = re.sub("%([^%]+)%", lambda found: values.get(found[1], "-"), pattern)
    line = parse_line(text, side)
    assert line is not None, text
    if pattern is not FAILED_LOG:
        assert (line.code, line.flags, line.milliseconds, line.host) == (503, ("UF",), 7, "a.bob.svc")


def test_every_meaning_has_a_next_step() -> None:
    for flag in FLAGS:
        report = AccessLogReport()
        report.feed(out("a.bob.svc", 503, flag), INTERNAL)
        report.feed(into("bob", "a.alice.svc", 503, flag), EXTERNAL)
        assert len(report.failing) == 2
        assert all(part for each in report.failing for part in explain(each))
    for code in (*STATUSES, 418):
        report = AccessLogReport()
        report.feed(out("a.bob.svc", code), INTERNAL)
        assert all(explain(report.failing[0]))


def test_who_could_not_connect_depends_on_the_side() -> None:
    report = AccessLogReport()
    report.feed(out("a.bob.svc", 503, "UF"), INTERNAL)
    report.feed(into("bob", "a.alice.svc", 503, "UF"), EXTERNAL)
    report.feed(out("a.bob.svc", 503, why="direct_response"), INTERNAL)
    steps = [explain(each)[1] for each in report.failing]
    assert sum("pod" in each for each in steps) == 1
    assert sum("route check" in each for each in steps) == 2


def test_failures_are_grouped_and_the_rest_is_left_out() -> None:
    report = AccessLogReport(since=NOW - timedelta(hours=1), task="psi-1")
    for _ in range(3):
        report.feed(out("psi-1-0-spu.bob.svc", 503, "UF"), INTERNAL)
    report.feed(out("psi-10-0-spu.bob.svc", 503, "UF"), INTERNAL)
    report.feed(out("psi-1-0-spu.bob.svc", 503, "UF", at=NOW - timedelta(hours=2)), INTERNAL)
    report.feed(out("psi-1-0-spu.bob.svc", 200, took=60_000), INTERNAL)
    report.feed("cut off", INTERNAL)
    assert (report.calls, report.failures, report.slow_calls, report.unreadable) == (4, 3, 1, 1)
    assert [(each.partner, each.task, each.calls) for each in report.failing] == [("bob", "psi-1", 3)]
    assert report.slow[0].milliseconds == 60_000


def test_memory_is_bounded_whatever_callers_choose() -> None:
    report = AccessLogReport()
    for number in range(MOST_GROUPS + 50):
        report.feed(into(f"domain-{number}", "a.alice.svc", 401, took=20_000 + number), EXTERNAL)
    assert len(report.groups) == MOST_GROUPS
    assert report.left_out == 50
    assert [line.milliseconds for line in report.slow] == [
        20_000 + MOST_GROUPS + 49 - each for each in range(MOST_SLOW)
    ]


def run(home: Path, *words: str) -> tuple[int, str]:
    written = io.StringIO()
    code = main(
        ["--root", str(home), "diagnose", "log", *words],
        App(written, written, {"HOME": str(home)}, io.StringIO(), home),
    )
    return code, written.getvalue()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    logs = tmp_path / "alice" / "var" / "logs" / "envoy"
    logs.mkdir(parents=True)
    (logs / "internal.log").write_text(out("psi-1-0-spu.bob.svc", 503, "UF"))
    (logs / "internal.log.1").write_text(out("psi-1-0-spu.bob.svc", 504))
    with gzip.open(logs / "internal.log.2.gz", "wt") as file:
        file.write(out("psi-1-0-spu.bob.svc", 413))
    whole = gzip.compress(into("bob", "psi-1-0-spu.alice.svc", 502).encode() * 5000)
    (logs / "external.log.3.gz").write_bytes(whole[: len(whole) // 2])  # the machine went down meanwhile
    (logs / "external.log").write_text("")
    return tmp_path


def test_rotated_and_compressed_files_are_read(home: Path) -> None:
    code, text = run(home, "-o", "json")
    found = json.loads(text)
    assert code == 0
    assert {each["code"] for each in found["failing"]} >= {503, 504, 413, 502}
    assert all(each["meaning"] and each["next"] for each in found["failing"])
    code, text = run(home, "psi-1", "--partner", "bob")
    assert code == 0
    assert "no connection could be made" in text
    assert "psi-1" in text


def test_oldest_first(home: Path) -> None:
    names = [each.name for each in rotated_files(home / "alice/var/logs/envoy/internal.log")]
    assert names == ["internal.log.2.gz", "internal.log.1", "internal.log"]


def test_files_from_elsewhere(home: Path) -> None:
    code, text = run(home, "--file", "alice/var/logs/envoy/internal.log.2.gz", "-o", "json")
    assert code == 0
    assert [each["code"] for each in json.loads(text)["failing"]] == [413]
    assert run(home, "--file", "nothing.log")[0] == 2


def test_there_must_be_logs(tmp_path: Path) -> None:
    assert run(tmp_path)[0] == 1


def test_the_last_lines_of_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert last_lines(path, 3, 1 << 20) == ["line 9997", "line 9998", "line 9999"]
    kept = last_lines(path, 10_000, 100)
    assert kept[-1] == "line 9999"
    assert len(kept) < 12
    assert all(each.startswith("line ") for each in kept)


def test_what_callers_wrote_into_headers_does_not_steer_the_terminal(home: Path) -> None:
    """Envoy refuses most control characters, and not those that begin a command in UTF-8."""
    hostile = "\u009b2J\u202e"
    lines = [into(f"bob{hostile}", f"t{hostile}-0.alice.svc", 401), out("x.bob.svc", 200, took=60_000, path=hostile)]
    logs = home / "alice" / "var" / "logs" / "envoy"
    (logs / "external.log").write_text(lines[0])
    (logs / "internal.log").write_text(lines[1])
    code, text = run(home)
    assert code == 0
    assert "2J" in text
    assert not {"\u009b", "\u202e", "\x1b"}.intersection(text)
