"""How the gateways of this machine's domains do: asked of their processes, their own admin sockets and their files.

DOMAIN   PUBLIC PORT      GATEWAY   PID    CONFIGURATION   CONNECTIONS   DNS       MEMORY
alice    127.0.1.1:1080   live      4711   accepted        2             answers   108 + 31 MiB
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from coterie.cli import background
from coterie.kube.agent.runtimes.runp import pod_networks
from coterie.kuscia.api.kuscia_wire import WEAKNESSES
from coterie.kuscia.api.labels import COTERIE_KUSCIA_WIRE
from coterie.kuscia.gateway import orphaned_envoy
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.admin import Admin, AdminError, Readback, pending, refusals
from coterie.kuscia.gateway.envoy import EnvoySettings
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.routes.model import RouteLine
from coterie.node.config import NodeSettings
from coterie.node.config.document import READABLE_SENTENCE

COLUMNS = ("DOMAIN", "PUBLIC PORT", "GATEWAY", "PID", "CONFIGURATION", "CONNECTIONS", "DNS", "MEMORY")
_LOG_TAIL = 64 << 10
_DNS_SECONDS = 2.0
_PENDING_SECONDS = 0.1
"""Between two looks at a configuration that Envoy has not taken yet."""


@dataclass(frozen=True, slots=True)
class GatewayState:
    domain: str
    public: str
    """The public port; empty when there is none."""
    live: bool = False
    pid: int = 0
    connections: int = 0
    refused: tuple[str, ...] = ()
    """Files of its configuration that Envoy did not take."""
    reasons: tuple[str, ...] = ()
    """Why, in Envoy's words."""
    dns: str = ""
    """`answers`, `silent`, `in pods` (only they can ask it, and the node does so for its readiness); empty: it is switched
    off."""
    node_memory: int = 0
    memory: int = 0
    """Bytes that the node's process and Envoy have in memory."""

    @property
    def row(self) -> tuple[str, ...]:
        return (
            self.domain,
            self.public or "<none>",
            "live" if self.live else "down",
            str(self.pid or "<none>"),
            ("refused" if self.refused else "accepted") if self.live else "<none>",
            str(self.connections) if self.live else "<none>",
            self.dns or "off",
            f"{self.node_memory >> 20} + {self.memory >> 20} MiB",
        )

    def document(self) -> dict[str, Any]:
        return {
            "domain": self.domain,
            "publicPort": self.public,
            "live": self.live,
            "pid": self.pid,
            "connections": self.connections,
            "configuration": {
                "accepted": self.live and not self.refused,
                "refused": list(self.refused),
                "reasons": list(self.reasons),
            },
            "dns": self.dns,
            "memoryBytes": {"node": self.node_memory, "gateway": self.memory},
        }


async def of_all(nodes: Sequence[NodeSettings]) -> list[GatewayState]:
    """Of the nodes that run and have one."""
    wanted = [node for node in nodes if node.gateway.enabled and background.running(node.paths)]
    return list(await asyncio.gather(*(of(node) for node in wanted)))


async def of(node: NodeSettings) -> GatewayState:
    places = GatewayPaths.of(node.paths)
    envoy = EnvoySettings(node.domain, places.directory, places.run, places.logs)
    pid = orphaned_envoy.running(envoy.pid_file, envoy.bootstrap) or 0
    answers, dns = await asyncio.gather(_readback(envoy.socket), _dns(node))
    state = GatewayState(
        node.domain,
        str(node.gateway.external) if node.gateway.external is not None else "",
        live=answers is not None and answers.live,
        pid=pid,
        dns=dns,
        node_memory=memory_of(background.running(node.paths)),
        memory=memory_of(pid),
    )
    if answers is None:
        return state
    refused = await _refused(places.directory, envoy)
    reasons = refusals(_tail(envoy.log)) if refused else ()
    return replace(state, connections=answers.connections, refused=refused, reasons=reasons)


async def _refused(directory: Path, envoy: EnvoySettings) -> tuple[str, ...]:
    """Files that Envoy has not taken in the time it may take: one that was written this very moment is not refused yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + envoy.accept_seconds
    while True:
        written = written_versions(directory)  # before Envoy is asked: what it says is not older
        answers = await _readback(envoy.socket)
        waiting = pending(written, answers) if answers is not None else ()
        if not waiting or loop.time() >= deadline:
            return waiting
        await asyncio.sleep(_PENDING_SECONDS)


async def _readback(socket: Path) -> Readback | None:
    admin = Admin(socket)
    try:
        return await admin.readback()
    except AdminError:
        return None
    finally:
        await admin.close()


def written_versions(directory: Path) -> dict[str, str]:
    """By file, the version that Envoy was given last."""
    found = {}
    for path in directory.glob("*ds*.json"):
        try:
            found[path.name] = str(orjson.loads(path.read_bytes())["version_info"])
        except (OSError, orjson.JSONDecodeError, KeyError):
            continue  # replaced this very moment, or not ours
    return found


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


async def _dns(node: NodeSettings) -> str:
    if not node.dns.enabled:
        return ""
    facts = pod_networks.read_facts(str(node.paths.run / "runp"))
    if facts is not None and pod_networks.holder_alive(facts):
        return "in pods"
    try:
        async with asyncio.timeout(_DNS_SECONDS):
            _, writer = await asyncio.open_connection(node.dns.address, node.dns.port)
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return "silent"
    return "answers"


def memory_of(pid: int) -> int:
    """Bytes in memory of one process; 0 when there is none."""
    if not pid:
        return 0
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), 0)


# What a person should know, in sentences.


def problems(states: Sequence[GatewayState], lines: Sequence[RouteLine]) -> list[str]:
    """What does not work, with the next step."""
    out = [
        f"{each.domain}: its gateway does not answer; see {each.domain}'s var/logs/coterie.log and var/logs/envoy"
        for each in states
        if not each.live
    ]
    for each in states:
        if each.refused:
            why = f": {each.reasons[-1]}" if each.reasons else "; see var/logs/envoy"
            out.append(f"{each.domain}: its gateway did not take {', '.join(each.refused)}{why}")
        if each.dns == "silent":
            out.append(f"{each.domain}: its DNS does not answer, so its pods find no names; see var/logs/coterie.log")
    out += [
        f"{line.name}: {line.reason}; `coterie route check {line.source} {line.destination}` says what is wrong"
        for line in lines
        if not line.ready
    ]
    return out


def switched_off(nodes: Sequence[NodeSettings], lines: Sequence[RouteLine]) -> list[str]:
    """Protections that somebody chose to do without."""
    by_protocol: Mapping[Protocol, str] = {
        Protocol.NOTLS: "its public port speaks plain text (protocol: NOTLS)",
        Protocol.TLS: "partners need not show a certificate, their tokens alone tell who they are (protocol: TLS)",
    }
    out = []
    for node in nodes:
        message = by_protocol.get(node.gateway.protocol)
        if message and node.gateway.enabled:
            out.append(f"{node.domain}: {message}")
        if node.kuscia_api.enabled and node.kuscia_api.protocol == "NOTLS":
            out.append(
                f"{node.domain}: anyone who can connect to KusciaAPI may do everything (kusciaAPI.protocol: NOTLS)"
            )
        out += [
            f"{node.domain}: settings of data sources go to the data proxy at {each.endpoint} in clear text "
            "(dataMesh.dataProxyList without clientTLSConfig)"
            for each in node.data_mesh.proxies
            if not each.secure
        ]
        if node.agent is not None and node.agent.allow_privileged:
            out.append(f"{node.domain}: pods may be privileged (agent.allowPrivileged: true)")
        if node.agent is not None and node.agent.allow_host_network:
            out.append(f"{node.domain}: pods may use the machine's network (agent.allowHostNetwork: true)")
        if node.runk is not None and node.runk.allow_root:
            out.append(f"{node.domain}: pods may run as root in the backing cluster (runk.allowRoot: true)")
        if node.runk is not None and not node.runk.network_policies:
            out.append(
                f"{node.domain}: engines get no NetworkPolicy in the backing cluster (runk.networkPolicies: false)"
            )
        if node.agent is not None and node.agent.host_paths:
            paths = ", ".join(node.agent.host_paths)
            out.append(f"{node.domain}: pods may use directories of the machine (agent.hostPaths: {paths})")
        out += [
            f"{node.domain}: {each.sentence} ({each.key})"
            for each in node.notices
            if each.sentence == READABLE_SENTENCE
        ]
    out += [f"{line.name}: no token is asked for (authenticationType: None)" for line in lines if line.auth == "None"]
    # Two control planes of one machine both have the route.
    return out + sorted(
        {
            f"{line.name}: {WEAKNESSES[form]} ({COTERIE_KUSCIA_WIRE}: {form})"
            for line in lines
            for form in line.kuscia_wire
        }
    )
