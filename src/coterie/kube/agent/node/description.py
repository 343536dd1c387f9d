"""The Node object as data: labels, taint, addresses, and who may use the name."""

from __future__ import annotations

from coterie import __version__
from coterie.kube.agent.node.facts import MachineFacts
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.meta import Object
from coterie.kuscia.api.labels import KUSCIA, KUSCIA_AGENT_TAINT, KUSCIA_NODE_NAMESPACE

RUNTIME_LABEL = KUSCIA + "runtime"
TAINT = {"key": KUSCIA_AGENT_TAINT, "value": "v1", "effect": "NoSchedule"}
_API_VERSION = "0.26.6"
"""What Kuscia's agents say of themselves."""


class NameTaken(Exception):
    """Another node has our name. `forever`: waiting does not help."""

    def __init__(self, message: str, *, forever: bool) -> None:
        super().__init__(message)
        self.forever = forever


def labels(settings: AgentSettings, facts: MachineFacts, runtime: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": settings.node_name,
        "kubernetes.io/os": facts.operating_system,
        "kubernetes.io/arch": facts.architecture,
        "kubernetes.io/role": "agent",
        "kubernetes.io/apiVersion": _API_VERSION,
        "domain": settings.domain,
        KUSCIA_NODE_NAMESPACE: settings.domain,
        RUNTIME_LABEL: runtime,
        **settings.node.labels,
    }


def new_node(settings: AgentSettings, facts: MachineFacts, runtime: str) -> Object:
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": settings.node_name, "labels": labels(settings, facts, runtime)},
        "spec": {},
    }
    if settings.node.taint:
        node["spec"]["taints"] = [dict(TAINT)]
    return node


def static_status(settings: AgentSettings, facts: MachineFacts, runtime: str) -> Object:
    """The parts of the status that do not change while the agent runs, besides resources."""
    ours = __version__
    return {
        "addresses": [
            {"type": "InternalIP", "address": settings.address},
            {"type": "Hostname", "address": settings.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": settings.port}},
        "nodeInfo": {
            "machineID": facts.machine_id,
            "systemUUID": facts.system_uuid,
            "bootID": facts.boot_id,
            "kernelVersion": facts.kernel,
            "osImage": facts.os_image,
            "containerRuntimeVersion": f"{runtime}://{ours}",
            "kubeletVersion": f"v{ours}",
            "kubeProxyVersion": f"v{ours}",
            "operatingSystem": facts.operating_system,
            "architecture": facts.architecture,
        },
    }


def check_name(node: Object, settings: AgentSettings, facts: MachineFacts) -> None:
    """Whether the Node that has our name is ours to take over. Raises NameTaken."""
    name = settings.node_name
    owner = (node["metadata"].get("labels") or {}).get(KUSCIA_NODE_NAMESPACE)
    if owner and owner != settings.domain:
        raise NameTaken(
            f"node {name} belongs to domain {owner}; give this agent another name with --node-name", forever=True
        )
    status = node.get("status") or {}
    machine = (status.get("nodeInfo") or {}).get("machineID")
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    if machine and machine != facts.machine_id and ready:
        raise NameTaken(f"node {name} runs on another machine and is ready; waiting until it is not", forever=False)
