"""One way to write a route's status: a patch that holds only against the version it was decided on.

Controllers and other gateways write the same status. Whoever is late reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.kube.api.errors import Conflict, NotFound
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DomainRoute, DomainRouteStatus

_ATTEMPTS = 8
_EMPTY = DomainRouteStatus(is_destination_authorized=False, is_destination_unreachable=False)

Decide = Callable[[DomainRoute], DomainRouteStatus | None]
"""From the route as it is to the status as it should be; None when there is nothing to be said any more."""


async def write_status(client: Client, route: DomainRoute, decide: Decide) -> DomainRoute | None:
    """The route as it then is; None when it is gone, or another of its name is there, or nothing was to be said.

    Raises Conflict when others were faster again and again.
    """
    meta = route.metadata
    for attempt in range(_ATTEMPTS):
        wanted = decide(route)
        if wanted is None or route.metadata.uid != meta.uid:
            return None
        change = changes(route.status or _EMPTY, wanted) or {}
        if route.status is None:
            change |= {
                "isDestinationAuthorized": wanted.is_destination_authorized,
                "isDestinationUnreachable": wanted.is_destination_unreachable,
            }
        if not change:
            return route
        precondition = {"uid": meta.uid, "resourceVersion": route.metadata.resource_version}
        try:
            return await client.patch_status(
                DOMAIN_ROUTES, meta.name, meta.namespace, {"metadata": precondition, "status": change}
            )
        except NotFound:
            return None
        except Conflict:
            if attempt + 1 == _ATTEMPTS:
                raise
            try:
                route = await client.get(DOMAIN_ROUTES, meta.name, meta.namespace)
            except NotFound:
                return None
    return None


def with_tokens(route: DomainRoute) -> DomainRouteStatus:
    """The status that is there, to put tokens into."""
    return route.status or _EMPTY
