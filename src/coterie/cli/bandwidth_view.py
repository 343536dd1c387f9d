"""Bandwidth as tables for people, from the report that KusciaAPI and the metrics show too."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coterie.cli.output import plain_table
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.bandwidth import bits_text
from coterie.kuscia.api.bandwidth_report import BandwidthReport, TaskBandwidth, bandwidth_report
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES


async def own_reports(session: CliSession, wanted: str = "") -> list[BandwidthReport]:
    """Of the domains that this control plane hosts; of one of them when it is named."""
    client = session.client
    names = [each.metadata.name for each in (await client.list(DOMAINS)).items if is_own(each)]
    chosen = [name for name in sorted(names) if wanted in ("", name)]
    if not chosen:
        return []
    nodes, pods = (await client.list(NODES)).items, (await client.list(PODS)).items
    gateways, routes = (await client.list(GATEWAYS)).items, (await client.list(DOMAIN_ROUTES)).items
    reservations = (await client.list(TASK_RESOURCES)).items
    return [bandwidth_report(name, nodes, pods, gateways, routes, reservations) for name in chosen]


async def task_lines(session: CliSession, tasks: Collection[str]) -> list[str]:
    """What these tasks reserved and use, per link; nothing when they neither reserved nor send."""
    try:
        reports = await own_reports(session)
    except Forbidden:
        return []
    shown = [(report.domain, each) for report in reports for each in report.tasks if each.task in tasks]
    if not shown:
        return []
    return ["Bandwidth:", *(f"  {line}" for line in _task_table(shown).splitlines())]


def report_text(report: BandwidthReport) -> str:
    parts = [f"Domain {report.domain}"]
    nodes = [
        [each.name, *map(bits_text, (each.total, each.allocatable, each.reserved, each.used, each.available))]
        for each in report.nodes
    ]
    if nodes:
        parts.append(_table(("Node", "Total", "For tasks", "Reserved", "Used", "Free"), nodes))
    links = [
        [
            f"{report.domain}-{each.peer}",
            bits_text(each.capacity) if each.capacity is not None else "not stated",
            bits_text(each.reserved),
            bits_text(each.sent),
            bits_text(each.received),
        ]
        for each in report.links
    ]
    if links:
        parts.append(_table(("Link", "Capacity", "Reserved", "Sent", "Received"), links))
    if report.tasks:
        parts.append(_task_table([(report.domain, each) for each in report.tasks]))
    return "\n".join(parts) + "\n"


def _task_table(tasks: Iterable[tuple[str, TaskBandwidth]]) -> str:
    rows = [
        [
            each.task,
            f"{domain}-{each.peer}",
            bits_text(each.reserved),
            bits_text(each.sent),
            bits_text(each.received),
            bits_text(each.limit) if each.limit is not None else "none",
        ]
        for domain, each in tasks
    ]
    return _table(("Task", "Link", "Reserved", "Sent", "Received", "Limit"), rows)


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    return render_table(plain_table(columns, rows))
