"""Certificates of KusciaAPI and ConfManager, signed by the domain's authority, and the token.

var/certs/  kusciaapi-server.*   KusciaAPI's ports        token
            kusciaapi-client.*   for who calls them: curl --cert kusciaapi-client.crt --key kusciaapi-client.key
            ConfManager.*        ConfManager's ports
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coterie.base import pki, pki_files
from coterie.base.paths import DomainPaths
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings

SERVER, CLIENT, CONF_MANAGER = "kusciaapi-server", "kusciaapi-client", "ConfManager"
_HERE = ("localhost", "127.0.0.1")
_EVERYWHERE = ("0.0.0.0", "::")


def ensure(
    settings: KusciaApiSettings, more_names: Sequence[str], now: datetime, *, conf_names: Sequence[str] = ()
) -> None:
    """What is missing is made. `conf_names`: further names of ConfManager. PkiError or OSError when the domain has no
    keys."""
    paths = settings.paths
    authority = pki.Authority(
        pki.load_certificate(paths.ca_certificate.read_bytes()),
        pki.load_key(paths.ca_key.read_bytes(), thorough=False),
    )
    names = _names("kusciaapi", settings.address, *more_names)
    # Kuscia has no pair for clients: its users, and all that is written for them, show the server's own.
    pki_files.ensure_server(paths.certs, SERVER, authority, names=names, now=now, subject="KusciaAPI", calls=True)
    pki_files.ensure_client(paths.certs, CLIENT, authority, user="KusciaAPIClient", now=now)
    names = _names("confmanager", settings.conf_address, *conf_names)
    pki_files.ensure_server(paths.certs, CONF_MANAGER, authority, names=names, now=now)
    identities.ensure_api_token(paths, identities.load(paths, settings.domain))


def _names(*own: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in (*own, *_HERE) if each not in _EVERYWHERE))


@dataclass(frozen=True, slots=True)
class KusciaApiServerKeys:
    """What a port shows, and whom it believes."""

    certificate: Path
    key: Path
    authority: Path
    """Of the clients."""
    mutual: bool

    @classmethod
    def of(cls, paths: DomainPaths, name: str, *, mutual: bool) -> KusciaApiServerKeys:
        return cls(paths.certificate(name), paths.key(name), paths.ca_certificate, mutual)

    @classmethod
    def for_engines(cls, paths: DomainPaths) -> KusciaApiServerKeys:
        """ConfManager's, which serves the domain's engines and nobody else."""
        return cls(paths.certificate(CONF_MANAGER), paths.key(CONF_MANAGER), paths.engine_ca_certificate, mutual=True)

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.mutual:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
