"""A lite's tie to its control plane: made once, kept over restarts, mended when it breaks.

    LOOKING ──> REGISTERING ──> SHAKING ──> LINKED ──┐
       ^             ^             ^                 │ every 30 s: is our token still known?
       └─────────────┴─────────────┴──── mended ─────┘

LOOKING      name, TCP, TLS, certificate, is it a gateway; whose
REGISTERING  only without a kept registration of this key, when our certificate ends soon, or when handshakes are refused
SHAKING      a token, without which nothing but the handshake gets through
LINKED       the gateway has a route to `*.master.svc`, so that the API can be read. From then on the token rolls through
             the DomainRoute like those of all routes; `observe` hears of it. Only when the master does not know our
             token any more, and so the API cannot be read, is one agreed on here again.

A kept token is used at once: after a restart nothing waits for a master that is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from cryptography import x509

from coterie.base import files, pki
from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.handshake.messages import TokenState
from coterie.kuscia.gateway.model import MASTER, Authentication, Route, RoutePort
from coterie.kuscia.gateway.registration import master_trust, messages, registration_files
from coterie.kuscia.gateway.registration.client import JoinFault, MasterClient
from coterie.kuscia.gateway.registration.registration_files import MasterToken, Registration
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.identity.domain_identity import DomainIdentity

log = logger("gateway.registration")

CHECK_PERIOD = 30.0
CHECK_PERIOD_OF_SEVERAL = 4.0
"""Where there is another member to go to."""
_NEXT_SECONDS = 0.5
_BACKOFF = Policy(first=1.0, factor=2.0, limit=30.0)
_LOST_BEFORE_MENDING = 3
"""Checks in a row: the route's own gateway heals a lost token by itself within this time, if the API can be read."""
_REFUSED_BEFORE_REGISTERING = 3
_UNKNOWN = (
    TokenState.TOKEN_NOT_FOUND,
    TokenState.NO_AUTHENTICATION,
    TokenState.REVISION_INVALID,
    TokenState.DOMAIN_INVALID,
)


class LinkStage(StrEnum):
    LOOKING = "looking for the master"
    REGISTERING = "registering"
    SHAKING = "agreeing on a token"
    LINKED = "linked"


class MasterLink:
    """A Runnable. `route` is what the gateway needs; `on_change` is called whenever it is another one."""

    name = "master-link"

    def __init__(
        self,
        settings: GatewaySettings,
        identity: DomainIdentity,
        paths: DomainPaths,
        on_change: Callable[[], None] = lambda: None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if settings.master is None:
            raise ValueError("a lite needs masterEndpoint")
        self.ready = asyncio.Event()
        self.on_change = on_change
        self.stage = LinkStage.LOOKING
        self.problem = ""
        """What stands in the way, in words for people; empty when nothing does."""
        self._endpoints: tuple[MasterEndpoint, ...] = (settings.master, *settings.other_masters)
        self._endpoint: MasterEndpoint = settings.master
        self._token, self._pin = master_trust.split_token(settings.deploy_token)
        self.identity = identity
        """With the certificate that the master issued, once it did."""
        self._paths = paths
        self._clock = clock
        self._client = MasterClient(settings.master, identity)
        self._stop = asyncio.Event()
        self._lost = 0
        self._refused = 0
        self._warned: set[str] = set()
        self._registration = registration_files.load(paths, identity)
        if self._registration is not None and self._registration.agreed is not None:
            self.stage = LinkStage.LINKED
            self.ready.set()

    @property
    def registration(self) -> Registration | None:
        return self._registration

    @property
    def master(self) -> str:
        """The control plane's domain id; empty before it is known."""
        return self._registration.master if self._registration is not None else ""

    @property
    def route(self) -> Route | None:
        """The way to the control plane, always with the newest token; None before there is one."""
        found = self._registration
        return bootstrap_route(self.identity.domain, self._endpoint, found) if found and found.agreed else None

    def observe(self, token: SecretValue, revision: int) -> None:
        """The DomainRoute to the master has this token now. Older ones than ours are left aside: after a lost
        connection the objects we know may be behind what we agreed on meanwhile."""
        found = self._registration
        if found is None or (found.agreed is not None and found.agreed.revision >= revision):
            return
        self._keep(replace(found, agreed=MasterToken(token, revision)))

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        backoff = Backoff(_BACKOFF)
        while not self._stop.is_set():
            try:
                wait = await self._step()
                backoff.succeeded()
                self._cleared()
            except JoinFault as fault:
                wait = backoff.failed()
                self._warn(fault.step, str(fault), wait)
                if self._go_to_next(fault):
                    wait = min(wait, _NEXT_SECONDS)
            except master_trust.MasterNotTrusted as error:
                wait = _BACKOFF.limit
                self._warn("certificate", f"{self._client.address} is not trusted: {error}", wait)
            await self._pause(wait)

    def _go_to_next(self, fault: JoinFault) -> bool:
        """To another member of the control plane, where this one does not answer; False where there is none, or it refuses us."""
        if len(self._endpoints) == 1 or not fault.is_of_this_member:
            return False
        position = self._endpoints.index(self._endpoint)
        self._endpoint = self._endpoints[(position + 1) % len(self._endpoints)]
        self._client = MasterClient(self._endpoint, self.identity)
        log.info("Another member of the control plane is tried", address=self._client.address)
        # The gateway follows at once: it has nothing to lose.
        self.on_change()
        return True

    @property
    def _check_period(self) -> float:
        return CHECK_PERIOD if len(self._endpoints) == 1 else CHECK_PERIOD_OF_SEVERAL

    async def _pause(self, seconds: float) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({stopped, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            alarm.cancel()

    # ---- the steps ----

    async def _step(self) -> float:
        """Everything that is to be done now; answers how long it will be good."""
        shown, trusted = await self._check_certificate()
        now = self._clock.now()
        found = self._registration
        if found is None:
            found = await self._join(shown, trusted)
        elif self._wants_certificate(now) or self._refused >= _REFUSED_BEFORE_REGISTERING:
            found = await self._register(found.master, shown, trusted)
        if found.agreed is None:
            await self._handshake(found, shown)
            return self._check_period
        answer = await self._client.probe(shown, found.agreed)
        self._lost = self._lost + 1 if answer.state in _UNKNOWN else 0
        if self._lost * self._check_period >= _LOST_BEFORE_MENDING * CHECK_PERIOD or _over(found.agreed, now):
            log.warning("The master does not know our token any more", master=found.master, state=answer.state)
            await self._handshake(found, shown)
        self._at(LinkStage.LINKED)
        return self._check_period

    async def _check_certificate(self) -> tuple[x509.Certificate | None, bool]:
        shown = await self._client.fetch_certificate()
        found = self._registration
        if shown is None:
            return None, False
        before = found.server_certificate if found is not None else ""
        trusted = master_trust.check_shown(shown, self._pin, registration_files.load_master_key(self._paths), before)
        pem = pki.certificate_pem(shown).decode()
        if found is not None and pem != before:
            log.info("The master's port has a new certificate", master=found.master, fingerprint=pki.fingerprint(shown))
            self._keep(replace(found, server_certificate=pem))
        return shown, trusted

    async def _join(self, shown: x509.Certificate | None, trusted: bool) -> Registration:
        self._at(LinkStage.LOOKING)
        await self._client.check_is_gateway(shown)
        answer = await self._client.probe(shown)
        self._warn_of_first_use(pki.fingerprint(shown) if shown is not None else "", trusted)
        return await self._register(answer.namespace, shown, trusted)

    def _warn_of_first_use(self, fingerprint: str, trusted: bool) -> None:
        """Once for each certificate, not each attempt."""
        if trusted or fingerprint in self._warned:
            return
        self._warned.add(fingerprint)
        if not fingerprint:
            log.warning("The connection to the master is plain text: anyone on the network path can read and change it")
            return
        log.warning(
            "The master's certificate is trusted on first use; compare it with the master's own",
            address=self._client.address,
            fingerprint=fingerprint,
        )

    async def _register(self, master: str, shown: x509.Certificate | None, trusted: bool) -> Registration:
        self._at(LinkStage.REGISTERING)
        now, own = self._clock.now(), self.identity
        csr = await asyncio.to_thread(messages.make_csr, own.domain, own.key, self._token)
        request = messages.RegisterRequest(own.domain, csr, int(now.timestamp() * 1_000_000) * 1000)
        answer = await self._client.register(shown, request, now)
        key = master_trust.check_answer(answer, own.domain, own.key.public_key(), shown, trusted)
        pinned = registration_files.load_master_key(self._paths)
        if pinned is not None and pinned != key:
            raise master_trust.MasterNotTrusted(
                "the registration was answered with another key than the master's; if the master really has a new one, "
                f"remove {registration_files.master_key_file(self._paths)} and start again"
            )
        self.identity = identities.store_certificate(self._paths, answer.certificate)
        kept = self._registration.agreed if self._registration is not None else None
        pem = pki.certificate_pem(shown).decode() if shown is not None else ""
        made = Registration(master, key, pem, kept)
        self._keep(made)
        self._refused = 0
        log.info("Registered at the control plane", domain=own.domain, master=master, address=self._client.address)
        return made

    async def _handshake(self, found: Registration, shown: x509.Certificate | None) -> None:
        self._at(LinkStage.SHAKING)
        revision = found.agreed.revision if found.agreed is not None else 0
        try:
            agreed = await self._client.handshake(shown, found.master_key, revision, self._clock.now())
        except JoinFault as fault:
            # The master may have lost what it knew of us, or has another certificate of ours.
            self._refused += bool(fault.status)
            raise
        self._lost = self._refused = 0
        self._keep(replace(found, agreed=agreed))
        log.info("Agreed on a token with the control plane", master=found.master, revision=agreed.revision)
        self._at(LinkStage.LINKED)
        self.ready.set()

    def _wants_certificate(self, now: datetime) -> bool:
        """Ours ends within a third of its life. Kuscia's masters issue ones that ended decades ago: these are left."""
        content = files.read_bytes_or_none(self.identity.certificate_file)
        if content is None:
            return True
        certificate = pki.load_certificate(content)
        return certificate.not_valid_after_utc.year > 1980 and pki.renewal_due(certificate, now)

    # ---- what others see ----

    def _keep(self, registration: Registration) -> None:
        if registration == self._registration:
            return
        self._registration = registration
        registration_files.save(self._paths, self.identity, registration)
        self.on_change()

    def _at(self, stage: LinkStage) -> None:
        if stage is not self.stage:
            self.stage = stage
            log.debug("Joining", stage=stage.value)

    def _warn(self, step: str, message: str, wait: float) -> None:
        """Each new problem once, not each attempt."""
        if message != self.problem:
            self.problem = message
            log.warning("Not connected to the control plane", wrong=step, why=message, next_attempt_seconds=round(wait))

    def _cleared(self) -> None:
        if self.problem:
            self.problem = ""
            log.info("The control plane answers again", master=self.master, address=self._client.address)


def _over(agreed: MasterToken, now: datetime) -> bool:
    return agreed.expires is not None and now >= agreed.expires


def bootstrap_route(domain: str, endpoint: MasterEndpoint, registration: Registration) -> Route:
    """A lite's way to its control plane, before any DomainRoute can be read."""
    port = RoutePort("http", endpoint.port, tls=endpoint.tls, path_prefix=endpoint.prefix)
    pinned = registration.server_certificate if endpoint.tls else ""
    return Route(
        domain,
        registration.master,
        Authentication.TOKEN,
        host=endpoint.host,
        ports=(port,),
        tokens=(registration.agreed.token,) if registration.agreed is not None else (),
        certificates=(pinned,) if pinned else (),
        aliases=(MASTER,),
    )
