"""Which nodes are in this node's pod network: endpoints on others cannot be reached.

Nodes that are reserved for a namespace (`coterie.io/pod-namespace`) are in the network of that domain; all others are in
the network of the control plane's domain.
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.network.services.plan import NodeView


class NodeScope:
    def __init__(self, informers: Informers, node_name: str, namespace: str = "") -> None:
        """`namespace`: the only one that this node sees; all endpoints in it are on nodes of its domain."""
        self.view = NodeView(node_name)
        self._listeners: list[Callable[[], None]] = []
        self._reserved = informers.get(NODES, labels=COTERIE_POD_NAMESPACE) if not namespace else None
        if self._reserved is not None:
            self._reserved.add_handler(self._changed)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def wait_ready(self) -> None:
        if self._reserved is not None:
            await self._reserved.ready.wait()

    def _changed(self, change: ObjectChange[Node]) -> None:
        assert self._reserved is not None
        found = frozenset(each.metadata.name for each in self._reserved.cache.list()) - {self.view.name}
        if found != self.view.unreachable:
            self.view = NodeView(self.view.name, found)
            for listener in self._listeners:
                listener()
