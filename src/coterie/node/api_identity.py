"""Keys and certificates of the embedded API: an authority of its own, a server certificate, an operator's certificate,
and the key that signs service-account tokens.

    var/certs/pki/   ca.crt ca.key   apiserver.crt apiserver.key   admin.crt admin.key   agent-client.*   sa.key
                     front-proxy-ca.crt front-proxy-ca.key   front-proxy-client.crt front-proxy-client.key

The front-proxy authority is for aggregated API servers only: whoever has its client certificate may name any user to them.
The API itself does not accept its certificates.

They are made when missing, and leaf certificates are renewed when less than a third of their life is left or when the
server is to be reached under a new name. The authority and the token key are never replaced silently. `apikeys` does
that in a process of its own; this one only reads the files.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base import client_authorities, parent_death
from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.paths import DomainPaths
from coterie.kube.apiserver.auth.authentication_info import AuthenticationInfo

if TYPE_CHECKING:
    from coterie.base import pki
else:
    pki = lazy_import("coterie.base.pki")

AUTHORITY = "coterie-api"
"""The common name of the API's own authority."""
FRONT_PROXY_AUTHORITY = "coterie-front-proxy"
"""The common name of the authority that signs the front-proxy certificate."""
SERVICE_NAMES = (
    "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    "apiserver.master.svc",
)  # fmt: skip


class IdentityError(Exception):
    """The API's keys or certificates cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ApiIdentity:
    directory: Path

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def front_proxy_ca_file(self) -> Path:
        return self.directory / "front-proxy-ca.crt"

    def authentication_info(self) -> AuthenticationInfo:
        """What aggregated API servers are told; certificates only."""
        return AuthenticationInfo(self.ca_file.read_text(), self.front_proxy_ca_file.read_text())

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of `apiserver`, `admin`, `agent-client` or `front-proxy-client`."""
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def token_key(self) -> pki.PrivateKey:
        """The key that signs service accounts' tokens."""
        return pki.load_key((self.directory / "sa.key").read_bytes())

    def server_tls(self) -> ssl.SSLContext:
        """TLS for the API's port: client certificates are asked for, and checked when given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.pair("apiserver"))
        context.load_verify_locations(self.ca_file)
        client_authorities.announce(context, self.ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context

    def agent_tls(self) -> ssl.SSLContext:
        """TLS from the API server to node agents: both show certificates of this authority, the agent for its address."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(*self.pair("agent-client"))
        return context

    def domain_agent_tls(self) -> ssl.SSLContext:
        """Likewise to agents of domains that registered here. Theirs is looked at by `apiserver.agenttrust`, since no
        authority of ours signed it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(*self.pair("agent-client"))
        return context


def ensure(paths: DomainPaths, names: Sequence[str], clock: Clock) -> ApiIdentity:
    """Load the API's identity, making or renewing what is missing or due."""
    wanted = dict.fromkeys((*SERVICE_NAMES, *names))
    done = subprocess.run(
        # Without `site`: where this process finds its modules, the other finds them too, and starts faster.
        (sys.executable, "-S", "-m", "coterie.node.api_keys_process", str(paths.pki), clock.now().isoformat(), *wanted),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **parent_death.parent_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip()
        raise IdentityError(
            f"the keys in {paths.pki} cannot be used: {errors}; put them back from a copy, or remove them all"
        )
    return ApiIdentity(paths.pki)
