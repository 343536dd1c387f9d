"""Whom a lite takes for its control plane. Pure.

    known so far                 what the port must show
    the master's key (pinned)    a certificate of that key, or signed by it for its port, or the very one seen before
    a pin behind the token       the certificate with that fingerprint
    nothing                      any, once; it must then belong to the key that the registration is answered with

The third row is trust on first use: somebody in the middle of the first connection could play the master. Whoever cannot
rule that out puts a pin behind the token: `liteDeployToken: <token>.<SHA-256 of the master's certificate, in hex>`. Plain
HTTP, which only an operator can choose, vouches for nobody.
"""

from __future__ import annotations

import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.registration.messages import RegisterAnswer, UnreadableMessage, read_public_key
from coterie.kuscia.identity.certificate_requests import PORT_NAME

_PIN = re.compile(r"[0-9a-fA-F]{64}")


class MasterNotTrusted(Exception):
    """The other side is not shown to be the control plane; the message says what to do."""


def split_token(given: SecretValue | None) -> tuple[SecretValue | None, str]:
    """(the token itself, the pin behind it or an empty text). Kuscia's tokens hold no dot."""
    if given is None:
        return None, ""
    token, _, pin = given.reveal().strip().rpartition(".")
    pin = pin.replace(":", "")
    if token and _PIN.fullmatch(pin):
        return SecretValue(token), pin.lower()
    return SecretValue(given.reveal().strip()), ""


def with_pin(token: str, certificate: x509.Certificate) -> str:
    """What an operator gives to a lite that shall not believe anybody else."""
    return f"{token}.{pki.fingerprint(certificate)}"


def check_shown(shown: x509.Certificate, pin: str, master_key: rsa.RSAPublicKey | None, before: str) -> bool:
    """Whether something vouches for it; False: only that nothing speaks against it yet. Raises Distrust.

    `before`: PEM of what was shown when this lite registered.
    """
    fingerprint = pki.fingerprint(shown)
    if pin and fingerprint == pin:
        return True
    if master_key is not None:
        if is_certified_by(master_key, shown) or (
            before and pki.fingerprint(pki.load_certificate(before.encode())) == fingerprint
        ):
            return True
        raise MasterNotTrusted(
            f"it shows a certificate ({fingerprint}) that does not belong to the master this lite registered with; if the master "
            "really has a new key, remove master.pub from var/certs and start again with a new deploy token"
        )
    if pin:
        raise MasterNotTrusted(
            f"it shows the certificate {fingerprint}, and the deploy token is for one with {pin}; nothing was sent. "
            "Check masterEndpoint, and take the token again from the master if its certificate was changed"
        )
    return False


def check_answer(
    answer: RegisterAnswer, domain: str, own: rsa.RSAPublicKey, shown: x509.Certificate | None, trusted: bool
) -> rsa.RSAPublicKey:
    """The master's key, once all in the answer fits together. Raises Distrust.

    `shown`: what the connection was made with; None in plain text. `trusted`: something vouched for it beforehand.
    """
    if not answer.master_key:
        raise MasterNotTrusted(
            "it registered us without telling its public key, as masters do whose Domain says UID-RSA-GEN; "
            "set authCenter.tokenGenMethod of the Domain to RSA-GEN"
        )
    try:
        master_key = read_public_key(answer.master_key)
        certificate = pki.load_certificate(answer.certificate.encode())
    except (UnreadableMessage, pki.PkiError) as error:
        raise MasterNotTrusted(f"its answer cannot be used: {error}") from error
    if certificate.public_key() != own or pki.subject_of(certificate)[0] != domain:
        raise MasterNotTrusted("it issued a certificate for another key or another domain")
    if shown is not None and not trusted and not is_certified_by(master_key, shown):
        fingerprint = pki.fingerprint(shown)
        raise MasterNotTrusted(
            f"the certificate on its port ({fingerprint}) does not belong to the key it names as its own, so somebody may stand in "
            f"between. If the port has a certificate of its organisation, compare it and write liteDeployToken: TOKEN.{fingerprint}"
        )
    return master_key


def is_certified_by(key: rsa.RSAPublicKey, certificate: x509.Certificate) -> bool:
    """The certificate is of this key, or signed by it for its port (Kuscia makes one at each start).

    Any other that it signed is somebody else's: an engine's, or one that a user asked for.
    """
    try:
        if certificate.public_key() == key:
            return True
        return pki.subject_of(certificate)[0].endswith(PORT_NAME) and pki.signed_by_key(certificate, key)
    except (UnsupportedAlgorithm, ValueError):
        return False  # a key or signature of a kind that nobody here knows
