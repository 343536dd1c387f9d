"""How the message queue of a domain is set up. Plain data; the node has it loaded all the time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths

PARTNERS, ENGINES = "partners", "engines"
"""Names of the listeners."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and seconds; the defaults are Kuscia's, but `memory`, which it does not have."""

    body: int = 128 << 20
    session: int = 60 << 20
    total: int = 16 << 30
    memory: int = 256 << 20
    """What all sessions have in memory; more goes into files."""
    sessions: int = 10_000
    queues_of_session: int = 10_000
    queues: int = 100_000
    """Topics that have messages, or for which somebody waits."""
    messages: int = 1_000_000
    """Each costs memory besides its bytes."""
    messages_of_session: int = 100_000
    idle_seconds: float = 600.0
    """After which a session that nobody uses ends."""
    remembered_seconds: float = 1800.0
    """How long a session that was released is refused instead of begun anew."""
    clean_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class TransportSettings:
    domain: str
    paths: DomainPaths
    partners: Path
    """The socket to which the gateway leads partners."""
    engines: Path
    """The one to which it leads our own engines."""
    limits: QueueLimits
    log_rotation: Rotation = STANDARD
