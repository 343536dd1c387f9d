"""Certificates as people paste them into requests, and as objects keep them. Pure.

A PEM text, base64 of it, base64 of that again, or the bare body between the markers; with line breaks of any kind, or
the two letters `\\n` in their place. What comes out is always base64 of PEM.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.api.domainroutes import KeyFault, public_key_of_certificate

if TYPE_CHECKING:
    from coterie.base import pki
else:
    pki = lazy_import("coterie.base.pki")

_MARKED = re.compile(r"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----(.*?)-----END", re.DOTALL)
_BREAKS = re.compile(r"\s+|\\r|\\n")
_LAYERS = 3
_LONGEST = 64 * 1024
_SEQUENCE = b"\x30"
"""What every certificate begins with in its binary form; no text that wraps one does."""

_UNREADABLE = "is not a certificate in PEM, nor base64 of one; take var/certs/domain.crt of the domain"


class NotACertificate(Exception):
    """The message says what is wrong and quotes nothing: people paste keys by mistake."""


def domain_certificate(text: str, domain: str) -> str:
    """As `Domain.spec.cert` has it. Raises NotACertificate: unreadable, of another domain, or useless for the
    handshake."""
    if len(text) > _LONGEST:
        raise NotACertificate(f"is longer than {_LONGEST} characters; give the domain's certificate alone")
    try:
        certificate = pki.load_der_certificate(_binary(text))
    except pki.PkiError as problem:
        raise NotACertificate(_UNREADABLE) from problem
    subject = pki.subject_of(certificate)[0]
    if subject != domain:
        raise NotACertificate(f'is of "{subject}", not of "{domain}"')
    kept = encoded(pki.certificate_pem(certificate))
    try:
        public_key_of_certificate(kept)
    except KeyFault as fault:
        raise NotACertificate(f"cannot be used: {fault}") from fault
    return kept


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def _binary(text: str) -> bytes:
    for _ in range(_LAYERS):
        marked = _MARKED.search(text)
        try:
            content = base64.b64decode(_BREAKS.sub("", marked[1] if marked else text), validate=True)
            if marked or content.startswith(_SEQUENCE):
                return content
            text = content.decode("ascii")
        except ValueError:  # not base64, or not text
            break
    raise NotACertificate(_UNREADABLE)
