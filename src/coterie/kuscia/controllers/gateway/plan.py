"""Which Gateway objects are left over from gateways that will not come back? Pure.

    heartbeat                                 the object
    news within GATEWAY_LIFE (by our clock)   live
    none for longer                           not counted as live, kept: the gateway may be restarting
    written more than `forget_after` ago      removed, once we ourselves have heard nothing for GATEWAY_LIFE
    never written (no status)                 the same, counted from its creation

A gateway that comes back after that makes its object anew with its next heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api.types.domain import Gateway


@dataclass(frozen=True, slots=True)
class Settings:
    forget_after: float = 3600.0
    """Seconds of silence after which the object of a gateway is removed."""


def until_forgotten(gateway: Gateway, watched: float, life: float, settings: Settings, now: datetime) -> float | None:
    """Seconds until the object has to go, 0 or less when it has to now; None when nothing can be said.

    `watched`: seconds for which we have seen no news of it ourselves. A gateway with a slow clock writes old heartbeats,
    but it does write them.
    """
    written = gateway.status.heartbeat_time if gateway.status is not None else gateway.metadata.creation_timestamp
    at = parse_time(written)
    if at is None:
        return None
    return max(settings.forget_after - (now - at).total_seconds(), life - watched)
