"""One start of a network: processes, introductions, and waiting until all of it works.

    start control planes ──> each API answers ──> p2p: introduce all to all          ──> nodes and routes ready
                                                  center: admit the lites, start them

Whatever goes wrong with a node, those that were started here do not stay behind. A route that does not become ready is
another matter: its nodes go on, or nobody could find out why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime

from coterie.base.clock import SYSTEM_CLOCK, parse_rfc3339
from coterie.cli import background, domain_invitation, network, node_health
from coterie.cli.app import App, CliError
from coterie.cli.domain_invitation import NetworkRoute
from coterie.cli.progress import ProgressTable
from coterie.kube.agent.runtimes.runp.halt import dismiss
from coterie.kube.api.errors import ApiError
from coterie.kube.client.client import Client
from coterie.kube.client.kubeconfig import KubeconfigError
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, GATEWAYS
from coterie.kuscia.routes.model import line_of
from coterie.node.config import NodeSettings

_POLL_SECONDS = 0.08
_STOP_GRACE = 10.0
_NOT_NOW = (ApiError, TransportError, KubeconfigError)


class RoutesNotReady(CliError):
    """All nodes run, but they do not reach each other."""


class NetworkStart:
    def __init__(self, app: App, nodes: Sequence[NodeSettings], progress: ProgressTable) -> None:
        self.nodes = nodes
        self.progress = progress
        self.ways = domain_invitation.network_routes(nodes)
        self.mine: list[NodeSettings] = []
        self.since: dict[str, datetime] = {}
        self.clients: dict[str, Client] = {}
        self.unready: set[tuple[str, str]] = {(way.name, plane.domain) for way in self.ways for plane in way.planes}
        self.environ = {**os.environ, **app.environ}

    def run(self, timeout: float) -> None:
        self.progress.add(*(node.domain for node in self.nodes), *(way.name for way in self.ways))
        try:
            asyncio.run(self._run(timeout))
        except RoutesNotReady:
            raise
        except BaseException:
            background.stop([node.paths for node in self.mine], _STOP_GRACE)
            asyncio.run(self._dismiss_supervisors())
            raise

    async def _dismiss_supervisors(self) -> None:
        """Pods that an earlier `coterie down --keep-pods` left running keep theirs."""
        agents = [(node, node.agent) for node in self.mine if node.agent is not None]
        await asyncio.gather(*(dismiss(node.paths.run / "runp", agent.node_name) for node, agent in agents))

    async def _run(self, timeout: float) -> None:
        try:
            async with AsyncExitStack() as stack, asyncio.timeout(timeout):
                with self.progress.shown():
                    await self._bring_up(stack)
        except TimeoutError as problem:
            raise self._too_late(timeout) from problem
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from problems  # the first that failed says enough

    def _too_late(self, timeout: float) -> CliError:
        late = [node for node in self.nodes if node.domain in self.progress.late]
        if late:
            names = ", ".join(node.domain for node in late)
            words = "".join(log_tail_text(node) for node in late)
            return CliError(f"Error: {names} not ready within {timeout:g} s, so all was stopped again.{words}")
        ways = [way for way in self.ways if way.name in self.progress.late]
        states = "".join(f"\n  {way.name}: {self.progress.state(way.name)}" for way in ways)
        first = ways[0]
        return RoutesNotReady(
            f"Error: all nodes run, but routes are not ready within {timeout:g} s:{states}\n"
            f"`coterie route check {first.source.domain} {first.destination.domain}` says what is wrong; "
            "wait on with `coterie up`, or stop all with `coterie down`"
        )

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        planes = [node for node in self.nodes if node.mode != "lite"]
        await self.start(*(node for node in self.nodes if node.mode != "lite" or not network.needs_token(node)))
        async with asyncio.TaskGroup() as group:
            for plane in planes:
                group.create_task(self.answering(plane, stack), name=f"wait for the API of {plane.domain}")
        await self._introduce()
        async with asyncio.TaskGroup() as group:
            for node in self.nodes:
                group.create_task(self.node_ready(node), name=f"wait for {node.domain}")
            for plane in planes:
                group.create_task(self.routes_ready(plane), name=f"wait for the routes of {plane.domain}")

    async def _introduce(self) -> None:
        master = next((node for node in self.nodes if node.mode == "master"), None)
        if master is None:
            await domain_invitation.connect_peers(self.nodes, self.clients)
            return
        client = self.clients[master.domain]
        await domain_invitation.admit_lites(client, self.nodes)
        for node in self.nodes:
            if node.mode == "lite" and network.needs_token(node) and not background.running(node.paths):
                network.give_token(node, await domain_invitation.token_for(client, node, master))
        await self.start(*(node for node in self.nodes if node.mode == "lite"))

    async def start(self, *nodes: NodeSettings) -> None:
        starting = [node for node in nodes if node.domain not in self.since and not self._runs(node)]
        for node in starting:
            node.paths.prepare()
            self.since[node.domain] = SYSTEM_CLOCK.now()
            self.mine.append(node)
            self.progress.set_state(node.domain, "starts")
        if starting:
            # In a thread: it takes as long as Python takes to load a node.
            many = [(node.paths, node.mode) for node in starting]
            await asyncio.to_thread(background.start_together, many, self.environ)

    def _runs(self, node: NodeSettings) -> bool:
        pid = background.running(node.paths)
        if pid:
            self.progress.print_line(f"{node.domain} is already running (process {pid}).")
        return bool(pid)

    # Waiting.

    async def answering(self, plane: NodeSettings, stack: AsyncExitStack) -> None:
        while True:
            try:
                client = await stack.enter_async_context(node_health.client_of(plane))
                if await node_health.answers(client):
                    self.clients[plane.domain] = client
                    self.progress.set_state(plane.domain, "its API answers")
                    return
            except _NOT_NOW:
                pass  # it starts; the kubeconfig may still be that of an earlier life
            await self.pause(plane)

    async def node_ready(self, node: NodeSettings) -> None:
        plane = node_health.plane_of(node, self.nodes)
        if plane is None:
            raise CliError(f"Error: {node.domain} is a lite node, but there is no master under its root")
        since = self.since.get(node.domain)
        while node.agent is not None:
            try:
                if await node_health.node_is_ready(self.clients[plane.domain], node.agent.node_name, since):
                    break
            except _NOT_NOW:
                pass
            await self.pause(node)
        self.progress.done(node.domain, silent=since is None)

    async def routes_ready(self, plane: NodeSettings) -> None:
        """One look at all routes of a control plane at a time: many small questions would slow down what we wait
        for."""
        client = self.clients[plane.domain]
        while True:
            mine = [way for way in self.ways if (way.name, plane.domain) in self.unready]
            if not mine:
                return
            with suppress(*_NOT_NOW):
                await self.check_routes(client, plane, mine)
            await self.pause(plane)

    async def check_routes(self, client: Client, plane: NodeSettings, mine: Sequence[NetworkRoute]) -> None:
        found = {each.metadata.name: each for each in (await client.list(CLUSTER_DOMAIN_ROUTES)).items}
        heartbeats = {
            (each.metadata.namespace, each.metadata.name): each.status.heartbeat_time
            for each in (await client.list(GATEWAYS)).items
            if each.status is not None
        }
        now = SYSTEM_CLOCK.now()
        for way in mine:
            if way.object_name not in found:
                continue
            line = line_of(found[way.object_name], now)
            if not line.ready:
                self.progress.set_state(way.name, f"{line.reason}: {line.message}" if line.message else line.reason)
            elif all(self.has_fresh_heartbeat(node, plane, heartbeats) for node in (way.source, way.destination)):
                self.unready.discard((way.name, plane.domain))
                if not any(name == way.name for name, _ in self.unready):
                    self.progress.done(
                        way.name, silent=not {way.source.domain, way.destination.domain} & set(self.since)
                    )

    def has_fresh_heartbeat(
        self, node: NodeSettings, plane: NodeSettings, heartbeats: dict[tuple[str, str], str]
    ) -> bool:
        """A route that was ready before its gateway was started again says so for a while longer."""
        since = self.since.get(node.domain)
        if since is None or (plane.mode != "master" and plane is not node):
            return True
        heartbeat = heartbeats.get((node.domain, node.gateway.instance), "")
        # Gateways tell whole seconds.
        return bool(heartbeat) and parse_rfc3339(heartbeat) >= since.replace(microsecond=0)

    async def pause(self, *nodes: NodeSettings) -> None:
        """Between two looks. A node that has ended need not be waited for."""
        for node in nodes:
            if not background.running(node.paths):
                raise CliError(f"Error: {node.domain} did not start, so all was stopped again.{log_tail_text(node)}")
        self.progress.tick()
        await asyncio.sleep(_POLL_SECONDS)


def log_tail_text(node: NodeSettings) -> str:
    lines = background.log_tail(node.paths)
    shown = "".join(f"\n  {line}" for line in lines) or "\n  (nothing)"
    return f"\nThe end of {background.log_file(node.paths)}:{shown}"
