"""Where the files of one domain lie.

    <root>/<domain>/
        kubeconfig            ready for kubectl
        etc/                  the configuration in use
        var/certs/            keys and certificates, as Kuscia names them, and the API server's own under pki/
        var/logs/             one log per process
        var/stdout/           the output of pods
        var/storage/          the API's store (coterie.db)
        var/storage/data/     the default local data source
        var/run/              sockets and process ids; worthless after a restart
        var/volumes/          files of local-path PersistentVolumes; they outlive pods
        var/images/           what pods are started from

Only names: nothing here touches the disk except `prepare()`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from coterie.base.files import private_directory

ROOT_VARIABLE = "COTERIE_ROOT"


def default_root() -> Path:
    """`$COTERIE_ROOT`, or `~/.coterie`."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named).expanduser().absolute() if named else Path.home() / ".coterie"


@dataclass(frozen=True, slots=True)
class DomainPaths:
    home: Path

    @classmethod
    def of(cls, root: Path, domain: str) -> DomainPaths:
        if not domain or "/" in domain or "\0" in domain or domain in (".", ".."):
            raise ValueError(f"not a domain name: {domain!r}")
        return cls(root / domain)

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    @property
    def etc(self) -> Path:
        return self.home / "etc"

    @property
    def var(self) -> Path:
        return self.home / "var"

    @property
    def certs(self) -> Path:
        return self.var / "certs"

    @property
    def pki(self) -> Path:
        """The embedded API server's own authority and keys, apart from the domain's identity."""
        return self.certs / "pki"

    @property
    def logs(self) -> Path:
        return self.var / "logs"

    @property
    def stdout(self) -> Path:
        return self.var / "stdout"

    @property
    def storage(self) -> Path:
        return self.var / "storage"

    @property
    def data(self) -> Path:
        return self.storage / "data"

    @property
    def database(self) -> Path:
        return self.storage / "coterie.db"

    @property
    def run(self) -> Path:
        return self.var / "run"

    @property
    def logging(self) -> Path:
        """How the node's child processes log (base/child_logging.py)."""
        return self.run / "logging.json"

    @property
    def images(self) -> Path:
        return self.var / "images"

    # The names below are Kuscia's; engines and users look for them.

    @property
    def ca_certificate(self) -> Path:
        return self.certs / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.certs / "ca.key"

    @property
    def engine_ca_certificate(self) -> Path:
        """Of the authority that signs what engines show, and nothing else."""
        return self.certs / "engine-ca.crt"

    @property
    def engine_ca_key(self) -> Path:
        return self.certs / "engine-ca.key"

    @property
    def domain_certificate(self) -> Path:
        return self.certs / "domain.crt"

    @property
    def domain_key(self) -> Path:
        return self.certs / "domain.key"

    @property
    def api_token(self) -> Path:
        return self.certs / "token"

    def certificate(self, name: str) -> Path:
        """`kusciaapi-client` -> `var/certs/kusciaapi-client.crt`."""
        return self.certs / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.certs / f"{name}.key"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def pod_stdout(self, namespace: str, pod: str, uid: str) -> Path:
        """The directory of one pod's output, named as the kubelet names it."""
        return self.stdout / "pods" / f"{namespace}_{pod}_{uid}"

    def prepare(self) -> DomainPaths:
        """Make every directory, private to the owner."""
        for path in (
            self.home,
            self.etc,
            self.var,
            self.certs,
            self.pki,
            self.logs,
            self.stdout,
            self.storage,
            self.data,
            self.run,
            self.images,
        ):
            private_directory(path)
        return self
