"""The Node object as data: labels, taints, addresses, and who may use the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from coterie import __version__
from coterie.kube.agent.node.facts import MachineFacts
from coterie.kube.agent.plugin import NodeAdditions
from coterie.kube.agent.runtimes.protocol import RuntimeHandler
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.labels import COTERIE_HANDLER_PREFIX, COTERIE_LOCAL_PATH, COTERIE_POD_NAMESPACE, COTERIE_RUNTIME
from coterie.kube.api.meta import Object


class NameTaken(Exception):
    """Another node has our name. `forever`: waiting does not help."""

    def __init__(self, message: str, *, forever: bool) -> None:
        super().__init__(message)
        self.forever = forever


@dataclass(frozen=True, slots=True)
class NodeRuntime:
    """What a node says about what runs its containers."""

    name: str
    handlers: tuple[RuntimeHandler, ...] = ()
    limitations: tuple[str, ...] = ()
    """What it cannot isolate or limit on this machine, one sentence each."""

    @property
    def available(self) -> list[str]:
        return [each.name for each in self.handlers if each.available]


def labels(
    settings: AgentSettings, facts: MachineFacts, additions: NodeAdditions, runtime: NodeRuntime
) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": settings.node_name,
        "kubernetes.io/os": facts.operating_system,
        "kubernetes.io/arch": facts.architecture,
        **additions.labels,
        **{f"{COTERIE_HANDLER_PREFIX}{name}": "true" for name in runtime.available},
        **({COTERIE_POD_NAMESPACE: settings.pods.namespace} if settings.pods.namespace else {}),
        **settings.node.labels,
    }


def stale_labels(known: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, None]:
    """Labels of handlers that the node no longer has, as a patch that takes them away."""
    return {key: None for key in known if key.startswith(COTERIE_HANDLER_PREFIX) and key not in wanted}


def node_annotations(settings: AgentSettings, runtime: NodeRuntime) -> dict[str, str]:
    about = {
        "handlers": [msgspec.to_builtins(each) for each in runtime.handlers],
        "limitations": list(runtime.limitations),
    }
    return {COTERIE_LOCAL_PATH: str(settings.volumes_directory), COTERIE_RUNTIME: msgspec.json.encode(about).decode()}


def new_node(settings: AgentSettings, facts: MachineFacts, additions: NodeAdditions, runtime: NodeRuntime) -> Object:
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": settings.node_name,
            "labels": labels(settings, facts, additions, runtime),
            "annotations": node_annotations(settings, runtime),
        },
        "spec": {},
    }
    if settings.node.pod_cidr:
        node["spec"] |= pod_ranges(settings)
    if additions.taints:
        node["spec"]["taints"] = [dict(taint) for taint in additions.taints]
    return node


def pod_ranges(settings: AgentSettings) -> Object:
    cidr = settings.node.pod_cidr
    return {"podCIDR": cidr, "podCIDRs": [cidr]}


def wanted_taints(node: Object, additions: NodeAdditions) -> list[Object] | None:
    """The taints that an existing Node should have; None: they are as they should be. Taints that no plug-in decides on stay."""
    known: list[Object] = (node.get("spec") or {}).get("taints") or []
    unwanted = [dict(taint) for taint in additions.own_taints if taint not in additions.taints]
    kept = [each for each in known if not any(_same(each, taint) for taint in unwanted)]
    # A key and an effect stand once in the list; another value of them keeps pods away as well.
    there = {(each.get("key"), each.get("effect")) for each in kept}
    added = [dict(taint) for taint in additions.taints if (taint["key"], taint["effect"]) not in there]
    return [*kept, *added] if added or len(kept) < len(known) else None


def _same(taint: Object, other: Object) -> bool:
    return all(taint.get(field) == value for field, value in other.items())


def static_status(settings: AgentSettings, facts: MachineFacts, runtime: NodeRuntime) -> Object:
    """The parts of the status that do not change while the agent runs, besides resources."""
    ours = __version__
    return {
        "addresses": [
            *({"type": "InternalIP", "address": each} for each in (settings.address, *settings.node.addresses)),
            {"type": "Hostname", "address": settings.node_name},
        ],
        "runtimeHandlers": [{"name": name} for name in runtime.available],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": settings.port}},
        "nodeInfo": {
            "machineID": facts.machine_id,
            "systemUUID": facts.system_uuid,
            "bootID": facts.boot_id,
            "kernelVersion": facts.kernel,
            "osImage": facts.os_image,
            "containerRuntimeVersion": f"{runtime.name}://{ours}",
            "kubeletVersion": f"v{ours}",
            "kubeProxyVersion": f"v{ours}",
            "operatingSystem": facts.operating_system,
            "architecture": facts.architecture,
        },
    }


def check_name(node: Object, settings: AgentSettings, facts: MachineFacts, additions: NodeAdditions) -> None:
    """Whether the Node that has our name is ours to take over. Raises NameTaken."""
    name = settings.node_name
    label = additions.owner_label
    owner = (node["metadata"].get("labels") or {}).get(label) if label else ""
    if owner and owner != additions.labels.get(label):
        raise NameTaken(
            f"node {name} belongs to {owner}; give this agent another name with agent.nodeName", forever=True
        )
    status = node.get("status") or {}
    machine = (status.get("nodeInfo") or {}).get("machineID")
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    if machine and machine != facts.machine_id and ready:
        raise NameTaken(f"node {name} runs on another machine and is ready; waiting until it is not", forever=False)
