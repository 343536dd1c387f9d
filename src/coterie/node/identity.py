"""Keys and certificates of the embedded API: an authority of its own, a server certificate, an operator's certificate,
and the key that signs service-account tokens.

    var/certs/pki/   ca.crt ca.key   apiserver.crt apiserver.key   admin.crt admin.key   agent-client.*   sa.key

They are made when missing, and leaf certificates are renewed when less than a third of their life is left or when the
server is to be reached under a new name. The authority and the token key are never replaced silently.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.base import pki
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths

ADMIN_GROUP = "system:masters"
SERVICE_NAMES = (
    "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    "apiserver.master.svc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApiIdentity:
    authority: pki.Authority
    ca_file: Path
    server_certificate: Path
    server_key: Path
    admin_certificate: Path
    admin_key: Path
    agent_client_certificate: Path
    agent_client_key: Path
    token_key: pki.PrivateKey

    def server_tls(self) -> ssl.SSLContext:
        """TLS for the API's port: client certificates are asked for, and checked when given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.server_certificate, self.server_key)
        context.load_verify_locations(self.ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context

    def agent_tls(self) -> ssl.SSLContext:
        """TLS from the API server to node agents: both sides show a certificate of this authority."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(self.agent_client_certificate, self.agent_client_key)
        # Agents are dialled by the address their Node object reports, and prove themselves by the authority.
        context.check_hostname = False
        return context


def ensure(paths: DomainPaths, names: Sequence[str], clock: Clock) -> ApiIdentity:
    """Load the API's identity, making or renewing what is missing or due."""
    where = paths.pki
    authority = _authority(where)
    if authority is None:
        key = pki.new_key("ec")
        authority = pki.self_signed_ca("coterie-api", key, now=clock.now())
        pki.save_key(where / "ca.key", key)
        pki.save_certificate(where / "ca.crt", authority.certificate)
    identity = ApiIdentity(
        authority=authority,
        ca_file=where / "ca.crt",
        server_certificate=where / "apiserver.crt",
        server_key=where / "apiserver.key",
        admin_certificate=where / "admin.crt",
        admin_key=where / "admin.key",
        agent_client_certificate=where / "agent-client.crt",
        agent_client_key=where / "agent-client.key",
        token_key=_token_key(where / "sa.key"),
    )
    wanted = tuple(dict.fromkeys((*SERVICE_NAMES, *names)))
    if _due(identity.server_certificate, identity.server_key, authority, clock, wanted):
        key = pki.new_key("ec")
        certificate = pki.issue_server(authority, "kube-apiserver", key.public_key(), names=wanted, now=clock.now())
        pki.save_key(identity.server_key, key)
        pki.save_certificate(identity.server_certificate, certificate)
    for user, groups, certificate_file, key_file in (
        ("coterie-admin", (ADMIN_GROUP,), identity.admin_certificate, identity.admin_key),
        ("kube-apiserver-kubelet-client", (), identity.agent_client_certificate, identity.agent_client_key),
    ):
        if _due(certificate_file, key_file, authority, clock):
            key = pki.new_key("ec")
            certificate = pki.issue_client(authority, user, key.public_key(), groups=groups, now=clock.now())
            pki.save_key(key_file, key)
            pki.save_certificate(certificate_file, certificate)
    return identity


def _authority(where: Path) -> pki.Authority | None:
    certificate, key = where / "ca.crt", where / "ca.key"
    if not certificate.exists() and not key.exists():
        return None
    return pki.Authority(pki.load_certificate(certificate.read_bytes()), pki.load_key(key.read_bytes()))


def _token_key(path: Path) -> pki.PrivateKey:
    if path.exists():
        return pki.load_key(path.read_bytes())
    key = pki.new_key("ec")
    pki.save_key(path, key)
    return key


def _due(
    certificate_file: Path, key_file: Path, authority: pki.Authority, clock: Clock, names: Sequence[str] = ()
) -> bool:
    if not certificate_file.exists() or not key_file.exists():
        return True
    certificate = pki.load_certificate(certificate_file.read_bytes())
    if pki.renewal_due(certificate, clock.now()) or not pki.signed_by(certificate, authority.certificate):
        return True
    return bool(set(names) - set(pki.names_of(certificate)))
