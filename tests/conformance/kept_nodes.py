"""Nodes that are alive without an agent of ours: the test registers them and renews their leases.

Two kinds of chapters need one. Those about pods on a node that nobody runs (`QUIET`): a node that is not registered would
have its pods collected, one that is silent would have them marked as not ready. And those about streams, whose node's end
is `fake_agent.py`. No kept node takes pods from the scheduler: only what a test puts there by name is there.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import UTC, datetime
from typing import Any

from server_process import ApiFailed, ServerProcess

QUIET = "quiet-1"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_BEAT_SECONDS = 5.0


class KeptNodes:
    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._names: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="kept-nodes")
        self._thread.start()

    def register(self, name: str, port: int | None = None) -> None:
        """Create a node that is ready; `port` is where its agent listens."""
        spec = {"taints": [{"key": "example.com/by-name-only", "effect": "NoSchedule"}]}
        self._server.api("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": spec})
        status: dict[str, Any] = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "100"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "AgentReady", "message": "stand-in"}],
        }
        if port is not None:
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
        # Not a PUT: a controller may give the node its range of addresses at the same moment.
        path = f"/api/v1/nodes/{name}/status"
        self._server.api("PATCH", path, {"status": status}, "application/merge-patch+json")
        lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name, "renewTime": _now()}}
        self._server.api("POST", _LEASES, lease)
        self._names.append(name)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            for name in list(self._names):
                change = {"spec": {"renewTime": _now()}}
                # A server that a test stopped, or one too busy to answer: the next beat counts as well.
                with contextlib.suppress(OSError, ApiFailed):
                    self._server.api("PATCH", f"{_LEASES}/{name}", change, "application/merge-patch+json")

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
