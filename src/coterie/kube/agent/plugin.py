"""The extension point of the agent: what a pod gets around it, and what the Node says, besides what every Kubernetes node does.

    node_labels, own_taints, resources   ──> the Node object
    pod_references                       ──> ConfigMaps that must be there before the pod starts
    pod_network                          ──> what the pod may reach
    prepare_pod                          ──> files in the pod's own directory, once
    network_ready, network_gone          ──> who knows pods by their addresses
    container_additions                  ──> variables, mounts, replaced volume files; at each start of a container

An agent has a list of plug-ins; with none it is a plain node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.base.trace import TraceParent
from coterie.kube.agent.images.model import ANY_IMAGE, RequiredImage
from coterie.kube.agent.node.facts import MachineFacts
from coterie.kube.agent.pods.downward import DownwardNodeInfo
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.runtimes.protocol import Mount, PodNetworkClass
from coterie.kube.agent.volumes.volumes import VolumeFiles
from coterie.kube.api.meta import Object


@dataclass(frozen=True, slots=True)
class ContainerAdditions:
    """What a container gets besides what its pod says."""

    variables: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    replaced: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    """(volume, subPath) -> what is mounted in its stead."""
    image: RequiredImage = ANY_IMAGE
    """What the container's image must be."""
    span: TraceParent | None = None
    """What is done for the container is part of this span."""


@dataclass(frozen=True, slots=True)
class AnnotatedCapacity:
    annotation: str
    parse: Callable[[str], int | None]
    """None for what cannot be read: the capacity stays as it is."""


@dataclass(frozen=True, slots=True)
class NodeAdditions:
    """What a plug-in adds to the Node object."""

    labels: Mapping[str, str] = field(default_factory=dict)
    owner_label: str = ""
    """The label that says whose the node is: an agent takes over no Node on which it has another value."""
    taints: tuple[Object, ...] = ()
    """Taints that the node has."""
    own_taints: tuple[Object, ...] = ()
    """Taints that the plug-in decides on: those that are not in `taints` are removed."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Extended resources, as whole numbers."""
    reserved: Mapping[str, int] = field(default_factory=dict)
    """How much of them pods do not get."""
    annotated_capacity: Mapping[str, AnnotatedCapacity] = field(default_factory=dict)
    """By resource: where an operator may write another capacity on the Node."""


NO_ADDITIONS = NodeAdditions()


class PluginProblem(Exception):
    """The plug-in cannot do its part for a pod; the message says why. Tried again later."""


class AgentPlugin(Protocol):
    name: str

    def node(self, facts: MachineFacts, runtime: str) -> NodeAdditions: ...

    def pod_references(self, pod: Object) -> set[tuple[str, str]]:
        """(kind, name) of ConfigMaps and Secrets that the pod needs, besides those it names itself."""

    def pod_network(self, pod: Object) -> PodNetworkClass | None:
        """What the pod is on the pod network; None: the plug-in does not know it. Raises PluginProblem for a pod that must
        not run here."""

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        """Called before the first container starts: whoever must know the pod by its address knows it afterwards."""

    def network_gone(self, pod_uid: str) -> None:
        """The pod was removed; its address will belong to another one."""

    async def prepare_pod(self, pod: Object, directory: Path, facts: DownwardNodeInfo) -> None:
        """`directory` is the pod's own. Raises PluginProblem or OSError."""

    async def container_additions(
        self,
        pod: Object,
        container: Object,
        variables: Mapping[str, str],
        volumes: VolumeFiles,
        lookup: Lookup,
        facts: DownwardNodeInfo,
        directory: Path,
    ) -> ContainerAdditions:
        """Raises ConfigProblem; ApiError or TransportError when something has to be asked for and cannot be."""


class PodNetworkPlugin:
    """An AgentPlugin that adds nothing to nodes, pods and containers: a base for those that only follow pods' addresses."""

    name = ""

    def node(self, facts: MachineFacts, runtime: str) -> NodeAdditions:
        return NO_ADDITIONS

    def pod_references(self, pod: Object) -> set[tuple[str, str]]:
        return set()

    def pod_network(self, pod: Object) -> PodNetworkClass | None:
        return None

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        return None

    def network_gone(self, pod_uid: str) -> None:
        return None

    async def prepare_pod(self, pod: Object, directory: Path, facts: DownwardNodeInfo) -> None:
        return None

    async def container_additions(
        self,
        pod: Object,
        container: Object,
        variables: Mapping[str, str],
        volumes: VolumeFiles,
        lookup: Lookup,
        facts: DownwardNodeInfo,
        directory: Path,
    ) -> ContainerAdditions:
        return ContainerAdditions()


def merged_node(plugins: tuple[AgentPlugin, ...], facts: MachineFacts, runtime: str) -> NodeAdditions:
    """What all plug-ins together add to the Node."""
    each = [plugin.node(facts, runtime) for plugin in plugins]
    return NodeAdditions(
        labels={key: value for one in each for key, value in one.labels.items()},
        owner_label=next((one.owner_label for one in each if one.owner_label), ""),
        taints=tuple(taint for one in each for taint in one.taints),
        own_taints=tuple(taint for one in each for taint in one.own_taints),
        capacity={key: value for one in each for key, value in one.capacity.items()},
        reserved={key: value for one in each for key, value in one.reserved.items()},
        annotated_capacity={key: value for one in each for key, value in one.annotated_capacity.items()},
    )
