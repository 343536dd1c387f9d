"""Kuscia's names in a domain's DNS zone that no Service stands for, and which namespaces are other domains'.

`x.<name>.svc` is a name of another domain, and leads to the gateway, when a Domain of this name exists, when the namespace of
this name was made for a Domain (its label stays when the Domain is deleted), when the name is `master`, or when this control
plane has no namespace of this name. Otherwise it is a name of a namespace of this cluster, as in Kubernetes. The own domain's
namespace is always answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coterie.kube.api.types.core import Namespace
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import DOMAINS, Domain

MASTER = "master"

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


def is_of_domain(namespace: Namespace) -> bool:
    return labels.KUSCIA_DOMAIN_NAME in (namespace.metadata.labels or {})


class DomainNames:
    """Follows the Domains: their names are never those of a local namespace."""

    def __init__(self, informers: Informers) -> None:
        self._informer = informers.get(DOMAINS)
        self.ready = self._informer.ready

    def follow(self, changed: Callable[[Iterable[str]], None]) -> None:
        """`changed` gets all names at each change of them."""
        names = {MASTER}
        changed(names)

        def on_change(change: ObjectChange[Domain]) -> None:
            name = change.object.metadata.name
            if (change.type == "deleted") != (name in names):
                return
            (names.discard if change.type == "deleted" else names.add)(name)
            changed(names | {MASTER})

        self._informer.add_handler(on_change)
