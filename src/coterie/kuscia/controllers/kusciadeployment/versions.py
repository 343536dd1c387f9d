"""Which AppImage each party of a deployment is made from, where it names an engine and a range. Pure.

    own parties' offers ──> status of the party (engineRef, engines) ──> partners
    everybody's offers ──agreed──> pins of our own parties, an annotation of the deployment; from then on the pin is all that is offered

An `appImageRef` that is the name of an AppImage means that AppImage, as in Kuscia: such parties offer nothing, and nobody waits for
theirs. A pin holds until the party's `appImageRef` changes: versions that are added later do not touch what runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from coterie.kuscia.api.engine_versions import (
    DeployedEngine,
    EngineRange,
    LocalEngine,
    choose,
    deployed_engines,
    engine_named,
    missing_sentence,
    newest_first,
    pinned_image,
    speak,
    version_of,
)
from coterie.kuscia.api.job_statements import OfferedEngine
from coterie.kuscia.api.types.deployment import DeploymentParty, KusciaDeployment
from coterie.kuscia.api.types.job import AppImage
from coterie.kuscia.controllers.kusciadeployment.party_workloads import deployment_name

PartyKey = tuple[str, str]
"""(domain, role)"""
ENGINE_VERSIONS, ENGINE_MISMATCH = "EngineVersions", "EngineVersionMismatch"
Offers = Mapping[PartyKey, Sequence[LocalEngine]]


@dataclass(frozen=True, slots=True)
class EngineAgreement:
    pins: Mapping[PartyKey, DeployedEngine] = field(default_factory=dict)
    """Of our own parties that are pinned, or can be now."""
    app_images: Mapping[PartyKey, str] = field(default_factory=dict)
    """What each party with a version is made from, ours and the partners'."""
    stated: Mapping[PartyKey, tuple[OfferedEngine, ...]] = field(default_factory=dict)
    """What our own parties tell the others."""
    waiting: str = ""
    """For whose versions we wait."""
    problem: str = ""
    """Why there is nothing that all can run."""
    missing: str = ""
    """Why a party of ours has nothing to offer."""


def key_of(party: DeploymentParty) -> PartyKey:
    return party.domain_id, party.role


def pins_of(deployment: KusciaDeployment) -> dict[PartyKey, DeployedEngine]:
    """What the annotation says."""
    keys = {_text_of(key_of(party)): key_of(party) for party in deployment.spec.parties}
    found = deployed_engines(deployment.metadata.annotations)
    return {keys[name]: pin for name, pin in found.items() if name in keys}


def pins_text(pins: Mapping[PartyKey, DeployedEngine]) -> str:
    named = {_text_of(key): pin for key, pin in sorted(pins.items())}
    return msgspec.json.encode(named).decode() if named else ""


def _text_of(key: PartyKey) -> str:
    domain, role = key
    return f"{domain}/{role}" if role else domain


def agreed(deployment: KusciaDeployment, offers: Offers, images: Mapping[str, AppImage]) -> EngineAgreement:
    """`offers`: of our own parties that name an engine, newest first. `images`: by name, all that they may mean."""
    if not offers:
        return EngineAgreement()
    parties = {key_of(party): party for party in deployment.spec.parties}
    for key, offered in offers.items():
        if not offered:
            return EngineAgreement(missing=missing_sentence(parties[key].app_image_ref, images.values()))
    pins = {
        key: pin
        for key, pin in pins_of(deployment).items()
        if key in offers and pin.ref == parties[key].app_image_ref and pin.app_image in images
    }
    reported = dict(_reported(deployment, offers))
    engines = list(dict.fromkeys(engine_named(parties[key].app_image_ref) for key in offers))
    waiting: list[str] = []
    problems: list[str] = []
    for engine in engines:
        group = [key for key in _ordered(deployment) if engine_named(parties[key].app_image_ref) == engine]
        own = [key for key in group if key in offers]
        if all(key in pins for key in own) and _hold(own, pins, group, reported, images):
            continue
        pins = {key: pin for key, pin in pins.items() if key not in own}
        if silent := [key for key in group if key not in offers and key in reported and reported[key] is None]:
            waiting.append(f"{', '.join(dict.fromkeys(domain for domain, _ in silent))}: versions of {engine}")
            continue
        given = {
            key: tuple(each.offer for each in offers[key]) if key in offers else reported.get(key) or ()
            for key in group
        }
        choice = choose(EngineRange(engine), {_shown(key, group): given[key] for key in group if given[key]})
        if choice.problem:
            problems.append(choice.problem)
            continue
        for key in own:
            name = pinned_image(choice.pins[_shown(key, group)], offers[key])
            pins[key] = DeployedEngine(
                ref=parties[key].app_image_ref, app_image=name, version=choice.pins[_shown(key, group)].version
            )
    app_images = {key: pins[key].app_image if key in pins else offers[key][0].app_image for key in offers}
    return EngineAgreement(
        pins=pins,
        app_images={**app_images, **_partners(deployment, app_images, reported, images)},
        stated={
            key: (_offer_of(images[pins[key].app_image]),) if key in pins else tuple(each.offer for each in offered)
            for key, offered in offers.items()
        },
        waiting="; ".join(waiting),
        problem="; ".join(problems),
    )


def _ordered(deployment: KusciaDeployment) -> list[PartyKey]:
    """The initiator's parties first: its newest version wins."""
    initiator = deployment.spec.initiator
    return sorted((key_of(party) for party in deployment.spec.parties), key=lambda key: key[0] != initiator)


def _shown(key: PartyKey, group: Sequence[PartyKey]) -> str:
    domain, role = key
    return domain if [each for each, _ in group].count(domain) == 1 else f"{domain} as {role}"


def _reported(
    deployment: KusciaDeployment, offers: Offers
) -> Iterator[tuple[PartyKey, tuple[OfferedEngine, ...] | None]]:
    """What partners say of their own parties; None: they will, and did not yet. Who names no engine (a Kuscia) is left out."""
    for party in deployment.spec.parties:
        if key_of(party) in offers:
            continue
        entry = deployment.party_statuses.get(party.domain_id, {}).get(deployment_name(deployment, party))
        if entry is None or (entry.engine_ref and (entry.engine_ref != party.app_image_ref or not entry.engines)):
            yield key_of(party), None
        elif entry.engine_ref:
            yield key_of(party), entry.engines


def _hold(
    own: Sequence[PartyKey],
    pins: Mapping[PartyKey, DeployedEngine],
    group: Sequence[PartyKey],
    reported: Mapping[PartyKey, tuple[OfferedEngine, ...] | None],
    images: Mapping[str, AppImage],
) -> bool:
    """Whether what we are pinned to works with what the others say, as far as they do."""
    mine = [_offer_of(images[pins[key].app_image]) for key in own]
    theirs = [found for key in group if key not in own and (found := reported.get(key))]
    return all(any(speak(one, other) for other in offered) for one in mine for offered in theirs)


def _offer_of(image: AppImage) -> OfferedEngine:
    found = version_of(image)
    return OfferedEngine(version=found.version, speaks=found.speaks, protocols=found.protocols or None)


def _partners(
    deployment: KusciaDeployment,
    own: Mapping[PartyKey, str],
    reported: Mapping[PartyKey, tuple[OfferedEngine, ...] | None],
    images: Mapping[str, AppImage],
) -> dict[PartyKey, str]:
    """AppImages of ours for partners' parties of the same engine, of which names and ports of services are taken: that of their version where
    we have it, else our own."""
    by_engine = {version_of(images[name]).engine: name for name in own.values()}
    out: dict[PartyKey, str] = {}
    for party in deployment.spec.parties:
        engine = engine_named(party.app_image_ref)
        if key_of(party) in own or engine not in by_engine:
            continue
        stated = reported.get(key_of(party)) or ()
        same = newest_first(
            found
            for image in images.values()
            if (found := version_of(image)).engine == engine
            and found.version
            and found.version == (stated[0].version if stated else "")
        )
        out[key_of(party)] = same[0].app_image if same else by_engine[engine]
    return out
