"""What the controllers would find wrong with a job a moment after it was created, said before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.client import Client
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth, domain_bandwidth, unmet_requests
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_versions import images_named, parse_pins
from coterie.kuscia.api.jobs.references import reference_problems
from coterie.kuscia.api.jobs.validation import Problem, job_problems
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS, Domain
from coterie.kuscia.api.types.job import APP_IMAGES, AppImage, KusciaJob, KusciaJobSpec


@dataclass(frozen=True, slots=True)
class JobCheck:
    problems: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()
    """Those of `problems` that are about objects which do not exist here."""


async def check_job(client: Client, job: Object) -> JobCheck:
    """Nothing is found where the person may not look, or where the server says it better."""
    try:
        spec = msgspec.convert(job, KusciaJob, strict=False).spec
    except msgspec.ValidationError:
        return JobCheck()
    domains = await visible_domains(client)
    if domains is None:
        return JobCheck()
    try:
        known: dict[str, AppImage] = {each.metadata.name: each for each in (await client.list(APP_IMAGES)).items}
    except Forbidden:
        return JobCheck()
    images = images_named((task.app_image for task in spec.tasks), known, _engine_pins(spec, domains))
    references = reference_problems(spec, domains, images)
    unmet = unmet_requests(spec, await _bandwidth(client, spec, domains), images)
    found = (*job_problems(_name_of(job), spec), *references.wrong, *references.missing, *unmet)
    return JobCheck(found, tuple(references.missing))


def _engine_pins(spec: KusciaJobSpec, domains: Mapping[str, Domain]) -> dict[str, str]:
    """Of the first of our domains that takes part, as the job controller does."""
    ours = next((domains[name] for name in spec.party_domains if name in domains and is_own(domains[name])), None)
    annotations = (ours.metadata.annotations or {}) if ours is not None else {}
    return parse_pins(annotations.get(labels.COTERIE_ENGINE_PINS, ""))


async def visible_domains(client: Client) -> dict[str, Domain] | None:
    """None when this user may not see them."""
    try:
        return {domain.metadata.name: domain for domain in (await client.list(DOMAINS)).items}
    except Forbidden:
        return None


async def _bandwidth(client: Client, spec: KusciaJobSpec, domains: Mapping[str, Domain]) -> dict[str, DomainBandwidth]:
    """Of our domains that take part; nothing where we may not look."""
    ours = [name for name in spec.party_domains if name in domains and is_own(domains[name])]
    try:
        nodes = (await client.list(NODES)).items
        return {name: domain_bandwidth(name, nodes, (await client.list(DOMAIN_ROUTES, name)).items) for name in ours}
    except Forbidden:
        return {}


def _name_of(job: Object) -> str:
    """The name that the job will have, or one like it where the server makes it."""
    meta = job["metadata"]
    return str(meta.get("name") or f"{meta['generateName']}xxxxx")
