"""What passes between a SuperNode and the SuperLink, and what does not. Pure but for the calls that are passed on.

    SuperNode ──> NodeSide (loopback) ──> gateways ──> LinkSide ──> SuperLink (loopback)

The SuperLink serves its Fleet API, by which SuperNodes work, and its Control API, by which apps are brought, at one port;
partners reach only the first. There each speaks for its own SuperNode alone: the SuperLink itself would take any node's id from anybody. And a
SuperNode asks the SuperLink for the code that it is to run: it gets that of its own image, or none.
"""

from __future__ import annotations

import hashlib
import json
import threading

from coterie.engines.launching.http_relay import SOURCE_HEADER, HttpCall, HttpReply, NotReached, RelayTarget
from coterie.engines.psi.protobytes import fields, message

FLEET_PATH = "/v1/fleet/"
STATE_PATH = "/coterie/run"
RUNNING, COMPLETED, FAILED = "running", "completed", "failed"
_REGISTER, _ACTIVATE, _FAB = (FLEET_PATH + each for each in ("register-node", "activate-node", "get-fab"))
_PUSH = FLEET_PATH + "push-messages"
_LEAVE = (FLEET_PATH + "deactivate-node", FLEET_PATH + "unregister-node")


class LinkSide:
    """In front of the SuperLink."""

    def __init__(self, link: RelayTarget, owners: tuple[str, ...]) -> None:
        self._link, self._owners = link, owners
        self._lock = threading.Lock()
        self._keys: dict[str, bytes] = {}
        self._nodes: dict[str, int] = {}
        """Public keys and ids of the SuperNodes, by owner."""
        self.arrived: set[str] = set()
        """Those whose SuperNode is there."""
        self.informed: set[str] = set()
        """Those that know how the run ended."""
        self.state = RUNNING

    def from_partner(self, call: HttpCall) -> HttpReply:
        if call.source not in self._owners:
            return HttpReply(403)
        if call.method == "GET" and call.path == STATE_PATH:
            state = self.state
            if state != RUNNING:
                self.informed.add(call.source)
            return HttpReply(200, json.dumps({"state": state}).encode(), {"Content-Type": "application/json"})
        return self.from_owner(call.source, call)

    def from_owner(self, owner: str, call: HttpCall) -> HttpReply:
        if call.method != "POST" or not call.path.startswith(FLEET_PATH) or "?" in call.path:
            return HttpReply(404)
        if ".." in call.path or "%" in call.path or "//" in call.path:
            return HttpReply(400)
        try:
            if not self._speaks_for_itself(owner, call):
                return HttpReply(403)
        except ValueError:
            return HttpReply(400)
        reply = passed_on(self._link, call)
        if call.path in (_REGISTER, _ACTIVATE) and reply.status == 200:
            try:
                (node,) = _values(reply.body, 1)
            except ValueError:
                return HttpReply(502)
            if isinstance(node, int):
                self._nodes[owner] = node
            if call.path == _ACTIVATE:
                self.arrived.add(owner)
        return reply

    def _speaks_for_itself(self, owner: str, call: HttpCall) -> bool:
        """Raises ValueError when that cannot be read."""
        named = _values(call.body, 1)
        if call.path in (_REGISTER, _ACTIVATE):
            key = named[0] if len(named) == 1 else None
            if not isinstance(key, bytes):
                return False
            with self._lock:  # one SuperNode each: several would count as several owners
                if any(key == other for name, other in self._keys.items() if name != owner):
                    return False
                return self._keys.setdefault(owner, key) == key
        own = self._nodes.get(owner)
        if own is None or not named:
            return False
        # A field that comes twice is joined by those who read it, so all of them must be right.
        nodes: list[object] = [each if call.path in _LEAVE else _only(each, 1) for each in named]
        if call.path == _PUSH:
            nodes += [_source_of(each) for each in _values(call.body, 2)]
        return all(node == own for node in nodes)


def _values(data: bytes, number: int) -> list[bytes | int]:
    return [value for each, value in fields(data) if each == number]


def _only(part: bytes | int, number: int) -> int | None:
    """A number in a message. None: it is not there, or not the same wherever it is."""
    found = set(_values(part, number)) if isinstance(part, bytes) else set()
    value = found.pop() if len(found) == 1 else None
    return value if isinstance(value, int) else None


def _source_of(message: bytes | int) -> int | None:
    """`src_node_id` in the metadata of a message."""
    found = {_only(each, 3) for each in _values(message, 1)} if isinstance(message, bytes) else set()
    return found.pop() if len(found) == 1 else None


class NodeSide:
    """Between the own SuperNode and the SuperLink of a partner."""

    def __init__(self, own: str, link: RelayTarget, fab: bytes) -> None:
        self._own, self._link, self._fab = own, link, fab
        self.other_app = threading.Event()
        """The server runs another app than the one that is here."""

    def answer(self, call: HttpCall) -> HttpReply:
        if call.method != "POST" or not call.path.startswith(FLEET_PATH):
            return HttpReply(404)
        if call.path != _FAB:
            return passed_on(self._link, call, self._own)
        digest = hashlib.sha256(self._fab).hexdigest()
        if digest.encode() not in call.body:
            self.other_app.set()
            return HttpReply(403)
        fab = message((1, digest), (2, self._fab))
        return HttpReply(200, message((1, fab)), {"Content-Type": "application/x-protobuf"})


def passed_on(link: RelayTarget, call: HttpCall, own: str = "") -> HttpReply:
    """`own`: for the partner that it goes to. The gateways write it there themselves; in tests there are none."""
    headers = {key: value for key, value in call.headers.items() if key.lower() != SOURCE_HEADER.lower()}
    if own:
        headers[SOURCE_HEADER] = own
    try:
        reply = link.call(call.method, call.path, call.body, headers)
    except NotReached:
        return HttpReply(503)  # programs of Flower try again
    return HttpReply(502) if 300 <= reply.status < 400 else reply  # they would follow it anywhere
