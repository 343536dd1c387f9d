"""Where the API of a node listens, and under which names it is reached."""

from __future__ import annotations

from coterie.node.config import AgentConfig, ApiSettings

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""How this machine reaches an API that listens on all addresses."""


def certificate_names(api: ApiSettings, agent: AgentConfig | None) -> tuple[str, ...]:
    """Under which clients reach the API. One that listens on all addresses is reached at the node's own, too."""
    if api.host not in LOOPBACK:
        return (api.host, *api.names)
    own = (agent.address,) if agent is not None else ()
    return (LOOPBACK[api.host], *own, *api.names)
