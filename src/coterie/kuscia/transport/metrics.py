"""What Transport counts. Labels are the known actions and codes: what a caller writes never becomes a row."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.base.exposition import Family, labels

_ACTIONS = frozenset(("transport", "invoke", "pop", "peek", "release"))
_PUSHES = frozenset(("transport", "invoke"))
_OTHER = "other"


class TransportMetrics:
    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], int] = {}
        self._pushed = 0
        self._taken = 0
        self.running = 0
        """Calls that are not answered yet."""

    @property
    def answered(self) -> int:
        return sum(self._calls.values())

    def call(self, action: str, code: str, received: int, sent: int) -> None:
        key = (action if action in _ACTIONS else _OTHER, str(code))
        self._calls[key] = self._calls.get(key, 0) + 1
        if action in _PUSHES and code == "E0000000000":
            self._pushed += received
        self._taken += sent

    def families(self, sessions: int, waiting: int, in_memory: int) -> Sequence[Family]:
        """With the state of the queues: sessions, bytes that nobody took, and those of them in memory."""
        return [
            Family(
                "coterie_transport_calls_total",
                "Calls of the message queue, by action and code.",
                "counter",
                [(labels(action=action, code=code), count) for (action, code), count in sorted(self._calls.items())],
            ),
            Family(
                "coterie_transport_pushed_bytes_total", "Bytes of messages taken in.", "counter", [("", self._pushed)]
            ),
            Family(
                "coterie_transport_taken_bytes_total", "Bytes of messages handed out.", "counter", [("", self._taken)]
            ),
            Family("coterie_transport_sessions", "Sessions there are.", "gauge", [("", sessions)]),
            Family(
                "coterie_transport_waiting_bytes", "Bytes of messages that nobody has yet.", "gauge", [("", waiting)]
            ),
            Family("coterie_transport_memory_bytes", "Those of them that are in memory.", "gauge", [("", in_memory)]),
        ]
