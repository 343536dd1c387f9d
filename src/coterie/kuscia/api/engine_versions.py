"""Versions of engines: what AppImages say about themselves, what a job asks for, and what its parties agree on. Pure.

    task.appImage         psi>=0.5,<0.7                      engine and range, or the name of an AppImage as in Kuscia
    AppImage psi-0.6      coterie.io/engine: psi             which engine it is a version of
                          coterie.io/engine-version: 0.6.1   PEP 440
                          coterie.io/speaks: ">=0.5"         versions of other parties that it works with; none: all
                          coterie.io/protocols: "a/1,b/2"    parties need one in common where both name any

Each party offers what it has; all of them `choose` from the same offers, so they come to the same pins. The order of parties, of versions
and of words in a sentence follows from the job and the offers alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.meta import Model
from coterie.kube.api.types.nodes import Node
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_template import is_placeholder
from coterie.kuscia.api.job_statements import OfferedEngine, PartyStatement
from coterie.kuscia.api.types.job import AppImage, EnginePin, KusciaJobSpec, TaskTemplate

if TYPE_CHECKING:
    from packaging import specifiers, version
else:
    specifiers = lazy_import("packaging.specifiers")
    version = lazy_import("packaging.version")

MOST_OFFERS = 16
"""Versions of one engine that are taken from one party's statement: the first of them."""
_MOST_STEPS = 20_000
"""Combinations that are tried; a count and not a time, so that all parties give up alike."""
_LONGEST = 128
_SHOWN = 3
_OPERATOR = re.compile(r"[<>=!~]")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


class EngineRangeError(Exception):
    """Text that names no engine and range; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class EngineRange:
    """What a task's `appImage` asks for."""

    name: str
    """Of an engine, or of an AppImage."""
    versions: str = ""
    """`>=0.5,<0.7`; empty: any."""

    def __str__(self) -> str:
        return f"{self.name}{self.versions}"

    def contains(self, text: str) -> bool:
        """A version that is not known is in no range but the one of all versions."""
        return not self.versions or version_in(text, self.versions)


def parse_range(text: str) -> EngineRange:
    """`psi`, `psi>=0.5,<0.7`. Raises EngineRangeError. A name without a range is taken as it is: the server checks names."""
    found = _OPERATOR.search(text)
    if found is None:
        return EngineRange(text.strip())
    name, wanted = text[: found.start()].strip(), text[found.start() :].strip()
    if not _NAME.fullmatch(name):
        raise EngineRangeError(f'"{text[:_LONGEST]}" names no engine; write it as psi or psi>=0.5,<0.7')
    if fault := range_fault(wanted):
        raise EngineRangeError(fault)
    return EngineRange(name, wanted.replace(" ", ""))


def is_range(text: str) -> bool:
    """Whether it can only be an engine with a range: AppImages have no such names."""
    return _OPERATOR.search(text) is not None


def reference_fault(text: str) -> str:
    """What is wrong with the range of a task's `appImage`; names are not looked at."""
    try:
        parse_range(text)
    except EngineRangeError as problem:
        return str(problem)
    return ""


def engine_named(text: str) -> str:
    """The engine or AppImage; the text itself where it cannot be read."""
    try:
        return parse_range(text).name
    except EngineRangeError:
        return text


def range_fault(text: str) -> str:
    """Why it is no range of versions; empty: it is one."""
    if len(text) > _LONGEST or _specifiers(text) is None:
        return f'"{text[:_LONGEST]}" is no range of versions; write it as >=0.5,<0.7 (PEP 440)'
    return ""


def version_fault(text: str) -> str:
    if len(text) > _LONGEST or _version(text) is None:
        return f'"{text[:_LONGEST]}" is no version; write it as 0.6.1 (PEP 440)'
    return ""


def version_in(text: str, wanted: str) -> bool:
    """Also a pre-release, where the range does not exclude it: whoever installed one wants to use it."""
    found, allowed = _version(text), _specifiers(wanted)
    return found is not None and allowed is not None and allowed.contains(found, prereleases=True)


def newer(one: str, other: str) -> bool:
    """Unknown versions are the oldest."""
    return _order(one) > _order(other)


def _order(text: str) -> tuple[bool, version.Version]:
    found = _version(text)
    return found is not None, found or version.Version("0")


@lru_cache(maxsize=512)
def _version(text: str) -> version.Version | None:
    if len(text) > _LONGEST:
        return None
    try:
        return version.Version(text)
    except version.InvalidVersion:
        return None


@lru_cache(maxsize=512)
def _specifiers(text: str) -> specifiers.SpecifierSet | None:
    if len(text) > _LONGEST:
        return None
    try:
        return specifiers.SpecifierSet(text)
    except specifiers.InvalidSpecifier:
        return None


# What an AppImage says.


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """One AppImage as a version of an engine."""

    image: AppImage
    engine: str
    """The AppImage's own name where it does not say."""
    version: str = ""
    speaks: str = ""
    protocols: tuple[str, ...] = ()

    @property
    def app_image(self) -> str:
        return self.image.metadata.name


def version_of(image: AppImage) -> EngineVersion:
    """Annotations that cannot be read say nothing; `annotation_faults` tells whoever writes them."""
    stated = _annotated(image.metadata.annotations)
    name = stated.get(labels.COTERIE_ENGINE, "")
    number = stated.get(labels.COTERIE_ENGINE_VERSION, "")
    if not name or version_fault(number):
        return EngineVersion(image, image.metadata.name)
    speaks = stated.get(labels.COTERIE_SPEAKS, "")
    return EngineVersion(
        image,
        name,
        number,
        "" if speaks and range_fault(speaks) else speaks,
        _protocols(stated.get(labels.COTERIE_PROTOCOLS, "")),
    )


def _annotated(annotations: Mapping[str, str] | None) -> dict[str, str]:
    known = (labels.COTERIE_ENGINE, labels.COTERIE_ENGINE_VERSION, labels.COTERIE_SPEAKS, labels.COTERIE_PROTOCOLS)
    return {key: str(value).strip() for key in known if (value := (annotations or {}).get(key))}


def _protocols(text: str) -> tuple[str, ...]:
    return tuple(sorted({word.strip()[:_LONGEST] for word in text.split(",") if word.strip()}))[:MOST_OFFERS]


def annotation_faults(annotations: Mapping[str, str] | None) -> list[str]:
    """Sentences about what an AppImage says of its version; none: it can be used."""
    stated = _annotated(annotations)
    if not stated:
        return []
    out = []
    if not _NAME.fullmatch(stated.get(labels.COTERIE_ENGINE, "")):
        out.append(f"{labels.COTERIE_ENGINE}: names the engine, in lower-case letters, digits and dashes")
    if fault := version_fault(stated.get(labels.COTERIE_ENGINE_VERSION, "")):
        out.append(f"{labels.COTERIE_ENGINE_VERSION}: {fault}")
    speaks = stated.get(labels.COTERIE_SPEAKS, "")
    if speaks and (fault := range_fault(speaks)):
        out.append(f"{labels.COTERIE_SPEAKS}: {fault}")
    return out


def versions_named(
    text: str, images: Iterable[AppImage], pinned: Mapping[str, str] | None = None
) -> tuple[EngineVersion, ...]:
    """The AppImages that a task may mean, the newest first. `pinned`: ranges by engine, outside of which nothing is used here.
    An AppImage of exactly that name wins, unless it says itself that it is one version of an engine of that name."""
    try:
        wanted = parse_range(text)
    except EngineRangeError:
        return ()
    known = [version_of(image) for image in images]
    exact = next((each for each in known if each.app_image == wanted.name), None)
    if exact is not None and not wanted.versions and not (exact.version and exact.engine == wanted.name):
        return (exact,)
    allowed = EngineRange(wanted.name, (pinned or {}).get(wanted.name, ""))
    found = [
        each
        for each in known
        if each.version
        and each.engine == wanted.name
        and wanted.contains(each.version)
        and allowed.contains(each.version)
    ]
    return newest_first(found)


def names_versions(text: str, images: Iterable[AppImage]) -> bool:
    """Whether it means one of several versions, and not the AppImage of that name."""
    if is_range(text):
        return True
    known = [version_of(image) for image in images]
    exact = next((each for each in known if each.app_image == text), None)
    if exact is not None:
        return bool(exact.version and exact.engine == text)
    return any(each.version and each.engine == text for each in known)


def newest_first(found: Iterable[EngineVersion]) -> tuple[EngineVersion, ...]:
    """Of two with the same version, the one whose name comes first."""
    by_name = sorted(found, key=lambda each: each.app_image)
    return tuple(sorted(by_name, key=lambda each: _order(each.version), reverse=True))


def images_named(
    references: Iterable[str], images: Mapping[str, AppImage], pinned: Mapping[str, str] | None = None
) -> dict[str, AppImage]:
    """By what tasks write, the newest AppImage that it may mean; besides, all of `images` by name."""
    out = dict(images)
    for text in dict.fromkeys(references):
        exact = images.get(text)
        if exact is not None and labels.COTERIE_ENGINE not in (exact.metadata.annotations or {}):
            continue
        if found := versions_named(text, images.values(), pinned):
            out[text] = found[0].image
        elif text in out and not is_range(text):
            del out[text]  # it is pinned to versions that are not there
    return out


def missing_sentence(text: str, images: Iterable[AppImage]) -> str:
    """What is stated of a task whose engine is not here."""
    try:
        wanted = parse_range(text)
    except EngineRangeError as problem:
        return str(problem)
    known = {image.metadata.name: version_of(image) for image in images}
    there = newest_first(each for each in known.values() if each.version and each.engine == wanted.name)
    if there:
        numbers = ", ".join(dict.fromkeys(each.version for each in there))
        asked = f"in {wanted.versions}" if wanted.versions else "that may be used here (coterie engine pin)"
        return f"no version of the engine {wanted.name} is {asked}: there is {numbers} (coterie engine upgrade {wanted.name})"
    if wanted.versions:
        return f"there is no version of the engine {wanted.name}; `coterie engine versions` lists them"
    return f'there is no AppImage "{text}"'


# What a domain offers.


def as_offers(found: Iterable[EngineVersion], digests: Mapping[str, str]) -> tuple[OfferedEngine, ...]:
    """In the same order. `digests`: of the images that the domain's nodes have, by `name:tag`."""
    return tuple(
        OfferedEngine(
            version=each.version,
            digest=digest_of(each.image, digests),
            speaks=each.speaks,
            protocols=each.protocols or None,
        )
        for each in list(found)[:MOST_OFFERS]
    )


def digest_of(image: AppImage, digests: Mapping[str, str]) -> str:
    """What the AppImage requires, else what the nodes have; empty: unknown."""
    given = image.spec.image
    if given.id and not is_placeholder(given.id):
        return given.id if given.id.startswith("sha256:") else f"sha256:{given.id}"
    return digests.get(f"{given.name}:{given.tag}", "")


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A version that a domain of ours offers, and the AppImage that it is."""

    offer: OfferedEngine
    app_image: str


def local_engines(found: Sequence[EngineVersion], digests: Mapping[str, str]) -> tuple[LocalEngine, ...]:
    offers = as_offers(found, digests)
    return tuple(LocalEngine(offer, each.app_image) for offer, each in zip(offers, found, strict=False))


def pinned_image(pin: OfferedEngine, found: Iterable[LocalEngine]) -> str:
    """Our AppImage of a version that was agreed on: that with the agreed content where several have the version. Empty: it is gone."""
    same = [each for each in found if each.offer.version == pin.version]
    exact = [each for each in same if each.offer.digest == pin.digest]
    return next((each.app_image for each in (*exact, *same)), "")


def node_digests(domain: str, nodes: Iterable[Node]) -> dict[str, str]:
    """Of the images that the domain's nodes have, by `name:tag`; not of those of which nodes have different ones."""
    found: dict[str, str] = {}
    for node in nodes:
        if (node.metadata.labels or {}).get(labels.KUSCIA_NODE_NAMESPACE) != domain:
            continue
        for image in node.status.images or ():
            names = image.names or ()
            digest = next((each.partition("@")[2] for each in names if "@" in each), "")
            for name in names:
                if "@" not in name and digest:
                    found[name] = digest if found.get(name, digest) == digest else ""
    return {name: digest for name, digest in found.items() if digest}


def engine_pins(
    spec: KusciaJobSpec,
    statements: Mapping[str, PartyStatement],
    engines: Mapping[tuple[str, str], Sequence[LocalEngine]],
) -> dict[str, dict[str, EnginePin]]:
    """What a job whose parties all agree is pinned to, by alias and party. `engines`: of our domains, by party and alias."""
    return {
        alias: {
            party: EnginePin(
                version=pin.version,
                digest=pin.digest,
                app_image=pinned_image(pin, engines.get((party, alias), ())),
            )
            for party, pin in choice.pins.items()
        }
        for alias, choice in agreed_engines(spec, statements).items()
        if choice.pins
    }


def engine_mismatch(spec: KusciaJobSpec, statements: Mapping[str, PartyStatement]) -> str:
    """Why the parties cannot run the job together, as far as their statements are known; empty: they can."""
    choices = agreed_engines(spec, statements)
    found = dict.fromkeys(f"task {alias}: {choice.problem}" for alias, choice in choices.items() if choice.problem)
    return "; ".join(list(found)[:_SHOWN])


# What deployments are pinned to.


class DeployedEngine(Model, frozen=True, kw_only=True):
    """The version that one party of a deployment of ours runs."""

    ref: str = ""
    """The `appImageRef` that it was chosen for."""
    app_image: str
    version: str = ""


_deployed_decoder = msgspec.json.Decoder(dict[str, DeployedEngine])


def deployed_engines(annotations: Mapping[str, str] | None) -> dict[str, DeployedEngine]:
    """Of a KusciaDeployment, by `domain` or `domain/role`; nothing when nobody can read it."""
    text = (annotations or {}).get(labels.COTERIE_DEPLOYED_ENGINES, "")
    try:
        return _deployed_decoder.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}


# What parties agree on.


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What each party runs, or why there is nothing that all can run."""

    pins: Mapping[str, OfferedEngine] = field(default_factory=dict)
    """By party; parties that offer nothing (a Kuscia) are not in it."""
    problem: str = ""


def agreed_engines(spec: KusciaJobSpec, statements: Mapping[str, PartyStatement]) -> dict[str, EngineChoice]:
    """By the task's alias. Parties without a statement do not narrow the choice, so a problem that is found with some of the statements stays
    one with all of them."""
    return {task.alias: choose(_range_of(task), offers_for(spec.initiator, task, statements)) for task in spec.tasks}


def _range_of(task: TaskTemplate) -> EngineRange:
    try:
        return parse_range(task.app_image)
    except EngineRangeError:
        return EngineRange(task.app_image)


def offers_for(
    initiator: str, task: TaskTemplate, statements: Mapping[str, PartyStatement]
) -> dict[str, tuple[OfferedEngine, ...]]:
    """Of the parties that say what they have: the initiator first, then in the order of the task."""
    parties = dict.fromkeys(party.domain_id for party in task.parties)
    ordered = [*([initiator] if initiator in parties else []), *(name for name in parties if name != initiator)]
    out = {}
    for name in ordered:
        stated = ((statements.get(name) or PartyStatement()).tasks or {}).get(task.alias)
        if stated is not None and stated.engines:
            out[name] = stated.engines
    return out


def choose(wanted: EngineRange, offers: Mapping[str, Sequence[OfferedEngine]]) -> EngineChoice:
    """The newest version of the first party for which each other party has one in the range, each speaking to each other, with a
    protocol in common; of the others the newest such, in their order."""
    candidates = {party: _candidates(wanted, offered) for party, offered in offers.items()}
    if lacking := [party for party, found in candidates.items() if not found]:
        return EngineChoice(problem=_lacking(wanted, offers, lacking))
    steps = iter(range(_MOST_STEPS))
    try:
        chosen = _search(list(candidates.values()), [], steps)
    except StopIteration:
        return EngineChoice(problem=f"the parties have too many versions of {wanted.name} to compare; remove old ones")
    if chosen is None:
        return EngineChoice(problem=_unspoken(wanted, candidates))
    return EngineChoice(dict(zip(candidates, chosen, strict=True)))


def _candidates(wanted: EngineRange, offered: Sequence[OfferedEngine]) -> list[OfferedEngine]:
    """In the range and readable, the newest first. What cannot be read is not offered."""
    usable = [
        each
        for each in offered[:MOST_OFFERS]
        if wanted.contains(each.version)
        and (not each.version or _version(each.version) is not None)
        and (not each.speaks or _specifiers(each.speaks) is not None)
    ]
    stable = sorted(dict.fromkeys(usable), key=lambda each: (each.digest, each.speaks, each.protocols or ()))
    return sorted(stable, key=lambda each: _order(each.version), reverse=True)


def _search(
    left: Sequence[Sequence[OfferedEngine]], taken: list[OfferedEngine], steps: Iterator[int]
) -> list[OfferedEngine] | None:
    if not left:
        return taken
    for each in left[0]:
        next(steps)
        if all(speak(each, other) for other in taken):
            found = _search(left[1:], [*taken, each], steps)
            if found is not None:
                return found
    return None


def speak(one: OfferedEngine, other: OfferedEngine) -> bool:
    """Whether they work together, as both say. A version that is not known is taken to."""
    return _takes(one, other) and _takes(other, one) and _share_protocol(one, other)


def _takes(one: OfferedEngine, other: OfferedEngine) -> bool:
    return not one.speaks or not other.version or version_in(other.version, one.speaks)


def _share_protocol(one: OfferedEngine, other: OfferedEngine) -> bool:
    return not one.protocols or not other.protocols or not set(one.protocols).isdisjoint(other.protocols)


# Sentences.


def _numbers(found: Iterable[OfferedEngine]) -> str:
    known = dict.fromkeys(each.version or "an unknown version" for each in found)
    return ", ".join(known)


def _have(offers: Mapping[str, Sequence[OfferedEngine]]) -> str:
    """`alice has 1.14, bob 1.11`."""
    shown = [(party, _numbers(found) or "none") for party, found in offers.items()]
    joint = "; " if any("," in numbers for _, numbers in shown) else ", "
    return joint.join(f"{party} {'has ' if not at else ''}{numbers}" for at, (party, numbers) in enumerate(shown))


def _add(party: str, wanted: EngineRange, what: str) -> str:
    return f"{party} must add {what} (coterie engine upgrade {wanted.name})"


def _lacking(wanted: EngineRange, offers: Mapping[str, Sequence[OfferedEngine]], lacking: Sequence[str]) -> str:
    has = _have({party: offered[:MOST_OFFERS] for party, offered in offers.items()})
    asked = f"the job asks for {wanted.name} {wanted.versions}" if wanted.versions else "versions that can be read"
    who = " and ".join(lacking)
    return f"{has}; {asked}: {_add(who, wanted, f'{wanted.name} {wanted.versions}'.strip())}"


def _unspoken(wanted: EngineRange, candidates: Mapping[str, Sequence[OfferedEngine]]) -> str:
    """Names the first two parties that have no versions which speak to each other."""
    has = _have(candidates)
    parties = list(candidates)
    for at, party in enumerate(parties):
        for earlier in parties[:at]:
            pairs = ((one, other) for one in candidates[earlier] for other in candidates[party])
            if not any(speak(one, other) for one, other in pairs):
                return f"{has}; {_pair(wanted, earlier, candidates[earlier][0], party, candidates[party][0])}"
    return f"{has}; no choice of one version each speaks to all others: {_add(parties[-1], wanted, 'a newer version')}"


def _pair(wanted: EngineRange, one_party: str, one: OfferedEngine, other_party: str, other: OfferedEngine) -> str:
    """Of the newest of both. Who has the older one must act."""
    if newer(other.version, one.version):
        one_party, one, other_party, other = other_party, other, one_party, one
    name = wanted.name
    if not _takes(one, other):
        step = _add(other_party, wanted, f"{name} {one.speaks}")
        return f"{name} {one.version} speaks {one.speaks}: {step}"
    if not _takes(other, one):
        step = _add(other_party, wanted, f"a version that speaks to {one.version}")
        return f"{name} {other.version} speaks {other.speaks}: {step}"
    ours, theirs = ", ".join(one.protocols or ()), ", ".join(other.protocols or ())
    step = _add(other_party, wanted, f"a version with one of {ours}")
    return f"{name} {one.version} speaks {ours} and {other.version} speaks {theirs}: {step}"


# Pins of a domain.


def parse_pins(text: str) -> dict[str, str]:
    """Of a Domain's annotation: `psi==0.6; secretflow>=1.11` -> range by engine. What cannot be read pins nothing."""
    out: dict[str, str] = {}
    for part in text.split(";"):
        try:
            found = parse_range(part.strip())
        except EngineRangeError:
            continue
        if found.name and found.versions:
            out[found.name] = found.versions
    return out


def pins_text(pins: Mapping[str, str]) -> str:
    return "; ".join(f"{name}{wanted}" for name, wanted in sorted(pins.items()))
