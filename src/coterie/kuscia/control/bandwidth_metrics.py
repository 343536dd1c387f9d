"""Gauges of bandwidth for Prometheus: nodes, links and tasks of the domains of this control plane, in bits per second.

Computed from objects that are in memory anyway, when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coterie.base.exposition import Family, Row, labels
from coterie.kuscia.api.bandwidth_report import BandwidthReport


class BandwidthSource:
    """A metrics source."""

    name = "bandwidth"

    def __init__(self, reports: Callable[[], Iterable[BandwidthReport]]) -> None:
        self._reports = reports

    async def families(self) -> Sequence[Family]:
        return bandwidth_families(self._reports())


def bandwidth_families(reports: Iterable[BandwidthReport]) -> list[Family]:
    total: list[Row] = []
    available: list[Row] = []
    node_used: list[Row] = []
    capacity: list[Row] = []
    reserved: list[Row] = []
    used: list[Row] = []
    task_reserved: list[Row] = []
    task_used: list[Row] = []
    task_limit: list[Row] = []
    for report in reports:
        domain = report.domain
        for node in report.nodes:
            where = labels(domain=domain, node=node.name)
            total.append((where, node.total))
            available.append((where, node.available))
            node_used.append((where, node.used))
        for link in report.links:
            where = labels(domain=domain, peer=link.peer)
            if link.capacity is not None:
                capacity.append((where, link.capacity))
            reserved.append((where, link.reserved))
            used.append((where, max(link.sent, link.received)))
        for task in report.tasks:
            where = labels(domain=domain, task=task.task, peer=task.peer)
            task_reserved.append((where, task.reserved))
            task_used.append((where, max(task.sent, task.received)))
            if task.limit is not None:
                task_limit.append((where, task.limit))
    return [
        Family("node_bandwidth_total_bits", "Capacity of a node's network.", "gauge", total),
        Family(
            "node_bandwidth_available_bits",
            "What tasks may still reserve: less the larger of reserved and used of each task.",
            "gauge",
            available,
        ),
        Family("coterie_node_bandwidth_used_bits", "What tasks on a node use.", "gauge", node_used),
        Family("coterie_link_capacity_bits", "Stated capacity of the link to a partner.", "gauge", capacity),
        Family("coterie_link_reserved_bits", "What tasks reserved on the link to a partner.", "gauge", reserved),
        Family("coterie_link_used_bits", "What is used of a link, in its busier direction.", "gauge", used),
        Family("coterie_task_bandwidth_reserved_bits", "What a task reserved on a link.", "gauge", task_reserved),
        Family("coterie_task_bandwidth_used_bits", "What a task uses of a link.", "gauge", task_used),
        Family("coterie_task_bandwidth_limit_bits", "Limit of a task's calls to a partner.", "gauge", task_limit),
    ]
