"""Writes into each Ingress where it is served, once Envoy has taken it."""

from __future__ import annotations

from collections.abc import Callable

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.ingress import INGRESSES, Ingress, LoadBalancerPoint, LoadBalancerPort
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kuscia.gateway.addresses import IngressListeners


class IngressStatuses:
    """A Runnable (its `controller`). `served` may be called from the event loop at any time; writing follows."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        domain: str,
        point: LoadBalancerPoint,
        *,
        watched: str = "",
        alone: Callable[[], bool] = lambda: True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`point`: where this gateway serves. `watched`: the namespace that is watched; empty: all. `alone`: whether the domain has no other gateway now."""
        self._client = client
        self._domain = domain
        self._point = point
        self._alone = alone
        self._ingresses = informers.get(INGRESSES, watched)
        self._served: frozenset[str] = frozenset()
        watches: list[Watches[Ingress, ObjectKey]] = [Watches(self._ingresses, lambda each: [each.key])]
        self.controller: Controller[ObjectKey] = Controller("ingressstatus", self._reconcile, watches, clock=clock)

    def served(self, names: frozenset[str]) -> None:
        changed, self._served = names ^ self._served, names
        for name in sorted(changed):
            self.controller.enqueue(ObjectKey(self._domain, name))

    async def _reconcile(self, key: ObjectKey) -> Result:
        ingress = self._ingresses.cache.by_key(key)
        if ingress is None or ingress.metadata.deleting or key.namespace != self._domain:
            return DONE
        current = ingress.status.load_balancer.ingress or ()
        wanted = points(current, self._point, served=key.name in self._served, alone=self._alone())
        if wanted != current:
            listed = [_encoded(each) for each in wanted]
            patch = {"status": {"loadBalancer": {"ingress": listed}}}
            await self._client.patch(INGRESSES, key.name, key.namespace, patch, subresource="status")
        return DONE


def points(
    current: tuple[LoadBalancerPoint, ...], own: LoadBalancerPoint, *, served: bool, alone: bool
) -> tuple[LoadBalancerPoint, ...]:
    """What the status should list. Other gateways of the domain add theirs; a lone one knows that there are no others."""
    others = tuple(each for each in current if each.ip != own.ip)
    if not served:
        # Of a class that is not ours the status is somebody else's.
        return others
    if alone:
        return (own,)
    return current if own in current else (*others, own)


def point_of(listeners: IngressListeners, address: str) -> LoadBalancerPoint:
    found = [each for each in (listeners.http, listeners.https) if each is not None]
    hosts = [each.host for each in found if each.host not in ("0.0.0.0", "::")]
    ports = tuple(LoadBalancerPort(port=each.port) for each in found)
    return LoadBalancerPoint(ip=hosts[0] if hosts else address, ports=ports)


def _encoded(point: LoadBalancerPoint) -> dict[str, object]:
    ports = [{"port": each.port, "protocol": each.protocol} for each in point.ports or ()]
    return {"ip": point.ip, "ports": ports}
