"""Versions of engines on the command line: which there are here and at partners, which new jobs use, who still uses old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from coterie.cli import manifests
from coterie.cli.app import App, CliError
from coterie.cli.output import as_text
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_versions import (
    EngineRange,
    EngineRangeError,
    deployed_engines,
    digest_of,
    engine_named,
    newest_first,
    node_digests,
    parse_pins,
    parse_range,
    pins_text,
    range_fault,
    version_fault,
    version_of,
    versions_named,
)
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS, KusciaDeployment
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, AppImage, KusciaJob

COLUMNS = ("ENGINE", "VERSION", "DOMAIN", "APPIMAGE", "DIGEST", "SPEAKS", "PROTOCOLS", "JOBS", "NEW JOBS")
ANY = "any"
_DIGITS = 19
"""`sha256:` and twelve digits."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """What a control plane knows about versions of engines."""

    images: tuple[AppImage, ...]
    domains: Mapping[str, Domain]
    nodes: tuple[Node, ...] = ()
    jobs: tuple[KusciaJob, ...] = ()
    deployments: tuple[KusciaDeployment, ...] = ()

    @property
    def own(self) -> list[str]:
        return sorted(name for name, domain in self.domains.items() if is_own(domain))

    def pins(self, domain: str) -> dict[str, str]:
        annotations = self.domains[domain].metadata.annotations or {}
        return parse_pins(annotations.get(labels.COTERIE_ENGINE_PINS, ""))


@dataclass(frozen=True, slots=True)
class VersionRow:
    engine: str
    version: str
    domain: str
    """Of a partner; empty: here."""
    app_image: str = ""
    digest: str = ""
    speaks: str = ""
    protocols: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """That have not ended and are pinned to it, also deployments; of a partner, the job that it said so in."""
    used: bool = False
    """Whether new jobs may use it."""

    @property
    def cells(self) -> tuple[str, ...]:
        more = f" +{len(self.jobs) - _SHOWN}" if len(self.jobs) > _SHOWN else ""
        return (
            self.engine,
            self.version or "<unknown>",
            self.domain or "here",
            self.app_image or "<none>",
            self.digest[:_DIGITS] or "<unknown>",
            self.speaks or "<all>",
            ",".join(self.protocols) or "<any>",
            ",".join(self.jobs[:_SHOWN]) + more or "<none>",
            "" if self.domain else "yes" if self.used else "no (pinned)",
        )


async def read(session: CliSession) -> KnownVersions:
    """Nodes and jobs where the person may see them."""
    client = session.client
    images = (await client.list(APP_IMAGES)).items
    domains = {each.metadata.name: each for each in (await client.list(DOMAINS)).items}
    try:
        nodes = (await client.list(NODES)).items
        jobs = (await client.list(KUSCIA_JOBS, CROSS_DOMAIN)).items
        deployments = (await client.list(KUSCIA_DEPLOYMENTS, CROSS_DOMAIN)).items
    except Forbidden:
        return KnownVersions(tuple(images), domains)
    return KnownVersions(tuple(images), domains, tuple(nodes), tuple(jobs), tuple(deployments))


# Rows. Pure.


def rows_here(known: KnownVersions, engine: str = "") -> list[VersionRow]:
    """By engine, the newest first."""
    digests: dict[str, set[str]] = {}
    for domain in known.own:
        for name, digest in node_digests(domain, known.nodes).items():
            digests.setdefault(name, set()).add(digest)
    agreed = {name: next(iter(found)) for name, found in digests.items() if len(found) == 1}
    out = []
    for each in newest_first(map(version_of, known.images)):
        if engine and engine not in (each.engine, each.app_image):
            continue
        ranges = [known.pins(domain).get(each.engine, "") for domain in known.own]
        used = not each.version or all(EngineRange(each.engine, text).contains(each.version) for text in ranges)
        out.append(
            VersionRow(
                each.engine,
                each.version,
                "",
                each.app_image,
                digest_of(each.image, agreed),
                each.speaks,
                each.protocols,
                (*pinned_jobs(known.jobs, each.app_image), *pinned_deployments(known.deployments, each.app_image)),
                used,
            )
        )
    return sorted(out, key=lambda row: row.engine)


def pinned_jobs(jobs: Iterable[KusciaJob], app_image: str) -> tuple[str, ...]:
    return tuple(
        sorted(
            job.metadata.name
            for job in jobs
            if job.status.completion_time is None
            and any(
                pin.app_image == app_image
                for parties in (job.status.engine_pins or {}).values()
                for pin in parties.values()
            )
        )
    )


def pinned_deployments(deployments: Iterable[KusciaDeployment], app_image: str) -> tuple[str, ...]:
    return tuple(
        sorted(
            f"deployment/{each.metadata.name}"
            for each in deployments
            if any(pin.app_image == app_image for pin in deployed_engines(each.metadata.annotations).values())
        )
    )


def rows_of_partners(known: KnownVersions, engine: str = "") -> list[VersionRow]:
    """What partners offered for the newest job in which they offered the engine: they say no more than that."""
    found: dict[tuple[str, str], tuple[str, list[VersionRow]]] = {}
    for job in known.jobs:
        for party, statement in (job.status.party_statements or {}).items():
            if party in known.own:
                continue
            for task in job.spec.tasks:
                name = engine_named(task.app_image)
                stated = (statement.tasks or {}).get(task.alias)
                made = job.metadata.creation_timestamp or ""
                before = found.get((name, party))
                if stated is None or not stated.engines or (engine and engine != name):
                    continue
                if before is None or made > before[0]:
                    rows = [
                        VersionRow(
                            name,
                            each.version,
                            party,
                            "",
                            each.digest,
                            each.speaks,
                            each.protocols or (),
                            (job.metadata.name,),
                        )
                        for each in stated.engines
                    ]
                    found[name, party] = (made, rows)
    return [row for _, rows in (found[key] for key in sorted(found)) for row in rows]


def as_json(rows: Sequence[VersionRow], output: str) -> str:
    return as_text([{_KEYS.get(key, key): value for key, value in asdict(row).items()} for row in rows], output)


_KEYS = {"app_image": "appImage", "used": "usedByNewJobs"}


# Pins.


def pin_range(text: str) -> str:
    """`0.6` means exactly that version, `any` all. CliError for anything else that is no range."""
    if text == ANY:
        return ""
    wanted = text if text[:1] in "<>=!~" else f"=={text}"
    if fault := range_fault(wanted):
        raise CliError(f"Error: {fault}, or as a version, or `any`")
    return wanted


async def set_pin(session: CliSession, known: KnownVersions, engine: str, wanted: str) -> None:
    """For all domains of this control plane. An empty range lifts the pin."""
    for domain in known.own:
        pins = {name: text for name, text in known.pins(domain).items() if name != engine}
        pins |= {engine: wanted} if wanted else {}
        annotations: dict[str, str | None] = {labels.COTERIE_ENGINE_PINS: pins_text(pins) or None}
        await session.client.patch(DOMAINS.as_dynamic, domain, "", {"metadata": {"annotations": annotations}})


async def pin(session: CliSession, engine: str, text: str) -> int:
    known = await read(session)
    wanted = pin_range(text)
    there = _versions(known, engine)
    fitting = [number for number in there if EngineRange(engine, wanted).contains(number)]
    if not fitting:
        raise CliError(
            f"Error: no version of {engine} here is in {wanted}: there is {', '.join(there)}; "
            f"`coterie engine upgrade {engine}` or `coterie engine add FILE` adds one"
        )
    await set_pin(session, known, engine, wanted)
    if wanted:
        session.app.say(f"new jobs use {engine} {wanted} here: {', '.join(fitting)}; jobs that run keep theirs")
    else:
        session.app.say(f"new jobs use any version of {engine} here: {', '.join(fitting)}")
    return 0


def _versions(known: KnownVersions, engine: str) -> list[str]:
    """Numbers, the newest first. CliError where there is none."""
    found = newest_first(each for each in map(version_of, known.images) if each.version and each.engine == engine)
    if not found:
        raise CliError(f'Error: there is no version of an engine "{engine}" here; `coterie engine versions` lists them')
    return list(dict.fromkeys(each.version for each in found))


async def use_version(session: CliSession, engine: str, wanted: str) -> int:
    """New jobs use this version, or the newest where none is named; says who still uses others."""
    known = await read(session)
    there = _versions(known, engine)
    if wanted and wanted not in there:
        lacking = f"there is no version {wanted} of {engine} here: there is {', '.join(there)}"
        raise CliError(f"Error: {version_fault(wanted) or lacking}; add its AppImage first: coterie engine add FILE")
    chosen = wanted or there[0]
    await set_pin(session, known, engine, f"=={chosen}" if chosen != there[0] else "")
    session.app.say(f"new jobs use {engine} {chosen} here")
    for row in rows_here(known, engine):
        if row.engine == engine and row.version != chosen:
            jobs = f"; used by {', '.join(row.jobs[:_SHOWN])} until they end" if row.jobs else ""
            session.app.say(
                f"{row.app_image} ({row.version}) stays{jobs}; coterie engine rm {row.app_image} removes it"
            )
    return 0


async def pin_job_files(session: CliSession, files: list[str], app: App) -> int:
    """Writes the jobs with exact versions in place of ranges: the newest that new jobs may use here."""
    known = await read(session)
    pins = known.pins(known.own[0]) if known.own else {}
    for manifest in manifests.read(files, app):
        if manifest.kind != "KusciaJob":
            raise CliError(f"Error: {manifest.place}: a {manifest.kind} has no engines to pin")
        app.write(as_text(_with_versions(manifest.object, known.images, pins, manifest.place), "yaml"))
    return 0


def _with_versions(job: Object, images: Sequence[AppImage], pins: Mapping[str, str], place: str) -> Object:
    spec = msgspec.convert(job, KusciaJob, strict=False).spec
    tasks: list[Any] = []
    for given, task in zip(job["spec"]["tasks"], spec.tasks, strict=True):
        try:
            name = parse_range(task.app_image).name
        except EngineRangeError as problem:
            raise CliError(f"Error: {place}: task {task.alias}: {problem}") from problem
        found = versions_named(task.app_image, images, pins)
        if not found:
            raise CliError(f"Error: {place}: task {task.alias}: nothing here is {task.app_image}")
        exact = {"appImage": f"{name}=={found[0].version}"} if found[0].engine == name and found[0].version else {}
        tasks.append({**given, **exact})
    return {**job, "spec": {**job["spec"], "tasks": tasks}}
