"""The API of a registered lite's control plane: behind the lite's own gateway, by a private socket."""

from __future__ import annotations

from pathlib import Path

from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.wrappers import FixedHost
from coterie.kuscia.gateway.paths import GatewayPaths

API_HOST = "apiserver.master.svc"
_MASTER_LIMITS = ResponseLimits(body=256 << 20, object_bytes=16 << 20)
"""A master is trusted with what we run, not with our memory."""


def api_transport(places: GatewayPaths) -> FixedHost:
    """To the control plane's API, by way of our own gateway."""
    way = HttpTransport(
        ClusterConnection(server="http://gateway"), socket=Path(places.node_socket.host), limits=_MASTER_LIMITS
    )
    return FixedHost(way, API_HOST)
