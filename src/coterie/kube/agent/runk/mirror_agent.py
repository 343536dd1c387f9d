"""The agent of a node whose pods run in a backing cluster, put together: the Node object and the mirrored pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.agent.node.conditions import PodNetworkState
from coterie.kube.agent.node.registration import NodeRegistration
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.pods.garbage import NodeGarbageCollector
from coterie.kube.agent.runk.manager import MirrorManager
from coterie.kube.agent.runk.settings import RunkSettings
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.manager import Runnable

RUNTIME = "runk"
_UNFENCED = "runk.networkPolicies is false: whoever runs the backing cluster must isolate engines by other means"


@dataclass(frozen=True, slots=True)
class MirrorAgent:
    """The parts of one agent; `groups` is what a Manager runs."""

    events: EventRecorder
    node: NodeRegistration
    pods: MirrorManager
    garbage: NodeGarbageCollector

    @property
    def groups(self) -> list[list[Runnable]]:
        return [[self.events], [self.node], [self.pods], [self.garbage]]


def make(
    client: Client,
    informers: Informers,
    backing: Client,
    agent: AgentSettings,
    settings: RunkSettings,
    clock: Clock = SYSTEM_CLOCK,
    *,
    plugins: Sequence[AgentPlugin] = (),
) -> MirrorAgent:
    """`backing`: of the cluster in which the pods run."""
    events = EventRecorder(client, "agent", instance=agent.node_name, clock=clock)
    # It is asked for what the manager finds, and the manager for what it can allocate.
    node = NodeRegistration(
        client,
        agent,
        RUNTIME,
        clock,
        plugins=plugins,
        runtime_problem=lambda: pods.problem,
        network=lambda: PodNetworkState(
            own=settings.network_policies, remedy="" if settings.network_policies else _UNFENCED
        ),
        limitations=lambda: pods.limitations,
    )
    pods = MirrorManager(client, informers, backing, agent, settings, events, clock, plugins, node.allocatable)
    pods.on_problem = node.update_conditions
    return MirrorAgent(events, node, pods, NodeGarbageCollector(agent, pods.known_uids, clock))
