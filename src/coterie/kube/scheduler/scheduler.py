"""The scheduler as a part of a node: informers feed the engine, workers apply what it decides.

    informers ──handlers──> engine ──run()──> effects ──> workers ──> API server ──> informers

Between changes nothing runs: the loop sleeps until an informer tells something or a moment comes that the engine named
(a hold ends, a back-off is over).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.policy import POD_DISRUPTION_BUDGETS
from coterie.kube.api.types.storage import CLAIMS, STORAGE_CLASSES, VOLUMES
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.leader import LeaderElected, LeaderElection
from coterie.kube.control.manager import Runnable
from coterie.kube.scheduler.apply import Applier
from coterie.kube.scheduler.effects import Bind, Effect, PluginEffect
from coterie.kube.scheduler.engine import SCHEDULER_NAMES, SchedulingEngine
from coterie.kube.scheduler.metrics import SchedulerSource
from coterie.kube.scheduler.plan import SAMPLING, Sampling
from coterie.kube.scheduler.plugin import SchedulerPlugin
from coterie.kube.scheduler.volume_binding import VolumeBinder

T = TypeVar("T")

_WORKERS = 16
_BATCH = 50
"""Attempts between two turns of the event loop."""
LEASE_NAME, LEASE_NAMESPACE = "kube-scheduler", "kube-system"


class Scheduler:
    """A Runnable. `stop()` decides nothing new and finishes what was decided."""

    name = "scheduler"

    def __init__(
        self,
        client: Client,
        informers: Informers,
        engine: SchedulingEngine,
        events: EventRecorder,
        *,
        clock: Clock = SYSTEM_CLOCK,
        plugins: Sequence[SchedulerPlugin] = (),
        workers: int = _WORKERS,
    ) -> None:
        self.ready = asyncio.Event()
        self.engine = engine
        self._clock = clock
        self._events = events
        self._changed = asyncio.Event()
        self._stopping = False
        self._pods = informers.get(PODS)
        self._nodes = informers.get(NODES)
        self._namespaces = informers.get(NAMESPACES)
        self._budgets = informers.get(POD_DISRUPTION_BUDGETS)
        self._services = informers.get(SERVICES)
        self._watches = [watch for plugin in plugins for watch in plugin.watches(informers)]
        self._claims = informers.get(CLAIMS)
        self._volumes = informers.get(VOLUMES)
        self._classes = informers.get(STORAGE_CLASSES)
        self._binder = VolumeBinder(client, engine.volumes, self._claims, self._nodes.cache, clock)
        self._applier = Applier(client, engine, self._pods.cache, events, clock, plugins, self._binder)
        self._lanes = [_EffectQueue() for _ in range(workers)]
        self._plugin_effects: dict[ObjectKey, deque[Effect]] = {}
        self._owner = TaskOwner(self.name)
        self._log = logger("scheduler")

    async def run(self) -> None:
        removers = self._listen()
        try:
            for informer in (self._nodes, self._pods, self._namespaces, self._budgets, self._services):
                await informer.ready.wait()
            for stored in (self._claims, self._volumes, self._classes):
                await stored.ready.wait()
            # Gangs that were promised room before a restart come first; they must be known.
            for watch in self._watches:
                await watch.informer.ready.wait()
            async with self._owner as owner:
                owner.start("events", self._events.run())
                for i, lane in enumerate(self._lanes):
                    owner.start(f"worker-{i}", self._work(lane))
                owner.start("decide", self._decide())
                self.ready.set()
                await owner.wait()
        finally:
            for remove in removers:
                remove()

    def stop(self) -> None:
        self._stopping = True
        self._binder.stop()
        self._changed.set()

    # Seeing.

    def _listen(self) -> list[Callable[[], None]]:
        engine = self.engine
        removers = [
            self._on(self._nodes, engine.node_seen, lambda node: engine.node_gone(node.metadata.name)),
            self._on(self._namespaces, engine.namespace_seen, lambda ns: engine.namespace_gone(ns.metadata.name)),
            self._on(self._budgets, engine.budget_seen, lambda budget: engine.budget_gone(budget.key)),
            self._on(self._classes, engine.class_seen, engine.class_gone),
            self._on(self._volumes, engine.volume_seen, engine.volume_gone),
            self._on(self._claims, engine.claim_seen, engine.claim_gone),
            self._on(self._services, engine.service_seen, lambda service: engine.service_gone(service.key)),
            self._pods.add_handler(self._pod_changed),
        ]
        return [*removers, *(self._on(watch.informer, watch.seen, watch.gone) for watch in self._watches)]

    def _on(self, informer: Informer[T], seen: Callable[[T], None], gone: Callable[[T], None]) -> Callable[[], None]:
        def changed(change: ObjectChange[T]) -> None:
            with _SkipUnreadable(self._log, informer.kind.key(change.object)):
                (gone if change.type == "deleted" else seen)(change.object)
            self._changed.set()

        return informer.add_handler(changed)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        with _SkipUnreadable(self._log, change.object.key):
            if change.type == "deleted":
                self.engine.pod_gone(change.object)
                self._events.retract(change.object.metadata.uid)
            else:
                self.engine.pod_seen(change.object, change.old)
        self._changed.set()

    # Deciding.

    async def _decide(self) -> None:
        while not self._stopping:
            self._changed.clear()
            self._hand_out(self.engine.run(_BATCH))
            due = self.engine.next_due()
            wait = None if due is None else due - self._clock.monotonic()
            if wait is not None and wait <= 0:
                await asyncio.sleep(0)
            else:
                await self._sleep(wait)
        for lane in self._lanes:
            lane.close()
        self._events.stop()

    async def _sleep(self, seconds: float | None) -> None:
        if seconds is None:
            await self._changed.wait()
            return
        waits: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # Doing.

    def _hand_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, PluginEffect):
                self._hand_to_plugin(effect)
            elif isinstance(effect, Bind) and effect.pod.unbound_claims:
                # Volumes may take a while to be made: nobody else waits for them.
                self._owner.start(f"volumes-{effect.pod.uid}", self._bind_with_volumes(effect))
            else:
                self._lanes[hash(effect.pod.uid) % len(self._lanes)].put(effect)

    async def _bind_with_volumes(self, effect: Bind) -> None:
        await self._applier.apply(effect)
        self._changed.set()

    def _hand_to_plugin(self, effect: PluginEffect) -> None:
        """These may take as long as a hold when the server is away, so each key has a task of its own."""
        waiting = self._plugin_effects.get(effect.key)
        if waiting is not None:
            waiting.append(effect)
            return
        self._plugin_effects[effect.key] = deque((effect,))
        self._owner.start(f"plugin-{effect.key}", self._work_off(effect.key))

    async def _work_off(self, key: ObjectKey) -> None:
        waiting = self._plugin_effects[key]
        try:
            while waiting:
                await self._applier.apply(waiting.popleft())
                self._changed.set()
        finally:
            del self._plugin_effects[key]

    async def _work(self, lane: _EffectQueue) -> None:
        while (effect := await lane.get()) is not None:
            await self._applier.apply(effect)
            self._changed.set()  # the engine may have been told of a failure


class _EffectQueue:
    """Effects that are done in order."""

    def __init__(self) -> None:
        self._effects: deque[Effect] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, effect: Effect) -> None:
        self._effects.append(effect)
        self._changed.set()

    async def get(self) -> Effect | None:
        """None: nothing is left and nothing comes."""
        while not self._effects:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._effects.popleft()

    def close(self) -> None:
        self._closed = True
        self._changed.set()


class _SkipUnreadable:
    """One object that cannot be understood (a quantity beyond all numbers) must not stop the informer others share."""

    def __init__(self, log: Any, key: ObjectKey) -> None:
        self._log = log
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ValueError):
            return False
        self._log.warning("Object is left out of scheduling", error=error, object=str(self._key))
        return True


def make(
    client: Client,
    informers: Informers,
    *,
    clock: Clock = SYSTEM_CLOCK,
    names: Iterable[str] = SCHEDULER_NAMES,
    seed: int = 0,
    sampling: Sampling = SAMPLING,
    plugins: Sequence[SchedulerPlugin] = (),
    metrics: SchedulerSource | None = None,
) -> Scheduler:
    engine = SchedulingEngine(clock.monotonic, names=names, sampling=sampling, seed=seed, plugins=plugins)
    if metrics is not None:
        metrics.engine = engine
    events = EventRecorder(client, "default-scheduler", clock=clock)
    return Scheduler(client, informers, engine, events, clock=clock, plugins=plugins)


def elected(
    client: Client, informers: Informers, identity: str, *, clock: Clock = SYSTEM_CLOCK, **settings: Any
) -> Runnable:
    """As `make`, for control planes with several schedulers of which one may work."""
    election = LeaderElection(client, LEASE_NAME, LEASE_NAMESPACE, identity, clock=clock)
    return LeaderElected(
        "scheduler", election, lambda: [[make(client, informers, clock=clock, **settings)]], clock=clock
    )
