"""An engine's certificates: the files, the variables that name them, and making them in the pod's directory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.base import pki
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.volumes import atomic
from coterie.kube.agent.volumes.atomic import FileContent
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.identity import engine_certificates

PLACE = "kuscia/certs"
"""In the container's working directory."""
TRUSTED = ("TRUSTED_CA_FILE", "ca.crt")
SERVER = (("SERVER_CERT_FILE", "server.crt"), ("SERVER_PRIVATE_KEY_FILE", "server.key"))
CLIENT = (("CLIENT_CERT_FILE", "client.crt"), ("CLIENT_PRIVATE_KEY_FILE", "client.key"))
_PRIVATE, _PUBLIC = 0o400, 0o444
"""Nobody outside looks into a pod's directory; a key that no single user of the pod owns is open to all of them."""


def serves(pod: Object) -> bool:
    return _says(pod, labels.KUSCIA_COMMUNICATION_ROLE_SERVER)


def calls(pod: Object) -> bool:
    return _says(pod, labels.KUSCIA_COMMUNICATION_ROLE_CLIENT)


def _says(pod: Object, label: str) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(label) == "true")


def variables(pod: Object) -> dict[str, str]:
    """Relative to the working directory, as Kuscia has them."""
    named = [*(SERVER if serves(pod) else ()), *(CLIENT if calls(pod) else ()), TRUSTED]
    return {variable: f"{PLACE}/{file}" for variable, file in named}


class AuthoritySource(Protocol):
    """Where the authority is that signs engines' certificates."""

    @property
    def able(self) -> bool:
        """Whether there is one."""

    def load(self) -> pki.Authority: ...

    def trusted(self) -> bytes:
        """PEM of the authorities that engines trust."""


class DomainAuthority:
    """In the files of the domain's own node."""

    def __init__(self, paths: DomainPaths) -> None:
        self._paths = paths

    @property
    def able(self) -> bool:
        return self._paths.engine_ca_key.exists() and self._paths.ca_certificate.exists()

    def load(self) -> pki.Authority:
        # Checked when the node started; proving it again would take longer than all the rest.
        key = pki.load_key(self._paths.engine_ca_key.read_bytes(), thorough=False)
        return pki.Authority(pki.load_certificate(self._paths.engine_ca_certificate.read_bytes()), key)

    def trusted(self) -> bytes:
        return trusted_pem(self._paths)


def trusted_pem(paths: DomainPaths) -> bytes:
    """The domain's own first, which data mesh and ConfManager show: some programs read one only."""
    return b"".join(each.read_bytes().rstrip() + b"\n" for each in (paths.ca_certificate, paths.engine_ca_certificate))


@dataclass(frozen=True, slots=True)
class NodeAuthority:
    """Of a node that joined the domain, as its join file has it; empty: the file has none."""

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    authorities: bytes = b""

    @property
    def able(self) -> bool:
        return bool(self.certificate)

    def load(self) -> pki.Authority:
        return pki.Authority(pki.load_certificate(self.certificate), pki.load_key(self.key))

    def trusted(self) -> bytes:
        return self.authorities


class EngineCertificateIssuer:
    """Makes certificates with the authority of the domain's engines, which is read when the first engine comes."""

    def __init__(self, source: AuthoritySource, domain: str, clock: Clock) -> None:
        self._source = source
        self._domain = domain
        self._clock = clock
        self._authority: pki.Authority | None = None

    @property
    def able(self) -> bool:
        """Without an authority engines do without certificates."""
        return self._source.able

    async def ensure(self, directory: Path, pod: Object, addresses: tuple[str, ...], owner: int | None) -> None:
        """The pod's files in `directory`, made unless an earlier agent did and they are still good. Raises OSError or
        PkiError."""
        if not await asyncio.to_thread(self._good, directory, pod):
            await asyncio.to_thread(self._make, directory, pod, addresses, owner)

    def _good(self, directory: Path, pod: Object) -> bool:
        """Whether they are there, of today's authority, and not about to end."""
        if not (directory / TRUSTED[1]).exists():
            return False
        names = [*((SERVER[0][1],) if serves(pod) else ()), *((CLIENT[0][1],) if calls(pod) else ())]
        authority = self._read_authority().certificate
        for name in names:
            certificate = pki.load_certificate((directory / name).read_bytes())
            if not pki.signed_by(certificate, authority) or pki.renewal_due(certificate, self._clock.now()):
                return False
        return True

    def _read_authority(self) -> pki.Authority:
        if self._authority is None:
            self._authority = self._source.load()
        return self._authority

    def _make(self, directory: Path, pod: Object, addresses: tuple[str, ...], owner: int | None) -> None:
        authority = self._read_authority()
        engine = engine_in(pod, self._domain)
        now = self._clock.now()
        files = {TRUSTED[1]: FileContent(self._source.trusted(), _PUBLIC)}
        made = []
        if serves(pod):
            made.append((SERVER, engine_certificates.issue_server_pair(authority, engine, addresses, now)))
        if calls(pod):
            made.append((CLIENT, engine_certificates.issue_client_pair(authority, engine, now)))
        for names, pair in made:
            files[names[0][1]] = FileContent(pair.certificate, _PUBLIC)
            files[names[1][1]] = FileContent(pair.key, _PUBLIC if owner is None else _PRIVATE)
        atomic.write(directory, files, owner=owner)


def engine_in(pod: Object, domain: str) -> engine_certificates.EngineIdentity:
    marks = pod["metadata"].get("annotations") or {}
    return engine_certificates.EngineIdentity(
        domain=domain,
        pod=pod_model.key_of(pod).name,
        uid=pod_model.uid_of(pod),
        task=marks.get(labels.KUSCIA_TASK_ID) or "",
        job=marks.get(labels.KUSCIA_JOB_ID) or "",
    )
