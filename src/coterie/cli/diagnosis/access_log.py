"""Access logs of a gateway: which calls failed or were slow, grouped by partner and task. Pure; memory is bounded.

A line of `internal.log` is a call of our own pods or node to a partner (or to our own services), one of `external.log` a call
of a partner to us. Callers choose paths and names, so nothing here grows with them: groups beyond `MOST_GROUPS` are counted
together.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from coterie.kuscia.gateway.names import DIAGNOSE_SERVICE, HANDSHAKE_SERVICE

MOST_GROUPS = 500
MOST_SLOW = 10
_LONGEST_NAME = 120
INTERNAL, EXTERNAL = "internal", "external"
REFUSED = "-"
"""In place of a method: the connection ended before there was a request."""
_LINE = re.compile(
    r"(?P<address>\S+) - \[(?P<time>[^\]]{1,40})\] (?P<source>\S+) (?P<host>\S+) "
    r'"(?P<method>\S+) (?P<path>.*) (?P<protocol>\S+)" \S+ \S+ '
    r"(?P<code>\d+) (?P<flags>\S+) \S+ \S+ (?P<duration>\d+|-)(?: \S+){0,3} - - (?P<details>\S+)(?: .*)?$"
)
_REFUSED = re.compile(
    r"(?P<address>\S+) - \[(?P<time>[^\]]{1,40})\] - (?P<host>\S+) (?:- )+connection_refused\{(?P<details>.*)\}$"
)
_TASK = re.compile(r"(?P<task>.+)-\d+-[a-z0-9-]+$")
_NODE_CHECK = ".invalid"
"""The node asks its own gateway for a name that nobody has, to see whether it answers."""
_UNKNOWN_CALLER = "(unknown)"


@dataclass(frozen=True, slots=True)
class AccessLogLine:
    side: str
    at: datetime
    address: str
    source: str
    host: str
    method: str
    path: str
    """Without its query, which may hold secrets."""
    protocol: str
    code: int
    """0: there was no answer."""
    flags: tuple[str, ...]
    milliseconds: int
    details: str

    @property
    def service(self) -> str:
        return self.host.partition(".")[0]

    @property
    def partner(self) -> str:
        """The other side: whom we call, or who calls us."""
        if self.side == EXTERNAL:
            return self.source if self.source != "-" else _UNKNOWN_CALLER
        labels = self.host.split(".")
        return labels[1] if len(labels) > 1 else self.host

    @property
    def task(self) -> str:
        found = _TASK.match(self.service)
        return found["task"] if found else ""

    @property
    def failed(self) -> bool:
        return self.code == 0 or self.code >= 400 or any(flag in FLAGS for flag in self.flags)


def parse_line(text: str, side: str) -> AccessLogLine | None:
    """None: no line of an access log, or cut off."""
    text = text.rstrip("\r\n")
    if (found := _LINE.match(text)) is not None:
        at = _time(found["time"])
        if at is None:
            return None
        return AccessLogLine(
            side,
            at,
            found["address"],
            found["source"][:_LONGEST_NAME],
            found["host"][:_LONGEST_NAME],
            found["method"][:16],
            found["path"].partition("?")[0][:_LONGEST_NAME],
            found["protocol"][:16],
            int(found["code"][:3]),
            tuple(found["flags"].split(",")[:8]) if found["flags"] != "-" else (),
            int(found["duration"][:12]) if found["duration"] != "-" else 0,
            found["details"][:_LONGEST_NAME],
        )
    if (found := _REFUSED.match(text)) is not None and (at := _time(found["time"])) is not None:
        host, why = found["host"][:_LONGEST_NAME], found["details"][:_LONGEST_NAME]
        return AccessLogLine(side, at, found["address"], "-", host, REFUSED, "-", "-", 0, (), 0, why)
    return None


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@dataclass(slots=True)
class FailureGroup:
    side: str
    partner: str
    task: str
    code: int
    flags: tuple[str, ...]
    calls: int = 0
    first: datetime | None = None
    last: datetime | None = None
    example: AccessLogLine | None = None
    """The latest."""

    def add(self, line: AccessLogLine) -> None:
        self.calls += 1
        self.first = line.at if self.first is None else min(self.first, line.at)
        if self.last is None or line.at >= self.last:
            self.last, self.example = line.at, line

    def document(self) -> dict[str, Any]:
        meaning, advice = explain(self)
        example = self.example
        return {
            "side": self.side,
            "partner": self.partner,
            "task": self.task,
            "code": self.code,
            "flags": list(self.flags),
            "calls": self.calls,
            "first": self.first.isoformat() if self.first else None,
            "last": self.last.isoformat() if self.last else None,
            "example": f"{example.method} {example.host}{example.path} ({example.details})" if example else "",
            "meaning": meaning,
            "next": advice,
        }


@dataclass(slots=True)
class AccessLogReport:
    """Fed line by line."""

    since: datetime | None = None
    task: str = ""
    """Only calls of services of this task."""
    partner: str = ""
    slow_milliseconds: int = 10_000
    everything: bool = False
    """With handshakes and diagnosis."""
    lines: int = 0
    unreadable: int = 0
    calls: int = 0
    failures: int = 0
    slow_calls: int = 0
    left_out: int = 0
    """Failures beyond the number of groups that are kept."""
    groups: dict[tuple[str, str, str, int, tuple[str, ...]], FailureGroup] = field(default_factory=dict)
    _slow: list[tuple[int, int, AccessLogLine]] = field(default_factory=list)

    def feed(self, text: str, side: str) -> None:
        self.lines += 1
        line = parse_line(text, side)
        if line is None:
            self.unreadable += 1
        elif self._concerned(line):
            self._count(line)

    def _concerned(self, line: AccessLogLine) -> bool:
        if self.since is not None and line.at < self.since:
            return False
        if self.task and not (line.service == self.task or line.service.startswith(f"{self.task}-")):
            return False
        if self.partner and line.partner != self.partner:
            return False
        if line.host.endswith(_NODE_CHECK) and not self.everything:
            return False
        return self.everything or line.service not in (DIAGNOSE_SERVICE, HANDSHAKE_SERVICE) or self._tells(line)

    @staticmethod
    def _tells(line: AccessLogLine) -> bool:
        """Of what gateways ask each other, only what the network spoiled."""
        return line.service == HANDSHAKE_SERVICE and line.failed

    def _count(self, line: AccessLogLine) -> None:
        self.calls += 1
        if line.failed:
            self._count_failure(line)
        if line.milliseconds >= self.slow_milliseconds:
            self.slow_calls += 1
            entry = (line.milliseconds, self.lines, line)
            if len(self._slow) < MOST_SLOW:
                heapq.heappush(self._slow, entry)
            else:
                heapq.heappushpop(self._slow, entry)

    def _count_failure(self, line: AccessLogLine) -> None:
        self.failures += 1
        key = (line.side, line.partner, line.task, line.code, line.flags)
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MOST_GROUPS:
                self.left_out += 1
                return
            group = self.groups[key] = FailureGroup(*key)
        group.add(line)

    @property
    def slow(self) -> list[AccessLogLine]:
        return [line for *_, line in sorted(self._slow, key=lambda each: each[:2], reverse=True)]

    @property
    def failing(self) -> list[FailureGroup]:
        """The most frequent first."""
        return sorted(self.groups.values(), key=lambda each: (-each.calls, each.partner, each.task, each.code))

    def document(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "unreadable": self.unreadable,
            "calls": self.calls,
            "failures": self.failures,
            "leftOut": self.left_out,
            "failing": [each.document() for each in self.failing],
            "slowCalls": self.slow_calls,
            "slowest": [
                {
                    "milliseconds": line.milliseconds,
                    "side": line.side,
                    "partner": line.partner,
                    "task": line.task,
                    "at": line.at.isoformat(),
                    "code": line.code,
                    "call": f"{line.method} {line.host}{line.path}",
                }
                for line in self.slow
            ],
        }


# What it means. First what our gateway says itself (flags), then the status.

_CHECK = "coterie route check, with both ends; coterie diagnose network"
_POD = "is the engine's pod ready (`coterie get pods`), and does it listen on the port that the AppImage names?"
FLAGS: dict[str, tuple[str, str]] = {
    "UF": ("no connection could be made", _CHECK),
    "UH": ("there is no healthy address to call", _CHECK),
    "UO": ("too many calls at once; the gateway's limit was reached", "start fewer tasks at once; see coterie_link_* metrics"),
    "UC": ("the other end closed the connection in the middle of a call", "look at the other side for a crash or a restart"),
    "UR": ("the other end reset the call", "look into the log of what answers there"),
    "UT": ("no answer in time", "is the other side overloaded, or a time-out too short?"),
    "UPE": ("what answered does not speak HTTP as it should", "is it the right port and protocol (HTTP or GRPC)?"),
    "UMSDR": ("the call took longer than calls may", "raise the limit, or let the engine split its work"),
    "NR": ("no route has this name", "is the service name right, and does the route to that domain exist (`coterie route ls`)?"),
    "NC": ("the route leads to a cluster that is not there", "is the route ready (`coterie route ls`)?"),
    "URX": ("given up after several attempts", _CHECK),
    "DC": ("the caller closed the connection before the answer", "the caller gave up or crashed: look at its log and time-outs"),
    "DR": ("the caller reset the call", "the caller gave up or crashed: look at its log and time-outs"),
    "DPE": ("the caller does not speak HTTP as it should", "is something else calling this port?"),
    "LR": ("the gateway itself reset the connection", "did the gateway restart, or its configuration change? var/logs/envoy/envoy.log"),
    "LH": ("the service failed its health check", _POD),
    "SI": ("the call was silent for too long", "engines that compute for more than an hour without a byte need a heartbeat"),
    "DT": ("the call or connection took longer than it may", "is a limit set on the route?"),
    "DF": ("the name could not be resolved", "correct the endpoint of the route, or this machine's DNS"),
    "DI": ("a delay was injected on purpose", "fault injection is on"),
    "FI": ("the fault was injected on purpose", "fault injection is off by default: who switched it on?"),
    "RL": ("a rate limit was reached", "call less often"),
    "RLSE": ("the rate limit service failed", "var/logs/envoy/envoy.log"),
    "UAEX": ("the call was not authorized", "is the service opened to the caller?"),
    "IH": ("a header of the call is not allowed", "what does the caller send?"),
    "DO": ("the gateway is overloaded and drops calls", "give the gateway more memory, or fewer connections"),
    "OM": ("the gateway is overloaded and drops calls", "give the gateway more memory, or fewer connections"),
    "UDO": ("calls to this partner are dropped", "see the partner's gateway"),
}  # fmt: skip
STATUSES: dict[int, tuple[str, str]] = {
    400: ("the request was not understood", "is the protocol right (HTTP or GRPC)?"),
    401: ("the caller is not known here: no valid token or certificate", "compare certificates and tokens: coterie route check"),
    403: ("the service does not exist, or is not opened to the caller", "annotate the Service with kuscia.secretflow/access-domain"),
    404: ("there is no such service or path", "is the task already over, or the name wrong?"),
    408: ("the request did not arrive in time", "the path is slow or was cut: coterie diagnose network"),
    409: ("two writes met; the caller tries again", "nothing, unless it happens all the time"),
    413: ("the body is too large for something on the way; gateways have no such limit", "raise the limit of the proxy in between"),
    426: ("something on the way wants another protocol", "let HTTP/2 pass through the proxy in between"),
    429: ("too many calls", "call less often"),
    431: ("the headers are too large", "what does the caller send?"),
    500: ("what answered failed", "look into its log"),
    502: ("a proxy in between got no valid answer", "gateways answer 503: check the proxy in between"),
    503: ("nothing to answer the call: no connection, no token yet, or no endpoint", "coterie route check; " + _POD),
    504: ("a proxy in between waited too long", "raise its time-out: coterie diagnose network --idle 5m shows it"),
}  # fmt: skip
_OURS = {
    "UF": ("our gateway cannot connect to our own service", _POD),
    "UH": ("no pod of our service is ready", _POD),
    "UC": ("our own service closed the connection in the middle of a call", "did the engine crash? coterie job logs"),
    "UR": ("our own service reset the call", "look into the engine's log: coterie job logs"),
    "URX": ("our gateway could not connect to our own service", _POD),
}


_OWN_ANSWERS = {
    403: ("our gateway refused it: the service is not opened to the caller", "annotate the Service with kuscia.secretflow/access-domain"),
    404: ("our gateway knows no such service or domain", "is the name right, and does the route exist (`coterie route ls`)?"),
    503: ("our gateway may not send it: the route has no token yet, or is not ready", "coterie route check, with both ends"),
}  # fmt: skip
"""Where the gateway did not ask anybody (`direct_response`)."""


def explain(group: FailureGroup) -> tuple[str, str]:
    """(what it means, what to do next)."""
    if group.example is not None and group.example.method == REFUSED:
        why = group.example.details
        return (
            f"a connection was refused before a request: {why}",
            "plain text to a TLS port, or a certificate nobody knows here",
        )
    table = {**FLAGS, **_OURS} if group.side == EXTERNAL else FLAGS
    for flag in group.flags:
        if flag in table:
            return table[flag]
    if group.code == 0:
        return "the call ended without an answer", "look at both ends for a crash or a restart"
    if group.example is not None and group.example.details == "direct_response" and group.code in _OWN_ANSWERS:
        return _OWN_ANSWERS[group.code]
    if group.code in STATUSES:
        return STATUSES[group.code]
    return f"status {group.code}", "look into the log of what answered"


def feed_all(report: AccessLogReport, side: str, lines: Iterable[str]) -> AccessLogReport:
    for line in lines:
        report.feed(line, side)
    return report
