"""Client certificates that routes bring along (`mTLSConfig`), as files: Envoy reads keys from files only.

The directory is private; a key lies there while its route does.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path

from coterie.base import pki
from coterie.base.files import private_directory, read_bytes_or_none, write_atomic
from coterie.kuscia.api.types.domain import DomainRoute, MtlsConfig
from coterie.kuscia.gateway.addresses import KeyPair
from coterie.kuscia.gateway.model import SnapshotProblem


class ClientKeyFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def of(self, routes: Iterable[DomainRoute], domain: str) -> tuple[dict[str, KeyPair], list[SnapshotProblem]]:
        """By the route's name, for routes that we dial and that bring a pair; what is no pair is a problem."""
        pairs: dict[str, KeyPair] = {}
        problems: list[SnapshotProblem] = []
        for route in routes:
            config = route.spec.mtls_config
            if route.spec.source != domain or config is None or not config.source_client_private_key:
                continue
            name = route.metadata.name
            try:
                pairs[name] = self._kept(name, config)
            except (binascii.Error, pki.PkiError) as error:
                problems.append(
                    SnapshotProblem(f"route {name}", f"mTLSConfig holds no usable client certificate: {error}")
                )
        self._forget({path for pair in pairs.values() for path in (pair.certificate, pair.key)})
        return pairs, problems

    def _kept(self, name: str, config: MtlsConfig) -> KeyPair:
        pair = KeyPair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        certificate = base64.b64decode(config.source_client_cert, validate=True)
        key = base64.b64decode(config.source_client_private_key, validate=True)
        if read_bytes_or_none(pair.certificate) == certificate and read_bytes_or_none(pair.key) == key:
            return pair
        if pki.public_key_of(pki.load_certificate(certificate)) != pki.load_key(key).public_key():
            raise pki.PkiError("the certificate does not belong to the key")
        private_directory(self.directory)
        write_atomic(pair.key, key)
        write_atomic(pair.certificate, certificate)
        return pair

    def _forget(self, wanted: set[Path]) -> None:
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path not in wanted:
                    path.unlink(missing_ok=True)
