"""Keeps around each Domain what it needs here: namespace, accounts, quota, a route to us; and says how its nodes are.

Everything is compared with what is there in every pass, so an object that somebody removed or bent comes back. Objects
are written by server-side apply: what others added to them stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.core import NAMESPACES, Namespace
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kuscia.api.labels import KUSCIA_DELETED, KUSCIA_DOMAIN_NAME, KUSCIA_NODE_NAMESPACE
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_CONFIG, DOMAINS, ClusterDomainRoute, Domain
from coterie.kuscia.controllers.domain import objects, plan
from coterie.kuscia.controllers.domain.objects import (
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    QUOTA,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    DesiredObject,
)

BY_DOMAIN = "domain/nodes"
_MANAGER = "coterie-domain"
_REVOKED = (CLUSTER_ROLE_BINDING, ROLE_BINDING, ROLE, SERVICE_ACCOUNT)
"""In this order: first what may be done, then who may do it."""


def by_domain(node: Node) -> tuple[str, ...]:
    name = (node.metadata.labels or {}).get(KUSCIA_NODE_NAMESPACE)
    return (name,) if name else ()


class DomainReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        control_plane: str,
        events: EventRecorder | None,
        clock: Clock,
        make_token: Callable[[], str],
        installed_roles: bool = False,
    ) -> None:
        self._client = client
        self._installed_roles = installed_roles
        self._control_plane = control_plane
        self._events = events
        self._clock = clock
        self._make_token = make_token
        self.domains = informers.get(DOMAINS)
        self.namespaces = informers.get(NAMESPACES)
        self.nodes = informers.get(NODES)
        self.nodes.cache.add_index(BY_DOMAIN, by_domain)
        self.routes = informers.get(CLUSTER_DOMAIN_ROUTES)
        self.kept: dict[Kind[Object], Informer[Object]] = {
            kind: informers.get(kind, labels=KUSCIA_DOMAIN_NAME)
            for kind in (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING, QUOTA, CONFIG_MAP)
            if kind is not ROLE or not installed_roles
        }
        self._log = logger("controllers.domain")

    async def reconcile(self, key: ObjectKey) -> Result:
        domain = self.domains.cache.get(key.name)
        if domain is None or domain.metadata.deleting:
            await self._clean_up(key.name)
            return DONE
        refusal = plan.refusal(key.name)
        if refusal is not None:
            self._warn(domain, "DomainRefused", refusal)
            return DONE
        if not await self._namespace(domain):
            return DONE  # it is being deleted; when it is gone we are called again
        await self._ensure_objects(domain)
        domain = await self._complete(domain)
        await self._status(domain)
        return DONE

    # The namespace and what lies in it.

    async def _namespace(self, domain: Domain) -> bool:
        name = domain.metadata.name
        namespace = self.namespaces.cache.get(name)
        wanted = objects.namespace_labels(domain)
        if namespace is None:
            labels = {label: value for label, value in wanted.items() if value is not None}
            await self._client.create(objects.NAMESPACE, {"metadata": {"name": name, "labels": labels}})
            self._log.info("Domain has a namespace", domain=name, role=domain.spec.role or "self")
            return True
        if not namespace.active:
            return False
        if wrong := plan.labels_patch(namespace.metadata.labels, wanted):
            await self._client.patch(NAMESPACES, name, "", {"metadata": {"labels": wrong}})
        return True

    async def _ensure_objects(self, domain: Domain) -> None:
        name = domain.metadata.name
        accounts = objects.accounts(domain, self._control_plane, installed_roles=self._installed_roles)
        wanted = [*accounts, *objects.namespace_objects(domain)]
        for each in wanted:
            await self._ensure(each)
        present = {each.kind for each in wanted}
        for kind in (*_REVOKED, QUOTA):
            if kind not in present:
                await self._remove(kind, name)
        config = objects.domain_config(domain)
        if config is not None and self.kept[CONFIG_MAP].cache.get(DOMAIN_CONFIG, name) is None:
            await self._create(CONFIG_MAP, config)
        route = objects.route(domain, self._control_plane)
        if route is not None and self.routes.cache.get(route["metadata"]["name"]) is None:
            await self._create(objects.ROUTE, route)

    async def _ensure(self, wanted: DesiredObject) -> None:
        there = self.kept[wanted.kind].cache.get(wanted.name, wanted.namespace)
        if there is None or not holds(there, wanted.object):
            await self._client.apply(
                wanted.kind, wanted.object, wanted.namespace, force=True, field_manager=_MANAGER
            )  # fmt: skip

    async def _create(self, kind: Kind[Object], obj: Object) -> None:
        try:
            await self._client.create(kind, obj, obj["metadata"].get("namespace", ""))
        except AlreadyExists:
            return  # somebody else's, or the cache is behind: either way it is there

    async def _remove(self, kind: Kind[Object], domain: str) -> None:
        """Only what carries our label, which is all that these caches hold."""
        if kind not in self.kept:
            return
        name = objects.RESOURCE_LIMITATION if kind is QUOTA else domain
        there = self.kept[kind].cache.get(name, domain if kind.resource.namespaced else "")
        if there is None or there["metadata"]["labels"].get(KUSCIA_DOMAIN_NAME) != domain:
            return
        try:
            await self._client.delete(
                kind, name, there["metadata"].get("namespace", ""), uid=there["metadata"]["uid"]
            )  # fmt: skip
        except NotFound:
            return

    # The Domain itself.

    async def _complete(self, domain: Domain) -> Domain:
        patch = plan.domain_patch(domain)
        if patch is None:
            return domain
        patch["metadata"] = {"uid": domain.metadata.uid, **(patch.get("metadata") or {})}
        return await self._client.patch(DOMAINS, domain.metadata.name, "", patch)

    async def _status(self, domain: Domain) -> None:
        meta = domain.metadata
        nodes = self.nodes.cache.by_index(BY_DOMAIN, meta.name)
        change = plan.status_patch(domain, nodes, self._control_plane, self._clock.now(), self._make_token)
        if change is None:
            return
        # Registration marks tokens as used in the same list: the version makes whoever is late look again.
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": change}
        await self._client.patch_status(DOMAINS, meta.name, "", patch)
        if "deployTokenStatuses" in change:
            self._log.info("Domain has a deploy token for a new node", domain=meta.name)

    async def _clean_up(self, name: str) -> None:
        namespace = self.namespaces.cache.get(name)
        wanted = plan.removal(name, namespace, self._control_plane)
        if wanted.warn and namespace is not None:
            self._warn(namespace, "DomainDeleted", wanted.warn)
        if wanted.revoke:
            for kind in _REVOKED:
                await self._remove(kind, name)
        if wanted.mark:
            self._log.info("Domain is gone; its namespace stays", domain=name)
            await self._client.patch(NAMESPACES, name, "", {"metadata": {"labels": {KUSCIA_DELETED: "true"}}})

    def _warn(self, about: Domain | Namespace, reason: str, message: str) -> None:
        self._log.warning("Domain needs attention", domain=about.metadata.name, reason=reason, why=message)
        if self._events is not None:
            resource = (DOMAINS if isinstance(about, Domain) else NAMESPACES).resource
            reference = reference_to(about, api_version=resource.api_version, kind=resource.kind)
            self._events.warning(reference, reason, message)

    # Whom a change concerns.

    def keys_of_namespace(self, namespace: Namespace) -> list[ObjectKey]:
        name = namespace.metadata.name
        labelled = KUSCIA_DOMAIN_NAME in (namespace.metadata.labels or {})
        return [ObjectKey("", name)] if labelled or self.domains.cache.get(name) is not None else []

    def keys_of_node(self, node: Node) -> list[ObjectKey]:
        return [ObjectKey("", name) for name in by_domain(node)]

    def keys_of_kept(self, obj: Object) -> list[ObjectKey]:
        return [ObjectKey("", obj["metadata"]["labels"][KUSCIA_DOMAIN_NAME])]

    def keys_of_route(self, route: ClusterDomainRoute) -> list[ObjectKey]:
        """Only when it is gone: what it says is not ours to keep."""
        if self.routes.cache.get(route.metadata.name) is not None:
            return []
        return [ObjectKey("", owner.name) for owner in route.metadata.owners if owner.kind == DOMAINS.resource.kind]


def holds(there: Any, wanted: Any) -> bool:
    """Whether all that `wanted` says is said by `there`, which may say more."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(
            _owns(there.get(key), value) if key == "ownerReferences" else holds(there.get(key), value)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(there, list)
            and len(there) == len(wanted)
            and all(holds(one, other) for one, other in zip(there, wanted, strict=True))
        )
    return bool(there == wanted)


def _owns(there: Any, wanted: Any) -> bool:
    return {owner["uid"] for owner in wanted} <= {owner["uid"] for owner in there or ()}


def make(
    client: Client,
    informers: Informers,
    *,
    control_plane: str,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
    make_token: Callable[[], str] = plan.new_token,
    installed_roles: bool = False,
) -> Controller[ObjectKey]:
    """`control_plane` is the domain of this control plane itself. `installed_roles`: see `objects.accounts`."""
    reconciler = DomainReconciler(client, informers, control_plane, events, clock, make_token, installed_roles)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.domains, own_key),
        Watches(reconciler.namespaces, reconciler.keys_of_namespace),
        Watches(reconciler.nodes, reconciler.keys_of_node),
        Watches(reconciler.routes, reconciler.keys_of_route),
        *(Watches(informer, reconciler.keys_of_kept) for informer in reconciler.kept.values()),
    ]
    return Controller("domain", reconciler.reconcile, watches, workers=workers, clock=clock)
