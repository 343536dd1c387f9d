"""What a ClusterDomainRoute turns into: its labels and keys, and a copy in the namespace of each end we host. Pure.

ends                                          copies
both domains of this control plane            one in each namespace
one is a partner                              one, in the namespace of ours
both partners                                 none
a Domain object is missing                    none: whoever removes a domain means to cut it off

copy found                                    done
none                                          create
of another owner                              nothing, and said so
keys differ and tokens were negotiated        delete and create: tokens of another key must not live on
anything else differs                         change in place; tokens stay, no call fails
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from coterie.kube.api.meta import Object, ObjectMeta, OwnerReference, controller_of
from coterie.kube.api.types.merge import difference
from coterie.kuscia.api.domain_ownership import is_own, is_partner
from coterie.kuscia.api.domainroutes import KeyFault, public_key_of_certificate, route_name
from coterie.kuscia.api.labels import (
    COTERIE_CARRY_FOR,
    COTERIE_KUSCIA_WIRE,
    COTERIE_LINK_BANDWIDTH,
    COTERIE_PARTNER_CERTIFICATE,
    COTERIE_TRANSIT,
    KUSCIA_CDR_DESTINATION,
    KUSCIA_CDR_SOURCE,
    KUSCIA_DOMAINROUTE_PARTNER,
)
from coterie.kuscia.api.types.domain import (
    BFIA_PROTOCOL,
    CLUSTER_DOMAIN_ROUTES,
    REVERSE_TUNNEL,
    ClusterDomainRoute,
    Domain,
    DomainRoute,
    InteropConfig,
    InteropConfigSpec,
    RouteSpec,
    TokenConfig,
)

_COPIED = (COTERIE_CARRY_FOR, COTERIE_TRANSIT, COTERIE_KUSCIA_WIRE, COTERIE_LINK_BANDWIDTH)
"""Annotations that gateways read at their own copy of a route."""


@dataclass(frozen=True, slots=True)
class RouteEndDomain:
    """One end of a route as this control plane knows it."""

    name: str
    domain: Domain | None
    hosted: bool
    """Its namespace, gateways and copy of the route are here."""

    @property
    def missing(self) -> bool:
        """Nothing is known of it. Our own control plane's domain is ours even while its object is gone."""
        return self.domain is None and not self.hosted


def end(name: str, domain: Domain | None, control_plane: str) -> RouteEndDomain:
    hosted = name == control_plane or is_own(domain)
    return RouteEndDomain(name, domain, hosted)


# What the route itself should say.


def labels(source: RouteEndDomain, destination: RouteEndDomain) -> dict[str, str]:
    out = {KUSCIA_CDR_SOURCE: source.name, KUSCIA_CDR_DESTINATION: destination.name}
    partner = next((side.name for side in (source, destination) if is_partner(side.domain)), "")
    if partner:
        out[KUSCIA_DOMAINROUTE_PARTNER] = partner
    return out


def keys(spec: RouteSpec, source: RouteEndDomain, destination: RouteEndDomain) -> TokenConfig | None:
    """The token configuration with the keys of the domains' certificates; a key nobody certifies stays as it is."""
    config = spec.token_config
    if config is None:
        return None
    return replace(
        config,
        source_public_key=_certified(source) or config.source_public_key,
        destination_public_key=_certified(destination) or config.destination_public_key,
    )


def _certified(side: RouteEndDomain) -> str:
    if side.domain is None or not side.domain.spec.cert:
        return ""
    try:
        return public_key_of_certificate(side.domain.spec.cert)
    except KeyFault:
        return ""


def labels_and_keys_patch(
    route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain
) -> Object | None:
    """The patch that gives a route its labels and keys; None when it has them."""
    patch: Object = {}
    have = route.metadata.labels or {}
    wrong = {key: value for key, value in labels(source, destination).items() if have.get(key) != value}
    if wrong:
        patch["metadata"] = {"labels": wrong}
    config = keys(route.spec, source, destination)
    if config is not None and config != route.spec.token_config:
        patch["spec"] = {
            "tokenConfig": {
                "sourcePublicKey": config.source_public_key,
                "destinationPublicKey": config.destination_public_key,
            }
        }
    return patch or None


def needed_routes(spec: RouteSpec, source_hosted: bool, destination_hosted: bool) -> list[tuple[str, str]]:
    """Other routes without which this one cannot work, as (source, destination), of those that must be known here."""
    transit = spec.transit
    if transit is None:
        return []
    if transit.method == REVERSE_TUNNEL:
        return [(spec.destination, spec.source)]
    out = []
    if source_hosted:
        out.append((spec.source, transit.through))
    if destination_hosted:
        out.append((transit.through, spec.destination))
    return out


def dials(spec: RouteSpec, source: RouteEndDomain, control_plane: str) -> bool:
    """Whether gateways of ours find the destination by this route's endpoint.

    Those of a lite find their own master by their configuration.
    """
    return source.hosted and spec.transit is None and spec.destination != control_plane


# The copies.


@dataclass(frozen=True, slots=True)
class Copies:
    create: Sequence[DomainRoute] = ()
    change: Sequence[tuple[DomainRoute, Object]] = ()
    """What is there, and the patch for it."""
    renew: Sequence[tuple[DomainRoute, DomainRoute]] = ()
    """What is there and has to go, and what comes in its place."""
    delete: Sequence[DomainRoute] = ()
    good: Sequence[DomainRoute] = ()
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """Namespaces in which somebody else holds the name, and who."""


def copies(
    route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain, found: Mapping[str, DomainRoute], owned: Iterable[DomainRoute]
) -> Copies:  # fmt: skip
    """`found`: objects under the copies' name, by namespace; `owned`: all that belong to this route, wherever."""
    wanted = {} if source.missing or destination.missing else _desired_copies(route, source, destination)
    create, change, renew, good = [], [], [], []
    conflicts: dict[str, str] = {}
    for namespace, copy in wanted.items():
        there = found.get(namespace)
        if there is None:
            create.append(copy)
            continue
        owner = controller_of(there.metadata)
        if owner is None or owner.uid != route.metadata.uid:
            conflicts[namespace] = f"{owner.kind} {owner.name}" if owner is not None else "nobody"
        elif _negotiated(there) and _keys(there.spec) != _keys(copy.spec):
            renew.append((there, copy))
        elif patch := _patch(there, copy):
            change.append((there, patch))
        else:
            good.append(there)
    name = route_name(route.spec.source, route.spec.destination)
    stray = [dr for dr in owned if dr.metadata.namespace not in wanted or dr.metadata.name != name]
    return Copies(create, change, renew, stray, good, conflicts)


def _desired_copies(
    route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain
) -> dict[str, DomainRoute]:
    sides = {source.name: source_view(route.spec), destination.name: destination_view(route.spec)}
    others = {source.name: destination, destination.name: source}
    return {
        side.name: _copy(route, side.name, sides[side.name], others[side.name])
        for side in (source, destination)
        if side.hosted
    }


def source_view(spec: RouteSpec) -> RouteSpec:
    """Headers are added where calls arrive, and carry credentials: the calling side does not get to see them."""
    return replace(spec, request_headers_to_add=None)


def destination_view(spec: RouteSpec) -> RouteSpec:
    """The caller's private key is none of the destination's business."""
    if spec.mtls_config is None or not spec.mtls_config.source_client_private_key:
        return spec
    return replace(spec, mtls_config=replace(spec.mtls_config, source_client_private_key=""))


def _copy(route: ClusterDomainRoute, namespace: str, spec: RouteSpec, partner: RouteEndDomain) -> DomainRoute:
    owner = owner_of(route)
    # Gateways recognise each other by these, and those of lites may not read Domains.
    certificate = partner.domain.spec.cert if partner.domain is not None else ""
    meta = ObjectMeta(
        name=route_name(spec.source, spec.destination),
        namespace=namespace,
        labels=route.metadata.labels,
        annotations=_annotations(route, certificate) or None,
        owner_references=(owner,),
    )
    return DomainRoute(metadata=meta, spec=spec)


def _annotations(route: ClusterDomainRoute, certificate: str) -> dict[str, str]:
    route_annotations = route.metadata.annotations or {}
    found = {key: route_annotations[key] for key in _COPIED if key in route_annotations}
    return found | ({COTERIE_PARTNER_CERTIFICATE: certificate} if certificate else {})


def owner_of(route: ClusterDomainRoute) -> OwnerReference:
    resource = CLUSTER_DOMAIN_ROUTES.resource
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=route.metadata.name,
        uid=route.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _negotiated(copy: DomainRoute) -> bool:
    tokens = copy.token_status
    return bool(tokens.tokens) or bool(tokens.revision_token is not None and tokens.revision_token.token)


def _keys(spec: RouteSpec) -> tuple[str, str]:
    config = spec.token_config
    return (config.source_public_key, config.destination_public_key) if config is not None else ("", "")


def _patch(there: DomainRoute, wanted: DomainRoute) -> Object | None:
    out: Object = {}
    have, want = there.metadata.labels or {}, wanted.metadata.labels or {}
    wrong = {key: value for key, value in want.items() if have.get(key) != value}
    if wrong:
        out["metadata"] = {"labels": wrong}
    kept, both_annotations = there.metadata.annotations or {}, wanted.metadata.annotations or {}
    ours = (COTERIE_PARTNER_CERTIFICATE, *_COPIED)
    if changed := {key: both_annotations.get(key) for key in ours if kept.get(key) != both_annotations.get(key)}:
        out.setdefault("metadata", {})["annotations"] = changed
    if spec := difference(msgspec.to_builtins(there.spec), msgspec.to_builtins(wanted.spec)):
        out["spec"] = spec
    return out or None


# InterConn.


def interop(
    route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain, control_plane: str, token: bool
) -> InteropConfig | None:
    """The InteropConfig by which InterConn follows the partner's control plane for us. `token`: one is negotiated.

    Only for a route of the control plane's own domain. The partner mirrors what concerns a lite into the namespace of the
    lite's master, and we call as the control plane: the lite's own namespace at the partner is forbidden to us.
    """
    partner = destination.domain
    if source.name != control_plane or partner is None or not partner.partner:
        return None
    if partner.spec.master not in ("", destination.name) or route.spec.inter_conn_protocol == BFIA_PROTOCOL:
        return None
    if route.spec.needs_token and not token:
        return None
    meta = ObjectMeta(name=interop_name(route.spec), owner_references=(owner_of(route),))
    return InteropConfig(metadata=meta, spec=InteropConfigSpec(host=destination.name, members=(source.name,)))


def interop_name(spec: RouteSpec) -> str:
    return f"{spec.source}-2-{spec.destination}"
