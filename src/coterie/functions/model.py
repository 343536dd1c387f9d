"""Where the controller of functions and the dispatcher meet, in the functions process: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ActorAddress:
    """An actor that takes calls."""

    name: str
    """Of the pod."""
    action: str
    version: str
    host: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ActionConfig:
    """What the dispatcher has to know of an action."""

    name: str
    next: frozenset[str]
    timeout: float
    """Seconds for one call."""
    concurrency: int
    """Calls of one actor at a time."""
    retries: int
    first_delay: float
    """Seconds before the first retry."""
    traffic: Mapping[str, int]
    """Percent by version."""
    own_tables: bool = False
    """Its actors read tables for the domain itself: no call of a partner runs in them."""
    problem: str = ""
    """Why no actor can run it: no version of its code can be loaded. Calls are answered 500 with this; empty: it can be run."""


@dataclass(frozen=True, slots=True)
class ActionLoad:
    """What scaling decides on. Counted from the bus, so a restart forgets nothing."""

    calls: int = 0
    """Accepted in the last 60 seconds."""
    calls_panic: int = 0
    """In the last 6 seconds."""
    errors: int = 0
    lag: int = 0
    """Calls that wait or run."""
    running: int = 0
    median_seconds: float = 0.0
    last_call: int = 0
    """Milliseconds since 1970; 0: never."""
    cold_starts: int = 0
    dead_letters: int = 0


def partner_pool(action: str, partner: str) -> str:
    """The name under which an action runs for a partner whose ActionGrant names tables: it has a topic, actors and rates of its own, as if it
    were another action. Its pods act for the partner (label `kuscia.secretflow/communication-role-client`, annotation
    `kuscia.secretflow/initiator`), so the data mesh applies the partner's grants, and nothing that was read for one is in a process
    that works for another. Names of actions have no dots, so this is none."""
    return f"{action}.{partner}"
