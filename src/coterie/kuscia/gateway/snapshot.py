"""`snapshot(inputs)`: everything Envoy is told, as plain data in a stable order. Pure.

The same inputs always give the same bytes, so a file is written only when something in it changed, and Envoy is
disturbed only where something changed. What was asked for and cannot or must not be done is in `problems`; it is left
out, or answered by a refusal, and never done halfway.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.kuscia.gateway import identity, ingress, peer_gateways, tls, transit, tunnel
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.clusters import clusters
from coterie.kuscia.gateway.crypt import routing as crypt
from coterie.kuscia.gateway.listeners import filter_file, listeners, route_file
from coterie.kuscia.gateway.model import SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import (
    AUTH_FILTER,
    CARES,
    CLUSTER,
    EXTENSION,
    LISTENER,
    POD_FILTER,
    ROUTES,
    SECRET,
    Json,
    address,
)
from coterie.kuscia.gateway.pod_access import pod_rules
from coterie.kuscia.gateway.polling import config as polling
from coterie.kuscia.gateway.routes import EXTERNAL, INTERNAL, external_routes, internal_routes, transit_routes
from coterie.kuscia.gateway.snapshot_cache import forget_unused

CLUSTERS_FILE = "cds.json"
LISTENERS_FILE = "lds.json"


@dataclass(frozen=True, slots=True)
class EnvoyResources:
    """Envoy's resources by the file they lie in, in the order in which the files must be written."""

    files: dict[str, tuple[Json, ...]] = field(repr=False)
    """Not shown by repr: tokens are in there."""
    problems: tuple[SnapshotProblem, ...] = ()

    @property
    def clusters(self) -> tuple[Json, ...]:
        return self.files[CLUSTERS_FILE]

    @property
    def listeners(self) -> tuple[Json, ...]:
        return self.files[LISTENERS_FILE]


class NoIdentity(ValueError):
    """TLS was asked for without a certificate of our own."""


def snapshot(inputs: SnapshotInputs) -> EnvoyResources:
    if inputs.identity is None and inputs.protocol is not Protocol.NOTLS and inputs.external is not None:
        raise NoIdentity(f"domain {inputs.domain}: protocol {inputs.protocol} needs the domain's certificate and key")
    auth, key_problems = identity.auth_config(inputs)
    direct, cluster_problems = clusters(inputs)
    found = _by_name(
        [
            *direct,
            *transit.source_clusters(inputs),
            *transit.carrier_clusters(inputs),
            *transit.inner_clusters(inputs),
            *tunnel.accepting_clusters(inputs),
            *peer_gateways.clusters(inputs),
            *tunnel.dialling_clusters(inputs),
            *polling.clusters(inputs),
            *ingress.clusters(inputs),
        ]
    )
    live = frozenset(str(each["name"]) for each in found)
    inside, route_problems = internal_routes(inputs, live)
    directory = inputs.directory
    files: dict[str, tuple[Json, ...]] = {
        tls.secret_file(directory, name).name: (_typed(SECRET, secret),)
        for name, secret in sorted({**tls.secrets(inputs), **ingress.secrets(inputs)}.items())
    }
    # What others refer to comes first.
    files[filter_file(directory, AUTH_FILTER).name] = (_extension(AUTH_FILTER, auth),)
    files |= pod_rules_file(inputs)
    files[CLUSTERS_FILE] = tuple(_typed(CLUSTER, _resolved(inputs, each)) for each in found)
    files[route_file(directory, EXTERNAL).name] = (_typed(ROUTES, external_routes(inputs, live)),)
    files[route_file(directory, INTERNAL).name] = (_typed(ROUTES, inside),)
    if transit.carried_out(inputs):
        files[route_file(directory, transit.SIDE).name] = (_typed(ROUTES, transit_routes(inputs, live)),)
    if ingress.is_served(inputs):
        files[route_file(directory, ingress.SIDE).name] = (_typed(ROUTES, ingress.routes(inputs)),)
    files[LISTENERS_FILE] = tuple(_typed(LISTENER, each) for each in listeners(inputs))
    problems = {
        *key_problems,
        *cluster_problems,
        *route_problems,
        *crypt.problems(inputs),
        *transit.carrier_problems(inputs),
        *tunnel.dialling(inputs)[1],
    }
    forget_unused()
    return EnvoyResources(files, tuple(sorted(problems)))


def pod_rules_file(inputs: SnapshotInputs) -> dict[str, tuple[Json, ...]]:
    """By name, the file of what pods may call; the only one that changes when an engine pod comes or goes."""
    if inputs.pods is None and inputs.internal is None:
        return {}
    return {filter_file(inputs.directory, POD_FILTER).name: (_extension(POD_FILTER, pod_rules(inputs)),)}


def _resolved(inputs: SnapshotInputs, each: Json) -> Json:
    """Inside the pods' network the machine's name servers are not reached."""
    if inputs.pods is None or inputs.pods.resolver is None or each.get("type") != "STRICT_DNS":
        return each
    server = address(inputs.pods.resolver.host, inputs.pods.resolver.port)
    config: Json = {"@type": CARES, "resolvers": [server]}
    return {**each, "typed_dns_resolver_config": {"name": "envoy.network.dns_resolver.cares", "typed_config": config}}


def _by_name(found: list[Json]) -> list[Json]:
    """In a stable order; of two with one name only one."""
    by_name = {str(each["name"]): each for each in found}
    return [by_name[name] for name in sorted(by_name)]


def _typed(kind: str, resource: Json) -> Json:
    return {"@type": kind, **resource}


def _extension(name: str, config: Json) -> Json:
    return {"@type": EXTENSION, "name": name, "typed_config": config}
