"""The port of the node agent's endpoint, with the certificates it shows and believes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from coterie.base import files, pki, pki_files
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.log_pages import LogSearch
from coterie.base.paths import DomainPaths
from coterie.base.tasks import TaskOwner
from coterie.http.server import HttpServer
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.runtimes.protocol import PodAccess
from coterie.kube.agent.server.endpoint import AgentEndpoint
from coterie.kube.agent.server.usage import NodeUsage, UsageMeter
from coterie.kube.api.status_response import status_response
from coterie.kube.apiserver.auth.authn import user_from_certificate
from coterie.node.api_identity import AUTHORITY
from coterie.node.config import AgentConfig
from coterie.node.join_bundle import Bundle

log = logger("node")


@dataclass(frozen=True, slots=True)
class AgentTls:
    certificate: Path
    key: Path
    ca: Path

    @classmethod
    def of_plane(cls, paths: DomainPaths, node: str, address: str, clock: Clock) -> AgentTls:
        """Beside a control plane: issued by its authority."""
        authority = pki_files.ensure_authority(paths.pki, AUTHORITY, now=clock.now())
        names = (node, address, "localhost")
        pair = pki_files.ensure_server(paths.pki, "agent", authority, names=names, now=clock.now())
        return cls(pair.certificate_path, pair.key_path, paths.pki / "ca.crt")

    @classmethod
    def of_bundle(cls, bundle: Bundle, paths: DomainPaths) -> AgentTls:
        """Of a node that joined: what the master issued, kept where this domain keeps its keys."""
        where = files.private_directory(paths.pki)
        out = cls(where / "agent.crt", where / "agent.key", where / "ca.crt")
        for path, data in (
            (out.certificate, bundle.serving_certificate),
            (out.key, bundle.serving_key),
            (out.ca, bundle.agent_ca or bundle.ca),
        ):
            files.write_atomic(path, data)
        return out

    @classmethod
    def of_domain(cls, paths: DomainPaths, node: str, address: str, clock: Clock) -> AgentTls:
        """Of a lite that registered: signed by the domain's own key, by which the control plane knows the domain. Whom to
        believe is read from the control plane (`registering.authority`) before the port opens."""
        authority = pki.Authority(
            pki.load_certificate(paths.ca_certificate.read_bytes()), pki.load_key(paths.ca_key.read_bytes())
        )
        files.private_directory(paths.pki)
        names = (node, address, "localhost")
        pair = pki_files.ensure_server(paths.pki, "agent", authority, names=names, now=clock.now())
        return cls(pair.certificate_path, pair.key_path, paths.pki / "ca.crt")

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.ca)
        # Health may be asked without a certificate; everything else is refused without one.
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


class AgentPort:
    """A Runnable: the endpoint is served while it runs. The socket is bound at once, so that the port is known."""

    name = "agent-port"

    def __init__(self, runtime: PodAccess, chosen: AgentConfig, tls: AgentTls, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._runtime = runtime
        self._chosen = chosen
        self._tls = tls
        self._clock = clock
        self._stop = asyncio.Event()
        self.log_search: LogSearch | None = None
        """Of the domain's tasks; set before it runs."""
        self.devices: DeviceManager | None = None
        """Whose measurements are served; set before it runs."""
        self._socket = socket.create_server((chosen.address, chosen.port), family=_family(chosen.address), backlog=128)
        self.port: int = self._socket.getsockname()[1]

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            meter = UsageMeter(self._runtime, machine_usage, self._clock)
            endpoint = AgentEndpoint(
                self._runtime, meter, self._chosen.node_name, owner, self._clock, self.devices, self.log_search
            )
            http = HttpServer(endpoint.handle, user_of=user_from_certificate, problem_response=status_response)
            await http.serve(self._socket, self._tls.context())
            log.info("The agent's endpoint is served", address=self._chosen.address, port=self.port)
            self.ready.set()
            try:
                await self._stop.wait()
            finally:
                await http.stop()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def machine_usage() -> NodeUsage:
    """What the whole machine uses: CPU time since its start, memory that is not available."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(field) for field in stat.readline().split()[1:]]
    idle = fields[3] + fields[4]
    ticks = sum(fields[:8]) - idle
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        memory = {line.split(":")[0]: int(line.split()[1]) for line in meminfo}
    used = (memory["MemTotal"] - memory.get("MemAvailable", memory["MemFree"])) * 1024
    return NodeUsage(ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), used)
