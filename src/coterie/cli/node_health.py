"""Whether the nodes of a local network run and are ready: asked of their processes and of their control planes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coterie.base.clock import parse_rfc3339
from coterie.cli import background, network
from coterie.kube.agent.node.conditions import FENCED, NOT_FENCED
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.coordination import LEASES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import KubeconfigError
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAINS, INTEROP_CONFIGS
from coterie.kuscia.interconn.follower_status import decode_reports, left_out_sentences, problem_sentences
from coterie.kuscia.routes.model import RouteLine, lines_of
from coterie.node import join_bundle
from coterie.node.config import ConfigError, NodeSettings

_TIMEOUT = 3.0
_LEASES_NAMESPACE = "kube-node-lease"


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """One line of the table of local domains."""

    domain: str
    mode: str
    api: str
    """Address of the control plane that the node is or works for."""
    node: str
    """Its Node object; empty for a master, which runs no pods."""
    running: bool
    ready: bool
    kuscia_api: str = ""
    """Address of its own KusciaAPI; empty where there is none."""
    console: str = ""
    """Address of its console, while it runs; `coterie console` prints a link to it."""
    problem: str = ""
    """Why the node is not ready or not fenced, and what to do."""
    fenced: bool = True
    """Whether pods have a network, a user and a root of their own."""

    @property
    def status(self) -> str:
        if self.ready:
            return "Ready" if self.fenced else NOT_FENCED
        return "NotReady" if self.running else "Stopped"

    def document(self) -> dict[str, object]:
        return {
            "domain": self.domain,
            "mode": self.mode,
            "api": self.api,
            "kusciaAPI": self.kuscia_api,
            "console": self.console,
            "node": self.node,
            "running": self.running,
            "ready": self.ready,
            "fenced": self.fenced,
            "problem": self.problem,
        }

    @property
    def row(self) -> tuple[str, ...]:
        return (
            self.domain,
            self.mode,
            self.api or "<none>",
            self.kuscia_api or "<none>",
            self.node or "<none>",
            self.status,
        )


COLUMNS = ("DOMAIN", "MODE", "API", "KUSCIAAPI", "NODE", "STATUS")


async def of_all(nodes: Sequence[NodeSettings]) -> list[NodeHealth]:
    return list(await asyncio.gather(*(of(node, plane_of(node, nodes)) for node in nodes)))


async def of(node: NodeSettings, plane: NodeSettings | None) -> NodeHealth:
    running = bool(background.running(node.paths))
    if node.join is not None:
        return await _of_joined(node, node.join, running)
    ready = running and plane is not None and await is_ready(node, plane)
    fenced, problem = True, ""
    if running and plane is not None and node.agent is not None:
        fenced, problem = await _fence(node.agent.node_name, plane)
    name = node.agent.node_name if node.agent is not None else ""
    served = network.kuscia_api_address(node)
    api = network.api_address(plane) if plane else ""
    console = network.console_address(node) if running else ""
    return NodeHealth(node.domain, node.mode, api, name, running, ready, served, console, problem, fenced)


async def _of_joined(node: NodeSettings, file: Path, running: bool) -> NodeHealth:
    """A node whose control plane is elsewhere: asked with the node's own credentials."""
    name = node.agent.node_name if node.agent is not None else ""
    try:
        bundle = join_bundle.read_bundle(file)
    except ConfigError as problem:
        return NodeHealth(node.domain, node.mode, "", name, running, ready=False, problem=str(problem))
    client = Client(HttpTransport(bundle.connection(), timeout=_TIMEOUT, user_agent="coterie-cli"))
    try:
        conditions = (await client.get(NODES, bundle.node)).status.conditions or ()
    except (ApiError, TransportError) as problem:
        why = f"the control plane at {bundle.server} does not answer: {problem}"
        return NodeHealth(node.domain, node.mode, bundle.server, bundle.node, running, ready=False, problem=why)
    finally:
        await client.close()
    found = {each.type: each for each in conditions}
    ready, fence = found.get("Ready"), found.get(FENCED)
    well, fenced = ready is not None and ready.status == "True", fence is None or fence.status != "False"
    problem_text = ready.message if ready is not None and not well else fence.message if fence and not fenced else ""
    return NodeHealth(
        node.domain,
        node.mode,
        bundle.server,
        bundle.node,
        running,
        ready=running and well,
        problem=problem_text,
        fenced=fenced,
    )


async def _fence(name: str, plane: NodeSettings) -> tuple[bool, str]:
    """Whether the node's pods are fenced, and what is wrong with them or with the node."""
    try:
        async with client_of(plane) as client:
            found = {each.type: each for each in (await client.get(NODES, name)).status.conditions or ()}
    except (ApiError, TransportError, KubeconfigError):
        return True, ""
    fence, ready = found.get(FENCED), found.get("Ready")
    if fence is not None and fence.status == "False":
        return False, fence.message
    return True, ready.message if ready is not None and ready.status != "True" else ""


async def routes_of(nodes: Sequence[NodeSettings], now: datetime) -> list[RouteLine]:
    """All routes between domains of a network: of each direction what its source's control plane says of it."""
    planes = [node for node in nodes if node.mode != "lite"]
    found = await asyncio.gather(*(_routes(plane, now) for plane in planes))
    seen: dict[tuple[str, str], RouteLine] = {}
    for plane, lines in zip(planes, found, strict=True):
        for line in lines:
            if line.source == plane.domain or (line.source, line.destination) not in seen:
                seen[line.source, line.destination] = line
    return [seen[key] for key in sorted(seen)]


async def _routes(plane: NodeSettings, now: datetime) -> list[RouteLine]:
    """None when the control plane does not answer."""
    try:
        async with client_of(plane) as client:
            return lines_of((await client.list(CLUSTER_DOMAIN_ROUTES)).items, now)
    except (ApiError, TransportError, KubeconfigError):
        return []


async def followers_of(nodes: Sequence[NodeSettings]) -> tuple[list[str], list[str]]:
    """What the control planes say of following their partners: what does not work, and what was left out."""
    found = await asyncio.gather(*(_followers(node) for node in nodes if node.mode != "lite"))
    problems, left_out = [], []
    for host, text in sorted(pair for pairs in found for pair in pairs):
        reports = decode_reports(text)
        problems += problem_sentences(host, reports)
        left_out += left_out_sentences(host, reports)
    return problems, left_out


async def _followers(plane: NodeSettings) -> list[tuple[str, str]]:
    try:
        async with client_of(plane) as client:
            configs = (await client.list(INTEROP_CONFIGS)).items
    except (ApiError, TransportError, KubeconfigError):
        return []
    return [(each.spec.host, (each.metadata.annotations or {}).get(labels.COTERIE_FOLLOWERS, "")) for each in configs]


async def evidence_alarms(nodes: Sequence[NodeSettings]) -> list[str]:
    """Partners whose evidence logs contradict themselves, as control planes say it."""
    found = await asyncio.gather(*(_alarms(node) for node in nodes if node.mode != "lite"))
    return sorted(sentence for sentences in found for sentence in sentences)


async def _alarms(plane: NodeSettings) -> list[str]:
    try:
        async with client_of(plane) as client:
            domains = (await client.list(DOMAINS)).items
    except (ApiError, TransportError, KubeconfigError):
        return []
    return [
        f"{plane.domain}: {alarm}; `coterie audit witness {each.metadata.name} --domain {plane.domain}` shows it"
        for each in domains
        if (alarm := (each.metadata.annotations or {}).get(labels.COTERIE_EVIDENCE_ALARM))
    ]


def plane_of(node: NodeSettings, nodes: Sequence[NodeSettings]) -> NodeSettings | None:
    """Whose API a node uses: its own, or that of the network's master."""
    if node.mode != "lite":
        return node
    return next((each for each in nodes if each.mode == "master"), None)


@asynccontextmanager
async def client_of(plane: NodeSettings) -> AsyncIterator[Client]:
    """Raises KubeconfigError while the control plane has not started for the first time."""
    connection = kubeconfig.read(plane.paths.kubeconfig).resolve()
    client = Client(HttpTransport(connection, timeout=_TIMEOUT, user_agent="coterie-cli"))
    try:
        yield client
    finally:
        await client.close()


async def is_ready(node: NodeSettings, plane: NodeSettings, since: datetime | None = None) -> bool:
    """Whether the node does its work: the API answers, and its Node, if it has one, is ready.

    `since`: a Node that was last heard of before that time does not count, because nobody may have noticed yet that it
    is gone.
    """
    try:
        async with client_of(plane) as client:
            return await answers(client) and (
                node.agent is None or await node_is_ready(client, node.agent.node_name, since)
            )
    except (ApiError, TransportError, KubeconfigError):
        return False


async def answers(client: Client) -> bool:
    return (await client.raw("GET", "/readyz", headers={"Accept": "*/*"})).status == 200


async def node_is_ready(client: Client, name: str, since: datetime | None) -> bool:
    node = await client.get(NODES, name)
    if not any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ()):
        return False
    if since is None:
        return True
    renewed = (await client.get(LEASES, name, _LEASES_NAMESPACE)).spec.renew_time
    return bool(renewed) and parse_rfc3339(str(renewed)) >= since
