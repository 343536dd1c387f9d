"""What each party of a deployment consists of, by name, and what is wrong with a deployment. Pure.

Both control planes make the same kits from the same deployment and the same AppImage, as with tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.names import dns_label_faults
from coterie.kuscia.api.engine_template import (
    LOCAL,
    EngineTemplate,
    EngineTemplateError,
    access_of,
    engine_of,
    service_name,
    service_prefix_fault,
)
from coterie.kuscia.api.types.deployment import DeploymentParty, KusciaDeployment, party_deployment
from coterie.kuscia.api.types.job import AppImage


@dataclass(frozen=True, slots=True)
class PartyDeployment:
    domain: str
    role: str
    name: str
    """Of the Deployment in the domain's namespace."""
    engine: EngineTemplate
    services: Mapping[str, str]
    """Port name -> service name, of ports that are reached from outside the pod."""
    access: Mapping[str, frozenset[str]]
    """Port name -> domains that may call."""
    strategy: Mapping[str, Any] | None
    affinity: Mapping[str, Any] | None

    @property
    def port_names(self) -> list[str]:
        return [port.name for port in self.engine.ports]


def deployment_name(deployment: KusciaDeployment, party: DeploymentParty) -> str:
    return party_deployment(deployment.metadata.name, party.role)


def spec_error(deployment: KusciaDeployment) -> str:
    """A sentence about what cannot be carried out; empty when all is well."""
    spec = deployment.spec
    if not spec.parties:
        return "parties: a deployment needs at least one party"
    if spec.initiator not in {party.domain_id for party in spec.parties}:
        return f"initiator: {spec.initiator} must be one of the parties"
    seen: set[tuple[str, str]] = set()
    for place, party in enumerate(spec.parties):
        prefix = party.service_name_prefix
        if prefix and (fault := service_prefix_fault(prefix)):
            return f"parties[{place}].serviceNamePrefix: {fault}"
        name = deployment_name(deployment, party)
        if faults := dns_label_faults(name):
            return f'parties[{place}]: the name of the deployment and the role make "{name}": {faults[0]}'
        if (party.domain_id, party.role) in seen:
            return f'parties[{place}]: {party.domain_id} has the role "{party.role}" twice'
        seen.add((party.domain_id, party.role))
        wanted = party.template.replicas if party.template is not None else None
        if wanted is not None and wanted < 0:
            return f"parties[{place}].template.replicas: {wanted} is less than nothing"
    return ""


def party_deployments(
    deployment: KusciaDeployment,
    images: Mapping[str, AppImage],
    chosen: Mapping[tuple[str, str], str] | None = None,
) -> tuple[PartyDeployment, ...]:
    """In the order of the parties. `chosen`: AppImages by domain and role, of parties that name an engine of several versions. KitFault when an
    engine or a role is missing."""
    deployments = tuple(
        _party_deployment(deployment, party, images, (chosen or {}).get((party.domain_id, party.role)))
        for party in deployment.spec.parties
    )
    taken: set[tuple[str, str]] = set()
    for each in deployments:
        for name in each.services.values():
            if (each.domain, name) in taken:
                raise EngineTemplateError(
                    f'two parties in {each.domain} would have a service "{name}"; give one a serviceNamePrefix'
                )
            taken.add((each.domain, name))
    return deployments


def _party_deployment(
    deployment: KusciaDeployment, party: DeploymentParty, images: Mapping[str, AppImage], chosen: str | None
) -> PartyDeployment:
    overrides = party.template
    engine = engine_of(
        images,
        chosen or party.app_image_ref,
        party.role,
        overrides.spec if overrides is not None else None,
        overrides.replicas if overrides is not None else None,
        by_name=True,
    )
    name = deployment_name(deployment, party)
    everyone = [(each.domain_id, each.role) for each in deployment.spec.parties]
    start = party.service_name_prefix or name
    return PartyDeployment(
        domain=party.domain_id,
        role=party.role,
        name=name,
        engine=engine,
        services={port.name: service_name(start, port.name) for port in engine.ports if port.scope != LOCAL},
        access=access_of(party.domain_id, everyone, engine.policy, engine.ports),
        strategy=overrides.strategy if overrides is not None else None,
        affinity=engine.spec.get("affinity"),
    )
