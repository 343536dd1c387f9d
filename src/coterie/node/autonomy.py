"""Mode autonomy: the control plane and the agent in one process; the agent speaks to the API without a socket."""

from __future__ import annotations

from coterie.base.clock import Clock
from coterie.control.manager import Runnable
from coterie.node.agentport import AgentTls
from coterie.node.config import NodeSettings
from coterie.node.control import control_groups
from coterie.node.nodeagent import agent_groups
from coterie.node.owndomain import prepared


def groups(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    chosen = settings.agent
    assert chosen is not None, "config.parse gives every autonomy node an agent"
    with prepared(settings, clock):
        made, client, informers = control_groups(settings, clock)
        tls = AgentTls.of_plane(settings.paths, chosen.node_name, chosen.address, clock)
    return [*made, *agent_groups(settings, chosen, client, informers, tls, clock)]
