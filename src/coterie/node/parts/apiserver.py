"""The control plane of a node: the store, the API server on it, the port and the kubeconfig."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import __version__
from coterie.base.clock import Clock
from coterie.base.files import private_directory
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.http.messages import UserInfo
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.apiserver.audit import AuditSink, FileSink, SelectedSink
from coterie.kube.apiserver.auth.authn import user_from_certificate
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.members import ServerMember
from coterie.kube.apiserver.server import ApiServer, Dial, Settings
from coterie.kube.apiserver.write_gate import WriteGate
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.control.child_api_listener import private_socket
from coterie.kube.store.opening import store_of
from coterie.kube.store.protocol import StoreUnavailable
from coterie.kuscia.api.log_query import CONTROLLER, SCHEDULER
from coterie.kuscia.control.log_search import NodeLogSearch
from coterie.kuscia.extensions.apiserver import apiserver_extension
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node import api_identity
from coterie.node.api_addresses import LOOPBACK, certificate_names
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.parts.leadership import member_name

if TYPE_CHECKING:
    from coterie.kube.apiserver import audit_policy
else:
    audit_policy = lazy_import("coterie.kube.apiserver.audit_policy")

log = logger("node")

_STORE_RETRY_SECONDS = 2.0
_STORE_LOG_EVERY = 15

BOOTSTRAP_USER = UserInfo("system:coterie-bootstrap", ("system:masters", "system:authenticated"))
"""Writes what a control plane makes of itself at its start."""
KUSCIA_API_USER = UserInfo("system:coterie-kusciaapi", ("system:masters", "system:authenticated"))
"""KusciaAPI's writes are those of people: they are told from the controllers'."""
CONTROLLER_USER = UserInfo("system:coterie-controllers", ("system:masters", "system:authenticated"))


def _audit_policy(settings: NodeSettings) -> audit_policy.AuditPolicy | None:
    """Raises ConfigError: without the log that was asked for, the API is not served."""
    api = settings.api
    if not api.audit_policy:
        return None
    if not api.audit_log:
        raise ConfigError("apiServer.auditPolicy: there is no log for it, because apiServer.auditLog is empty")
    path = settings.paths.home / Path(api.audit_policy).expanduser()
    try:
        return audit_policy.parse_policy(path.read_bytes())
    except OSError as problem:
        raise ConfigError(f"apiServer.auditPolicy: {path} cannot be read ({problem.strerror})") from problem
    except audit_policy.AuditPolicyError as problem:
        raise ConfigError(f"apiServer.auditPolicy: {path}: {problem}") from problem


def advertised(settings: NodeSettings, own: str) -> str:
    """The address in the endpoints of `default/kubernetes`: the one that other machines use, where there is one."""
    if settings.api.host in LOOPBACK:
        named = [settings.agent.address] if settings.agent is not None else [*settings.api.names, own]
        own = next(filter(_is_address, named), own)
    return own if _is_address(own) else "127.0.0.1"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _connections_possible() -> int:
    """Each agent keeps a dozen watches: half of the files that this process may open, and not less than the default."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(HttpLimits().max_connections, soft // 2)


def _file_names(pair: tuple[Path, Path]) -> tuple[str, str]:
    return str(pair[0]), str(pair[1])


class ApiPlane:
    """The store, the API server on it and the port: one runnable, because none of them is of use without the others."""

    name = "api"

    def __init__(
        self, settings: NodeSettings, clock: Clock, dial: Dial | None = None, *, gate: WriteGate | None = None
    ) -> None:
        """`dial`: the way to pods, for webhooks and other servers behind Services. `gate`: asked before writes."""
        self.ready = asyncio.Event()
        self.address: tuple[str, int] | None = None
        """Where the API is reached from this machine, once it is."""
        self.member = ""
        """The name of this member of the control plane; empty where the store is this node's alone."""
        self.reports: Callable[[], bool] = lambda: True
        """Whether this member writes what it sees of aggregated servers."""
        self._settings = settings
        self._clock = clock
        self._stop = asyncio.Event()
        self._gateway_socket = Path(GatewayPaths.of(settings.paths).api_socket.host)
        api = settings.api
        policy = _audit_policy(settings)
        # The first address of the Services is that of `default/kubernetes`.
        names = (*certificate_names(api, settings.agent), str(ipaddress.IPv4Network(settings.network.service_cidr)[1]))
        self._identity = api_identity.ensure(settings.paths, names, clock)
        self._audit_file: FileSink | None = None
        sinks: list[AuditSink] = []
        if api.audit_log:
            self._audit_file = FileSink(settings.paths.logs / Path(api.audit_log), settings.logrotate.of_node)
        if self._audit_file is not None and policy is None:
            sinks.append(SelectedSink(self._audit_file, frozenset({CONTROLLER_USER.name, BOOTSTRAP_USER.name})))
        member = None
        if settings.store is not None and settings.store.shared:
            self.member = member_name(settings.paths, settings.gateway.instance)
            member = ServerMember(self.member, __version__, settings.store.label)
        self.store = store_of(settings.store, settings.paths.database, clock)
        self.server = ApiServer(
            self.store,
            Settings(
                signer=TokenSigner(self._identity.token_key),
                audit_sinks=sinks,
                audit_policy=policy,
                audit_record=self._audit_file.record if self._audit_file is not None else None,
                agent_tls=self._identity.agent_tls,
                extensions=[apiserver_extension(self._identity.domain_agent_tls)],
                authentication_info=self._identity.authentication_info(),
                front_proxy=_file_names(self._identity.pair("front-proxy-client")),
                event_ttl=api.event_ttl_seconds,
                service_cidr=settings.network.service_cidr,
                toleration_seconds=settings.controllers.pod_eviction_seconds,
                dial=dial,
                write_gate=gate,
                member=member,
                reports=lambda: self.reports(),
                log_search=NodeLogSearch(
                    settings.paths, settings.domain, clock, sources=(SCHEDULER, CONTROLLER), plane=True
                ),
            ),
            clock,
        )
        self._http = HttpServer(
            self.server.handle,
            limits=HttpLimits(max_connections=_connections_possible()),
            user_of=user_from_certificate,
            problem_response=status_response,
        )

    @property
    def ca_pem(self) -> bytes:
        return self._identity.ca_file.read_bytes()

    def client(self, user: UserInfo = CONTROLLER_USER) -> Client:
        """A client inside this process."""
        return Client(InProcessTransport(self.server.handle, user), field_validation="Ignore")

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._open_store()
        try:
            await self.server.start()
            api = self._settings.api
            host, port = await self._http.listen(api.host, api.port, self._identity.server_tls())
            self.address = LOOPBACK.get(host, host), port
            try:
                if self._settings.gateway.enabled:
                    # Callers from lites and partners, with the credentials that the gateway adds.
                    private_directory(self._gateway_socket.parent)
                    await self._http.serve(private_socket(self._gateway_socket, 256))
                await self.server.publish(advertised(self._settings, self.address[0]), port)
                self._write_kubeconfig(*self.address)
                log.info("The API is served", address=f"https://{host}:{port}")
                self.ready.set()
                await self._stop.wait()
                await self.server.leave()
            finally:
                await self._http.stop()
                self._gateway_socket.unlink(missing_ok=True)
                await self.server.stop()
        finally:
            await self.store.close()
            if self._audit_file is not None:
                self._audit_file.close()

    async def _open_store(self) -> None:
        """A database that is not there yet is waited for: after a power failure all start at once."""
        waited = 0
        while True:
            try:
                return await self.store.open()
            except StoreUnavailable as problem:
                if waited % _STORE_LOG_EVERY == 0:
                    log.warning("The store is not there yet; trying again", reason=str(problem))
                waited += 1
                await self._clock.sleep(_STORE_RETRY_SECONDS)

    def _write_kubeconfig(self, host: str, port: int) -> None:
        """The operator's way in. Written once the port is open, so whoever finds the file can use it."""
        reached = f"[{host}]" if ":" in host else host
        certificate, key = self._identity.pair("admin")
        kubeconfig.make(
            self._settings.domain,
            f"https://{reached}:{port}",
            ca=self.ca_pem,
            certificate=certificate.read_bytes(),
            key=key.read_bytes(),
        ).write(self._settings.paths.kubeconfig)
