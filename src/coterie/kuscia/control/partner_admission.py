"""What a partner's workload asks for at our domains, and which policy answers it, read with a client: for commands and pages
that explain a decision. The decision itself is pure (`kuscia/api/partner_policy.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.kube.api.errors import NotFound
from coterie.kube.client.client import Client
from coterie.kuscia.api.domain_ownership import is_own, master_of
from coterie.kuscia.api.partner_policy import PartnerRequest
from coterie.kuscia.api.partner_requests import deployment_request, job_request
from coterie.kuscia.api.types.data import DOMAIN_DATAS, DomainData
from coterie.kuscia.api.types.deployment import KusciaDeployment
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import APP_IMAGES, KusciaJob
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES, PartnerPolicy


@dataclass(frozen=True, slots=True)
class OwnSide:
    """What this control plane has of a workload's parties."""

    domains: frozenset[str]
    """Domains of ours that take part."""
    tables: Mapping[str, tuple[DomainData, ...]]
    """By such a domain."""
    request: PartnerRequest


async def domains_by_name(client: Client) -> dict[str, Domain]:
    return {each.metadata.name: each for each in (await client.list(DOMAINS)).items}


async def policy_for(client: Client, initiator: str, domains: Mapping[str, Domain]) -> PartnerPolicy | None:
    """Its own, or that of its control plane."""
    for name in dict.fromkeys((initiator, master_of(initiator, domains.get(initiator)))):
        try:
            return await client.get(PARTNER_POLICIES, name)
        except NotFound:
            continue
    return None


async def own_side(client: Client, found: KusciaJob | KusciaDeployment, domains: Mapping[str, Domain]) -> OwnSide:
    images = {each.metadata.name: each for each in (await client.list(APP_IMAGES)).items}
    named = parties_of(found)
    ours = frozenset(name for name, domain in domains.items() if is_own(domain))
    tables = {name: tuple((await client.list(DOMAIN_DATAS, name)).items) for name in sorted(ours & named)}
    ids = {name: {each.metadata.name for each in datas} for name, datas in tables.items()}
    if isinstance(found, KusciaJob):
        return OwnSide(ours & named, tables, job_request(found.spec, ours, images, ids))
    return OwnSide(ours & named, tables, deployment_request(found, ours, images, ids))


def parties_of(found: KusciaJob | KusciaDeployment) -> frozenset[str]:
    if isinstance(found, KusciaJob):
        return frozenset(found.spec.party_domains)
    return frozenset(party.domain_id for party in found.spec.parties)
