"""Kuscia's names in a domain's DNS zone that no Service stands for."""

from __future__ import annotations

from coterie.kube.api import labels

HOST_SERVICES = ("datamesh", "confmanager", "dataproxy", "kusciaapi", "gateway")
"""Served by the node process itself, on ports of their own."""
GATEWAY_SERVICES = (
    "apiserver",
    "diagnose",
    "interconn-scheduler",
    "kuscia-handshake",
    "kusciastorage",
    "receiver",
    "reporter",
    "transport",
)
"""The gateway itself leads to them."""
GATEWAY_LABEL = (labels.KUSCIA_LOADBALANCER, labels.KUSCIA_LOADBALANCER_DOMAINROUTE)
"""Services with this label are reached through the domain's own gateway."""
