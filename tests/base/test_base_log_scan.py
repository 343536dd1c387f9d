"""Searching log files from the newest line to the oldest."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.base import log_scan
from coterie.base.log_scan import ScanAnswer, ScannedLine, ScanRequest, ScanStream, Wanted, scan
from coterie.base.log_scan_process import LogScanner, ScanFailed


def stamp(number: int) -> str:
    seconds, nanos = divmod(number, 1000)
    return f"2026-01-02T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{nanos:03d}000000Z"


def cri(path: Path, texts: list[tuple[int, str]]) -> None:
    path.write_text("".join(f"{stamp(at)} stdout F {text}\n" for at, text in texts))


def stream(path: Path, *names: str, kind: str = "cri", slack: float = 0.0) -> ScanStream:
    return ScanStream(str(path), tuple((name,) for name in names), kind, slack)


def pages(request: ScanRequest) -> tuple[list[ScannedLine], int]:
    """All lines, oldest first, and how many pages it took."""
    out: list[ScannedLine] = []
    for count in range(1, 10_000):
        answer: ScanAnswer = scan(request)
        out = [*answer.lines, *out]
        if not answer.frontier:
            return out, count
        assert not request.before or answer.frontier < request.before
        request = replace(request, before=answer.frontier)
    raise AssertionError("no end")


# Order and pages.


def test_pages_of_several_files_give_every_line_once_in_order(tmp_path: Path) -> None:
    chance = random.Random(7)
    for name in ("a", "b", "c"):
        times = sorted(chance.randrange(2000) for _ in range(800))
        cri(tmp_path / name, [(at, f"{name}{number}") for number, at in enumerate(times)])
    request = ScanRequest(tuple(stream(tmp_path, name) for name in "abc"), limit=40, bytes=16 << 10)
    lines, count = pages(request)
    assert count > 10
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    for name in "abc":
        assert [line.text for line in lines if line.text[0] == name] == [f"{name}{number}" for number in range(800)]


def test_the_first_page_has_the_newest_lines_oldest_first(tmp_path: Path) -> None:
    cri(tmp_path / "a", [(number, f"line {number}") for number in range(100)])
    answer = scan(ScanRequest((stream(tmp_path, "a"),), limit=3))
    assert [line.text for line in answer.lines] == ["line 97", "line 98", "line 99"]


def test_lines_of_one_time_stay_on_one_page(tmp_path: Path) -> None:
    cri(tmp_path / "a", [(1, "before"), *[(2, f"same {number}") for number in range(50)], (3, "after")])
    request = ScanRequest((stream(tmp_path, "a"),), limit=10)
    first = scan(request)
    assert [line.text for line in first.lines] == [*[f"same {number}" for number in range(50)], "after"]
    assert [line.text for line in pages(request)[0]] == ["before", *[line.text for line in first.lines]]


@pytest.mark.parametrize(
    "grep",
    [
        "needle",
        "(?i)NEEDLE",
        "(?i)nothing|NeeDle",
        "nothing|needle",
        "[n]eedl[e]",
        "^needle",
        "n[e]{2}dle",
        r"need\we",
        "x|needle",
        r"[^q]eedle",
    ],
)
def test_every_way_to_search_finds_the_same(tmp_path: Path, grep: str) -> None:
    texts = [(number, "needle in it" if number % 500 == 7 else f"hay {number}") for number in range(20_000)]
    cri(tmp_path / "a", texts)
    lines, _ = pages(ScanRequest((stream(tmp_path, "a"),), grep=grep, limit=7, bytes=1 << 18))
    assert [line.at for line in lines] == [stamp(number) for number in range(7, 20_000, 500)]


def test_time_limits_are_found_without_reading_the_rest(tmp_path: Path) -> None:
    cri(tmp_path / "a", [(number, "x" * 200) for number in range(20_000)])
    request = ScanRequest((stream(tmp_path, "a"),), since=stamp(5000), until=stamp(5002), limit=1000)
    answer = scan(request)
    assert [line.at for line in answer.lines] == [stamp(5000), stamp(5001), stamp(5002)]
    assert answer.frontier == ""
    assert answer.scanned < 300_000


def test_rotated_and_compressed_files_are_one_log(tmp_path: Path) -> None:
    cri(tmp_path / "0.log", [(3, "newest")])
    cri(tmp_path / "0.log.1", [(2, "middle")])
    cri(tmp_path / "plain", [(1, "oldest")])
    (tmp_path / "0.log.2.gz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    lines, _ = pages(ScanRequest((stream(tmp_path, "0.log", "0.log.1", "0.log.2.gz"),), limit=1))
    assert [line.text for line in lines] == ["oldest", "middle", "newest"]


def test_a_file_that_ends_in_the_middle_of_a_compressed_block_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{stamp(n)} stdout F {random.Random(n).random()}\n" for n in range(9999)).encode())
    (tmp_path / "0.log.2.gz").write_bytes(whole[: len(whole) // 2])
    lines, _ = pages(ScanRequest((stream(tmp_path, "0.log.2.gz"),), limit=10_000))
    assert 100 < len(lines) < 9999


# Attacks.


def test_symbolic_links_and_names_that_lead_elsewhere_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    cri(secret / "0.log", [(1, "secret")])
    logs = tmp_path / "logs"
    (logs / "pod").mkdir(parents=True)
    (logs / "pod" / "0.log").symlink_to(secret / "0.log")
    (logs / "linked").symlink_to(secret)
    os.mkfifo(logs / "pod" / "fifo")
    files = (
        ("pod", "0.log"),
        ("linked", "0.log"),
        ("..", "secret", "0.log"),
        ("pod/../../secret", "0.log"),
        ("pod", "fifo"),
    )
    for parts in files:
        assert scan(ScanRequest((ScanStream(str(logs), (parts,), "cri"),))).lines == ()


def test_an_endless_line_is_cut_and_the_lines_around_it_are_found(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        file.write(f"{stamp(1)} stdout F before\n{stamp(2)} stdout F ")
        file.write("x" * (9 << 20))
        file.write(f"\n{stamp(3)} stdout F after\n")
    lines, _ = pages(ScanRequest((stream(tmp_path, "a"),), limit=10))
    assert [line.text[:6] for line in lines] == ["before", "xxxxxx", "after"]
    assert max(len(line.text) for line in lines) < 17_000


def test_a_file_without_any_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(3 << 20).replace(b"\n", b" "))
    lines, _ = pages(ScanRequest((stream(tmp_path, "a"), stream(tmp_path, "a", kind="own")), Wanted(job="j"), limit=10))
    assert lines == []


def test_a_regular_expression_that_backtracks_for_ever_is_ended(tmp_path: Path) -> None:
    cri(tmp_path / "a", [(1, "a" * 64)])
    request = ScanRequest((stream(tmp_path, "a"),), grep="(a+)+[b]")

    async def run() -> int:
        turns = 0

        async def other_work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        other = asyncio.ensure_future(other_work())
        with pytest.raises(ScanFailed, match=r"took longer than 0\.3 s and was ended"):
            await LogScanner(time_limit=0.3).scan(request)
        other.cancel()
        return turns

    assert asyncio.run(run()) > 5


def test_the_process_answers_what_the_function_answers(tmp_path: Path) -> None:
    cri(tmp_path / "a", [(number, f"line {number} ä \x1b[2J") for number in range(10)])
    request = ScanRequest((stream(tmp_path, "a"),), Wanted("j", frozenset("t")), grep="line", limit=3)
    assert asyncio.run(LogScanner().scan(request)) == scan(request)


# What may match.


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("abc", "abc"),
        ("ab*cde", "cde"),
        ("a?bc", "bc"),
        ("ab+c", "ab"),
        ("x(hidden)yy", "yy"),
        ("ab|c|de+f", "ab c de"),
        ("ab|c*", ""),
        ("a(b|c)dd", "dd"),
        ("(a|b)", ""),
        (r"status=\d{3} ok", "status="),
        (r"a\.b", "a.b"),
        ("[abc]de[^f]", "de"),
        (r"\x41bc", ""),
        ("ab{0,3}cd", "cd"),
        ("[]abc]d", "d"),
        ("(?x)a b", ""),
        ("(?m)^abc$", "abc"),
        ("", ""),
    ],
)
def test_required_literals(pattern: str, literals: str) -> None:
    found = log_scan.required_literals(pattern)
    assert (found.texts, found.any_case) == (tuple(literals.encode().split()), False)


def test_required_literals_in_any_case() -> None:
    assert log_scan.required_literals("(?i)Error|PANIC") == ((b"error", b"panic"), True)
    assert log_scan.required_literals("(?i)Ärger") == ((), False)


def test_required_literals_stand_in_what_their_patterns_match() -> None:
    chance = random.Random(3)
    pieces = [
        "a",
        "b",
        "ab",
        "a*",
        "b?",
        "[ab]",
        "[^a]",
        ".",
        "(a)",
        "(b)*",
        "a{0,2}",
        "b+",
        r"\.",
        r"\w",
        "^",
        "$",
        r"\b",
        "|",
    ]
    for _ in range(10_000):
        pattern = chance.choice(["", "(?i)"]) + "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 7)))
        text = "".join(chance.choice("aAbB.c") for _ in range(12))
        literals, any_case = log_scan.required_literals(pattern)
        if literals and re.search(pattern, text):
            assert any(each.decode() in (text.lower() if any_case else text) for each in literals), (pattern, text)


@pytest.mark.parametrize(
    "pattern", ["^a", "a$", r"\s", "[^a]", r"\W", "(?s).", "(?m)a", r"\n", r"a\Z", "(?<=a)b", r"[\s]"]
)
def test_patterns_that_need_single_lines(pattern: str) -> None:
    assert not log_scan.stays_in_line(pattern)


# Our own lines.

PLAIN = "2026-01-02T03:04:05.678Z info  controllers.kusciatask: Task phase changed task=t-1 phase=Running"


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (PLAIN, {"task": "t-1", "phase": "Running"}),
        (PLAIN + ' why="a task=t-2 b"', {"task": "t-1", "phase": "Running", "why": "a task=t-2 b"}),
        ('2026-01-02T03:04:05.678Z error x: Failed error="it said \\"x\\" task=t-9"', {"error": 'it said "x" task=t-9'}),
        ("2026-01-02T03:04:05.678Z warn  asyncio: took task=t-3 seconds", {}),
        ('{"time": "2026-01-02T03:04:05.678Z", "level": "info", "logger": "x", "message": "task=t-3", "task": "t-1"}',
         {"time": "2026-01-02T03:04:05.678Z", "message": "task=t-3", "task": "t-1"}),
        ("{broken", {}),
        ("no line of ours task=t-1", {}),
    ],
)  # fmt: skip
def test_facts_of_a_line(line: str, facts: dict[str, str]) -> None:
    assert log_scan.facts_of(line)[2] == facts


def own_lines(tmp_path: Path, text: str, wanted: Wanted, grep: str = "") -> list[str]:
    (tmp_path / "coterie.log").write_text(text)
    lines, _ = pages(ScanRequest((stream(tmp_path, "coterie.log", kind="own"),), wanted, grep=grep))
    return [line.text for line in lines]


def test_lines_of_our_own_belong_to_a_task_by_their_facts_alone(tmp_path: Path) -> None:
    forged = '2026-01-02T03:04:05.679Z info  agent: Container ended pod=alice/other-0 message="x task=t-1 job=j"'
    other = PLAIN.replace("t-1", "t-12")
    by_pod = "2026-01-02T03:04:05.680Z info  agent: Started pod=alice/t-1-0 node=n"
    text = "\n".join((PLAIN, forged, other, by_pod)) + "\n"
    wanted = Wanted("j", frozenset({"t-1"}), frozenset({"t-1-0"}))
    assert own_lines(tmp_path, text, wanted) == [PLAIN, by_pod]
    assert own_lines(tmp_path, text, wanted, "Started") == [by_pod]


def test_other_namespaces_get_only_lines_that_name_them(tmp_path: Path) -> None:
    mine = "2026-01-02T03:04:05.680Z info  agent: Started pod=alice/t-1-0 task=t-1"
    theirs = "2026-01-02T03:04:05.681Z info  agent: Started pod=bob/t-1-0 task=t-1"
    wanted = Wanted("j", frozenset({"t-1"}), frozenset({"t-1-0"}), namespace="alice")
    assert own_lines(tmp_path, "\n".join((PLAIN, mine, theirs)) + "\n", wanted) == [mine]


def test_a_traceback_is_part_of_its_line(tmp_path: Path) -> None:
    text = f"{PLAIN}\n    Traceback\n      File x\n2026-01-02T03:04:06.000Z info  x: Next task=t-1\n"
    wanted = Wanted(tasks=frozenset({"t-1"}))
    assert own_lines(tmp_path, text, wanted, "File")[0] == f"{PLAIN}\n    Traceback\n      File x"


# The gateway's.

REQUEST = '"POST /x HTTP/1.1" t s 200 - 12 345 {ms} 1 2 3 - - via_upstream'


def access(host: str, at: str = "03:04:05.000", ms: int = 1500) -> str:
    return f"10.0.0.1 - [2026-01-02T{at}Z] alice {host} {REQUEST.format(ms=ms)}"


@pytest.mark.parametrize(
    ("host", "belongs"),
    [
        ("t-1-0-fed.bob.svc", True),
        ("t-1-client-0-fed.bob.svc:80", True),
        ("svc-t-1-0-fed.bob.svc", True),
        ("hashed-name.bob.svc", True),
        ("t-12-0-fed.bob.svc", False),
        ("t-1-more-0-fed.bob.svc", False),
        ("x.t-1-0-fed.bob.svc", False),
    ],
)
def test_a_request_belongs_to_the_task_of_its_service(tmp_path: Path, host: str, belongs: bool) -> None:
    (tmp_path / "internal.log").write_text(access(host) + "\n")
    services = frozenset({"hashed-name"})
    wanted = Wanted(tasks=frozenset({"t-1"}), other_tasks=("t-1-more",), services=services)
    lines, _ = pages(ScanRequest((stream(tmp_path, "internal.log", kind="access", slack=1.0),), wanted))
    assert [line.at for line in lines] == (["2026-01-02T03:04:06.500000000Z"] if belongs else [])


def test_requests_that_took_long_are_in_the_order_of_their_ends(tmp_path: Path) -> None:
    host = "t-1-0-fed.bob.svc"
    rows = [
        access(host, f"03:{n // 60:02d}:{n % 60:02d}.000", 10)
        if n % 7
        else access(host, "02:59:00.000", (60 + n) * 1000)
        for n in range(600)
    ]
    for n in range(1, 600, 50):  # and a little out of order
        rows[n], rows[n - 1] = rows[n - 1], rows[n]
    (tmp_path / "internal.log").write_text("\n".join(rows) + "\n")
    wanted = Wanted(tasks=frozenset({"t-1"}))
    source = stream(tmp_path, "internal.log", kind="access", slack=2.0)
    lines, count = pages(ScanRequest((source,), wanted, limit=25, bytes=1))
    assert len(lines) == 600
    assert count > 10
    assert [line.at for line in lines] == sorted(line.at for line in lines)


def test_times_in_other_zones_and_forms() -> None:
    assert log_scan.normal(b"2026-01-02T03:04:05Z x") == "2026-01-02T03:04:05.000000000Z"
    assert log_scan.normal(b"2026-01-02T03:04:05.5+08:00 x") == "2026-01-01T19:04:05.500000000Z"
    assert log_scan.normal(b"yesterday") == ""
