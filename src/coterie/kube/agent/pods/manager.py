"""The pods of this node: which there are, by watch; each looked after by its own worker, sequentially.

    API watch ──┐
    runtime ────┼──> queue of uids ──> PodWorker.sync()        nothing in the queue: nothing is done and nothing asked
    timers, ────┘
    operations

On start the runtime's pods are compared with the API's: both know it: adopted; only the API: started; only the runtime:
an orphan, stopped and removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.decide import EVICTED
from coterie.kube.agent.pods.eviction import refusal
from coterie.kube.agent.pods.worker import PodWorker
from coterie.kube.agent.pods.worker_context import SteadyTime, WorkerContext
from coterie.kube.agent.pods.writer import StatusWriter
from coterie.kube.agent.probes.checks import Checker
from coterie.kube.agent.runtimes.protocol import PodRuntime
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes.local_path import LocalVolumes
from coterie.kube.agent.volumes.objects import ObjectSource
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.queue import WorkQueue

log = logger("agent.pods")


class PodManager:
    """A Runnable. Stopping it leaves all containers running."""

    name = "pods"

    def __init__(
        self,
        client: Client,
        informers: Informers,
        runtime: PodRuntime,
        settings: AgentSettings,
        events: EventRecorder,
        clock: Clock,
        plugins: tuple[AgentPlugin, ...],
        local_volumes: LocalVolumes,
        devices: DeviceManager,
        allocatable: Callable[[], Mapping[str, str]] = dict,
        images: NodeImages | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self.pressures: frozenset[str] = frozenset()
        """Conditions of the node under which new pods are refused."""
        self.pod_added = asyncio.Event()
        """Set with each new pod; whoever waits for it clears it."""
        self._runtime = runtime
        self._settings = settings
        self._informer = informers.get(
            PODS.as_dynamic, settings.pods.namespace, fields=f"spec.nodeName={settings.node_name}"
        )
        self._queue: WorkQueue[str] = WorkQueue(clock=clock)
        self._workers: dict[str, PodWorker] = {}
        self._done: set[str] = set()
        """Pods that ended here while the API still shows them, for example because of a finalizer."""
        self._stop = asyncio.Event()
        self._owner = TaskOwner("pod-operations")
        self._writer = StatusWriter(client, clock, settings.pods.status_writers, settings.pods.status_pause)
        self._objects = ObjectSource(client, self._objects_changed)
        self._tools = WorkerContext(
            client=client,
            runtime=runtime,
            settings=settings,
            clock=clock,
            time=SteadyTime(clock),
            checker=Checker(runtime, clock),
            objects=self._objects,
            local_volumes=local_volumes,
            plugins=plugins,
            events=events,
            writer=self._writer,
            owner=self._owner,
            wake=self._queue.add_after,
            forget=self._forget,
            allocatable=allocatable,
            requests_of_others=self._requests_of_others,
            devices=devices,
            images=images,
        )
        devices.on_free = self._objects_changed

    # What others ask.

    def pods(self) -> list[Object]:
        """The pods of this node as the API last told."""
        return [worker.pod for worker in self._workers.values()]

    def find(self, namespace: str, name: str) -> Object | None:
        return self._informer.cache.get(name, namespace)

    def worker(self, uid: str) -> PodWorker | None:
        return self._workers.get(uid)

    def evict(self, uid: str, message: str) -> bool:
        """Fail a pod because the node runs short of something; its owner may replace it elsewhere."""
        worker = self._workers.get(uid)
        if worker is None:
            return False
        worker.give_up(EVICTED, message)
        self._queue.add(uid)
        return True

    def _requests_of_others(self, uid: str) -> tuple[int, int]:
        given = [worker.allocated_requests() for other, worker in self._workers.items() if other != uid]
        return sum(cpu for cpu, _ in given), sum(memory for _, memory in given)

    def known_uids(self) -> set[str]:
        """All pods that are still somebody's: the API's, the runtime's or a worker's."""
        listed = {pod_model.uid_of(pod) for pod in self._informer.cache.list()}
        return listed | set(self._workers) | {state.uid for state in self._runtime.pods()}

    # Life.

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._informer.ready.wait()
        remove = self._informer.add_handler(self._changed)
        try:
            self._adopt_orphans()
            await self._adopt_devices()
            async with TaskOwner("pods", on_failure=lambda _: self._stop.set()) as owner:
                owner.start("delays", self._queue.run(), endless=True)
                owner.start("runtime-events", self._follow_runtime(), endless=True)
                owner.start("statuses", self._writer.run(), endless=True)
                for i in range(self._settings.pods.workers):
                    owner.start(f"worker-{i}", self._work(), endless=True)
                if self._tools.images is not None:
                    owner.start("prepare-images", self._tools.images.prepare(), vital=False)
                self.ready.set()
                await self._stop.wait()
        finally:
            remove()
            await self._owner.close()
            for worker in self._workers.values():
                await worker.close()
            await self._objects.close()
            if self._tools.images is not None:
                await self._tools.images.close()

    async def _follow_runtime(self) -> None:
        async for uid in self._runtime.events():
            self._queue.add(uid)

    async def _work(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                self._sync(uid)
            finally:
                self._queue.done(uid)
            await asyncio.sleep(0)  # looking at a pod never waits, so others must be given their turn

    def _sync(self, uid: str) -> None:
        worker = self._workers.get(uid)
        if worker is None:
            return
        try:
            worker.sync()
        except Exception as error:  # noqa: BLE001 - one pod that breaks the rules must not stop the others
            wait = self._queue.retry(uid)
            log.error("Pod sync failed; trying again", error=error, trace=True, uid=uid, seconds=wait)
        else:
            self._queue.forget(uid)

    # What changes.

    def _changed(self, change: ObjectChange[Object]) -> None:
        pod = change.object
        uid = pod_model.uid_of(pod)
        worker = self._workers.get(uid)
        if change.type == "deleted":
            self._done.discard(uid)
            if worker is not None:
                worker.remove(pod)
        elif uid in self._done:
            return
        elif worker is None:
            worker = self._workers[uid] = PodWorker(pod, self._tools)
            self.pod_added.set()
            why = refusal(pod, self.pressures)
            if why and worker.never_ran:
                worker.give_up(EVICTED, why)
        else:
            worker.update(pod)
        self._queue.add(uid)

    def _adopt_orphans(self) -> None:
        """Containers of pods that were deleted while no agent looked: they must not run on."""
        for state in self._runtime.pods():
            if state.uid in self._workers:
                continue
            log.info("Stopping a pod that the API does not know", pod=f"{state.namespace}/{state.name}", uid=state.uid)
            grace = self._settings.pods.orphan_grace
            pod: Object = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"namespace": state.namespace, "name": state.name, "uid": state.uid},
                "spec": {"terminationGracePeriodSeconds": grace},
            }
            self._workers[state.uid] = PodWorker(pod, self._tools, removed=True)
            self._queue.add(state.uid)

    async def _adopt_devices(self) -> None:
        """Before any pod is looked at: which devices are free must be known."""
        running = {state.uid for state in self._runtime.pods() if any(each.running for each in state.containers)}
        pods = [worker.pod for uid, worker in self._workers.items() if uid in running]
        await self._tools.devices.adopt(self.known_uids(), pods)

    def _objects_changed(self, uids: Iterable[str]) -> None:
        for uid in uids:
            worker = self._workers.get(uid)
            if worker is not None:
                worker.objects_changed()
                self._queue.add(uid)

    def _forget(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        self._writer.forget(uid)
        if worker is None:
            return
        key: ObjectKey = pod_model.key_of(worker.pod)
        known = self._informer.cache.by_key(key)
        if known is not None and pod_model.uid_of(known) == uid:
            self._done.add(uid)
