"""A client that lives in one namespace: nobody holding it can reach another by mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, ListPage
from coterie.kube.client.client import Client
from coterie.kube.client.requests import PatchType, Propagation
from coterie.kube.client.watch import Watch

T = TypeVar("T")


class Namespaced:
    """A Reader and Writer. An empty namespace means ours; another one is refused, and so are cluster-scoped kinds."""

    def __init__(self, client: Client, namespace: str) -> None:
        if not namespace:
            raise ValueError("a namespaced client needs a namespace")
        self._client = client
        self.namespace = namespace

    def _ours(self, kind: Kind[Any], namespace: str) -> str:
        if not kind.resource.namespaced:
            raise PermissionError(f"{kind} are outside of namespace {self.namespace!r}")
        if namespace not in ("", self.namespace):
            raise PermissionError(f"this client lives in namespace {self.namespace!r}, not {namespace!r}")
        return self.namespace

    async def get(self, kind: Kind[T], name: str, namespace: str = "", *, subresource: str = "") -> T:
        return await self._client.get(kind, name, self._ours(kind, namespace), subresource=subresource)

    async def list(self, kind: Kind[T], namespace: str = "", *, labels: str = "", fields: str = "") -> ListPage[T]:
        return await self._client.list(kind, self._ours(kind, namespace), labels=labels, fields=fields)

    async def watch(
        self, kind: Kind[T], namespace: str = "", *, resource_version: str = "", labels: str = "", fields: str = ""
    ) -> Watch[T]:
        return await self._client.watch(
            kind, self._ours(kind, namespace), resource_version=resource_version, labels=labels, fields=fields
        )

    async def create(self, kind: Kind[T], obj: T, namespace: str = "") -> T:
        return await self._client.create(kind, obj, self._ours(kind, namespace or kind.namespace(obj)))

    async def update(self, kind: Kind[Object], obj: Object, *, subresource: str = "") -> Object:
        self._ours(kind, kind.namespace(obj))
        return await self._client.update(kind, obj, subresource=subresource)

    async def modify(
        self, kind: Kind[T], name: str, namespace: str, change: Callable[[T], T], *, subresource: str = ""
    ) -> T:
        return await self._client.modify(kind, name, self._ours(kind, namespace), change, subresource=subresource)

    async def patch(
        self, kind: Kind[T], name: str, namespace: str, patch: Any, *, type: PatchType = "merge", subresource: str = ""
    ) -> T:
        return await self._client.patch(
            kind, name, self._ours(kind, namespace), patch, type=type, subresource=subresource
        )

    async def apply(self, kind: Kind[T], obj: T, namespace: str = "", *, force: bool = False) -> T:
        return await self._client.apply(kind, obj, self._ours(kind, namespace or kind.namespace(obj)), force=force)

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, propagation: Propagation | None = None, uid: str = ""
    ) -> Object:
        return await self._client.delete(kind, name, self._ours(kind, namespace), propagation=propagation, uid=uid)
