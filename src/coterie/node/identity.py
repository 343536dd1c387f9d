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

from coterie.base import pki, pki_files
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths

AUTHORITY = "coterie-api"
ADMIN_GROUP = "system:masters"
SERVICE_NAMES = (
    "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    "apiserver.master.svc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApiIdentity:
    directory: Path
    token_key: pki.PrivateKey

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of `apiserver`, `admin` or `agent-client`."""
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def server_tls(self) -> ssl.SSLContext:
        """TLS for the API's port: client certificates are asked for, and checked when given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.pair("apiserver"))
        context.load_verify_locations(self.ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context

    def agent_tls(self) -> ssl.SSLContext:
        """TLS from the API server to node agents: both show certificates of this authority, the agent for its address."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(*self.pair("agent-client"))
        return context


def ensure(paths: DomainPaths, names: Sequence[str], clock: Clock) -> ApiIdentity:
    """Load the API's identity, making or renewing what is missing or due."""
    where, now = paths.pki, clock.now()
    authority = pki_files.ensure_authority(where, AUTHORITY, now=now)
    wanted = tuple(dict.fromkeys((*SERVICE_NAMES, *names)))
    pki_files.ensure_server(where, "apiserver", authority, names=wanted, now=now)
    pki_files.ensure_client(where, "admin", authority, user="coterie-admin", groups=(ADMIN_GROUP,), now=now)
    pki_files.ensure_client(where, "agent-client", authority, user="kube-apiserver-kubelet-client", now=now)
    return ApiIdentity(where, pki_files.ensure_key(where / "sa.key"))
