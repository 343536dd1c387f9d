"""Eviction on a node that is short of memory by its settings."""

from __future__ import annotations

from pathlib import Path

import kubectl_runner
import pytest
from e2e_kit import Cluster, Node, container, pod, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")
VERSIONS = kubectl_runner.chosen()


def test_memory_pressure_taints_refuses_and_evicts(tmp_path: Path) -> None:
    # More than any machine has free: the pressure begins with the node. The large pod is let in because it has a request.
    agent = {"nodeName": "node-m", "port": 0, "eviction": {"memoryAvailable": "99.9%", "transitionSeconds": 1}}
    node = Node(tmp_path, "node-m", {"mode": "autonomy", "apiServer": {"port": 0}, "agent": agent}).start()
    cluster = Cluster(node, VERSIONS[-1], nodes={"node-m": node})
    try:
        cluster.wait_until_up("node-m")
        taint = "node.kubernetes.io/memory-pressure"
        until("the node is tainted", lambda: taint in cluster.do("get node node-m -o jsonpath={.spec.taints[*].key}"))
        reason = "{.status.conditions[?(@.type=='MemoryPressure')].reason}"
        assert cluster.do(f'get node node-m -o "jsonpath={reason}"') == "KubeletHasInsufficientMemory"
        script = "exec python3 -c 'x = bytearray(64 << 20); import time; time.sleep(1000)'"
        tolerations = [{"operator": "Exists", "effect": "NoSchedule"}]
        large = container(script=script, resources={"requests": {"memory": "1Mi"}})
        cluster.apply(pod("large", large, tolerations=tolerations, restartPolicy="Never"))
        ended = cluster.phase("large", "Failed")["status"]
        assert ended["reason"] == "Evicted"
        assert ended["message"].startswith("The node was low on resource: memory. Threshold quantity: ")
        assert "Container main was using" in ended["message"]
    finally:
        node.destroy()
