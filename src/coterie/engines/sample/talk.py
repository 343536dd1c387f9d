"""The conversation: everybody greets everybody, and is done when all its greetings were answered and all others' came.

    alice ── POST /greet {from, to, task} ──> bob        the answer repeats it, so both know that they mean the same
    alice ── POST /bulk  <mbytes>         ──> bob        the answer is the digest of what arrived

A partner may start later, so whoever does not answer yet is called again after a short pause; one that greets us is up,
and is called at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator

from coterie.engines.sample.task import Peer, Task
from coterie.engines.sample.wire import Head, WireError, answer, call, read_body, read_head

PARTNER_TIMEOUT = 60.0
"""Seconds for a partner to come and to answer, besides the time the task is told to take."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_CALL_SECONDS = 10.0
_MEGABYTE = 1_000_000


class Failed(Exception):
    """The conversation cannot succeed; the sentence goes to the log."""


class Conversation:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._socket = socket.create_server(("", task.port), backlog=128)
        self._received_event = threading.Condition()
        self._greeted: set[str] = set()
        self._delivered: set[str] = set()
        self._deadline = time.monotonic() + PARTNER_TIMEOUT + task.seconds

    def listen(self, *, mute: bool = False) -> None:
        """Take calls from now on; `mute`: and never answer one."""
        threading.Thread(target=self._serve, args=(mute,), daemon=True).start()

    # Calling.

    def greet_all(self) -> None:
        for peer in self._task.peers:
            self._until_answered(peer)

    def send_all(self) -> None:
        for peer in self._task.peers:
            self._send_bulk(peer)

    def wait_for_all(self) -> None:
        """Until everybody greeted us and sent what he was to send."""
        wanted = {peer.name for peer in self._task.peers}
        with self._received_event:
            while not wanted <= (self._delivered if self._task.mbytes else self._greeted):
                if not self._received_event.wait(max(0.0, self._deadline - time.monotonic())) and self._late():
                    missing = sorted(wanted - (self._delivered if self._task.mbytes else self._greeted))
                    raise Failed(f"nothing came from {missing[0]} within {self._time_left:g} s")

    def _until_answered(self, peer: Peer) -> None:
        greeting = {"task": self._task.id, "from": self._task.self.name, "to": peer.name}
        body = json.dumps(greeting).encode()
        pause, seen = _FIRST_PAUSE, ""
        while True:
            try:
                status, response = call(f"http://{peer.endpoint}/greet", [body], len(body), _CALL_SECONDS)
                if status == 200 and json.loads(response) == greeting:
                    return
                if status == 409:
                    raise Failed(f"{peer.name} refused our greeting: {response[:200].decode(errors='replace')}")
                seen = f"status {status}"
            except (OSError, WireError, ValueError) as problem:
                seen = str(problem)
            if self._late():
                raise Failed(f"{peer.name} did not answer within {self._time_left:g} s; last: {seen}")
            with self._received_event:
                known = peer.name in self._greeted
                self._received_event.wait_for(lambda: not known and peer.name in self._greeted, pause)  # noqa: B023 - at once
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _send_bulk(self, peer: Peer) -> None:
        digest = hashlib.sha256()
        size = self._task.mbytes * _MEGABYTE
        timeout = max(_CALL_SECONDS, self._deadline - time.monotonic())
        try:
            url = f"http://{peer.endpoint}/bulk"
            status, response = call(url, self._bulk(size, digest), size + 4096, timeout, "application/octet-stream")
        except (OSError, WireError) as problem:
            raise Failed(f"{self._task.mbytes} MB to {peer.name} did not arrive: {problem}") from problem
        if status != 200 or response.decode(errors="replace") != digest.hexdigest():
            raise Failed(f"{self._task.mbytes} MB to {peer.name} arrived changed: status {status}")

    def _bulk(self, size: int, digest: hashlib._Hash) -> Iterator[bytes]:
        """Who sends it, in 4,096 bytes, then noise."""
        yield self._task.self.name.encode().ljust(4096)
        noise = os.urandom(_MEGABYTE)
        for _ in range(size // _MEGABYTE):
            digest.update(noise)
            yield noise

    # Being called.

    def _serve(self, mute: bool) -> None:
        held = []
        while True:
            connection, _ = self._socket.accept()
            if mute:
                held.append(connection)
                continue
            threading.Thread(target=self._read_message, args=(connection,), daemon=True).start()

    def _read_message(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(PARTNER_TIMEOUT)
            try:
                head = read_head(connection)
                path = head.first.split(" ")[1] if head.first.count(" ") == 2 else ""
                if path.endswith("/greet"):
                    pieces: list[bytes] = []
                    read_body(connection, head, pieces.append)
                    self._read_greeting(connection, b"".join(pieces))
                elif path.endswith("/bulk"):
                    self._read_bulk(connection, head)
                else:
                    answer(connection, 404, b'"nothing here"')
            except (OSError, WireError):
                return  # the caller went away; it calls again if it still wants something

    def _read_greeting(self, connection: socket.socket, body: bytes) -> None:
        try:
            greeting = json.loads(body)
            right = greeting["task"] == self._task.id and greeting["to"] == self._task.self.name
            known = right and greeting["from"] in {peer.name for peer in self._task.peers}
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            answer(connection, 409, json.dumps(f"{self._task.self.name} expects no such greeting").encode())
            return
        answer(connection, 200, body)
        with self._received_event:
            self._greeted.add(greeting["from"])
            self._received_event.notify_all()

    def _read_bulk(self, connection: socket.socket, head: Head) -> None:
        digest = hashlib.sha256()
        start = bytearray()

        def take(piece: bytes) -> None:
            missing = 4096 - len(start)
            if missing > 0:
                start.extend(piece[:missing])
                piece = piece[missing:]
            digest.update(piece)

        read_body(connection, head, take)
        answer(connection, 200, digest.hexdigest().encode())
        with self._received_event:
            self._delivered.add(bytes(start).rstrip().decode(errors="replace"))
            self._received_event.notify_all()

    # Time.

    @property
    def _time_left(self) -> float:
        return PARTNER_TIMEOUT + self._task.seconds

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline
