"""What containers use: from their control group, else summed up over their processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from coterie.kube.agent.runtimes.protocol import ContainerUsage
from coterie.kube.agent.runtimes.runp import processes

if TYPE_CHECKING:
    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def usage_of(groups: Cgroups | None, run: dict[str, Any], mark: str) -> ContainerUsage | None:
    """None when the container is gone."""
    if groups is not None:
        group_usage = groups.usage(run["group"])
        if group_usage is not None:
            return ContainerUsage(*group_usage)
    pids = processes.in_namespace(run["init"]) if run["init"] else processes.marked(mark)
    found = [usage for usage in (_of_process(pid) for pid in pids if pid != run["init"]) if usage is not None]
    if not found:
        return None
    return ContainerUsage(sum(one[0] for one in found), sum(one[1] for one in found), len(found))


def _of_process(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * _TICK, int(fields[21]) * _PAGE
