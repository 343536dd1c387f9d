"""Nodes by the domain that they belong to: at thousands of nodes nobody can afford to look at all for one job."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.kube.api.types.nodes import Node
from coterie.kube.client.informer import Informer
from coterie.kuscia.api import labels

_BY_DOMAIN = "nodes/domain"


def _by_domain(node: Node) -> tuple[str, ...]:
    domain = (node.metadata.labels or {}).get(labels.KUSCIA_NODE_NAMESPACE, "")
    return (domain,) if domain else ()


class NodesOfDomains:
    def __init__(self, nodes: Informer[Node]) -> None:
        self._cache = nodes.cache
        self._cache.add_index(_BY_DOMAIN, _by_domain)

    def of(self, domain: str) -> Sequence[Node]:
        return self._cache.by_index(_BY_DOMAIN, domain)
