"""What is examined before a job, and what was found: plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import permutations
from typing import Any

from coterie.kube.api import quantity
from coterie.kuscia.api.types.job import AppImage, KusciaJob
from coterie.kuscia.gateway.diagnosis.messages import LinkReport, PartyFacts
from coterie.kuscia.routes.facts import CheckOutcome, Finding

MIB = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Link:
    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.destination}"


class Measured(StrEnum):
    """Who measured a link."""

    HERE = "here"
    """Through the gateway of its source, on this machine."""
    SOURCE = "source"
    """Its source, because we asked."""
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class LinkThresholds:
    """Kuscia's defaults."""

    rtt_ms: float = 50.0
    bits_per_second: float = 10e6
    body_bytes: int = MIB


@dataclass(frozen=True, slots=True)
class PartyNeeds:
    """What a job wants of one party."""

    cpu_milli: int = 0
    memory: int = 0
    engines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobNeeds:
    parties: tuple[str, ...]
    links: tuple[Link, ...]
    grpc: bool = False
    """An engine talks gRPC, so a link that cannot carry it is broken."""
    by_party: Mapping[str, PartyNeeds] = field(default_factory=dict)

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.by_party.values() for name in each.engines))


def every_pair(parties: Iterable[str]) -> JobNeeds:
    chosen = tuple(dict.fromkeys(parties))
    return JobNeeds(chosen, tuple(Link(*each) for each in permutations(chosen, 2)))


def needs_of_job(job: KusciaJob, app_images: Mapping[str, AppImage]) -> JobNeeds:
    """Parties of the same task call each other; what each of them needs is that of its largest task."""
    links: dict[Link, None] = {}
    by_party: dict[str, PartyNeeds] = {}
    for task in job.spec.tasks:
        domains = dict.fromkeys(party.domain_id for party in task.parties)
        links |= dict.fromkeys(Link(*each) for each in permutations(domains, 2))
        for party in task.parties:
            before = by_party.get(party.domain_id, PartyNeeds())
            asked = (party.resources.requests or party.resources.limits or {}) if party.resources else {}
            by_party[party.domain_id] = PartyNeeds(
                max(before.cpu_milli, quantity.parse(asked.get("cpu", "0")).milli_value()),
                max(before.memory, quantity.parse(asked.get("memory", "0")).value()),
                tuple(dict.fromkeys((*before.engines, task.app_image))),
            )
    used = {name for each in by_party.values() for name in each.engines}
    grpc = any(talks_grpc(image) for name, image in app_images.items() if name in used)
    return JobNeeds(job.spec.party_domains, tuple(links), grpc, by_party)


def talks_grpc(image: AppImage) -> bool:
    """Whether a port that partners call is a gRPC port."""
    return any(
        str(port.get("protocol", "")).upper().startswith("GRPC") and port.get("scope", "Cluster") == "Cluster"
        for template in image.spec.deploy_templates
        for container in template.spec.get("containers") or ()
        for port in container.get("ports") or ()
    )


@dataclass(frozen=True, slots=True)
class LinkFacts:
    link: Link
    measured: Measured = Measured.NOBODY
    report: LinkReport | None = None
    route: tuple[Finding, ...] = ()
    """What `coterie route check` finds; empty where the source's gateway is elsewhere."""
    fingerprint: str = ""
    """Of the source's certificate, where it is known."""


@dataclass(frozen=True, slots=True)
class PartyAnswer:
    """`facts` None: it does not say."""

    party: str
    facts: PartyFacts | None = None
    own: bool = False
    """Hosted by the control plane that the command talks to."""


@dataclass(frozen=True, slots=True)
class LinkResult:
    facts: LinkFacts
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        return overall(self.findings)

    def document(self) -> dict[str, Any]:
        report = self.facts.report
        return {
            "source": self.facts.link.source,
            "destination": self.facts.link.destination,
            "status": self.status,
            "measuredBy": str(self.facts.measured),
            "report": report_document(report) if report is not None else None,
            "findings": [each.document() for each in self.findings],
        }


@dataclass(frozen=True, slots=True)
class PartyResult:
    party: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        return overall(self.findings)

    def document(self) -> dict[str, Any]:
        return {
            "party": self.party,
            "status": self.status,
            "findings": [each.document() for each in self.findings],
        }


@dataclass(frozen=True, slots=True)
class GraphResult:
    links: tuple[LinkResult, ...]
    parties: tuple[PartyResult, ...]

    @property
    def ok(self) -> bool:
        return FAILED not in (*(each.status for each in self.links), *(each.status for each in self.parties))

    def document(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "links": [each.document() for each in self.links],
            "parties": [each.document() for each in self.parties],
        }


FAILED, DEGRADED, PARTIAL, HEALTHY = "Failed", "Degraded", "Partial", "Healthy"


def overall(findings: Iterable[Finding]) -> str:
    """Partial: nothing is wrong with what is known, but not all is known."""
    verdicts = {each.verdict for each in findings}
    if CheckOutcome.WRONG in verdicts:
        return FAILED
    if CheckOutcome.WARNING in verdicts:
        return DEGRADED
    return PARTIAL if CheckOutcome.UNKNOWN in verdicts else HEALTHY


def report_document(report: LinkReport) -> dict[str, Any]:
    names = {name: report.__struct_encode_fields__[at] for at, name in enumerate(report.__struct_fields__)}
    return {names[name]: getattr(report, name) for name in names}
