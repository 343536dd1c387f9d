"""Empty a node as `kubectl drain` does: no new pods, and those that run are evicted as their budgets allow.

sort_pods     pure: which pods are evicted, which stay, and why the node cannot be drained as asked
drain         cordon, evict, wait until the pods are gone
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coterie.cli.app import CliError
from coterie.kube.api.errors import Conflict, NotFound, TooManyRequests
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client

_NODES, _PODS = NODES.as_dynamic, PODS.as_dynamic
_EVICTION_PAUSE = 1.0
"""Seconds before an eviction that a budget refused is tried again."""
_GONE_PAUSE = 0.2
_MIRROR = "kubernetes.io/config.mirror"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DrainOptions:
    ignore_daemonsets: bool = False
    force: bool = False
    """Evict pods that no controller replaces."""
    delete_emptydir_data: bool = False
    grace_period: int | None = None
    """Seconds; None: as each pod says."""
    timeout: float = 0.0
    """Seconds; 0: none."""


@dataclass(slots=True)
class SortedPods:
    evicted: list[Object] = field(default_factory=list)
    staying: list[Object] = field(default_factory=list)
    """Of DaemonSets, which would create them again at once."""
    problems: list[str] = field(default_factory=list)


def sort_pods(pods: Iterable[Object], options: DrainOptions) -> SortedPods:
    found = SortedPods()
    unmanaged: list[str] = []
    with_data: list[str] = []
    for pod in pods:
        if _MIRROR in (pod["metadata"].get("annotations") or {}):
            continue
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        owners = pod["metadata"].get("ownerReferences") or ()
        owner = next((each["kind"] for each in owners if each.get("controller")), "")
        if owner == "DaemonSet" and not ended:
            found.staying.append(pod)
            continue
        found.evicted.append(pod)
        if not owner and not ended:
            unmanaged.append(pod_name(pod))
        if not ended and any("emptyDir" in volume for volume in pod["spec"].get("volumes") or ()):
            with_data.append(pod_name(pod))
    if found.staying and not options.ignore_daemonsets:
        names = _listed(map(pod_name, found.staying))
        found.problems.append(f"DaemonSets would create these pods again, leave them with --ignore-daemonsets: {names}")
    if unmanaged and not options.force:
        found.problems.append(f"no controller replaces these pods, evict them with --force: {_listed(unmanaged)}")
    if with_data and not options.delete_emptydir_data:
        found.problems.append(
            "these pods lose the data in their emptyDir volumes, evict them with --delete-emptydir-data: "
            f"{_listed(with_data)}"
        )
    return found


def pod_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _listed(names: Iterable[str]) -> str:
    known = sorted(names)
    shown = ", ".join(known[:_SHOWN])
    return f"{shown} and {len(known) - _SHOWN} more" if len(known) > _SHOWN else shown


async def cordon(client: Client, node: str) -> None:
    await client.patch(_NODES, node, "", {"spec": {"unschedulable": True}})


async def pods_on(client: Client, node: str, namespace: str = "") -> list[Object]:
    return list((await client.list(_PODS, namespace, fields=f"spec.nodeName={node}")).items)


async def drain(
    client: Client, node: str, options: DrainOptions, say: Callable[[str], None], namespace: str = ""
) -> int:
    """`namespace`: the only one that has pods on the node. How many pods were evicted. Raises CliError when the node cannot be drained as asked; it stays cordoned."""
    await cordon(client, node)
    sorted_ = sort_pods(await pods_on(client, node, namespace), options)
    if sorted_.problems:
        reasons = "".join(f"\n  {problem}" for problem in sorted_.problems)
        raise CliError(f"Error: {node} is cordoned, but not drained:{reasons}")
    waiting = {pod_name(pod): "it has not ended yet" for pod in sorted_.evicted}
    try:
        async with asyncio.timeout(options.timeout or None), asyncio.TaskGroup() as group:
            for pod in sorted_.evicted:
                group.create_task(_evicted(client, pod, options.grace_period, waiting, say), name=pod_name(pod))
    except TimeoutError as problem:
        reasons = "".join(f"\n  {name}: {why}" for name, why in sorted(waiting.items()))
        raise CliError(
            f"Error: {node} is cordoned, but not empty after {options.timeout:g} s:{reasons}\n"
            f"Repeat `coterie node drain {node}` with a longer --timeout, or let pods come back with "
            f"`coterie kubectl uncordon {node}`"
        ) from problem
    except ExceptionGroup as problems:
        raise problems.exceptions[0] from problems
    return len(sorted_.evicted)


async def _evicted(
    client: Client, pod: Object, grace: int | None, waiting: dict[str, str], say: Callable[[str], None]
) -> None:
    meta, name = pod["metadata"], pod_name(pod)
    while not await _try_eviction(client, pod, grace, waiting):  # noqa: ASYNC110 - a budget tells nobody when it allows more
        await asyncio.sleep(_EVICTION_PAUSE)
    while True:
        try:
            current = await client.get(_PODS, meta["name"], meta["namespace"])
        except NotFound:
            break
        if current["metadata"]["uid"] != meta["uid"]:
            break
        await asyncio.sleep(_GONE_PAUSE)
    waiting.pop(name, None)
    say(f"pod {name} evicted")


async def _try_eviction(client: Client, pod: Object, grace: int | None, waiting: dict[str, str]) -> bool:
    """False: a budget does not allow it now."""
    meta = pod["metadata"]
    options: Object = {"preconditions": {"uid": meta["uid"]}}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    eviction: Object = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "deleteOptions": options,
    }
    try:
        await client.create(_PODS, eviction, meta["namespace"], name=meta["name"], subresource="eviction")
    except (NotFound, Conflict):
        return True  # it is gone; another may have its name
    except TooManyRequests as problem:
        waiting[pod_name(pod)] = problem.message
        return False
    waiting[pod_name(pod)] = "it has not ended yet"
    return True
