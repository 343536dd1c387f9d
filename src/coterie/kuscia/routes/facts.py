"""What is known about a route before somebody judges it, and what the judge says: plain data for `check.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class CheckOutcome(StrEnum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"
    """The other side does not tell: not a failure."""


@dataclass(frozen=True, slots=True)
class Finding:
    step: str
    verdict: CheckOutcome
    message: str
    advice: str = ""
    """What to do about it; empty when nothing is to be done."""

    def document(self) -> dict[str, Any]:
        return {"step": self.step, "verdict": str(self.verdict), "message": self.message, "advice": self.advice}


@dataclass(frozen=True, slots=True)
class Certificate:
    fingerprint: str
    subject: str
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """The route as our control plane has it."""

    ready: bool
    reason: str = ""
    message: str = ""
    via: str = ""
    tunnel: bool = False
    needs_token: bool = True
    of_another_vendor: bool = False
    """The destination speaks BFIA and knows nothing of Kuscia's handshake, and its port is not a gateway's."""
    revision: int = 0
    token_age: float | None = None
    weaknesses: tuple[str, ...] = ()
    """What it does without because of the forms of Kuscia's wire that it asks for."""


@dataclass(frozen=True, slots=True)
class ControlPlaneLink:
    """The routes between our control plane and the one that serves a partner's domain: jobs and grants go that way, calls of
    engines do not."""

    ours: str
    """Empty: it is not known which of our domains is the control plane's."""
    theirs: str
    known: bool
    """Whether the partner's control plane has a Domain object here."""
    there: RouteFacts | None = None
    back: RouteFacts | None = None


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """What our own gateway answers to a call of a service."""

    name: str
    status: int = 0
    error: str = ""
    """`Kuscia-Error-Message`, or why there was no answer."""


@dataclass(frozen=True, slots=True)
class RouteCheckFacts:
    source: str
    destination: str
    now: datetime
    route: RouteFacts | None = None
    known_domains: tuple[str, ...] = ()
    """Of the two ends, those that have a Domain object here."""
    masters: ControlPlaneLink | None = None
    """None: the route itself is that of the two control planes, or both ends have the same one."""
    host: str = ""
    port: int = 0
    tls: bool = True
    pins: tuple[str, ...] = ()
    """Fingerprints of the certificates that the destination may show."""
    signed: bool | None = None
    """Whether the route's own authority signed what is shown; None: the route names none."""
    addresses: tuple[str, ...] = ()
    name_problem: str = ""
    tcp_problem: str | None = None
    """None: not tried."""
    connect_seconds: float | None = None
    """How long opening a TCP connection took: about one round trip."""
    tls_problem: str = ""
    shown: Certificate | None = None
    showed: bool = False
    """Whether the call below came with the source's certificate."""
    status: int = 0
    """Of a call without a token."""
    gateway_error: str = ""
    """`Kuscia-Error-Message` of that answer."""
    http_problem: str = ""
    skew: float | None = None
    """Seconds by which the other clock is ahead."""
    probe: int | None = None
    """What the destination says of our token; None: it could not be asked."""
    probe_problem: str = ""
    """Why it could not, or what our own gateway answered instead."""
    last_word: str = ""
    """The latest complaint of the source's gateway about this route."""
    follower_problems: tuple[str, ...] = ()
    """What is wrong with following the destination's control plane from here."""
    follower_left_out: tuple[str, ...] = ()
    service: ServiceCheck | None = None
    hint: str = ""
    """How to name the control plane in commands, as ` --domain alice`."""

    @property
    def where(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
