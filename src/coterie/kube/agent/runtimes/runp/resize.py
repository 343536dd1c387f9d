"""Limits of containers that run already: the pod's group is made wide enough first, then its containers get theirs, then
the pod as a whole is given no more than that."""

from __future__ import annotations

from coterie.kube.agent.runtimes.runp.run import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups
    from coterie.kube.agent.runtimes.runp.run import ContainerRun

KEYS = ("cpu", "shares", "memory")


def looser(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """What satisfies both; 0 means no limit, except for shares."""
    found = dict(other)
    for key in KEYS:
        had, wanted = one.get(key, 0), other.get(key, 0)
        found[key] = max(had, wanted) if key == "shares" or (had and wanted) else 0
    return found


def memory_problem(groups: Cgroups, group: str, what: str, limit: int) -> str:
    """Why a group cannot have this memory limit now: the kernel would kill what is inside."""
    usage = groups.usage(group) if limit else None
    if usage is None or usage[1] <= limit:
        return ""
    return f"{what} uses {size_text(usage[1])} of memory, more than the new limit of {size_text(limit)}"


def resize_containers(
    groups: Cgroups, runs: Mapping[str, ContainerRun], wanted: Mapping[str, Mapping[str, int]]
) -> str:
    """Returns why it was not done, or nothing."""
    for name, limits in wanted.items():
        if name in runs:
            problem = memory_problem(groups, runs[name].group, f"Container {name}", limits["memory"])
            if problem:
                return problem
    for name, limits in wanted.items():
        if name in runs:
            groups.update(runs[name].group, limits["cpu"], limits["shares"], limits["memory"])
            runs[name].limits_changed({key: limits[key] for key in KEYS})
    return ""
