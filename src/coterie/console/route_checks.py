"""`coterie route check` from the page: what it finds, step by step. Objects are read with the person's rights.

The token of a route can be tried through the gateway of this machine only. That is a power of the node, so it is lent to those
alone who may change the route anyway, as the API server says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.base.paths import DomainPaths
from coterie.console.rows import text
from coterie.http.errors import HttpProblem
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES

if TYPE_CHECKING:
    from coterie.kuscia.routes import check, probe
else:
    # They bring an HTTP client and the gateway with them, which most pages do not need.
    check = lazy_import("coterie.kuscia.routes.check")
    probe = lazy_import("coterie.kuscia.routes.probe")

_REVIEWS: Final = Kind.dynamic(builtin("selfsubjectaccessreviews", "authorization.k8s.io"))


async def check_route(client: Client, source: str, destination: str, own: DomainPaths | None, clock: Clock) -> Object:
    """`own`: the directory of the source where its gateway runs on this machine."""
    for name in (source, destination):
        if faults := dns_subdomain_faults(name):
            raise HttpProblem(400, "BadRequest", f"{name[:64]!r} is no name: {faults[0]}")
    home = own if own is not None and await _may_change(client, route_name(source, destination)) else None
    facts = await probe.gather(client, probe.ProbeRequest(source, destination, home=home), clock)
    findings = check.diagnose(facts)
    return {
        "source": source,
        "destination": destination,
        "sound": check.sound(findings),
        "connectSeconds": facts.connect_seconds,
        "certificateEnds": rfc3339(facts.shown.ends) if facts.shown is not None else "",
        "findings": [{name: text(value) for name, value in each.document().items()} for each in findings],
    }


async def _may_change(client: Client, route: str) -> bool:
    resource = CLUSTER_DOMAIN_ROUTES.resource
    about = {"verb": "update", "group": resource.group, "resource": resource.plural, "name": route}
    review = await client.create(_REVIEWS, {"spec": {"resourceAttributes": about}})
    return bool(review["status"]["allowed"])
