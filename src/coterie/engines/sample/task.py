"""The configuration file of a task, read into plain data.

    {"task_id": "...", "task_input_config": "<JSON>", "task_cluster_def": "<JSON>", "allocated_ports": "<JSON>",
     "task_progress_url": "http://reporter.master.svc/report/progress?task_id=..."}

The three in the middle are JSON inside a JSON string, as every engine gets them. `task_input_config` is ours to define:

    mode      ok     greet everybody and be done (the default)      fail    end with status 1
              slow   take `seconds`, telling the progress           crash   be killed by a signal
              hang   accept calls and never answer
    party     who does so; the others do as with ok. Left out: everybody
    seconds   how long slow takes; how long fail and crash wait first
    mbytes    besides, send so much to every partner, and compare digests
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PORT = "talk"
MODES = ("ok", "fail", "crash", "hang", "slow")
_MOST_MBYTES = 1 << 20


class BadConfig(Exception):
    """The file is not what an engine expects; the sentence goes to the log."""


class Peer(NamedTuple):
    party: str
    role: str
    endpoint: str
    """`host[:port]`; without a port it is the gateway's, 80."""

    @property
    def name(self) -> str:
        return f"{self.party}/{self.role}/{self.endpoint}"


class Task(NamedTuple):
    id: str
    self: Peer
    peers: tuple[Peer, ...]
    port: int
    progress_url: str
    mode: str
    seconds: float
    mbytes: int


def read(path: str) -> Task:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as problem:
        raise BadConfig(f"the configuration {path} cannot be read: {problem.strerror}") from problem


def parse(text: str) -> Task:
    whole = _object(text, "the configuration")
    cluster = _object(whole.get("task_cluster_def") or "", "task_cluster_def")
    ports = _object(whole.get("allocated_ports") or "", "allocated_ports")
    options = _object(whole.get("task_input_config") or "{}", "task_input_config")
    try:
        peers = tuple(_peers(cluster))
        own = _own(cluster)
        port = next(int(each["port"]) for each in ports["ports"] if each["name"] == PORT)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        raise BadConfig(f"task_cluster_def or allocated_ports lacks something: {problem!r}") from problem
    except StopIteration as problem:
        raise BadConfig(f"allocated_ports has no port named {PORT}") from problem
    mode, seconds, mbytes = _options(options, own.party)
    others = tuple(peer for peer in peers if peer != own)
    return Task(
        str(whole.get("task_id") or ""),
        own,
        others,
        port,
        str(whole.get("task_progress_url") or ""),
        mode,
        seconds,
        mbytes,
    )


def _object(text: Any, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadConfig(f"{what} is not JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise BadConfig(f"{what} is not a JSON object")
    return found


def _peers(cluster: dict[str, Any]) -> list[Peer]:
    found = []
    for party in cluster["parties"]:
        for service in party.get("services") or ():
            if service["portName"] == PORT:
                found += [Peer(party["name"], party.get("role") or "", each) for each in service["endpoints"]]
    return found


def _own(cluster: dict[str, Any]) -> Peer:
    party = cluster["parties"][cluster["selfPartyIdx"]]
    for service in party.get("services") or ():
        if service["portName"] == PORT:
            return Peer(party["name"], party.get("role") or "", service["endpoints"][cluster["selfEndpointIdx"]])
    raise BadConfig(f"the party {party['name']} has no service named {PORT}")


def _options(options: dict[str, Any], own: str) -> tuple[str, float, int]:
    mode, party = options.get("mode", "ok"), options.get("party", "")
    seconds, mbytes = options.get("seconds", 0), options.get("mbytes", 0)
    if mode not in MODES:
        raise BadConfig(f"task_input_config: mode is one of {', '.join(MODES)}, not {mode!r}")
    if not isinstance(party, str):
        raise BadConfig("task_input_config: party is the name of a domain")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
        raise BadConfig("task_input_config: seconds is a number of seconds")
    if isinstance(mbytes, bool) or not isinstance(mbytes, int) or not 0 <= mbytes <= _MOST_MBYTES:
        raise BadConfig("task_input_config: mbytes is a whole number of megabytes")
    return (mode if party in ("", own) else "ok"), float(seconds), mbytes
