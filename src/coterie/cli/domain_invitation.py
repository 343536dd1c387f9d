"""Domains of one machine that come to know each other: whose control plane must hold which objects, and putting them
there.

    center    the master:     a Domain for each lite; a route between any two of them, each way
    p2p       each domain:    a partner Domain and an open PartnerPolicy for each other one; a route to it and from it

A destination has to know a route before its source begins to shake hands over it, or the first attempt is refused and a
second of waiting follows. So everything that lets others in is put in place first, everywhere; what leads out follows.

What is there already belongs to the operator. Only what would make a route lead nowhere is set right: a partner's
certificate, and the address of its gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.partner_policy import OPEN_SPEC, policy_of
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.routes import model
from coterie.node.config import NodeSettings

_TIMEOUT = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class NetworkRoute:
    """One direction, and the control planes that know of it."""

    source: NodeSettings
    destination: NodeSettings
    planes: tuple[NodeSettings, ...]

    @property
    def name(self) -> str:
        return f"{self.source.domain} -> {self.destination.domain}"

    @property
    def object_name(self) -> str:
        return route_name(self.source.domain, self.destination.domain)


def network_routes(nodes: Sequence[NodeSettings]) -> list[NetworkRoute]:
    """All routes of a network."""
    master = next((node for node in nodes if node.mode == "master"), None)
    if master is None:
        return [NetworkRoute(one, other, (one, other)) for one, other in permutations(_with_gateway(nodes), 2)]
    lites = [node for node in _with_gateway(nodes) if node is not master and node.gateway.master is not None]
    home = [NetworkRoute(lite, master, (master,)) for lite in lites]
    return home + [NetworkRoute(one, other, (master,)) for one, other in permutations(lites, 2)]


def _with_gateway(nodes: Sequence[NodeSettings]) -> list[NodeSettings]:
    return [node for node in nodes if node.gateway.enabled]


def objects(way: NetworkRoute) -> Object:
    return model.route(way.source.domain, way.destination.domain, endpoint=model.endpoint_of(way.destination.gateway))


async def connect_peers(nodes: Sequence[NodeSettings], clients: Mapping[str, Client]) -> None:
    """p2p: everybody to everybody. All APIs must answer, and all certificates be in their files."""
    every = network_routes(nodes)

    async def let_in(node: NodeSettings) -> None:
        client = clients[node.domain]
        arriving = [way for way in every if way.destination is node]
        await asyncio.gather(*(_partner(client, way.source) for way in arriving))
        await asyncio.gather(*(_route(client, way) for way in arriving))
        await asyncio.gather(*(_copied(client, way) for way in arriving))

    await asyncio.gather(*(let_in(node) for node in _with_gateway(nodes)))
    await asyncio.gather(*(_route(clients[way.source.domain], way) for way in every))


async def _partner(client: Client, who: NodeSettings) -> None:
    """All domains belong to who started the network, so a new partner may begin everything. Later the policy is the
    operator's."""
    wanted = model.partner(who.domain, who.paths.domain_certificate.read_text())

    def wrong(found: Object) -> Object | None:
        spec = found.get("spec") or {}
        if spec.get("role") != wanted["spec"]["role"] or spec.get("cert") == wanted["spec"]["cert"]:
            return None
        return {"spec": {"cert": wanted["spec"]["cert"]}}

    if await ensure(client, DOMAINS.as_dynamic, wanted, wrong):
        domain = await client.get(DOMAINS, who.domain)
        await ensure(client, PARTNER_POLICIES.as_dynamic, policy_of(domain, OPEN_SPEC))


async def _route(client: Client, way: NetworkRoute) -> None:
    wanted = objects(way)

    def wrong(found: Object) -> Object | None:
        spec = found.get("spec") or {}
        moved = (
            "transit" not in spec
            and "endpoint" in wanted["spec"]
            and spec.get("endpoint") != wanted["spec"]["endpoint"]
        )
        return {"spec": {"endpoint": wanted["spec"]["endpoint"]}} if moved else None

    await ensure(client, CLUSTER_DOMAIN_ROUTES.as_dynamic, wanted, wrong)


async def _copied(client: Client, way: NetworkRoute) -> None:
    """Until the destination's gateway can know of the route. If that takes long the handshake is tried again anyway."""
    deadline = asyncio.get_running_loop().time() + _TIMEOUT
    while asyncio.get_running_loop().time() < deadline:
        try:
            await client.get(DOMAIN_ROUTES, way.object_name, way.destination.domain)
            return
        except NotFound:
            await asyncio.sleep(_POLL_SECONDS)


async def ensure(
    client: Client, kind: Kind[Object], wanted: Object, wrong: Callable[[Object], Object | None] = lambda found: None
) -> bool:
    """Create it if it is not there; else patch what is wrong with it. Answers whether it was created."""
    try:
        await client.create(kind, wanted)
        return True
    except AlreadyExists:
        name = wanted["metadata"]["name"]
        patch = wrong(await client.get(kind, name))
        if patch:
            await client.patch(kind, name, "", patch)
        return False


# center.


async def admit_lites(client: Client, nodes: Sequence[NodeSettings]) -> None:
    """A Domain for each lite, and the routes between them; their certificates come when they register."""
    lites = [node for node in nodes if node.mode == "lite"]
    await asyncio.gather(*(ensure(client, DOMAINS.as_dynamic, model.member(node.domain)) for node in lites))
    between = [way for way in network_routes(nodes) if way.destination.mode == "lite"]
    await asyncio.gather(*(_route(client, way) for way in between))


async def token_for(client: Client, node: NodeSettings, master: NodeSettings) -> str:
    """The one-time token with which a lite registers, bound to its master's certificate."""
    while True:
        token = model.unused_token(await client.get(DOMAINS, node.domain))
        if token:
            return model.pinned_token(token, public_certificate(master))
        await asyncio.sleep(_POLL_SECONDS)


def public_certificate(plane: NodeSettings) -> str:
    """The certificate (PEM) on a gateway's public port."""
    own = plane.gateway.external_tls
    return (own.pair.certificate if own is not None else plane.paths.domain_certificate).read_text()
