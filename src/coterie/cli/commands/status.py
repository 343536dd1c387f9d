"""`coterie status`: which domains of this machine run, and is the control plane well, how quickly does it answer, and
what is in it."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import gateway_status, members, network, node_health
from coterie.cli import session as sessions
from coterie.cli.app import App
from coterie.cli.gateway_status import GatewayState
from coterie.cli.members import MemberState
from coterie.cli.node_health import NodeHealth
from coterie.cli.output import as_text, plain_table
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.agent.node.conditions import FENCED, NOT_FENCED
from coterie.kube.api.errors import ApiError, Forbidden
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kuscia.routes import model
from coterie.kuscia.routes.model import RouteLine
from coterie.node.config import NodeSettings

HELP = """
Show whether the control plane is ready, its response time, and the number of objects. For a network started by
`coterie up`, also show its domains, gateways and routes, what does not work, and which protections are disabled. For a
control plane of several members, also show its store, the members, and which one leads. The exit status is 1 if
something is not ready.

Examples:
  coterie status
  coterie status --root /srv/coterie
  coterie status --domain alice
  coterie status -o json
  until coterie status >/dev/null 2>&1; do sleep 1; done
"""
_COUNTED = (
    ("namespaces", ""),
    ("domains", "kuscia.secretflow"),
    ("nodes", ""),
    ("pods", ""),
    ("kusciajobs", "kuscia.secretflow"),
)
_PHASES = {"kusciajobs": "new", "pods": "Pending"}
"""Kinds that are worth splitting by phase, and what one without a phase yet counts as."""


def arguments(parser: options.Parser) -> None:
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    nodes = local_nodes(args, app)
    if not nodes:
        return sessions.run(args, app, lambda session: _status(session, args))
    states, gateways, lines, (unfollowed, left_out), alarms = asyncio.run(_gather(nodes))
    well = all(state.ready for state in states)
    off = gateway_status.switched_off(nodes, lines)
    wrong = gateway_status.problems(gateways, lines) + unfollowed + alarms
    document: dict[str, Any] = {
        "domains": [state.document() for state in states],
        "gateways": [each.document() for each in gateways],
        "routes": [line.document() for line in lines],
        "problems": wrong,
        "leftOut": left_out,
        "protectionsOff": off,
    }
    if args.output == "table":
        _tables(app, (node_health.COLUMNS, states), (gateway_status.COLUMNS, gateways), (model.COLUMNS, lines))
        _consoles(app, states)
        _sentences(app, "Does not work:", wrong, "red")
        _sentences(
            app,
            "Nodes:",
            [f"{each.domain}: {each.status}: {each.problem}" for each in states if each.problem],
            "yellow",
        )
        _sentences(app, "Objects of partners that were left out:", left_out, "yellow")
        _sentences(app, "Protections that are switched off:", off, "yellow")
    well = well and not wrong
    planes = [state for state in states if state.mode != "lite"]
    if len(planes) == 1 and planes[0].ready:
        if args.output == "table":
            app.say()
        return max(sessions.run(args, app, lambda session: _status(session, args, document)), int(not well))
    if args.output != "table":
        app.write(as_text(document, args.output))
    if not well:
        late = ", ".join(state.domain for state in states if not state.ready)
        if late:
            start = "`coterie node join`" if all(node.join is not None for node in nodes) else "`coterie up`"
            app.warn(f"Error: not ready: {late}; start what is stopped with {start}, then look into var/logs")
    return 0 if well else 1


async def _gather(
    nodes: list[NodeSettings],
) -> tuple[list[NodeHealth], list[GatewayState], list[RouteLine], tuple[list[str], list[str]], list[str]]:
    return await asyncio.gather(
        node_health.of_all(nodes),
        gateway_status.of_all([node for node in nodes if node.join is None]),
        node_health.routes_of(nodes, SYSTEM_CLOCK.now()),
        node_health.followers_of(nodes),
        node_health.evidence_alarms(nodes),
    )


def _tables(
    app: App, *tables: tuple[Sequence[str], Sequence[NodeHealth | GatewayState | RouteLine | MemberState]]
) -> None:
    """Those that have something in them, with a blank line between."""
    for number, (columns, things) in enumerate(table for table in tables if table[1]):
        if number:
            app.say()
        app.write(render_table(plain_table(columns, [each.row for each in things]), colour=app.colour))


def _consoles(app: App, states: Sequence[NodeHealth]) -> None:
    served = [state for state in states if state.console]
    if served:
        app.say()
        listed = ", ".join(f"{state.domain} {state.console}" for state in served)
        named = f" --domain {served[0].domain}" if len(served) > 1 else ""
        app.say(f"Consoles: {listed} (`coterie console{named}` prints a link that logs in)")


def _sentences(app: App, title: str, sentences: Sequence[str], style: str) -> None:
    if sentences:
        app.say()
        app.say(app.paint(title, style))
        for each in sentences:
            app.say(f"  {each}")


def local_nodes(args: argparse.Namespace, app: App) -> list[NodeSettings]:
    """The network that is meant when nobody named a control plane in another way."""
    if args.kubeconfig or args.context or args.domain or (app.environ.get("KUBECONFIG") and not args.root):
        return []
    return network.members(sessions.root_of(args, app))


async def _status(session: CliSession, args: argparse.Namespace, before: dict[str, Any] | None = None) -> int:
    client = session.client
    started = time.perf_counter()
    ready, why = await _ready(client)
    found: list[MemberState] = []
    answered = time.perf_counter() - started
    document: dict[str, Any] = {
        **(before or {}),
        "server": session.connection.server,
        "ready": ready,
        "answeredInMs": round(answered * 1000, 1),
    }
    if ready:
        document["version"] = orjson.loads((await client.raw("GET", "/version")).body).get("gitVersion", "")
        document["objects"] = await _counts(session)
        found = await members.of_control_plane(client, SYSTEM_CLOCK.now())
        if found:
            document["store"] = next((each.store for each in found if each.store), "")
            document["members"] = [each.document() for each in found]
    else:
        document["reason"] = why
    if args.output == "table":
        _print_counts(session.app, document)
        if ready and found:
            session.app.say(f"{'Store:':<13}{document['store']}")
            session.app.say()
            _tables(session.app, (members.COLUMNS, found))
            if not any(each.leads for each in found):
                _sentences(
                    session.app,
                    "No member leads:",
                    ["nothing is scheduled; this lasts seconds, or the store is away"],
                    "red",
                )
    else:
        session.app.write(as_text(document, args.output))
    if not ready:
        session.app.warn("Error: the control plane answers but is not ready; wait a little, then look into its log")
    return 0 if ready else 1


async def _ready(client: Client) -> tuple[bool, str]:
    try:
        await client.raw("GET", "/readyz", headers={"Accept": "*/*"})
    except ApiError as error:
        if error.code >= 500:
            return False, error.message
        raise
    return True, ""


async def _counts(session: CliSession) -> dict[str, Any]:
    catalogue = await session.catalogue()
    known = {(r.plural, r.group): r for r in catalogue.preferred("list")}
    counts: dict[str, Any] = {}
    for plural, group in _COUNTED:
        resource = known.get((plural, group))
        if resource is None:
            continue
        try:
            counts[plural] = await _count(session.client, resource)
        except Forbidden:
            counts[plural] = {"total": None}
    return counts


async def _count(client: Client, resource: Resource) -> dict[str, Any]:
    kind = Kind.dynamic(resource)
    if resource.plural == "nodes":
        nodes = (await client.list(kind)).items
        found: dict[str, Any] = {"total": len(nodes), "ready": sum(map(_is_ready, nodes))}
        open_nodes = {
            str(node["metadata"]["name"]): why for node in nodes if (why := _why_not_fenced(node)) is not None
        }
        return {**found, "notFenced": open_nodes} if open_nodes else found
    if resource.plural in _PHASES:
        unsaid = _PHASES[resource.plural]
        objects = (await client.list(kind)).items
        phases = Counter((obj.get("status") or {}).get("phase") or unsaid for obj in objects)
        return {"total": len(objects), "phases": dict(sorted(phases.items()))}
    page = await client.page(kind, limit=1)
    # Without selectors a server says how many follow, so one object is enough to count them all.
    return {"total": len(page.items) + (page.remaining or 0)}


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _why_not_fenced(node: Object) -> str | None:
    """None: pods are isolated there."""
    for each in (node.get("status") or {}).get("conditions") or ():
        if each.get("type") == FENCED and each.get("status") == "False":
            return str(each.get("message") or "")
    return None


def _print_counts(app: App, status: dict[str, Any]) -> None:
    word = app.paint("ready", "green") if status["ready"] else app.paint(f"not ready: {status['reason']}", "red")
    lines = [("Server", status["server"]), ("Health", f"{word} (answered in {status['answeredInMs']:g} ms)")]
    if "version" in status:
        lines.append(("Version", status["version"]))
    lines += [
        (name.removeprefix("kuscia").capitalize(), _numbers(count)) for name, count in status.get("objects", {}).items()
    ]
    for name, value in lines:
        app.say(f"{name + ':':<13}{value}")
    if "domains" in status:
        return  # the tables above say it
    nodes = status.get("objects", {}).get("nodes", {})
    _sentences(
        app, "Nodes:", [f"{name}: {NOT_FENCED}: {why}" for name, why in nodes.get("notFenced", {}).items()], "yellow"
    )


def _numbers(count: dict[str, Any]) -> str:
    if count["total"] is None:
        return "not visible with these credentials"
    if "ready" in count and count["total"]:
        open_nodes = f", {len(count['notFenced'])} {NOT_FENCED}" if "notFenced" in count else ""
        return f"{count['total']} ({count['ready']} ready{open_nodes})"
    phases = ", ".join(f"{number} {phase}" for phase, number in count.get("phases", {}).items())
    return f"{count['total']} ({phases})" if phases else str(count["total"])
