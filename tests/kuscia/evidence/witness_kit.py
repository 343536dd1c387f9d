"""Domains whose control planes witness each other's logs, connected by a network in memory that authenticates who calls."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base.clock import VirtualClock
from coterie.base.paths import DomainPaths
from coterie.http.messages import Request
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.evidence.domain_log import DomainLog
from coterie.kuscia.evidence.service import EvidenceService, evidence_directory
from coterie.kuscia.evidence.witness import LogFinding
from coterie.kuscia.evidence.witness_exchange import WitnessAnswer, WitnessExchange
from coterie.kuscia.evidence.witness_inbox import PartnerLogs, WitnessInbox
from coterie.kuscia.evidence.witness_store import WITNESS_FILE, WitnessStore
from coterie.kuscia.identity import domain_identity

CALLER = "kuscia-origin-source"
CREATED = EventRequest(event=EvidenceEvent(kind=evidence.JOB_CREATED, job="j"))
Intercept = Callable[[str, str, str, bytes], Awaitable[WitnessAnswer | None]]
"""Sender, receiver, path, body: an answer instead of the receiver's."""


@dataclass
class WitnessingDomain:
    name: str
    service: EvidenceService
    store: WitnessStore
    logs: PartnerLogs
    inbox: WitnessInbox
    exchange: WitnessExchange
    found: list[LogFinding] = field(default_factory=list)

    @property
    def log(self) -> DomainLog:
        assert self.service.log is not None
        return self.service.log

    def kinds(self, prefix: str = "") -> list[str]:
        events = [evidence.decode(each.body or b"") for each in self.log.file.events()]
        return [each.kind for each in events if each.kind.startswith(prefix)]

    async def add(self, count: int = 1) -> None:
        await self.service.record(*[CREATED] * count)


class WitnessNet:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.domains: dict[str, WitnessingDomain] = {}
        self.keys: dict[str, rsa.RSAPublicKey] = {}
        self.sent: list[tuple[str, str, str, int]] = []
        self.intercept: Intercept | None = None
        self.away: set[str] = set()

    def transport(self, sender: str) -> NetTransport:
        return NetTransport(self, sender)

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[list[WitnessingDomain]]:
        tasks = []
        made = []
        for name in names:
            paths = DomainPaths.of(self.root, name)
            paths.prepare()
            self.keys[name] = domain_identity.ensure(paths, name, None, self.clock.now()).key.public_key()
            service = EvidenceService(paths, name, self.root / f"{name}.s", self.clock)
            tasks.append(asyncio.ensure_future(service.run()))
            await asyncio.wait_for(service.ready.wait(), 30)
            made.append(self._domain(name, service))
        try:
            yield made
        finally:
            for domain in made:
                domain.service.stop()
                domain.store.close()
            for task in tasks:
                await asyncio.wait_for(task, 30)

    def _domain(self, name: str, service: EvidenceService) -> WitnessingDomain:
        store = WitnessStore(evidence_directory(service.paths) / WITNESS_FILE)
        found: list[LogFinding] = []
        logs = PartnerLogs(service, store, self.keys.get, self.clock, on_finding=found.append)
        inbox = WitnessInbox(logs, service, CALLER, self.clock)
        exchange = WitnessExchange(service, logs, self.transport(name), self.clock)
        made = WitnessingDomain(name, service, store, logs, inbox, exchange, found)
        self.domains[name] = made
        return made


class NetTransport:
    def __init__(self, net: WitnessNet, sender: str) -> None:
        self._net = net
        self._sender = sender

    async def close(self) -> None:
        return None

    async def post(self, partner: str, path: str, body: bytes) -> WitnessAnswer:
        net = self._net
        if net.intercept is not None:
            changed = await net.intercept(self._sender, partner, path, body)
            if changed is not None:
                return changed
        if partner not in net.domains or partner in net.away:
            return WitnessAnswer(0, problem="no answer")
        request = Request("POST", path, headers={CALLER: self._sender}, body=body)
        answer = await net.domains[partner].inbox.handle(request)
        net.sent.append((self._sender, partner, path, answer.status))
        why = "" if answer.status == 200 else f"status {answer.status}"
        return WitnessAnswer(answer.status, answer.body, answer.content_type, why)


def copy_files(root: Path, domain: str, to: Path) -> None:
    """A backup of a domain's whole disk."""
    shutil.copytree(root / domain, to, dirs_exist_ok=True)
