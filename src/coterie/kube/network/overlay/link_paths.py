"""Which peers answer on the link that they share with this node. Pure: time is handed in.

Both sides send a short message to each other, which says whether the sender hears the receiver. A path is in use while messages
arrive that say yes: then frames pass in both directions. One that failed is not used again at once, so that a link that loses
some of the frames does not make routes change all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INTERVAL = 1.0
"""Between messages to a peer that is heard, in seconds."""
RARE_INTERVAL = 5.0
"""To one that has not been heard for a while: the network may never let such frames pass."""
LOST_AFTER = 3.5
UNUSED_AFTER_LOSS = 10.0
_FREQUENT_TRIES = 10
_EARLY = INTERVAL / 4
"""A timer may be a little early."""
_NEVER = float("-inf")
_MAGIC = b"coterie-link\1"


@dataclass(frozen=True, slots=True)
class LinkMessage:
    hears: bool
    """The sender hears the receiver."""
    leaves: bool = False
    """The sender ends: it is to be reached in another way."""

    def encode(self) -> bytes:
        return _MAGIC + bytes([self.hears | self.leaves << 1])


def decode(data: bytes) -> LinkMessage | None:
    if len(data) != len(_MAGIC) + 1 or not data.startswith(_MAGIC):
        return None
    return LinkMessage(bool(data[-1] & 1), bool(data[-1] & 2))


@dataclass(slots=True)
class _Path:
    address: str
    received_at: float = _NEVER
    confirmed_at: float = _NEVER
    """When the peer last said that it hears us."""
    usable_from: float = _NEVER
    send_at: float = _NEVER
    tries: int = 0
    """Messages sent since it was heard last."""
    used: bool = False

    def hears(self, now: float) -> bool:
        return now - self.received_at <= LOST_AFTER

    def update(self, now: float) -> None:
        good = self.hears(now) and now - self.confirmed_at <= LOST_AFTER
        if self.used and not good:
            self.usable_from = now + UNUSED_AFTER_LOSS
        self.used = good and now >= self.usable_from


class LinkPaths:
    def __init__(self) -> None:
        self._paths: dict[str, _Path] = {}
        self._ranges: dict[str, str] = {}
        """By address."""

    def follow(self, peers: Mapping[str, str]) -> None:
        """By range, the address with which a peer speaks."""
        before = self._paths
        self._paths = {cidr: before.get(cidr) or _Path(address) for cidr, address in peers.items()}
        self._ranges = {address: cidr for cidr, address in peers.items()}

    def due(self, now: float) -> list[tuple[str, LinkMessage]]:
        """What is to be sent now: (address, message)."""
        found = []
        for path in self._paths.values():
            if path.send_at <= now + _EARLY:
                found.append(self._send(path, now))
        return found

    def received(self, address: str, message: LinkMessage, now: float) -> list[tuple[str, LinkMessage]]:
        """What is to be answered: one who is heard for the first time learns it at once."""
        path = self._paths.get(self._ranges.get(address, ""))
        if path is None:
            return []
        path.tries = 0
        if message.leaves:
            path.received_at = path.confirmed_at = _NEVER
            path.used = False
            return []
        first = not path.hears(now)
        path.received_at = now
        path.confirmed_at = now if message.hears else _NEVER
        path.update(now)
        return [self._send(path, now)] if first else []

    def answering(self, now: float) -> frozenset[str]:
        """The ranges of the peers whose path is in use."""
        for path in self._paths.values():
            path.update(now)
        return frozenset(cidr for cidr, path in self._paths.items() if path.used)

    def leaving_messages(self) -> list[tuple[str, LinkMessage]]:
        return [(path.address, LinkMessage(hears=False, leaves=True)) for path in self._paths.values()]

    def _send(self, path: _Path, now: float) -> tuple[str, LinkMessage]:
        path.tries += 1
        path.send_at = now + (INTERVAL if path.tries <= _FREQUENT_TRIES else RARE_INTERVAL)
        return path.address, LinkMessage(path.hears(now))
