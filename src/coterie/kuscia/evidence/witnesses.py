"""Partners as witnesses of our log, and our control plane as theirs: when exchanges happen, what a policy demands, who is told of a log that contradicts itself.

a task begins, ends ─┐
once an hour ────────┼─▶ one lane for each partner: what is asked for meanwhile shares the next exchange ─▶ witness_exchange.py
`coterie audit witness` ┘
partners ─▶ Envoy ─▶ socket ─▶ witness_inbox.py
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from coterie.base import pki
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.pki import PkiError
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Response
from coterie.http.server import HttpLimits, HttpServer, HttpShares
from coterie.kube.api.errors import ApiError
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.child_api_listener import private_socket
from coterie.kube.control.events import EventRecorder
from coterie.kuscia.api import evidence, labels
from coterie.kuscia.api.domain_ownership import is_partner, master_of
from coterie.kuscia.api.evidence import EventRequest, EvidenceError, EvidenceEvent
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS, Domain, DomainRoute
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES, REQUIRE
from coterie.kuscia.control.task_witnesses import END
from coterie.kuscia.evidence.service import EvidenceService, evidence_directory
from coterie.kuscia.evidence.witness import LogFinding
from coterie.kuscia.evidence.witness_exchange import PartnerTransport, WitnessExchange
from coterie.kuscia.evidence.witness_inbox import PartnerLogs, WitnessInbox
from coterie.kuscia.evidence.witness_store import WITNESS_FILE, ExchangeState, WitnessStore

log = logger("evidence.witness")

WITNESS_PATH = "/witness"
"""On the private socket of the log, for `coterie audit witness`."""
START_SECONDS = 2.0
"""For which the start of a task waits, where the policy demands a cosignature."""
HOURLY = 3600.0
_FIRST_ROUND = 20.0
SPACING = 0.5
"""Seconds between two exchanges with one partner; what is asked for meanwhile waits for the next one."""
GATHER_SECONDS = 0.5
"""For which an exchange that nobody waits for is put off: the end of a short task shares that of its start."""
GOSSIP_SECONDS = 60.0
"""Between two comparisons with one partner."""
_RETRY_SECONDS = 5.0
_MOST_WAITING = 1000
_REMEMBERED_TASKS = 10_000
_MAX_BODY = 256 << 10
_REQUESTS_OF_ONE = 32
"""Of one partner at once: those that it does not finish hold up nobody else."""


class WitnessCall(msgspec.Struct, frozen=True, kw_only=True):
    """What `coterie audit witness` asks for."""

    partner: str = ""
    now: bool = False
    accept: bool = False


@dataclass(slots=True)
class _Lane:
    waiting: list[tuple[str, asyncio.Future[str]]] = field(default_factory=list)
    """Task, and who waits."""
    urgent: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody waits for the next exchange."""
    running: bool = False
    begun: float = -1e9
    compared: float = -1e9


class Witnesses:
    """A Runnable, and the `TaskWitnesses` of a control plane."""

    name = "evidence-witnesses"

    def __init__(
        self,
        service: EvidenceService,
        client: Client,
        informers: Informers,
        transport: PartnerTransport,
        socket: Path,
        caller_header: str,
        clock: Clock,
        *,
        statements: Callable[[str, bytes], Awaitable[Response]] | None = None,
    ) -> None:
        """`socket`: where our Envoy leads partners. `caller_header`: in which it says who they are. `statements`: answers them about statements of
        tasks."""
        self._statements = statements
        self.ready = asyncio.Event()
        self._service = service
        self._client = client
        self._transport = transport
        self._socket = socket
        self._caller_header = caller_header
        self._clock = clock
        self._domains = informers.get(DOMAINS)
        self._routes = informers.get(DOMAIN_ROUTES, service.domain)
        self._policies = informers.get(PARTNER_POLICIES)
        self._events = EventRecorder(client, "evidence", clock=clock)
        self._lanes: dict[str, _Lane] = {}
        self._unanswered: dict[tuple[str, str], None] = {}
        self._owner: TaskOwner | None = None
        self._store: WitnessStore | None = None
        self._exchange: WitnessExchange | None = None
        self._findings_changed = asyncio.Event()
        self._stop = asyncio.Event()
        service.add_call(WITNESS_PATH, self._call)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        file = evidence_directory(self._service.paths) / WITNESS_FILE
        self._store = store = await self._opened(file)
        logs = PartnerLogs(
            self._service,
            store,
            self._domain_key,
            self._clock,
            on_finding=self._tell,
            on_closed=self._put_right,
        )
        self._exchange = WitnessExchange(self._service, logs, self._transport, self._clock)
        inbox = WitnessInbox(
            logs,
            self._service,
            self._caller_header,
            self._clock,
            on_heads=self._asked_for_heads,
            statements=self._statements,
        )
        server = HttpServer(
            inbox.handle,
            limits=HttpLimits(max_body=_MAX_BODY, max_connections=256),
            shares=HttpShares(inbox.caller_of, _REQUESTS_OF_ONE, 2 * _MAX_BODY),
        )
        await server.serve(private_socket(self._socket))
        try:
            async with TaskOwner(self.name) as owner:
                self._owner = owner
                owner.start("events", self._events.run(), endless=True)
                owner.start("rounds", self._rounds(), endless=True)
                owner.start("alarms", self._annotate(), endless=True)
                self._findings_changed.set()
                self.ready.set()
                await self._stop.wait()
                self._owner = None
        finally:
            self._owner = None
            await server.stop(1.0)
            await self._transport.close()
            self._socket.unlink(missing_ok=True)
            for lane in self._lanes.values():
                for _, waiting in lane.waiting:
                    waiting.cancel()
            await asyncio.to_thread(store.close)  # a thread that writes may be waiting for this loop

    async def _opened(self, file: Path) -> WitnessStore:
        """A disk that is full or broken stops exchanges, not the node."""
        logged = ""
        shared = self._service.shared
        rows = shared.witness_rows() if shared is not None else None
        while True:
            try:
                return await asyncio.to_thread(WitnessStore, file, rows)
            except EvidenceError as problem:
                if logged != str(problem):
                    logged = str(problem)
                    log.error("Checkpoints cannot be exchanged with partners", error=problem)
            self.ready.set()
            await self._clock.sleep(_RETRY_SECONDS)

    # When.

    async def at_task(self, task: str, parties: Collection[str], when: Literal["start", "end"]) -> str | None:
        """See `TaskWitnesses`."""
        waits: dict[str, asyncio.Future[str]] = {}
        for partner, required in self._partners_of(parties).items():
            waits_for_it = required and when != END
            asked = self._ask(partner, task, urgent=waits_for_it)
            if waits_for_it:
                if asked is None:
                    return _not_started(partner, "exchanges with partners are not running yet")
                try:
                    alarm = await self._alarm(partner)
                except EvidenceError as failure:
                    return _not_started(partner, str(failure))
                if alarm:
                    return f"{alarm}; tasks with {partner} do not start (`coterie audit witness {partner}`)"
                waits[partner] = asked
        if not waits:
            return None
        await asyncio.wait(waits.values(), timeout=START_SECONDS)
        for partner, asked in waits.items():
            if not asked.done():
                return _not_started(partner, f"no answer within {START_SECONDS:g} s")
            if asked.cancelled():
                return _not_started(partner, "the node is stopping")
            if problem := asked.result():
                return _not_started(partner, problem)
        return None

    def _partners_of(self, parties: Collection[str]) -> dict[str, bool]:
        """Control planes of partners, and whether a policy demands their cosignature."""
        found: dict[str, bool] = {}
        for party in sorted(set(parties)):
            domain = self._domains.cache.get(party)
            if not is_partner(domain):
                continue
            partner = master_of(party, domain)
            found[partner] = found.get(partner, False) or self._required(party, partner)
        return found

    def _required(self, party: str, partner: str) -> bool:
        for name in (party, partner):
            if (policy := self._policies.cache.get(name)) is not None:
                return policy.spec.witness == REQUIRE
        return False

    async def _alarm(self, partner: str) -> str:
        assert self._store is not None
        found = await asyncio.to_thread(self._store.findings, partner)
        return next((each.finding.sentence for each in found if not each.accepted), "")

    def _ready_partners(self) -> list[str]:
        """Control planes to which a route of ours leads."""
        found = set()
        for route in self._routes.cache.list(self._service.domain):
            partner = route.spec.destination
            domain = self._domains.cache.get(partner)
            if _usable(route, self._service.domain) and is_partner(domain) and master_of(partner, domain) == partner:
                found.add(partner)
        return sorted(found)

    async def _rounds(self) -> None:
        await self._clock.sleep(_FIRST_ROUND)
        while True:
            for partner in self._ready_partners():
                self._ask(partner, "")
            # Not all partners of a network at the same second.
            await self._clock.sleep(HOURLY * random.uniform(0.9, 1.0))

    def _asked_for_heads(self, partner: str) -> None:
        """The other direction, where ours was long ago."""
        lane = self._lanes.get(partner)
        if lane is None or self._clock.monotonic() - lane.begun > GOSSIP_SECONDS:
            self._ask(partner, "")

    # Lanes.

    def _ask(self, partner: str, task: str, *, urgent: bool = False) -> asyncio.Future[str] | None:
        """An exchange that begins from now on; `urgent`: at once. None when there is none to be had."""
        if self._owner is None:
            return None
        lane = self._lanes.setdefault(partner, _Lane())
        if len(lane.waiting) >= _MOST_WAITING:
            return None
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        lane.waiting.append((task, asked))
        if urgent:
            lane.urgent.set()
        if not lane.running:
            lane.running = True
            self._owner.start(f"exchange-{partner}", self._serve(partner, lane), vital=False)
        return asked

    async def _serve(self, partner: str, lane: _Lane) -> None:
        assert self._exchange is not None
        try:
            while lane.waiting:
                await self._gather(lane)
                pause = lane.begun + SPACING - self._clock.monotonic()
                if pause > 0:
                    await self._clock.sleep(pause)
                batch, lane.waiting = lane.waiting, []
                lane.urgent.clear()
                lane.begun = self._clock.monotonic()
                problem = "the exchange was interrupted"
                try:
                    problem = await self._exchange.exchange(partner)
                finally:
                    for _, asked in batch:
                        if not asked.done():
                            asked.set_result(problem)
                await self._after(partner, lane, problem, [task for task, _ in batch])
        finally:
            lane.running = False

    async def _gather(self, lane: _Lane) -> None:
        """A moment in which others may come, unless somebody waits."""
        if lane.urgent.is_set():
            return
        ends = [asyncio.ensure_future(lane.urgent.wait()), asyncio.ensure_future(self._clock.sleep(GATHER_SECONDS))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _after(self, partner: str, lane: _Lane, problem: str, tasks: Sequence[str]) -> None:
        assert self._exchange is not None
        try:
            if problem:
                await self._record_unanswered(partner, problem, tasks)
                return
            self._unanswered.pop((partner, ""), None)
            if self._clock.monotonic() - lane.compared > GOSSIP_SECONDS:
                lane.compared = self._clock.monotonic()
                await self._exchange.gossip(partner)
        except EvidenceError as failure:
            log.error("What came of witnesses cannot be recorded", partner=partner, error=failure)

    async def _record_unanswered(self, partner: str, problem: str, tasks: Sequence[str]) -> None:
        """Once for each task, and once for all rounds until the partner answers again."""
        log.info("A partner did not cosign our log: one-sided", partner=partner, why=problem)
        new = [task for task in dict.fromkeys(tasks) if (partner, task) not in self._unanswered]
        for task in new:
            self._unanswered[partner, task] = None
        while len(self._unanswered) > _REMEMBERED_TASKS:
            del self._unanswered[next(iter(self._unanswered))]
        if new:
            kind = evidence.CHECKPOINT_UNANSWERED
            await self._service.record(
                *(EventRequest(event=EvidenceEvent(kind=kind, partner=partner, task=task)) for task in new)
            )

    # Who is told.

    def _tell(self, finding: LogFinding) -> None:
        self._findings_changed.set()
        if (domain := self._domains.cache.get(finding.domain)) is not None:
            self._events.record(domain, "Warning", "EvidenceContradicts", finding.sentence)

    def _put_right(self, partner: str, count: int) -> None:
        self._findings_changed.set()
        if (domain := self._domains.cache.get(partner)) is not None:
            words = f"{partner} put its evidence log right, which closes {count} findings: see `coterie audit witness {partner} -o json`"
            self._events.record(domain, "Normal", "EvidencePutRight", words)

    async def _annotate(self) -> None:
        """The Domain of a partner whose log contradicts itself says so, until somebody accepts it."""
        assert self._store is not None
        while True:
            await self._findings_changed.wait()
            self._findings_changed.clear()
            open_findings: dict[str, str] = {}
            for each in await asyncio.to_thread(self._store.findings):
                if not each.accepted:
                    open_findings.setdefault(each.finding.domain, each.finding.sentence)
            for domain in self._domains.cache.list():
                name, annotations = domain.metadata.name, (domain.metadata.annotations or {})
                wanted = open_findings.get(name)
                if annotations.get(labels.COTERIE_EVIDENCE_ALARM) == wanted:
                    continue
                patch = {"metadata": {"annotations": {labels.COTERIE_EVIDENCE_ALARM: wanted}}}
                try:
                    await self._client.patch(DOMAINS, name, "", patch)
                except (ApiError, TransportError) as problem:
                    log.warning("A Domain cannot be annotated", domain=name, error=problem)

    def _domain_key(self, partner: str) -> RSAPublicKey | None:
        domain = self._domains.cache.get(partner)
        return certified_key(domain) if domain is not None and is_partner(domain) else None

    # `coterie audit witness`.

    async def _call(self, body: bytes) -> object:
        asked = msgspec.json.decode(body, type=WitnessCall)
        if self._store is None or self._owner is None:
            raise EvidenceError("exchanges with partners are not running yet")
        if asked.accept:
            await self._accept(asked.partner)
        if asked.now:
            wanted = [asked.partner] if asked.partner else self._ready_partners()
            for partner in wanted:
                if (lane := self._lanes.get(partner)) is not None:
                    lane.compared = -1e9
            waits = [each for partner in wanted if (each := self._ask(partner, "", urgent=True)) is not None]
            if waits:
                await asyncio.wait(waits)
        return await asyncio.to_thread(self._states, asked.partner)

    async def _accept(self, partner: str) -> None:
        assert self._store is not None
        if not any(not each.accepted for each in await asyncio.to_thread(self._store.findings, partner)):
            raise ValueError(f"nothing was found about the log of {partner or 'a partner without a name'}")
        event = EvidenceEvent(kind=evidence.CHECKPOINT_ACCEPTED, partner=partner)
        await self._service.record(EventRequest(event=event))
        await asyncio.to_thread(self._store.accept, partner)
        self._findings_changed.set()

    def _states(self, only: str) -> list[Mapping[str, Any]]:
        assert self._store is not None
        logs = {each.domain: each for each in self._store.logs() if each.current}
        exchanges = {each.partner: each for each in self._store.exchanges()}
        findings: dict[str, list[dict[str, Any]]] = {}
        for each in self._store.findings():
            findings.setdefault(each.finding.domain, []).append(
                {
                    "reason": each.finding.reason,
                    "message": each.finding.sentence,
                    "time": each.time,
                    "accepted": each.accepted,
                    "closedBy": each.closed_by,
                    "notes": [note for note in (each.finding.first, each.finding.second) if note],
                }
            )
        names = {*logs, *exchanges, *findings, *self._ready_partners()}
        return [
            {
                "partner": name,
                "policy": "require" if self._required(name, name) else "record",
                "ours": _ours(exchanges[name]) if name in exchanges else None,
                "theirs": {"origin": logs[name].origin, "size": logs[name].size, "key": str(logs[name].key)}
                if name in logs
                else None,
                "findings": findings.get(name, []),
            }
            for name in sorted(names)
            if only in ("", name)
        ]


def _ours(state: ExchangeState) -> dict[str, Any]:
    return {
        "origin": state.origin,
        "size": state.size,
        "cosigned": state.cosigned,
        "tried": state.tried,
        "problem": state.problem,
    }


def _not_started(partner: str, problem: str) -> str:
    return f"{partner} did not cosign our evidence log, which its policy here demands: {problem}"


def _usable(route: DomainRoute, ours: str) -> bool:
    if route.spec.source != ours or route.metadata.deleting:
        return False
    return not route.spec.needs_token or any(each.is_ready for each in route.token_status.tokens or ())


def certified_key(domain: Domain) -> RSAPublicKey | None:
    """The key of the certificate in a Domain."""
    try:
        certificate = base64.b64decode("".join(domain.spec.cert.split()), validate=True)
        key = pki.public_key_of(pki.load_certificate(certificate))
    except (PkiError, binascii.Error, ValueError):
        return None
    return key if isinstance(key, RSAPublicKey) else None
