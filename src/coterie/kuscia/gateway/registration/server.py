"""The control plane's side: `POST /register`, behind our own gateway, open to strangers.

    rate ─> body ─> applicant (key, age, hash) ─> not seen before ─> decide ─> certificate stored ─> token marked ─> route

The certificate and the hash of the token with which it was had are written to the Domain in one step, at the version that
was read: of two that come with one token, the later reads again and finds it used. The token's state in the status follows;
if we die in between, the lite's next request (same key, so admitted) sets it right.
"""

from __future__ import annotations

import asyncio
import base64

import msgspec

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.http.messages import Request, Response
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.labels import KUSCIA_DOMAIN_NAME
from coterie.kuscia.api.types.domain import (
    CLUSTER_DOMAIN_ROUTES,
    DOMAINS,
    KUSCIA_PROTOCOL,
    RSA_GEN,
    TOKEN,
    USED,
    Domain,
)
from coterie.kuscia.gateway.registration import certificate_issuing, messages
from coterie.kuscia.gateway.registration.limits import (
    ONCE_A_MINUTE,
    PER_ADDRESS,
    TOGETHER,
    KeyedTokenBuckets,
    RequestReplayCache,
)
from coterie.kuscia.gateway.registration.messages import RegisterAnswer, RegisterRequest, UnreadableMessage
from coterie.kuscia.gateway.registration.rules import (
    REGISTERED_WITH,
    AlreadyRegistered,
    Applicant,
    IssueCertificate,
    RegistrationRefused,
    applicant,
    decide,
    to_be_marked,
    token_hash,
)
from coterie.kuscia.identity.domain_identity import DomainIdentity

log = logger("gateway.registration")

_ATTEMPTS = 8
_ROLLING_PERIOD = 86400
_EVERYBODY = ""
_TOO_MANY = "too-many"


class RegistrationServer:
    """`register` is the handler for paths that end in `/register`."""

    def __init__(self, client: Client, identity: DomainIdentity, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """`client`: of the control plane itself, which may read and write Domains. `identity`: its own domain."""
        self._client = client
        self._identity = identity
        self._clock = clock
        self._addresses = KeyedTokenBuckets(PER_ADDRESS)
        self._together = KeyedTokenBuckets(TOGETHER)
        self._log_rate = KeyedTokenBuckets(ONCE_A_MINUTE)
        self._seen = RequestReplayCache()

    async def register(self, request: Request) -> Response:
        peer = peer_of(request)
        claimed = ""
        try:
            self._allow(peer)
            if request.method != "POST":
                raise RegistrationRefused(405, "method", "registration is a POST")
            try:
                asked = RegisterRequest.decode(request.body)
            except UnreadableMessage as error:
                raise RegistrationRefused(400, "unreadable", str(error)) from error
            claimed = asked.domain_id[:80]
            # Checking signatures and signing takes milliseconds that belong to the other requests.
            who = await asyncio.to_thread(
                applicant, asked, request.headers.get(messages.JWT_HEADER, ""), self._clock.now()
            )
            answer = await self._once(who, peer)
        except RegistrationRefused as refused:
            if refused.reason != _TOO_MANY or self._log_rate.take(peer, self._clock.monotonic()):
                log.warning("Registration refused", peer=peer, domain=claimed, reason=refused.reason, why=str(refused))
            return Response(refused.status, f"{refused}\n".encode(), "text/plain; charset=utf-8")
        except (ApiError, TransportError) as error:
            log.error("Registration failed", error=error, peer=peer, domain=claimed)
            return Response(503, b"the control plane cannot register anybody now; retry later\n", "text/plain")
        return Response(200, answer.encode())

    def _allow(self, peer: str) -> None:
        now = self._clock.monotonic()
        if not self._addresses.take(peer, now) or not self._together.take(_EVERYBODY, now):
            raise RegistrationRefused(429, _TOO_MANY, "too many registrations; wait a minute and retry")

    async def _once(self, who: Applicant, peer: str) -> RegisterAnswer:
        if not self._seen.add(who.request_hash, who.good_until, self._clock.now().timestamp()):
            raise RegistrationRefused(400, "replay", "this very request was made before; make a new one")
        try:
            return await self._admit(who, peer)
        except BaseException:
            self._seen.forget(who.request_hash)
            raise

    async def _admit(self, who: Applicant, peer: str) -> RegisterAnswer:
        for _ in range(_ATTEMPTS):
            domain = await self._domain(who.domain)
            verdict = decide(domain, who, self._identity.domain, self._clock.now())
            assert domain is not None, "decide refuses a domain that is not there"
            if isinstance(verdict, AlreadyRegistered):
                certificate = verdict.certificate
            else:
                try:
                    domain, certificate = await self._store(domain, who, verdict)
                except Conflict:
                    continue  # somebody changed the Domain; what they did may change the verdict
                log.info(
                    "Lite registered", domain=who.domain, peer=peer, new_key=verdict.token is not None,
                    replaced_key=verdict.replaces,
                )  # fmt: skip
            await self._mark_used(domain)
            await self._route(domain)
            return RegisterAnswer(certificate, self._identity.public_key_pem.decode())
        raise RegistrationRefused(500, "busy", f"domain {who.domain} is being changed all the time; retry")

    async def _domain(self, name: str) -> Domain | None:
        try:
            return await self._client.get(DOMAINS, name)
        except NotFound:
            return None

    async def _store(self, domain: Domain, who: Applicant, verdict: IssueCertificate) -> tuple[Domain, str]:
        made = await asyncio.to_thread(
            certificate_issuing.issue, self._identity, who.domain, who.key, self._clock.now()
        )
        pem = pki.certificate_pem(made)
        meta: Object = {"uid": domain.metadata.uid, "resourceVersion": domain.metadata.resource_version}
        if verdict.token is not None:
            meta["annotations"] = {REGISTERED_WITH: token_hash(verdict.token.token)}
        patch = {"metadata": meta, "spec": {"cert": base64.b64encode(pem).decode()}}
        return await self._client.patch(DOMAINS, who.domain, "", patch), pem.decode()

    async def _mark_used(self, domain: Domain) -> None:
        """Others write the same list (the controller adds tokens), so it is written at the version that was read."""
        for _ in range(_ATTEMPTS):
            token = to_be_marked(domain)
            if token is None:
                return
            now = rfc3339(self._clock.now())
            marked = msgspec.structs.replace(token, state=USED, last_transition_time=now)
            listed = [marked if each is token else each for each in domain.status.deploy_token_statuses or ()]
            meta = {"uid": domain.metadata.uid, "resourceVersion": domain.metadata.resource_version}
            patch = {"metadata": meta, "status": {"deployTokenStatuses": msgspec.to_builtins(listed)}}
            try:
                domain = await self._client.patch_status(DOMAINS, domain.metadata.name, "", patch)
            except Conflict:
                domain = await self._client.get(DOMAINS, domain.metadata.name)

    async def _route(self, domain: Domain) -> None:
        """The lite's way to us. The domain controller makes it too where the Domain says how to authenticate."""
        wanted = route_to(self._identity.domain, domain)
        try:
            await self._client.get(CLUSTER_DOMAIN_ROUTES, wanted["metadata"]["name"])
        except NotFound:
            try:
                await self._client.create(CLUSTER_DOMAIN_ROUTES.as_dynamic, wanted)
            except AlreadyExists:
                return


def route_to(control_plane: str, domain: Domain) -> Object:
    center, resource = domain.spec.auth_center, DOMAINS.resource
    kind = center.authentication_type if center is not None else TOKEN
    spec: Object = {
        "source": domain.metadata.name,
        "destination": control_plane,
        "interConnProtocol": KUSCIA_PROTOCOL,
        "authenticationType": kind,
    }
    if kind == TOKEN:
        spec["tokenConfig"] = {"tokenGenMethod": RSA_GEN, "rollingUpdatePeriod": _ROLLING_PERIOD}
    owner = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": domain.metadata.name,
        "uid": domain.metadata.uid,
    }
    meta = {
        "name": route_name(domain.metadata.name, control_plane),
        "labels": {KUSCIA_DOMAIN_NAME: domain.metadata.name},
        "ownerReferences": [owner],
    }
    return {"metadata": meta, "spec": spec}


def peer_of(request: Request) -> str:
    """Our gateway appends the address it saw; what stands before that was written by the caller."""
    forwarded_for = request.headers.get("x-forwarded-for", "")
    return forwarded_for.rpartition(",")[2].strip()[:64] or request.peer.address
