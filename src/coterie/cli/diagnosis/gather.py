"""Finds out all that `judge.py` judges: measures from the gateways of this machine, and asks the others to measure theirs.

source of the link      who measures
on this machine         we, through its gateway
elsewhere               it does, if the destination is on this machine and asks it (`reverse`)
elsewhere, both ends    the source, if a domain of this machine has told both the same number (`pair`)
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from coterie.base import pki
from coterie.base.clock import Clock
from coterie.base.pki import PkiError
from coterie.cli.diagnosis.judge import link_findings, party_findings
from coterie.cli.diagnosis.model import (
    GraphResult,
    JobNeeds,
    Link,
    LinkFacts,
    LinkResult,
    LinkThresholds,
    Measured,
    PartyAnswer,
    PartyNeeds,
    PartyResult,
)
from coterie.kube.api.errors import ApiError
from coterie.kube.client.client import Client
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.gateway.diagnosis.link_probe import PartnerLinkProbe
from coterie.kuscia.gateway.diagnosis.messages import FactsRequest, LinkReport, PartyFacts, ProbePlan
from coterie.kuscia.gateway.diagnosis.party_facts import PartyFactsSource
from coterie.kuscia.routes import check, probe, reachability
from coterie.kuscia.routes.facts import Finding

NOTHING = ProbePlan(False, False, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Vantage:
    """Where we can look from: the gateways of this machine, and a control plane."""

    root: Path
    gateways: Mapping[str, Path]
    """The sockets of those that run here, by domain."""
    client: Client | None = None
    """None: on the machine of a lite, which has no control plane."""
    hint: str = ""
    version: str = ""

    @property
    def observer(self) -> str:
        return next(iter(self.gateways), "")


def local_gateways(root: Path, parties: Iterable[str]) -> dict[str, Path]:
    """Those of the parties first; of others only if no party is here."""
    found: dict[str, Path] = {}
    others = sorted(path.parent.name for path in root.glob("*/var"))
    for name in dict.fromkeys((*parties, *others)):
        if found and name not in parties:
            break
        home = probe.home_of(root, name)
        socket = reachability.node_socket(home) if home is not None else None
        if socket is not None and socket.exists():
            found[name] = socket
    return found


@dataclass(slots=True)
class GraphProbe:
    vantage: Vantage
    clock: Clock
    progress: Callable[[str, float | None], None]
    """What is done now, and how much of it all is done."""
    number: str = field(default_factory=lambda: secrets.token_hex(16))
    _announced: set[str] = field(default_factory=set)

    async def run(self, needs: JobNeeds, plan: ProbePlan, idle: float, thresholds: LinkThresholds) -> GraphResult:
        facts = {}
        for number, link in enumerate(needs.links):
            self.progress(f"measuring {link}", number / len(needs.links))
            facts[link] = await self._link(link, plan)
        if idle > 0:
            self.progress(f"waiting {idle:g} s on all links at once: do silent calls live that long?", None)
            facts = await self._with_idle(facts, idle)
        links = tuple(LinkResult(each, tuple(link_findings(each, needs, plan, thresholds))) for each in facts.values())
        return GraphResult(links, await self._parties(needs))

    async def _link(self, link: Link, plan: ProbePlan) -> LinkFacts:
        here = link.source in self.vantage.gateways
        measured, report = await self._measure(link, plan)
        route = await self._route(link) if here else ()
        return LinkFacts(link, measured, report, tuple(route), _fingerprint(self.vantage.root, link.source))

    async def _measure(self, link: Link, plan: ProbePlan) -> tuple[Measured, LinkReport | None]:
        gateways = self.vantage.gateways
        if link.source in gateways:
            async with PartnerLinkProbe(gateways[link.source], link.source, link.destination) as own:
                return Measured.HERE, await own.measure(plan)
        if link.destination in gateways:
            async with PartnerLinkProbe(gateways[link.destination], link.destination, link.source) as partner:
                report = await partner.reverse(plan)
            return (Measured.SOURCE if report is not None else Measured.NOBODY), report
        observer = self.vantage.observer
        if not observer:
            return Measured.NOBODY, None
        if not await self._announce(observer, link.destination):
            return Measured.NOBODY, None
        async with PartnerLinkProbe(gateways[observer], observer, link.source) as partner:
            answer = await partner.pair(link.destination, self.number, plan)
        if answer is None:
            return Measured.NOBODY, None
        # The destination has taken the number from us, so its source did not get there.
        unreached = LinkReport(problem=f"{link.source} says that it does not reach {link.destination}")
        return Measured.SOURCE, answer.report if answer.report is not None else unreached

    async def _announce(self, observer: str, domain: str) -> bool:
        if domain in self._announced:
            return True
        async with PartnerLinkProbe(self.vantage.gateways[observer], observer, domain) as partner:
            if not await partner.announce(self.number):
                return False
        self._announced.add(domain)
        return True

    async def _with_idle(self, facts: Mapping[Link, LinkFacts], seconds: float) -> dict[Link, LinkFacts]:
        """A source measures one link at a time for us, several sources at once."""
        by_source: dict[str, list[LinkFacts]] = {}
        for each in facts.values():
            by_source.setdefault(each.link.source, []).append(each)
        plan = msgspec.structs.replace(NOTHING, idle_seconds=seconds)

        async def one(each: LinkFacts) -> LinkFacts:
            if each.report is None or not each.report.endpoint:
                return each
            _, report = await self._measure(each.link, plan)
            if report is None or not report.endpoint:
                return each
            idle = {name: getattr(report, name) for name in ("idle_held", "idle_cut", "idle_problem")}
            return replace(each, report=msgspec.structs.replace(each.report, **idle))

        async def of_source(source: str, links: list[LinkFacts]) -> list[LinkFacts]:
            if source in self.vantage.gateways:
                return list(await asyncio.gather(*map(one, links)))
            return [await one(each) for each in links]

        found = await asyncio.gather(*(of_source(*each) for each in by_source.items()))
        done = {each.link: each for group in found for each in group}
        return {link: done[link] for link in facts}

    async def _route(self, link: Link) -> list[Finding]:
        vantage = self.vantage
        if vantage.client is None or not await _hosted(vantage.client, link.source):
            return []
        home = probe.home_of(vantage.root, link.source)
        asked = probe.ProbeRequest(link.source, link.destination, home=home, hint=vantage.hint)
        return check.diagnose(await probe.gather(vantage.client, asked, self.clock))

    # Parties.

    async def _parties(self, needs: JobNeeds) -> tuple[PartyResult, ...]:
        if not needs.by_party:
            return ()
        answers = [await self._answer(party, needs.by_party.get(party, PartyNeeds())) for party in needs.parties]
        reference = next((each.facts for each in answers if each.own and each.facts is not None), PartyFacts())
        return tuple(
            PartyResult(
                each.party,
                tuple(party_findings(each, needs.by_party.get(each.party, PartyNeeds()), reference.engines)),
            )
            for each in answers
        )

    async def _answer(self, party: str, needs: PartyNeeds) -> PartyAnswer:
        asked = FactsRequest(needs.engines, needs.cpu_milli, needs.memory)
        client = self.vantage.client
        if client is not None and await _hosted(client, party):
            facts = await PartyFactsSource(client, party, self.vantage.version).facts(asked)
            return PartyAnswer(party, facts, own=True)
        for name, socket in self.vantage.gateways.items():
            if name != party:
                async with PartnerLinkProbe(socket, name, party) as partner:
                    return PartyAnswer(party, await partner.facts(asked))
        return PartyAnswer(party)


async def _hosted(client: Client, party: str) -> bool:
    try:
        domain: Domain = await client.get(DOMAINS, party)
    except ApiError:
        return False
    return is_own(domain)


def _fingerprint(root: Path, domain: str) -> str:
    home = probe.home_of(root, domain)
    if home is None:
        return ""
    try:
        return pki.fingerprint(pki.load_certificate(home.domain_certificate.read_bytes()))
    except (OSError, PkiError):
        return ""
