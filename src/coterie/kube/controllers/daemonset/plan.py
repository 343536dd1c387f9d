"""Which pods of a DaemonSet are missing, too many or out of date, and what its status says. Pure.

    node should have one     none there             create one (one that is being deleted counts as there)
                             ended                  delete it, with growing pauses; the next round makes another
                             several                keep the oldest (of each revision, while updating with maxSurge)
    node should not          some there             delete them, unless they may stay
    no such node             not bound              delete them; pods bound to it are the pod garbage collector's

Rolling updates, once nothing above is left to do:

    maxUnavailable           old pods that are not available go at once, of the others as many as may be missing
    maxSurge                 new pods are made beside old ones; the old one goes when the new one is available
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from coterie.kube.api.int_or_percent import resolve
from coterie.kube.api.labels import CONTROLLER_REVISION_HASH
from coterie.kube.api.pod_state import is_ready, until_available
from coterie.kube.api.types.apps import DaemonSet, DaemonSetStatus
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod
from coterie.kube.controllers.daemonset.nodes import NodeFit, NodeMatcher, node_of


@dataclass(slots=True)
class Plan:
    create: list[str] = field(default_factory=list)
    """Names of nodes."""
    delete: list[Pod] = field(default_factory=list)
    ended: list[tuple[Pod, str]] = field(default_factory=list)
    """Ended pods among `delete`, with their node: they are told in events."""
    after: float | None = None
    """Seconds after which a pause is over."""


@dataclass(frozen=True, slots=True)
class DaemonPods:
    """A DaemonSet's pods by node, and which nodes should have one."""

    daemon_set: DaemonSet
    revision: str
    """Hash of the present template."""
    fits: Mapping[str, NodeFit]
    pods: Mapping[str, Sequence[Pod]]
    """By node, oldest first; also of nodes that do not exist."""
    now: datetime

    @property
    def desired(self) -> int:
        return sum(fit.run for fit in self.fits.values())

    @property
    def max_surge(self) -> int:
        strategy = self.daemon_set.spec.update_strategy
        if strategy.type != "RollingUpdate" or strategy.rolling_update is None:
            return 0
        return resolve(strategy.rolling_update.max_surge, self.desired, up=True)

    @property
    def max_unavailable(self) -> int:
        rolling = self.daemon_set.spec.update_strategy.rolling_update
        value = resolve(1 if rolling is None else rolling.max_unavailable, self.desired, up=True)
        # Both may round to nothing; then one pod may be missing, or the update could never begin.
        return value or (0 if self.max_surge else 1)

    def updated(self, pod: Pod) -> bool:
        return (pod.metadata.labels or {}).get(CONTROLLER_REVISION_HASH) == self.revision

    def available(self, pod: Pod) -> bool:
        return until_available(pod, self.daemon_set.spec.min_ready_seconds, self.now) == 0


def survey(
    daemon_set: DaemonSet, nodes: Iterable[Node], pods: Iterable[Pod], revision: str, now: datetime
) -> DaemonPods:
    matcher = NodeMatcher(daemon_set)
    fits = {node.metadata.name: matcher.fit(node) for node in nodes}
    by_node: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
        if not (pod.ended and pod.metadata.deleting):
            by_node.setdefault(node_of(pod), []).append(pod)
    return DaemonPods(daemon_set, revision, fits, by_node, now)


def plan(known: DaemonPods, pause: Callable[[str], float] = lambda node: 0.0) -> Plan:
    """`pause(node)`: seconds until the ended pod of a node may be replaced."""
    out = Plan()
    for node, fit in known.fits.items():
        _plan_node(known, node, fit, out, pause)
    for node, pods in known.pods.items():
        if node not in known.fits:
            out.delete += [pod for pod in pods if not pod.spec.node_name and not pod.metadata.deleting]
    if not out.create and not out.delete and known.daemon_set.spec.update_strategy.type == "RollingUpdate":
        if known.max_surge:
            _surge(known, out)
        else:
            _replace(known, out)
    return out


def _plan_node(known: DaemonPods, node: str, fit: NodeFit, out: Plan, pause: Callable[[str], float]) -> None:
    pods = known.pods.get(node, ())
    if fit.run and not pods:
        out.create.append(node)
        return
    present = [pod for pod in pods if not pod.metadata.deleting]
    if not fit.keep:
        out.delete += present
        return
    running = []
    for pod in present:
        if not pod.ended:
            running.append(pod)
            continue
        wait = pause(node) if pod.status.phase == "Failed" else 0.0
        if wait > 0:
            out.after = wait if out.after is None else min(out.after, wait)
        else:
            out.delete.append(pod)
            out.ended.append((pod, node))
    if known.max_surge:
        _keep_two(known, running, out)
    else:
        # A pod that is bound before one that is not: of the others the oldest.
        running.sort(key=lambda pod: not pod.spec.node_name)
        out.delete += running[1:]


def _keep_two(known: DaemonPods, running: Sequence[Pod], out: Plan) -> None:
    """While updating with maxSurge an old and a new pod may be on one node."""
    new = [pod for pod in running if known.updated(pod)]
    old = [pod for pod in running if not known.updated(pod)]
    out.delete += new[1:] + old[1:]
    if new and old and (not is_ready(old[0]) or known.available(new[0])):
        out.delete.append(old[0])


def _pairs(known: DaemonPods) -> Iterable[tuple[str, Pod | None, Pod | None]]:
    """(node, new pod, old pod) of the nodes that should have one; pods that are being deleted do not count."""
    for node, fit in known.fits.items():
        if not fit.run:
            continue
        present = [pod for pod in known.pods.get(node, ()) if not pod.metadata.deleting]
        new = next((pod for pod in present if known.updated(pod)), None)
        old = next((pod for pod in present if not known.updated(pod)), None)
        yield node, new, old


def _replace(known: DaemonPods, out: Plan) -> None:
    missing = 0
    at_once: list[Pod] = []
    later: list[Pod] = []
    for _, new, old in _pairs(known):
        if new is not None or old is None:
            missing += new is None or not known.available(new)
        elif not known.available(old):
            missing += 1
            at_once.append(old)
        else:
            later.append(old)
    room = max(0, known.max_unavailable - missing)
    out.delete += at_once + later[:room]


def _surge(known: DaemonPods, out: Plan) -> None:
    surplus = 0
    at_once: list[str] = []
    later: list[str] = []
    for node, new, old in _pairs(known):
        if old is None:
            continue
        if new is not None:
            surplus += not known.available(new)
        elif not known.available(old):
            at_once.append(node)
        else:
            later.append(node)
    out.create += at_once + later[: max(0, known.max_surge - surplus)]


def status(known: DaemonPods) -> tuple[DaemonSetStatus, float | None]:
    """The status, and the seconds after which it changes by itself because a ready pod becomes available."""
    daemon_set = known.daemon_set
    current = misscheduled = ready = available = updated = 0
    soonest: float | None = None
    for node, fit in known.fits.items():
        pods = known.pods.get(node, ())
        if not fit.run:
            misscheduled += bool(pods)
            continue
        if not pods:
            continue
        current += 1
        # Of several the oldest speaks for the node: the others are on their way in or out.
        pod = next((pod for pod in pods if not pod.metadata.deleting), pods[0])
        if is_ready(pod):
            ready += 1
            wait = until_available(pod, daemon_set.spec.min_ready_seconds, known.now)
            if wait == 0:
                available += 1
            elif wait is not None:
                soonest = wait if soonest is None else min(soonest, wait)
        updated += any(known.updated(pod) for pod in pods)
    new = msgspec.structs.replace(
        daemon_set.status,
        desired_number_scheduled=known.desired,
        current_number_scheduled=current,
        number_misscheduled=misscheduled,
        number_ready=ready,
        updated_number_scheduled=updated,
        number_available=available,
        number_unavailable=known.desired - available,
        observed_generation=daemon_set.metadata.generation,
    )
    return new, soonest
