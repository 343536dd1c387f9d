"""Searches log files from their newest line to their oldest. A program of its own: standard library only, one request on
standard input, one answer on standard output, both JSON.

    several streams (one log with its rotated files each) ──> blocks from the end, the newest first ──> lines in order of time

A regular expression of Python may backtrack for hours and holds the interpreter meanwhile. Therefore it runs here, in a process
with a limit for its time, and never in a node (log_scan_process.py ends it). One page ends after `limit` lines, or at the first
block after `bytes` or `seconds`; everything at or after its `frontier` was searched, and the next page asks for what is before.

Formats, and when a line belongs to what is asked for:

    cri      <time> stdout|stderr F|P <text>              always: the file is that of one container
    own      a line of base/log.py, plain or JSON          its facts name the job, one of the tasks or one of the pods
    access   ... [<time>] <source> <host> "<request>" ...  the host is a service of one of the tasks
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

Buffer = mmap.mmap | bytes

LONGEST_TEXT: Final = 16 << 10
"""Bytes of a line that are answered."""
MAX_ANSWER: Final = 6 << 20
"""Bytes of text in one answer."""
MAX_LINES: Final = 50_000
"""In one answer, where more lines than asked for have the same time."""
FIRST_BLOCK: Final = 64 << 10
LAST_BLOCK: Final = 4 << 20
MAX_UNPACKED: Final = 1 << 30
MAX_LITERALS: Final = 16
_HEAD: Final = 256 << 10
"""Bytes in which a line with a time is looked for."""
_SLOW: Final = 0.05
"""Seconds for one block."""
_NEAR: Final = 16 << 10
"""Bytes that are read line by line instead of being halved."""
_EVER: Final = "9999"
_SECOND: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)")
_JSON_TIME: Final = b'{"time": "'
_ACCESS: Final = re.compile(
    rb"\S+ - \[([^\]]*)\] \S+ (\S+) \"[^\"]*\" \S+ \S+ (?:\S+ \S+ \S+ \S+ (\d+)\b)?"  # the last: milliseconds
)
_FAILED: Final = re.compile(rb"\S+ - \[([^\]]*)\] - (\S+) - ")
_FLAGS: Final = re.compile(r"\(\?([aiLmsux]+)\)")
_PLAIN: Final = re.compile(r"\S+ (\w+) +([\w.\-]+): ")
_FACT: Final = re.compile(r' ([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|[^\s"=]+)(?= |$)')


@dataclass(frozen=True, slots=True)
class ScanStream:
    """One log. `files` are paths below `root`, part by part, the newest first; no part may be a symbolic link."""

    root: str
    files: tuple[tuple[str, ...], ...]
    format: str
    slack: float = 0.0
    """Seconds by which lines may stand in another order than that of their times."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What lines of `own` and `access` must be about."""

    job: str = ""
    tasks: frozenset[str] = frozenset()
    pods: frozenset[str] = frozenset()
    other_tasks: tuple[str, ...] = ()
    """Known tasks that are not asked for: a service of `a-b` is none of `a`."""
    services: frozenset[str] = frozenset()
    """Names of services that do not begin with their task's name."""
    namespace: str = ""
    """Lines of `own` must name this namespace; empty: any."""
    unnamed: bool = False
    """Besides, lines of `own` that name no namespace at all."""

    @property
    def needles(self) -> tuple[str, ...]:
        """One of these stands in every line."""
        return tuple(dict.fromkeys(each for each in (self.job, *sorted(self.tasks), *sorted(self.services)) if each))


@dataclass(frozen=True, slots=True)
class ScanRequest:
    streams: tuple[ScanStream, ...]
    wanted: Wanted = Wanted()
    since: str = ""
    """Normal form of a time (`normal`), inclusive; empty: no limit."""
    until: str = ""
    """Inclusive."""
    before: str = ""
    """Exclusive: the frontier of the page before."""
    grep: str = ""
    limit: int = 1000
    bytes: int = 64 << 20
    seconds: float = 0.2


class ScannedLine(NamedTuple):
    at: str
    stream: int
    text: str
    level: str = ""
    logger: str = ""
    task: str = ""
    pod: str = ""
    position: int = 0
    """Puts lines of one stream and one time in order."""


@dataclass(frozen=True, slots=True)
class ScanAnswer:
    lines: tuple[ScannedLine, ...]
    """Oldest first."""
    frontier: str = ""
    """Empty: everything was searched."""
    notes: tuple[str, ...] = ()
    scanned: int = 0
    """Bytes."""


# Times.


def normal(text: bytes) -> str:
    """A time of RFC 3339 as `2026-01-02T03:04:05.000000000Z`, which sorts as text; empty when it is none."""
    found = _SECOND.match(text)
    if found is None:
        return ""
    second, fraction, zone = found[1].decode(), (found[2] or b"").decode(), found[3].decode()
    if zone != "Z":
        try:
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            shift = timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "+" else 1)
            second = (datetime.fromisoformat(second) + shift).isoformat()
        except (ValueError, OverflowError):
            return ""
    return f"{second}.{fraction:0<9}Z"


def shifted(at: str, seconds: float) -> str:
    """`at` is in normal form; the nanoseconds below a microsecond are kept."""
    if not at or not seconds:
        return at
    try:
        moved = datetime.fromisoformat(at[:26]) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return at
    return f"{moved.isoformat(timespec='microseconds')}{at[26:]}"


def _time_of_cri(line: bytes) -> str:
    return normal(line[:40])


def _time_of_own(line: bytes) -> str:
    return normal(line[len(_JSON_TIME) : 60] if line.startswith(_JSON_TIME) else line[:40])


def _time_of_access(line: bytes) -> str:
    """When the request ended: lines are written then."""
    found = _ACCESS.match(line) or _FAILED.match(line)
    if found is None:
        return ""
    at = normal(found[1])
    milliseconds = int(found[3][:12]) if found.re is _ACCESS and found[3] else 0
    return shifted(at, milliseconds / 1000)


_TIMES: Final = {"cri": _time_of_cri, "own": _time_of_own, "access": _time_of_access}


# Which lines can match.


class Literals(NamedTuple):
    """One of `texts` stands in everything that a pattern matches; no texts: nothing is known."""

    texts: tuple[bytes, ...] = ()
    any_case: bool = False
    """They are in lower case and may stand in any."""


def required_literals(pattern: str) -> Literals:
    """Cautious: it looks only at plain characters outside of groups."""
    flags = _FLAGS.match(pattern)
    if flags is not None and "x" in flags[1]:
        return Literals()
    any_case = flags is not None and "i" in flags[1]
    rest = pattern[flags.end() :] if flags is not None else pattern
    texts = [max(runs, key=len) for runs in _literal_runs(rest)]
    if not all(texts) or len(texts) > MAX_LITERALS:
        return Literals()
    encoded = tuple(dict.fromkeys((each.lower() if any_case else each).encode() for each in texts))
    if any_case and not all(each.isascii() for each in encoded):
        return Literals()  # what is lower case there depends on the encoding
    return Literals(encoded, any_case)


def _literal_runs(pattern: str) -> list[list[str]]:
    """Of each alternative, texts that stand in what it matches; an empty one where nothing is known."""
    out: list[list[str]] = [[]]
    run, depth, at = "", 0, 0
    while at < len(pattern):
        char, step, literal = pattern[at], 1, ""
        if char == "\\":
            following = pattern[at + 1 : at + 2]
            step = 2
            if following.isalnum() and depth == 0 and following not in "dDwWsSbBAZ":
                return [[""]]  # \x41, \1, \n, ...
            literal = following if following and not following.isalnum() else ""
        elif char == "[":
            end = _class_end(pattern, at)
            if end < 0:
                return [[""]]
            step = end - at
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "{":
            step = max(1, pattern.find("}", at) + 1 - at)
        elif char not in ".^$*+?}|":
            literal = char
        following = pattern[at + step : at + step + 1]
        if literal and depth == 0 and following not in ("*", "?", "{"):
            run += literal
        else:
            literal = ""
        if not literal or following == "+":
            out[-1].append(run)
            run = ""
        if char == "|" and depth == 0:
            out.append([])
        at += step
    out[-1].append(run)
    return out


def _class_end(pattern: str, at: int) -> int:
    """After the `]` of the class that begins at `at`."""
    position = at + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 2
        elif pattern[position] == "]":
            return position + 1
        else:
            position += 1
    return -1


_WITHIN_LINES: Final = re.compile(
    r"(?:\(\?i\))?(?:[\w \-=:/,@\"'<>!#%&;~.|()*+?]|\(\?:|\{\d{1,4}(?:,\d{0,4})?\}|\\[dwb]|\\[^\w\s]"
    r"|\[(?:[\w \-=:/,@\"'<>!#%&;~.()*+?]|\\[dw]|\\[^\w\s])+\])*"
)


def stays_in_line(pattern: str) -> bool:
    """Whether the pattern depends neither on where a line begins and ends nor matches a line break."""
    return _WITHIN_LINES.fullmatch(pattern) is not None and "(?" not in pattern.replace("(?:", "").removeprefix("(?i)")


class LineFinder:
    """Finds the lines of a block that may match; the caller looks at each of them."""

    def __init__(self, pattern: str = "", needles: tuple[str, ...] = ()) -> None:
        self._literals = Literals()
        self._expression: re.Pattern[bytes] | None = None
        if needles:
            self._literals = Literals(tuple(each.encode() for each in needles))
        elif pattern:
            self._literals = required_literals(pattern)
            if not self._literals.texts and stays_in_line(pattern):
                self._expression = re.compile(pattern.encode())

    def lines(self, data: Buffer, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Begin and end, without the line break, oldest first. `begin` is where a line begins."""
        if self._literals.any_case:
            for start, stop in self._found(data[begin:end].lower(), 0, end - begin):
                yield begin + start, begin + stop
        else:
            yield from self._found(data, begin, end)

    def _found(self, data: Buffer, begin: int, end: int) -> Iterator[tuple[int, int]]:
        at, texts = begin, self._literals.texts
        following = {text: data.find(text, begin, end) for text in texts}
        while at < end:
            if texts:
                for text, known in following.items():
                    if 0 <= known < at:
                        following[text] = data.find(text, at, end)
                found = min((each for each in following.values() if each >= 0), default=-1)
            elif self._expression is not None:
                match = self._expression.search(data, at, end)
                found = match.start() if match is not None else -1
            else:
                found = at
            if found < 0:
                return
            start = data.rfind(b"\n", at, found) + 1 or at
            stop = data.find(b"\n", found, end)
            stop = end if stop < 0 else stop
            yield start, stop
            at = stop + 1


# What a line says.


def facts_of(line: str) -> tuple[str, str, dict[str, str]]:
    """Level, logger and facts of a line of base/log.py. Facts are the `key=value` at the end of the line, or the keys of the
    JSON object: text inside a quoted value is never taken for one."""
    if line.startswith("{"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return "", "", {}
        if not isinstance(found, dict):
            return "", "", {}
        facts = {str(key): str(value) for key, value in found.items() if isinstance(value, (str, int))}
        return facts.pop("level", ""), facts.pop("logger", ""), facts
    first = line.partition("\n")[0]
    head = _PLAIN.match(first)
    if head is None:
        return "", "", {}
    facts, end = {}, -1
    for found in _FACT.finditer(first, head.end() - 1):
        if found.start() != end:
            facts = {}  # what came before was part of the sentence
        end = found.end()
        facts[found[1]] = _unquoted(found[2])
    return head[1], head[2], facts if end == len(first) else {}


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return ""


_NAMING: Final = ("task", "job", "pod", "key", "group", "name")
_OF_NAMESPACE: Final = ("domain", "party", "namespace")


def about(facts: dict[str, str], wanted: Wanted) -> tuple[str, str] | None:
    """(task, pod) that a line of our own is about; None when it is about something else."""
    namespaces = {facts[key] for key in _OF_NAMESPACE if key in facts}
    task = pod = ""
    matches = False
    for key in _NAMING:
        namespace, _, name = facts.get(key, "").rpartition("/")
        if not name:
            continue
        named = name if name in wanted.tasks else ""
        if key == "pod":
            named = task_of_host(name, wanted) or ""
            pod = name if named or name in wanted.pods else ""
        if named or (key == "pod" and pod) or (key != "pod" and name == wanted.job):
            matches = True
            namespaces.add(namespace)
            task = task or named
    namespaces.discard("")
    if not matches or not _may_see(namespaces, wanted):
        return None
    return task, pod


def _may_see(namespaces: set[str], wanted: Wanted) -> bool:
    if not wanted.namespace or wanted.namespace in namespaces:
        return True
    return wanted.unnamed and not namespaces


def task_of_host(host: str, wanted: Wanted) -> str | None:
    """The task that a service belongs to, of those that are asked for; "" where only the service is known."""
    name = host.partition(":")[0].partition(".")[0].lower()
    if name in wanted.services:
        return ""
    name = name.removeprefix("svc-")
    known = [each for each in (*wanted.tasks, *wanted.other_tasks) if name.startswith(f"{each}-")]
    best = max(known, key=len, default="")
    return best if best in wanted.tasks else None


# Files.


class _NotThere(Exception):
    """The file went, or is none that may be read."""


def open_below(root: str, parts: tuple[str, ...]) -> int:
    """A descriptor of a regular file. No part below the root may be a symbolic link or lead upwards."""
    if not parts or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise _NotThere
    here = -1
    try:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for number, part in enumerate(parts):
            kind = os.O_DIRECTORY if number < len(parts) - 1 else os.O_NONBLOCK
            there = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=here)
            os.close(here)
            here = there
        if not stat.S_ISREG(os.fstat(here).st_mode):
            raise _NotThere
    except OSError:
        if here >= 0:
            os.close(here)
        raise _NotThere from None
    except _NotThere:
        os.close(here)
        raise
    return here


def _mapped(descriptor: int) -> Buffer:
    return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if os.fstat(descriptor).st_size else b""


def _unpacked(descriptor: int) -> Buffer:
    """The content of a compressed file, on disk without a name: it may be larger than memory."""
    inflate, size = zlib.decompressobj(wbits=31), 0
    with os.fdopen(os.dup(descriptor), "rb") as source, os.fdopen(_unnamed_file(), "w+b") as target:
        with contextlib.suppress(zlib.error):  # a damaged end: what is before it can be read
            while size < MAX_UNPACKED and not inflate.eof and (packed := source.read(256 << 10)):
                data = inflate.decompress(packed)
                target.write(data)
                size += len(data)
        target.flush()
        return _mapped(target.fileno())


def _unnamed_file() -> int:
    try:
        return os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.memfd_create("log", os.MFD_CLOEXEC)


# Searching.


@dataclass(slots=True)
class _Stream:
    """Where the search in one log is. `frontier`: all lines of this time and later were looked at."""

    number: int
    spec: ScanStream
    request: ScanRequest
    finder: LineFinder
    grep: re.Pattern[bytes] | None
    left: list[tuple[str, ...]] = field(default_factory=list)
    data: Buffer = b""
    end: int = 0
    opened: int = 0
    block: int = FIRST_BLOCK
    frontier: str = _EVER
    over: bool = False
    scanned: int = 0
    long_lines: int = 0
    unreadable: int = 0

    def __post_init__(self) -> None:
        self.left = list(reversed(self.spec.files))

    def advance(self) -> list[ScannedLine]:
        """The lines of the next block, in any order."""
        if self.end <= 0 and not self._open():
            self.over = True
            return []
        started = time.monotonic()
        begin, first = self._begin()
        lines = self._lines(begin, self.end) if first or begin == 0 else []
        self.long_lines += not (first or begin == 0)
        self.scanned += self.end - begin
        self.end = begin
        # A slow expression gets smaller blocks: the time of a page is looked at between two of them.
        slow = time.monotonic() - started > _SLOW
        self.block = max(self.block // 2, FIRST_BLOCK) if slow else min(self.block * 2, LAST_BLOCK)
        if first:
            self.frontier = min(self.frontier, shifted(first, self.spec.slack))
            if self.request.since and shifted(first, self.spec.slack) < self.request.since:
                self.over = True
        return lines

    def _open(self) -> bool:
        while self.left:
            parts = self.left.pop()
            try:
                descriptor = open_below(self.spec.root, parts)
            except _NotThere:
                continue
            try:
                if self.request.since and _before(os.fstat(descriptor).st_mtime, self.request.since):
                    return False
                self.data = _unpacked(descriptor) if parts[-1].endswith(".gz") else _mapped(descriptor)
            except (OSError, ValueError):
                self.unreadable += 1
                continue
            finally:
                os.close(descriptor)
            self.opened += 1
            self.end = self._position_of(self._bound())
            if self.end:
                return True
        return False

    def _bound(self) -> str:
        request = self.request
        bounds = [each for each in (request.before, request.until and request.until + "~") if each]
        return shifted(min(bounds), self.spec.slack) if bounds else ""

    def _position_of(self, bound: str) -> int:
        """Where lines begin that are not before the bound: by halving, for lines are in the order of their times."""
        low, high = 0, len(self.data)
        if not bound:
            return high
        while high - low > _NEAR:
            middle = (low + high) // 2
            start = self.data.find(b"\n", middle, high) + 1
            at, where = self._first_time(start, high) if start else ("", 0)
            if at and at < bound:
                low = where
            else:
                high = middle
        for start, stop in LineFinder().lines(self.data, self._line_start(low), len(self.data)):
            if (at := self._time(start, stop)) and at >= bound:
                return start
        return len(self.data)

    def _line_start(self, position: int) -> int:
        return self.data.rfind(b"\n", 0, position) + 1

    def _first_time(self, begin: int, end: int) -> tuple[str, int]:
        """Of the first line with a time, and where it begins."""
        for start, stop in LineFinder().lines(self.data, begin, min(end, begin + _HEAD)):
            if at := self._time(start, stop):
                return at, start
        return "", begin

    def _time(self, start: int, stop: int) -> str:
        return _TIMES[self.spec.format](self.data[start : min(stop, start + 4096)])

    def _begin(self) -> tuple[int, str]:
        """Where the next block begins, at a line with a time; the time. Without a time: all of it is one endless line."""
        low = max(0, self.end - self.block)
        start = low
        if low and self.data[low - 1 : low] != b"\n":
            found = self.data.find(b"\n", low, self.end)
            start = found + 1 if 0 <= found < self.end - 1 else -1
        at, where = self._first_time(start, self.end) if start >= 0 else ("", 0)
        if at:
            return (where if low else 0), at
        return low, ""

    def _lines(self, begin: int, end: int) -> list[ScannedLine]:
        read = {"cri": self._cri, "own": self._own, "access": self._access}[self.spec.format]
        out = []
        request = self.request
        for start, stop in self.finder.lines(self.data, begin, end):
            line = read(start, stop, end)
            if (
                line is not None
                and (not request.before or line.at < request.before)
                and (not request.since or line.at >= request.since)
                and (not request.until or line.at <= request.until)
            ):
                out.append(line._replace(position=start - (self.opened << 50)))
        return out

    def _cri(self, start: int, stop: int, _: int) -> ScannedLine | None:
        head, *rest = self.data[start : min(stop, start + LONGEST_TEXT + 64)].split(b" ", 3)
        text = rest[2] if len(rest) == 3 else b""
        if self.grep is not None and not self.grep.search(text):
            return None
        at = normal(head)
        return ScannedLine(at, self.number, _decoded(text)) if at else None

    def _own(self, start: int, stop: int, end: int) -> ScannedLine | None:
        start = self._record_start(start)
        raw = self.data[start : min(stop, start + LONGEST_TEXT)]
        at = _time_of_own(raw)
        text = raw.decode("utf-8", "replace")
        level, name, facts = facts_of(text)
        found = about(facts, self.request.wanted) if at else None
        if found is None:
            return None
        raw += self._continued(stop, end)
        if self.grep is not None and not self.grep.search(raw):
            return None
        return ScannedLine(at, self.number, _decoded(raw), level, name, *found)

    def _record_start(self, start: int) -> int:
        """A traceback belongs to the line before it."""
        for _ in range(64):
            if start == 0 or self.data[start : start + 1] not in (b" ", b"\t"):
                break
            start = self._line_start(start - 1)
        return start

    def _continued(self, stop: int, end: int) -> bytes:
        begin = stop
        while stop < end and stop - begin < LONGEST_TEXT and self.data[stop + 1 : stop + 5] == b"    ":
            following = self.data.find(b"\n", stop + 1, end)
            stop = end if following < 0 else following
        return self.data[begin:stop]

    def _access(self, start: int, stop: int, _: int) -> ScannedLine | None:
        raw = self.data[start : min(stop, start + LONGEST_TEXT)]
        found = _ACCESS.match(raw) or _FAILED.match(raw)
        if found is None:
            return None
        task = task_of_host(found[2].decode("ascii", "replace"), self.request.wanted)
        if task is None or (self.grep is not None and not self.grep.search(raw)):
            return None
        at = _time_of_access(raw)
        return ScannedLine(at, self.number, _decoded(raw), task=task) if at else None


def _before(seconds: float, since: str) -> bool:
    try:
        return seconds + 1 < datetime.fromisoformat(since[:19] + "+00:00").timestamp()
    except (ValueError, OverflowError):
        return False


def _decoded(text: bytes) -> str:
    cut = len(text) >= LONGEST_TEXT
    shown = text[:LONGEST_TEXT].decode("utf-8", "replace").rstrip("\n")
    return f"{shown}... (cut)" if cut else shown


def scan(request: ScanRequest, clock: Callable[[], float] = time.monotonic) -> ScanAnswer:
    grep = re.compile(request.grep.encode()) if request.grep else None
    needles = request.wanted.needles
    streams = []
    for number, spec in enumerate(request.streams):
        if spec.format == "cri":
            streams.append(_Stream(number, spec, request, LineFinder(request.grep), grep))
        elif needles:
            streams.append(_Stream(number, spec, request, LineFinder(needles=needles), grep))
    end = clock() + request.seconds
    found: list[ScannedLine] = []
    while running := [each for each in streams if not each.over]:
        newest = max(running, key=lambda each: each.frontier)
        if newest.frontier != _EVER and (not request.before or newest.frontier < request.before):
            enough = sum(1 for line in found if line.at >= newest.frontier) >= request.limit
            large = sum(each.scanned for each in streams) >= request.bytes
            if enough or large or clock() >= end:
                break
        found += newest.advance()
    frontier = max((each.frontier for each in streams if not each.over), default="")
    return _page(found, frontier, request.limit, streams)


def _page(found: list[ScannedLine], frontier: str, limit: int, streams: list[_Stream]) -> ScanAnswer:
    """Lines of one time are never on two pages."""
    lines = sorted(
        (line for line in found if line.at >= frontier),
        key=lambda line: (line.at, line.stream, line.position),
        reverse=True,
    )
    size, kept = 0, len(lines)
    for number, line in enumerate(lines):
        size += len(line.text)
        if number + 1 >= limit or size > MAX_ANSWER:
            kept = number + 1
            break
    notes = []
    if any(each.long_lines for each in streams):
        notes.append("a line of more than a megabyte was left out")
    if unreadable := sum(each.unreadable for each in streams):
        notes.append(f"{unreadable} files could not be read")
    if kept < len(lines):
        last = lines[kept - 1].at
        while kept < len(lines) and lines[kept].at == last:
            kept += 1
        if kept > MAX_LINES:
            kept = MAX_LINES
            notes.append(f"more than {MAX_LINES} lines have the time {last}; the rest was left out")
        if kept < len(lines) or frontier:
            frontier = last
    return ScanAnswer(
        tuple(lines[kept - 1 :: -1] if kept else ()), frontier, tuple(notes), sum(each.scanned for each in streams)
    )


# As a program.


def request_of(document: dict[str, Any]) -> ScanRequest:
    streams = tuple(
        ScanStream(each["root"], tuple(tuple(file) for file in each["files"]), each["format"], each["slack"])
        for each in document["streams"]
    )
    given = document["wanted"]
    wanted = Wanted(
        given["job"],
        frozenset(given["tasks"]),
        frozenset(given["pods"]),
        tuple(given["other_tasks"]),
        frozenset(given["services"]),
        given["namespace"],
        given["unnamed"],
    )
    rest = {key: value for key, value in document.items() if key not in ("streams", "wanted")}
    return ScanRequest(streams, wanted, **rest)


def document_of(request: ScanRequest) -> dict[str, Any]:
    wanted = request.wanted
    return {
        "streams": [
            {"root": each.root, "files": each.files, "format": each.format, "slack": each.slack}
            for each in request.streams
        ],
        "wanted": {
            "job": wanted.job,
            "tasks": sorted(wanted.tasks),
            "pods": sorted(wanted.pods),
            "other_tasks": wanted.other_tasks,
            "services": sorted(wanted.services),
            "namespace": wanted.namespace,
            "unnamed": wanted.unnamed,
        },
        "since": request.since,
        "until": request.until,
        "before": request.before,
        "grep": request.grep,
        "limit": request.limit,
        "bytes": request.bytes,
        "seconds": request.seconds,
    }


def main() -> None:
    os.nice(5)
    answer = scan(request_of(json.load(sys.stdin)))
    json.dump(
        {
            "lines": answer.lines,
            "frontier": answer.frontier,
            "notes": answer.notes,
            "scanned": answer.scanned,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
