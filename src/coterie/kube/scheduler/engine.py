"""The engine: is told what is seen, is asked what to do. It knows no server, no task and no clock but a function.

    node_seen, pod_seen, ...  ──>  state (snapshot, queue), plug-ins  ──run()──>  effects
            bind_failed, ...  <── how it went ── whoever applies the effects

`run` tries what is active and returns effects; `next_due` says when it wants to run again if nothing happens. All of
it is synchronous and deterministic for a seed, so that a test can run hours of a cluster in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.core import Namespace
from coterie.kube.api.types.network import Service
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod
from coterie.kube.api.types.policy import PodDisruptionBudget
from coterie.kube.api.types.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from coterie.kube.scheduler.effects import Bind, Effect, Evict
from coterie.kube.scheduler.facts import PodFacts, node_facts, pod_facts
from coterie.kube.scheduler.filters import UnschedulableCause
from coterie.kube.scheduler.metrics import ERROR
from coterie.kube.scheduler.plan import (
    SAMPLING,
    UNSCHEDULABLE_REASON,
    Placement,
    Sampling,
    Unschedulable,
    could_take,
    plan,
)
from coterie.kube.scheduler.plugin import SchedulerPlugin
from coterie.kube.scheduler.pod_affinity import helped_by
from coterie.kube.scheduler.preemption import Budget, Preemption, preempt
from coterie.kube.scheduler.state import SchedulerState
from coterie.kube.scheduler.terms import NO_TERMS
from coterie.kube.scheduler.volumes import VolumeState

SCHEDULER_NAMES = frozenset(("default-scheduler",))
_REMEMBERED_FAILURES = 1024


class SchedulingEngine:
    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        names: Iterable[str] = SCHEDULER_NAMES,
        sampling: Sampling = SAMPLING,
        seed: int = 0,
        plugins: Sequence[SchedulerPlugin] = (),
    ) -> None:
        self.state = SchedulerState(monotonic, sampling=sampling, seed=seed)
        self.snapshot = self.state.snapshot
        self.queue = self.state.queue
        self._plugins = tuple(plugins)
        self.snapshot.resource_scores = tuple(each for plugin in plugins for each in plugin.resource_scores)
        placers = [placer for plugin in plugins if (placer := plugin.placer(self.state)) is not None]
        assert len(placers) < 2, "a scheduler has one way to place gangs"
        self._gangs = placers[0] if placers else None
        self._names = frozenset(names).union(*(plugin.scheduler_names for plugin in plugins))
        self._budgets: dict[ObjectKey, Budget] = {}
        self._touched: set[str] = set()
        """Nodes that are new or changed since waiting pods were looked through last."""
        self._arrived: list[PodFacts] = []
        """Pods that were placed since then."""
        self._failures: dict[Hashable, tuple[int, Unschedulable]] = {}
        self.volumes = VolumeState()
        self._with_claims: set[str] = set()
        """Pending pods that mount claims."""
        self._evicting: dict[str, frozenset[str]] = {}
        """Which pods were asked to leave for which."""

    # What is seen.

    def node_seen(self, node: Node) -> None:
        facts = node_facts(node)
        if self.snapshot.set_node(facts):
            self._touched.add(facts.name)

    def node_gone(self, name: str) -> None:
        self.snapshot.remove_node(name)
        self._touched.discard(name)
        if self._gangs is not None:
            self._gangs.node_gone(name)

    def pod_seen(self, pod: Pod, old: Pod | None = None) -> None:
        if old is not None and _same_to_us(old, pod):
            return
        facts = self._facts(pod)
        if pod.spec.node_name:
            self._bound(facts, pod.spec.node_name, ended=pod.ended)
        elif pod.ended or facts.terminating or pod.spec.scheduling_gates or pod.spec.scheduler_name not in self._names:
            self._left(facts)
        else:
            self._pending(facts, pod.status.nominated_node_name)

    def pod_gone(self, pod: Pod) -> None:
        self._left(self._facts(pod))

    def namespace_seen(self, namespace: Namespace) -> None:
        if self.snapshot.set_namespace(namespace.metadata.name, namespace.metadata.labels or {}):
            self.queue.wake(UnschedulableCause.NEIGHBOURS | UnschedulableCause.GANG, lambda _: True)

    def namespace_gone(self, name: str) -> None:
        self.snapshot.set_namespace(name, None)

    def service_seen(self, service: Service) -> None:
        self.snapshot.set_service(service.key, service.spec.selector)

    def service_gone(self, key: ObjectKey) -> None:
        self.snapshot.set_service(key, None)

    def budget_seen(self, budget: PodDisruptionBudget) -> None:
        selector = selector_of(budget.spec.selector)
        self._budgets[budget.key] = Budget(budget.metadata.namespace, selector, budget.status.disruptions_allowed)

    def budget_gone(self, key: ObjectKey) -> None:
        self._budgets.pop(key, None)

    def claim_seen(self, claim: PersistentVolumeClaim) -> None:
        self.volumes.claims[claim.key] = claim
        self._volumes_changed()

    def claim_gone(self, claim: PersistentVolumeClaim) -> None:
        self.volumes.claims.pop(claim.key, None)
        self._volumes_changed()

    def volume_seen(self, volume: PersistentVolume) -> None:
        self.volumes.volumes[volume.metadata.name] = volume
        self._volumes_changed()

    def volume_gone(self, volume: PersistentVolume) -> None:
        self.volumes.volumes.pop(volume.metadata.name, None)
        self._volumes_changed()

    def class_seen(self, storage_class: StorageClass) -> None:
        self.volumes.classes[storage_class.metadata.name] = storage_class
        self._volumes_changed()

    def class_gone(self, storage_class: StorageClass) -> None:
        self.volumes.classes.pop(storage_class.metadata.name, None)
        self._volumes_changed()

    # How it went.

    def bind_failed(self, pod: PodFacts) -> None:
        """The pod is not on its node. If it is still pending it is tried again after a pause."""
        if self.state.assumed.get(pod.uid) is None:
            return  # it was seen bound or gone meanwhile
        self.state.metrics.attempts[ERROR] += 1
        self.state.forget(pod.uid)
        if pod.claims:
            self._claims_used(pod, False)
        if pod.gang is not None and self._gangs is not None:
            self._gangs.bind_failed(pod)
        else:
            self.queue.retry_later(pod.uid, self.state.now())

    def evict_failed(self, pod: PodFacts) -> None:
        """Nobody leaves for the pod after all."""
        self._evicting.pop(pod.uid, None)
        self.snapshot.nominate(pod, "")
        self.queue.retry_later(pod.uid, self.state.now())

    # What to do.

    def run(self, limit: int = 1000) -> list[Effect]:
        """Try up to `limit` pods or gangs. More may be left: `next_due` is then now."""
        if self._gangs is not None:
            self._gangs.expire()
        self._wake()
        now = self.state.now()
        for _ in range(limit):
            entry = self.queue.pop(now)
            if entry is None:
                break
            gang = self._gangs.find(entry.key) if self._gangs is not None else None
            if gang is not None and self._gangs is not None:
                if not self._is_refused(gang.namespace, entry.key, gang.pods):
                    self._gangs.attempt(entry.key)
            elif entry.key in self.state.pending:
                self._attempt(self.state.pending[entry.key])
            else:
                self.queue.remove(entry.key)
                continue
            self.state.metrics.attempted(self.queue.state(entry.key))
        return self.state.take_effects()

    def next_due(self) -> float | None:
        if self.queue.has_active or self.state.freed or self._touched or self._arrived or self.state.effects:
            return self.state.now()
        deadline = self._gangs.next_deadline() if self._gangs is not None else None
        return min((at for at in (self.queue.next_due(), deadline) if at is not None), default=None)

    # Inside: changes.

    def _bound(self, pod: PodFacts, node: str, *, ended: bool) -> None:
        uid = pod.uid
        state = self.state
        self._with_claims.discard(uid)
        state.pending.pop(uid, None)
        state.assumed.pop(uid, None)
        self.queue.remove(uid)
        self._evicting.pop(uid, None)
        state.metrics.reasons.pop(uid, None)
        self.snapshot.nominate(pod, "")
        if pod.claims:
            self._claims_used(pod, not ended)
        if ended:
            state.forget(uid)
        else:
            known = self.snapshot.places.get(uid)
            self.snapshot.place(pod, node)
            if known is None:
                self._arrived.append(pod)
            elif known.name != node:
                state.freed.add(known.name)
        if pod.gang is not None and self._gangs is not None:
            self._gangs.member_bound(pod, node)

    def _left(self, pod: PodFacts) -> None:
        uid = pod.uid
        self._with_claims.discard(uid)
        if pod.claims:
            self._claims_used(pod, False)
        self.state.pending.pop(uid, None)
        self.state.metrics.reasons.pop(uid, None)
        self.queue.remove(uid)
        self._evicting.pop(uid, None)
        nominated = self.snapshot.nominations.get(uid)
        if nominated is not None:
            self.snapshot.nominate(pod, "")
            self.state.freed.add(nominated)
        self.state.forget(uid)
        if pod.gang is not None and self._gangs is not None:
            self._gangs.member_gone(pod)

    def _pending(self, pod: PodFacts, nominated: str) -> None:
        uid = pod.uid
        before = self.state.pending.get(uid)
        if pod.claims:
            pod = self.volumes.apply(pod)
            self._with_claims.add(uid)
        self.state.pending[uid] = pod
        if uid in self.state.assumed:
            return  # on its way; what changed is seen again when it arrives or fails
        if nominated and uid not in self.snapshot.nominations:
            self.snapshot.nominate(pod, nominated)
        gangs = self._gangs
        if gangs is not None and before is not None and before.gang is not None and before.gang != pod.gang:
            gangs.member_gone(before)
        if pod.gang is not None and gangs is not None:
            self.queue.remove(uid)
            gangs.member_pending(pod)
        elif pod.gang_unnamed:
            # Whoever made it names the gang next; a report of that would be old before it arrives.
            self.queue.remove(uid)
        else:
            self.queue.put(uid, (-pod.priority, pod.created, str(pod.key)))

    def _claims_used(self, pod: PodFacts, used: bool) -> None:
        if used:
            self.volumes.use(pod)
        elif self.volumes.release(pod):
            self._volumes_changed()

    def _volumes_changed(self) -> None:
        """Pods whose volumes ask for something else now are tried again."""
        for uid in tuple(self._with_claims):
            pod = self.state.pending[uid]
            if self.volumes.apply(pod) is not pod:
                self._pending(pod, "")

    def _wake(self) -> None:
        """Look through those that wait, once for all changes since the last time."""
        if self._touched or self.state.freed:
            touched, freed = self._touched, self.state.freed
            self._touched, self.state.freed = set(), set()
            if touched:
                self.queue.wake(
                    UnschedulableCause.FACE | UnschedulableCause.ROOM | UnschedulableCause.NEIGHBOURS,
                    lambda key: self._helps(key, touched),
                )
            if freed:
                self.queue.wake(
                    UnschedulableCause.ROOM | UnschedulableCause.NEIGHBOURS,
                    lambda key: self._helps(key, freed, patiently=True),
                )
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self.queue.wake(UnschedulableCause.NEIGHBOURS, lambda key: self._waits_for(key, arrived))

    def _helps(self, key: str, nodes: Iterable[str], *, patiently: bool = False) -> bool:
        pod = self.state.pending.get(key)
        if pod is not None:
            if any(could_take(self.snapshot, node, pod) for node in nodes):
                return True
            # What left this node may have evened out a spread elsewhere.
            maybe = pod.terms is not NO_TERMS
        else:
            maybe = self._gangs is not None and self._gangs.helped_by(key, nodes)
        if maybe and patiently:
            # Only a part of what it needs, perhaps: not worth an attempt each time.
            self.queue.wake_after_backoff(key, self.state.now())
            return False
        return maybe

    def _waits_for(self, key: str, arrived: Sequence[PodFacts]) -> bool:
        """Whether one of these is whom it wants to be near, or evens out what it spreads among."""
        pod = self.state.pending.get(key)
        gang = self._gangs.find(key) if pod is None and self._gangs is not None else None
        waiting = [pod] if pod is not None else gang.pods if gang is not None else []
        return any(helped_by(one, other, self.snapshot.namespaces) for one in waiting for other in arrived)

    # Inside: attempts.

    def _attempt(self, pod: PodFacts) -> None:
        if self._is_refused(pod.namespace, pod.uid, (pod,)):
            return
        state = self.state
        alike = self._alike(pod)
        found = self._known_failure(alike) or plan(self.snapshot, pod, state.cursor, state.sampling)
        if isinstance(found, Placement):
            state.cursor = found.next_cursor
            self.snapshot.place(pod, found.node)
            state.assumed[pod.uid] = found.node
            if pod.claims:
                self._claims_used(pod, True)
            state.effects.append(Bind(pod, found.node))
            self.queue.placed(pod.uid)
            self._arrived.append(pod)
            return
        if alike is not None:
            if len(self._failures) > _REMEMBERED_FAILURES:
                self._failures.clear()
            self._failures[alike] = (self.snapshot.release_version, found)
        message = f"{found.message} {self._make_room(pod)}".rstrip()
        state.report(pod, found.reason, message)
        # Asked again: a node that was just promised to this one takes none of those that were like it.
        self.queue.wait(pod.uid, found.causes, state.now(), self._alike(pod))

    def _make_room(self, pod: PodFacts) -> str:
        """Lets less important pods leave when that helps; says in words what came of it."""
        if not self.snapshot.nodes:
            return ""
        if any(uid in self.snapshot.places for uid in self._evicting.get(pod.uid, ())):
            return "preemption: not eligible due to a terminating pod on the nominated node."
        held = self._gangs.held_pods() if self._gangs is not None else set()
        found = preempt(self.snapshot, pod, tuple(self._budgets.values()), held | set(self.state.assumed))
        if isinstance(found, Preemption):
            self.snapshot.nominate(pod, found.node)
            self._evicting[pod.uid] = frozenset(victim.uid for victim in found.victims)
            self.state.effects.append(Evict(pod, found.node, found.victims))
            return ""
        return f"preemption: {found.message}" if found.message else ""

    def _alike(self, pod: PodFacts) -> Hashable:
        """Equal for pods that fit or do not fit together; None for those with wishes of their own."""
        if pod.terms is not NO_TERMS or pod.uid in self.snapshot.nominations:
            return None
        alike = (pod.static, pod.cpu, pod.memory, pod.others, pod.ports, pod.priority, pod.preempts)
        # Pods that keep others away do so by namespace and labels.
        return (*alike, pod.namespace, tuple(pod.labels.items())) if self.snapshot.preferred_terms else alike

    def _known_failure(self, alike: Hashable) -> Unschedulable | None:
        known = self._failures.get(alike) if alike is not None else None
        if known is None or known[0] != self.snapshot.release_version:
            return None
        return known[1]

    def _is_refused(self, namespace: str, key: str, pods: Iterable[PodFacts]) -> bool:
        """Whether a plug-in keeps pods of this namespace from being placed here; they are told why."""
        labels = self.snapshot.namespaces.get(namespace, {})
        why = next((text for plugin in self._plugins if (text := plugin.namespace_refusal(namespace, labels))), "")
        if not why:
            return False
        for pod in pods:
            if pod.uid in self.state.pending:
                self.state.report(pod, UNSCHEDULABLE_REASON, why)
        self.queue.wait(key, UnschedulableCause.GANG, self.state.now())
        return True

    def _facts(self, pod: Pod) -> PodFacts:
        for plugin in self._plugins:
            membership = plugin.gang_of(pod)
            if membership is not None:
                return pod_facts(pod, membership)
        return pod_facts(pod)


def _same_to_us(old: Pod, new: Pod) -> bool:
    one, other = old.metadata, new.metadata
    return (
        old.spec == new.spec
        and one.labels == other.labels
        and one.annotations == other.annotations
        and one.deleting == other.deleting
        and old.ended == new.ended
    )
