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
from coterie.base.secret import Secret
from coterie.kuscia.gateway.registration.messages import RegisterAnswer, Unreadable, read_public_key
from coterie.kuscia.identity.certificate_requests import PORT_NAME

_PIN = re.compile(r"[0-9a-fA-F]{64}")


class Distrust(Exception):
    """The other side is not shown to be the control plane; the message says what to do."""


def split_token(given: Secret | None) -> tuple[Secret | None, str]:
    """(the token itself, the pin behind it or an empty text). Kuscia's tokens hold no dot."""
    if given is None:
        return None, ""
    token, _, pin = given.reveal().strip().rpartition(".")
    pin = pin.replace(":", "")
    if token and _PIN.fullmatch(pin):
        return Secret(token), pin.lower()
    return Secret(given.reveal().strip()), ""


def with_pin(token: str, certificate: x509.Certificate) -> str:
    """What an operator gives to a lite that shall not believe anybody else."""
    return f"{token}.{pki.fingerprint(certificate)}"


def check_shown(shown: x509.Certificate, pin: str, master_key: rsa.RSAPublicKey | None, before: str) -> bool:
    """Whether something vouches for it; False: only that nothing speaks against it yet. Raises Distrust.

    `before`: PEM of what was shown when this lite registered.
    """
    told = pki.fingerprint(shown)
    if pin and told == pin:
        return True
    if master_key is not None:
        if vouches(master_key, shown) or (before and pki.fingerprint(pki.load_certificate(before.encode())) == told):
            return True
        raise Distrust(
            f"it shows a certificate ({told}) that does not belong to the master this lite registered with; if the master "
            "really has a new key, remove master.pub from var/certs and start again with a new deploy token"
        )
    if pin:
        raise Distrust(
            f"it shows the certificate {told}, and the deploy token is for one with {pin}; nothing was sent. "
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
        raise Distrust(
            "it registered us without telling its public key, as masters do whose Domain says UID-RSA-GEN; "
            "set authCenter.tokenGenMethod of the Domain to RSA-GEN"
        )
    try:
        master_key = read_public_key(answer.master_key)
        certificate = pki.load_certificate(answer.certificate.encode())
    except (Unreadable, pki.PkiError) as error:
        raise Distrust(f"its answer cannot be used: {error}") from error
    if certificate.public_key() != own or pki.subject_of(certificate)[0] != domain:
        raise Distrust("it issued a certificate for another key or another domain")
    if shown is not None and not trusted and not vouches(master_key, shown):
        told = pki.fingerprint(shown)
        raise Distrust(
            f"the certificate on its port ({told}) does not belong to the key it names as its own, so somebody may stand in "
            f"between. If the port has a certificate of its organisation, compare it and write liteDeployToken: TOKEN.{told}"
        )
    return master_key


def vouches(key: rsa.RSAPublicKey, certificate: x509.Certificate) -> bool:
    """The certificate is of this key, or signed by it for its port (Kuscia makes one at each start).

    Any other that it signed is somebody else's: an engine's, or one that a user asked for.
    """
    try:
        if certificate.public_key() == key:
            return True
        return pki.subject_of(certificate)[0].endswith(PORT_NAME) and pki.signed_by_key(certificate, key)
    except (UnsupportedAlgorithm, ValueError):
        return False  # a key or signature of a kind that nobody here knows
