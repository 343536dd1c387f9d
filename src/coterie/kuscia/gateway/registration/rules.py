"""Whether a lite may join under the name it claims. Pure: two questions, asked one after the other.

    applicant(request, jwt, now)     is it one who holds the key, who asks now, and whose words nobody changed?
    decide(domain, applicant, now)   may the holder of that key be this domain?

    Domain.spec.cert      deploy token         verdict
    the same key          not looked at        Known: the certificate as it is, or a fresh one when it ends soon
    none, or another key  unused, matching     Issue: sign, store, and the token is used from then on
    none, or another key  used, wrong, none    refused

Refusals carry Kuscia's status (400: the request itself is wrong; 500: it is not admitted) and a sentence for the person
at the lite, with the next step.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import jwt, pki
from coterie.base.secret import SecretValue
from coterie.kube.api.names import dns_label_faults
from coterie.kuscia.api.types.domain import RESERVED_DOMAINS, UNUSED, DeployToken, Domain
from coterie.kuscia.gateway.registration import messages
from coterie.kuscia.gateway.registration.messages import RegisterRequest, UnreadableMessage

REGISTERED_WITH = "coterie.io/registered-with"
"""Annotation of a Domain: hash of the deploy token with which its certificate was had. Written in one step with the
certificate, so that of two keys that come with one token only the first is admitted, whatever breaks in between."""
SKEW = 300.0
"""Seconds by which the clocks of lite and control plane may differ."""
_LONGEST_JWT_LIFE = 600.0
_RSA_BITS = range(2048, 8193)
_LARGEST_EXPONENT = 1 << 32


class RegistrationRefused(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """One word for logs and tests."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """One who has shown to hold `key`."""

    domain: str
    key: rsa.RSAPublicKey = field(repr=False)
    deploy_token: SecretValue
    request_hash: bytes = field(repr=False)
    good_until: float
    """Seconds since 1970; afterwards the same request would be refused by its age alone."""


@dataclass(frozen=True, slots=True)
class AlreadyRegistered:
    """The key is the domain's already."""

    certificate: str
    """PEM."""


@dataclass(frozen=True, slots=True)
class IssueCertificate:
    token: DeployToken | None = None
    """Used up by this; None: the key was the domain's already."""
    replaces: bool = False
    """The domain had another key."""


def applicant(request: RegisterRequest, token: str, now: datetime) -> Applicant:
    """Raises Refused."""
    try:
        csr = messages.read_csr(request.csr)
        if not hmac.compare_digest(csr.domain.encode(), request.domain_id.encode()):
            raise RegistrationRefused(
                400, "wrong-name", f'the csr is for "{csr.domain}" and the request for "{request.domain_id}"'
            )
        if csr.key.key_size not in _RSA_BITS or csr.key.public_numbers().e > _LARGEST_EXPONENT:
            raise RegistrationRefused(
                400, "weak-key", f"the key has {csr.key.key_size} bits; make one of 2048 to {_RSA_BITS[-1]} bits"
            )
        claims = jwt.verify_by(token, csr.key)
        claimed_hash = messages.hash_in(claims)
        issued, expires = _seconds(claims, "iat"), _seconds(claims, "exp")
    except UnreadableMessage as error:
        raise RegistrationRefused(400, "unreadable", str(error)) from error
    except jwt.TokenError as error:
        raise RegistrationRefused(
            400, "bad-jwt", f"{messages.JWT_HEADER}: {error}; sign it with the key of the csr"
        ) from error
    if claims.get("iss") != request.domain_id or claims.get("sub") != request.domain_id:
        raise RegistrationRefused(400, "bad-jwt", f"{messages.JWT_HEADER}: is not in the name of {request.domain_id}")
    if not hmac.compare_digest(claimed_hash, request.hash):
        raise RegistrationRefused(400, "bad-hash", f"{messages.JWT_HEADER}: was made for another request")
    _check_age(issued, expires, now.timestamp())
    return Applicant(csr.domain, csr.key, csr.deploy_token, request.hash, expires + SKEW)


def _check_age(issued: float, expires: float, now: float) -> None:
    if expires - issued > _LONGEST_JWT_LIFE:
        raise RegistrationRefused(
            400, "bad-jwt", f"{messages.JWT_HEADER}: is good for more than {_LONGEST_JWT_LIFE:.0f} s"
        )
    if now > expires + SKEW:
        raise RegistrationRefused(
            400, "too-old", f"the request is {now - issued:.0f} s old; set the lite's clock (NTP) and retry"
        )
    if issued > now + SKEW:
        raise RegistrationRefused(
            400, "too-early", f"the request is {issued - now:.0f} s ahead of time; set the lite's clock (NTP) and retry"
        )


def _seconds(claims: jwt.Claims, name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise UnreadableMessage(f"the claim {name} is no time")
    return float(value)


def decide(
    domain: Domain | None, who: Applicant, control_plane: str, now: datetime
) -> AlreadyRegistered | IssueCertificate:
    """`domain`: the object of that name, None when there is none. Raises Refused."""
    name = who.domain
    if name in RESERVED_DOMAINS or dns_label_faults(name):
        raise RegistrationRefused(500, "wrong-name", f'"{name}" cannot be the name of a domain')
    if domain is None or domain.metadata.deleting:
        raise RegistrationRefused(
            500, "no-domain", f"domain {name} not found at {control_plane}; create it there, then retry"
        )
    if name == control_plane or domain.partner:
        raise RegistrationRefused(
            500, "wrong-domain", f"domain {name} is not one that joins {control_plane}; check domainID"
        )
    held = _certificate(domain.spec.cert)
    if held is not None and held.public_key() == who.key:
        fresh = pki.subject_of(held)[0] == name and not pki.renewal_due(held, now)
        return AlreadyRegistered(pki.certificate_pem(held).decode()) if fresh else IssueCertificate()
    found = _matching(domain, who.deploy_token)
    replaces = bool(domain.spec.cert)
    if found is None or not who.deploy_token:
        why = f"the deploy token does not match domain {name}" if who.deploy_token else "there is no deploy token"
        raise RegistrationRefused(500, "wrong-token", f"{why}; {next_step(name, replaces)}")
    if used(domain, found):
        raise RegistrationRefused(
            500, "used-token", f"the deploy token of domain {name} was used; {next_step(name, replaces)}"
        )
    return IssueCertificate(found, replaces)


def next_step(domain: str, replaces: bool) -> str:
    """What the person at the lite has to do; the same sentence whether a token was wrong or used."""
    changed = f"{domain}'s key is not the one it registered with, and " if replaces else ""
    return (
        f"{changed}a new key needs an unused deploy token: take it at the control plane from status.deployTokenStatuses of "
        f"`kubectl get domain {domain} -o yaml`, put it into liteDeployToken and start the lite again"
    )


def used(domain: Domain, token: DeployToken) -> bool:
    return token.state != UNUSED or hmac.compare_digest(
        (domain.metadata.annotations or {}).get(REGISTERED_WITH, "").encode(), token_hash(token.token).encode()
    )


def token_hash(token: str) -> str:
    """Deploy tokens are long and random: their hash tells nothing of them."""
    return hashlib.sha256(token.encode()).hexdigest()


def to_be_marked(domain: Domain) -> DeployToken | None:
    """The token with which the domain registered, if its state does not say so yet."""
    listed = domain.status.deploy_token_statuses or ()
    return next((each for each in listed if each.state == UNUSED and used(domain, each)), None)


def _matching(domain: Domain, given: SecretValue) -> DeployToken | None:
    """Every token is compared, each in constant time; of equal ones the unused wins."""
    listed = domain.status.deploy_token_statuses or ()
    matching = [each for each in listed if given.matches(each.token)]
    return next((each for each in matching if not used(domain, each)), matching[0] if matching else None)


def _certificate(cert: str) -> x509.Certificate | None:
    """Of `Domain.spec.cert`; one that cannot be read vouches for nobody."""
    try:
        return pki.load_certificate(base64.b64decode("".join(cert.split()), validate=True)) if cert else None
    except (binascii.Error, pki.PkiError):
        return None
