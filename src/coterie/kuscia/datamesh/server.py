"""A whole data mesh, put together: from a client of the API and the domain's keys to two open ports.

async with DataMesh(settings, client, identity, open_source, clock, run=directory) as mesh:      # mesh.grpc_port, mesh.http_port
    ...
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coterie.base import listener_handover, pki, pki_files
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.trace import RING, TraceRing
from coterie.http.server import HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.client.client import Client
from coterie.kuscia.control import running_engines
from coterie.kuscia.control.evidence_recorder import EvidenceSocket
from coterie.kuscia.datamesh import grpc_server, http_server
from coterie.kuscia.datamesh.authentication import EngineAuthenticator
from coterie.kuscia.datamesh.authorization import DataAuthorizer
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.flight import Flight
from coterie.kuscia.datamesh.locations import DataLocations, Opener
from coterie.kuscia.datamesh.metrics import MeshMetrics
from coterie.kuscia.datamesh.provenance import DataProvenance
from coterie.kuscia.datamesh.row_reader import RowReader
from coterie.kuscia.datamesh.services import MeshServices
from coterie.kuscia.datamesh.settings import GRPC, HTTP, MeshSettings
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.identity.domain_identity import DomainIdentity

log = logger("datamesh")

_GRACE = 5.0
_GRPC_SOCKET = "mesh-grpc.sock"


@dataclass(frozen=True, slots=True)
class MeshServerKeys:
    certificate: Path
    key: Path
    authority: Path
    """Of the clients: the domain's engines."""

    @classmethod
    def ensure(cls, paths: DomainPaths, addresses: Sequence[str], now: datetime) -> MeshServerKeys:
        """`var/certs/DataMesh.crt`, signed by the domain's authority. PkiError or OSError without one."""
        authority = pki.Authority(
            pki.load_certificate(paths.ca_certificate.read_bytes()),
            pki.load_key(paths.ca_key.read_bytes(), thorough=False),
        )
        names = tuple(dict.fromkeys(("datamesh", "localhost", "127.0.0.1", *addresses)))
        pair = pki_files.ensure_server(paths.certs, "DataMesh", authority, names=names, now=now)
        return cls(pair.certificate_path, pair.key_path, paths.engine_ca_certificate)

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class DataMesh:
    def __init__(
        self,
        settings: MeshSettings,
        client: Client,
        identity: DomainIdentity,
        open_source: Opener,
        clock: Clock,
        *,
        run: Path,
        listeners: Mapping[str, socket.socket] | None = None,
        traces: TraceRing = RING,
    ) -> None:
        """`run`: a private directory with a short path. `listeners`: None: as the settings say."""
        self._settings = settings
        self._run = run
        self._listeners = listeners
        self._keys = MeshServerKeys.ensure(settings.paths, (settings.address, *settings.names), clock.now())
        self.catalogue = DataCatalogue(client, identity, only_data_directory=settings.only_data_directory)
        provenance = DataProvenance(client, self.catalogue)
        self.metrics = MeshMetrics()
        permits = DataAuthorizer(
            client,
            self.catalogue,
            provenance,
            identity,
            clock,
            every=settings.recheck_seconds,
            metrics=self.metrics,
            evidence=EvidenceSocket(settings.evidence) if settings.evidence is not None else None,
        )
        places = DataLocations(self.catalogue, provenance, open_source, settings.proxies)
        callers = EngineAuthenticator(client, identity.domain, settings.node)
        operations = MeshServices(self.catalogue, provenance, permits, places).operations()
        self.flight = Flight(self.catalogue, provenance, permits, places, operations, clock, traces, self.metrics)
        rows = RowReader(self.catalogue, permits, places, self.metrics)
        self._grpc = grpc_server.GrpcServer(callers, operations, self.flight)
        self._http = HttpServer(
            http_server.HttpHandler(callers, operations, rows).handle,
            user_of=running_engines.user_of_certificate,
            problem_response=status_response,
        )
        self.grpc_port = self.http_port = 0

    @classmethod
    def of(
        cls,
        settings: MeshSettings,
        client: Client,
        open_source: Opener,
        clock: Clock,
        run: Path,
        listeners: Mapping[str, socket.socket],
        traces: TraceRing = RING,
    ) -> DataMesh:
        identity = identities.load(settings.paths, settings.domain)
        return cls(settings, client, identity, open_source, clock, run=run, listeners=listeners, traces=traces)

    async def __aenter__(self) -> DataMesh:
        settings, keys = self._settings, self._keys
        found = self._listeners if self._listeners is not None else _open_listeners(settings)
        self.http_port, self.grpc_port = (int(found[name].getsockname()[1]) for name in (HTTP, GRPC))
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        credentials = grpc_server.credentials(
            *(each.read_bytes() for each in (keys.certificate, keys.key, keys.authority))
        )
        await self._grpc.start(
            found[GRPC],
            self._run / _GRPC_SOCKET,
            credentials,
            direct=f"{host}:{self.grpc_port}" if settings.direct_grpc else "",
            netns=settings.netns,
        )
        await self._http.serve(found[HTTP], keys.context())
        log.info("The data mesh is served", address=settings.address, grpc=self.grpc_port, http=self.http_port)
        return self

    async def __aexit__(self, *problem: object) -> None:
        await asyncio.gather(self._grpc.stop(_GRACE), self._http.stop(_GRACE))


def _open_listeners(settings: MeshSettings) -> dict[str, socket.socket]:
    http = listener_handover.listen(settings.address, settings.http_port)
    try:
        return {HTTP: http, GRPC: listener_handover.listen(settings.address, settings.grpc_port)}
    except OSError:
        http.close()
        raise
