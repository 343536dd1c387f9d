"""What each mode runs, and in which order. `run` is one node's whole life.

    master:  store ─> API server ─> API port + kubeconfig ─> informers ─> controllers

The first part that fails stops the rest, and its error is what `run` raises.
"""

from __future__ import annotations

import asyncio
import gc as gc_module
import signal
from pathlib import Path

from coterie.apiserver.audit import AuditSink, FileSink
from coterie.apiserver.auth.authn import user_from_certificate
from coterie.apiserver.auth.tokens import TokenSigner
from coterie.apiserver.http.messages import UserInfo
from coterie.apiserver.http.server import HttpServer
from coterie.apiserver.server import ApiServer, Settings
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import LogSettings, configure, logger
from coterie.client import kubeconfig
from coterie.client.client import Client
from coterie.client.informers import Informers
from coterie.client.inprocess import InProcessTransport
from coterie.control.manager import Manager, Runnable
from coterie.controllers.clusterrole_aggregation import controller as clusterrole_aggregation
from coterie.controllers.crd import controller as crd
from coterie.controllers.gc import controller as gc
from coterie.controllers.namespace import controller as namespace
from coterie.controllers.quota import controller as quota
from coterie.controllers.rootca import controller as rootca
from coterie.controllers.serviceaccount import controller as serviceaccount
from coterie.node import identity
from coterie.node.config import ConfigError, NodeSettings
from coterie.store import SqliteStore

log = logger("node")

CONTROLLER_USER = UserInfo("system:coterie-controllers", ("system:masters", "system:authenticated"))


class ApiPlane:
    """The store, the API server on it and the port: one runnable, because none of them is of use without the others."""

    name = "api"

    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._settings = settings
        self._clock = clock
        self._stop = asyncio.Event()
        api = settings.api
        self._identity = identity.ensure(settings.paths, (api.host, *api.names), clock)
        self._sinks: list[AuditSink] = []
        if api.audit_log:
            target = Path(api.audit_log)
            self._sinks.append(FileSink(target if target.is_absolute() else settings.paths.logs / target))
        self._store = SqliteStore(settings.paths.database, clock=clock)
        self.server = ApiServer(
            self._store,
            Settings(
                signer=TokenSigner(self._identity.token_key),
                audit_sinks=self._sinks,
                agent_tls=self._identity.agent_tls,
                event_ttl=api.event_ttl_seconds,
            ),
            clock,
        )
        self._http = HttpServer(self.server.handle, user_of=user_from_certificate)

    @property
    def ca_pem(self) -> bytes:
        return self._identity.ca_file.read_bytes()

    def client(self, user: UserInfo = CONTROLLER_USER) -> Client:
        """A client inside this process."""
        return Client(InProcessTransport(self.server.handle, user))

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._store.open()
        try:
            await self.server.start()
            api = self._settings.api
            host, port = await self._http.listen(api.host, api.port, self._identity.server_tls())
            try:
                self._write_kubeconfig(host, port)
                log.info("The API is served", address=f"https://{host}:{port}")
                self.ready.set()
                await self._stop.wait()
            finally:
                await self._http.stop()
                await self.server.stop()
        finally:
            await self._store.close()
            for sink in self._sinks:
                if isinstance(sink, FileSink):
                    sink.close()

    def _write_kubeconfig(self, host: str, port: int) -> None:
        """The operator's way in. Written once the port is open, so whoever finds the file can use it."""
        reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        certificate, key = self._identity.pair("admin")
        kubeconfig.make(
            self._settings.domain,
            f"https://{reached}:{port}",
            ca=self.ca_pem,
            certificate=certificate.read_bytes(),
            key=key.read_bytes(),
        ).write(self._settings.paths.kubeconfig)


def groups(settings: NodeSettings, clock: Clock = SYSTEM_CLOCK) -> list[list[Runnable]]:
    """The parts of a node in the order in which they start."""
    if settings.mode != "master":
        raise ConfigError(
            f"mode: {settings.mode} needs the node agent, which this version does not have yet; use master"
        )
    plane = ApiPlane(settings, clock)
    client = plane.client()
    informers = Informers(client)
    return [[plane], [informers], controllers(client, informers, plane.ca_pem.decode(), clock)]


def controllers(client: Client, informers: Informers, ca: str, clock: Clock) -> list[Runnable]:
    """What keeps the objects of every control plane in order."""
    return [
        gc.GarbageCollector(client, clock=clock),
        namespace.make(client, informers, clock=clock),
        crd.make(client, informers, clock=clock),
        serviceaccount.make(client, informers, clock=clock),
        rootca.make(client, informers, ca, clock=clock),
        quota.make(client, informers, clock=clock),
        clusterrole_aggregation.make(client, informers, clock=clock),
    ]


async def run(settings: NodeSettings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run a node until SIGTERM or SIGINT."""
    configure(LogSettings(level=settings.log_level, format="json" if settings.log_json else "plain"))
    settings.paths.prepare()
    manager = Manager(groups(settings, clock), name=settings.domain, clock=clock)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, manager.stop)
    _spare_the_collector()
    await manager.run()
    log.info("The node stopped", domain=settings.domain)


def _spare_the_collector() -> None:
    """What was loaded at start lives as long as the process, and caches hold many small objects that have no cycles:
    looking at all of them again and again would cost more than it could ever free."""
    gc_module.collect()
    gc_module.freeze()
    gc_module.set_threshold(50_000, 20, 50)
