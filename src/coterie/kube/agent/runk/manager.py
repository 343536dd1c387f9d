"""Pods of this node as copies in a backing cluster: made, followed, and removed with their originals.

    our API ─── pods of the node ──┐                                       ┌──> copy (gated) ──> its objects ──> gate removed
    backing ─── copies, by label ──┼──> queue of uids ──> _sync (one uid at a time) ──> status of the original
    ConfigMaps, Secrets ───────────┘                                       └──> deletion, by uid

A copy and its original are known to each other by the original's uid in a label, so an agent that starts again finds its
copies, and a pod of the same name is never taken for one. A copy without original is an orphan and deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.plugin import AgentPlugin, PluginProblem
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo, NoSuchConfig
from coterie.kube.agent.pods.operations import pod_network
from coterie.kube.agent.pods.writer import StatusWriter
from coterie.kube.agent.runk import access, backing_pod, mirrored_status, objects, preparation
from coterie.kube.agent.runk.backing_pod import NotMirrored
from coterie.kube.agent.runk.log_follower import LogFollower
from coterie.kube.agent.runk.settings import GATE, OWNER_LABEL, RunkSettings
from coterie.kube.agent.runtimes.protocol import PodNetworkClass
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes.objects import ObjectSource
from coterie.kube.agent.volumes.sources import references
from coterie.kube.api.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound
from coterie.kube.api.errors import RequestEntityTooLarge as TooLarge
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network_policies import NETWORK_POLICIES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.requests import PatchType
from coterie.kube.client.transport import TransportError
from coterie.kube.control.events import EventRecorder, EventType, reference_to
from coterie.kube.control.queue import WorkQueue

log = logger("agent.runk")
_PODS = PODS.as_dynamic
_KINDS: Mapping[str, Kind[Object]] = {
    "ConfigMap": CONFIG_MAPS.as_dynamic,
    "Secret": SECRETS.as_dynamic,
    "NetworkPolicy": NETWORK_POLICIES.as_dynamic,
}
_RETRY_SECONDS = 5.0
_CHECK_SECONDS = 30.0
"""How often an unreachable backing cluster, or one that lacks rights, is asked again."""
_FINAL = (Invalid, BadRequest, TooLarge)
LOST, REFUSED, NOT_ALLOWED = "BackingPodLost", "BackingClusterRefused", "BackingClusterForbidden"


class MirrorManager:
    """A Runnable. Stopping it leaves all copies running."""

    name = "mirrored-pods"

    def __init__(
        self,
        client: Client,
        informers: Informers,
        backing: Client,
        agent: AgentSettings,
        settings: RunkSettings,
        events: EventRecorder,
        clock: Clock,
        plugins: Sequence[AgentPlugin],
        allocatable: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.ready = asyncio.Event()
        self.problem = "the backing cluster was not reached yet"
        """Why no pods can be run; empty: they can."""
        self.limitations: tuple[str, ...] = ()
        self.on_problem: Callable[[], None] = lambda: None
        """Called when `problem` changed."""
        self._client = client
        self._there = backing
        self._agent = agent
        self._settings = settings
        self._events = events
        self._clock = clock
        self._plugins = tuple(plugins)
        self._allocatable = allocatable
        self._originals = informers.get(_PODS, agent.pods.namespace, fields=f"spec.nodeName={agent.node_name}")
        selector = f"{OWNER_LABEL}={settings.owner},{settings.labels.node}={agent.node_name}"
        self._copies: Informer[Object] = Informer(backing, _PODS, namespace=settings.namespace, labels=selector)
        self._queue: WorkQueue[str] = WorkQueue(clock=clock)
        self._pods: dict[str, Object] = {}
        self._backing: dict[str, Object] = {}
        """Copies by the uid of their originals."""
        self._failing: dict[str, float] = {}
        """Since when a pod could not be started."""
        self._reported: dict[str, tuple[str, str]] = {}
        self._announced: dict[str, str] = {}
        self._stale: set[str] = set()
        """Pods whose ConfigMaps or Secrets changed since they were copied."""
        self._writer = StatusWriter(client, clock, agent.pods.status_writers, agent.pods.status_pause)
        self._objects = ObjectSource(client, self._objects_changed)
        self._logs = LogFollower(backing, settings.namespace, clock, settings.log_bytes, settings.log_files)
        self._given_up: set[str] = set()
        """Pods that failed here; their statuses may still be under way."""
        self._remove_handler: Callable[[], None] = lambda: None
        self._stop = asyncio.Event()

    # What others ask.

    def copies(self) -> Mapping[str, Object]:
        """By the uid of their originals."""
        return self._backing

    def original(self, uid: str) -> Object | None:
        return self._pods.get(uid)

    def known_uids(self) -> set[str]:
        """Pods that are still somebody's."""
        return {pod_model.uid_of(pod) for pod in self._originals.cache.list()} | set(self._backing)

    # Life.

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._originals.ready.wait()
        try:
            async with TaskOwner(self.name, on_failure=lambda _: self._stop.set()) as owner:
                # The node registers meanwhile and says why it is not ready.
                owner.start("delays", self._queue.run(), endless=True)
                owner.start("statuses", self._writer.run(), endless=True)
                owner.start("backing-cluster", self._follow_backing(owner))
                self.ready.set()
                await self._stop.wait()
        finally:
            self._remove_handler()
            await self._objects.close()
            await self._logs.close()

    async def _follow_backing(self, owner: TaskOwner) -> None:
        while not await self._checked():
            await self._clock.sleep(_CHECK_SECONDS)
        self._copies.add_handler(self._copy_changed)
        owner.start("copies", self._copies.run(), endless=True)
        await self._copies.ready.wait()
        # Only now: a pod whose copy is not listed yet would get a second one.
        self._remove_handler = self._originals.add_handler(self._original_changed)
        for i in range(self._settings.workers):
            owner.start(f"worker-{i}", self._work(), endless=True)

    async def _checked(self) -> bool:
        """Whether the backing cluster is there and lets us do what is needed."""
        wanted = access.rights(network_policies=self._settings.network_policies)
        try:
            missing = await access.missing_rights(self._there, self._settings.namespace, wanted)
        except (ApiError, TransportError) as problem:
            return self._set_problem(f"the backing cluster (runk.kubeconfigFile) cannot be asked: {problem}")
        needed = [str(each) for each in missing if each.right.needed]
        if needed:
            where = f'in namespace "{self._settings.namespace}" of the backing cluster'
            return self._set_problem(
                f"rights are missing {where}: {'; '.join(needed)}; apply the Role of docs/guide/runk.md"
            )
        self.limitations = tuple(
            f"{each.right.for_what} need the right to {each} in the backing cluster" for each in missing
        )
        for each in self.limitations:
            log.warning("The backing cluster does not let us do everything", what=each)
        return self._set_problem("")

    def _set_problem(self, text: str) -> bool:
        if text != self.problem:
            self.problem = text
            if text:
                log.error("No pod can be run", why=text, again_in_seconds=_CHECK_SECONDS)
            else:
                log.info("Pods run in the backing cluster", namespace=self._settings.namespace)
            self.on_problem()
        return not text

    async def _work(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                await self._sync(uid)
            except (ApiError, TransportError, OSError) as problem:
                wait = self._queue.retry(uid)
                log.warning(
                    "A pod could not be looked after; trying again", error=problem, uid=uid, seconds=round(wait, 2)
                )
            except Exception as error:  # noqa: BLE001 - one pod that breaks the rules must not stop the others
                wait = self._queue.retry(uid)
                log.error("Pod sync failed; trying again", error=error, trace=True, uid=uid, seconds=wait)
            else:
                self._queue.forget(uid)
            finally:
                self._queue.done(uid)

    # What changes.

    def _original_changed(self, change: ObjectChange[Object]) -> None:
        uid = pod_model.uid_of(change.object)
        if change.type == "deleted":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = change.object
        self._queue.add(uid)

    def _copy_changed(self, change: ObjectChange[Object]) -> None:
        meta = change.object["metadata"]
        uid = (meta.get("labels") or {}).get(self._settings.labels.pod_uid) or ""
        if not uid:
            return
        if change.type != "deleted":
            self._backing[uid] = change.object
        elif (known := self._backing.get(uid)) is not None and known["metadata"]["uid"] == meta["uid"]:
            del self._backing[uid]
        self._queue.add(uid)

    def _objects_changed(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._stale.add(uid)
            self._queue.add(uid)

    # One pod.

    async def _sync(self, uid: str) -> None:
        pod, copy = self._pods.get(uid), self._backing.get(uid)
        if pod is None:
            if copy is not None:
                log.info("Deleting a copy whose pod is gone", pod=copy["metadata"]["name"], uid=uid)
                await self._delete_copy(copy, self._agent.pods.orphan_grace)
            self._forget(uid)
        elif pod_model.deleting(pod):
            await self._sync_deleted(uid, pod, copy)
        elif pod_model.phase_is_final(pod) or uid in self._given_up:
            if copy is not None and not pod_model.phase_is_final(copy):
                await self._delete_copy(copy, pod_model.termination_grace(pod))
        elif copy is not None:
            await self._sync_running(uid, pod, copy)
        else:
            if pod_model.status_in(pod).get("startTime"):
                message = "the copy of the pod was deleted in the backing cluster, by its operator or because its node is gone"
                self._fail(pod, LOST, message)
            else:
                await self._sync_new(uid, pod)

    async def _sync_deleted(self, uid: str, pod: Object, copy: Object | None) -> None:
        if copy is None:
            key = pod_model.key_of(pod)
            with contextlib.suppress(NotFound, Conflict):  # gone already, or another pod has the name
                await self._client.delete(_PODS, key.name, key.namespace, grace=0, uid=uid)
            return
        await self._delete_copy(copy, pod_model.termination_grace(pod))
        self._put(pod, mirrored_status.mirrored_status(pod, copy, self._agent.address, self._now()))

    async def _delete_copy(self, copy: Object, grace: float) -> None:
        meta = copy["metadata"]
        if meta.get("deletionTimestamp") and not backing_pod.is_gated(copy):
            return  # its kubelet ends it
        with contextlib.suppress(NotFound, Conflict):
            await self._there.delete(
                _PODS,
                meta["name"],
                self._settings.namespace,
                grace=int(grace),
                uid=meta["uid"],
                propagation="Background",
            )

    async def _sync_new(self, uid: str, pod: Object) -> None:
        network, extras = PodNetworkClass(), backing_pod.NO_EXTRAS
        try:
            network = pod_network(self._plugins, pod)
            extras = await self._extras(uid, pod)
            wanted = backing_pod.backing_pod(
                pod, network, extras, self._facts(), self._settings, node_name=self._agent.node_name
            )
            copy = await self._created(uid, wanted)
        except PluginProblem as problem:
            self._fail(pod, "NotAdmitted", str(problem), refused=True)
        except NotMirrored as problem:
            self._fail(pod, problem.reason, problem.message, refused=True)
        except NoSuchConfig as problem:
            self._fail(pod, "CreateContainerConfigError", str(problem), refused=True)
        except ConfigProblem as problem:
            self._wait(uid, pod, "CreateContainerConfigError", str(problem))
        except _FINAL as problem:
            self._fail(pod, REFUSED, f"the backing cluster refuses the pod ({problem.code}): {problem}", refused=True)
        except Forbidden as problem:
            # A quota may have room later, and a right may be granted.
            self._wait(uid, pod, NOT_ALLOWED, f"the backing cluster forbids the pod (403): {problem}")
        except AlreadyExists:
            self._wait(uid, pod, REFUSED, f'namespace "{self._settings.namespace}" has another pod of this name')
        else:
            self._backing[uid] = copy
            self._failing.pop(uid, None)
            self._record(pod, "Normal", "Mirrored", f'Created the copy in namespace "{self._settings.namespace}"')
            await self._release(uid, pod, copy, network, extras)

    async def _extras(self, uid: str, pod: Object) -> backing_pod.PodExtras:
        await self._objects.ready(uid, pod["metadata"]["namespace"], self._references(pod))
        self._stale.discard(uid)
        lookup = self._objects.lookup(pod["metadata"]["namespace"])
        directory = self._agent.pods_directory / uid
        return await preparation.gather(pod, self._plugins, lookup, self._facts(), directory)

    async def _created(self, uid: str, wanted: Object) -> Object:
        """The copy, new or of an earlier life. Raises AlreadyExists for a pod that is another's."""
        try:
            return await self._there.create(_PODS, wanted, self._settings.namespace)
        except AlreadyExists:
            found = await self._there.get(_PODS, wanted["metadata"]["name"], self._settings.namespace)
            known = found["metadata"].get("labels") or {}
            mine = known.get(OWNER_LABEL) == self._settings.owner
            if mine and known.get(self._settings.labels.pod_uid) == uid:
                return found
            raise

    async def _sync_running(self, uid: str, pod: Object, copy: Object) -> None:
        if copy["metadata"].get("deletionTimestamp"):
            pass  # somebody deletes it there; its end will be told
        elif backing_pod.is_gated(copy):
            await self._prepare_again(uid, pod, copy)
        else:
            await self._bring_up_to_date(uid, pod, copy)
        found = self._backing.get(uid)
        if found is None or uid in self._given_up:
            return  # both are looked at again
        copy = found
        await self._announce(uid, pod, copy)
        self._keep_logs(uid, pod, copy)
        stuck = mirrored_status.stuck_container(copy)
        if stuck is None:
            self._failing.pop(uid, None)
        elif self._gave_up(uid, pod):
            self._fail(pod, *stuck)
            return
        self._put(pod, mirrored_status.mirrored_status(pod, copy, self._agent.address, self._now()))

    async def _prepare_again(self, uid: str, pod: Object, copy: Object) -> None:
        """An earlier life made the copy and not all of its objects."""
        try:
            network = pod_network(self._plugins, pod)
            extras = await self._extras(uid, pod)
        except (PluginProblem, ConfigProblem, NotMirrored) as problem:
            self._fail(pod, getattr(problem, "reason", "NotAdmitted"), str(problem), refused=True)
            return
        await self._release(uid, pod, copy, network, extras)

    async def _release(
        self, uid: str, pod: Object, copy: Object, network: PodNetworkClass, extras: backing_pod.PodExtras
    ) -> None:
        """Make what the copy needs, then let it be scheduled."""
        try:
            policy = objects.network_policy(copy, network, self._settings)
            if policy is not None:
                await self._ensure("NetworkPolicy", policy, copy)
            if extras.files:
                await self._ensure("Secret", objects.files_secret(extras.files, copy, self._settings), copy)
            await self._copy_objects(pod, copy)
        except (*_FINAL, Forbidden) as problem:
            message = f"the backing cluster refuses what the pod needs ({problem.code}): {problem}"
            self._fail(pod, REFUSED, message, refused=True)
            return
        gates = [each for each in copy["spec"].get("schedulingGates") or () if each.get("name") != GATE]
        patch = {"metadata": {"uid": copy["metadata"]["uid"]}, "spec": {"schedulingGates": gates or None}}
        if await self._patch_copy(uid, copy, patch, "merge"):
            self._put(pod, mirrored_status.mirrored_status(pod, self._backing[uid], self._agent.address, self._now()))

    async def _patch_copy(self, uid: str, copy: Object, patch: Object, type: PatchType) -> bool:
        """Whether it is still there."""
        try:
            changed = await self._there.patch(
                _PODS, copy["metadata"]["name"], self._settings.namespace, patch, type=type
            )
        except (NotFound, Conflict):
            # It was deleted, and perhaps before our watch knew it.
            if self._backing.get(uid) is copy:
                del self._backing[uid]
            self._queue.add(uid)
            return False
        self._backing[uid] = changed
        return True

    async def _copy_objects(self, pod: Object, copy: Object) -> None:
        lookup = self._objects.lookup(pod["metadata"]["namespace"])
        for kind, name in sorted(references(pod)):
            found = lookup(kind, name)
            if found is not None:
                await self._ensure(kind, objects.copied_object(kind, found, copy, self._settings), copy)

    async def _ensure(self, kind: str, wanted: Object, copy: Object) -> None:
        """There, owned by the copy, with this content."""
        known, namespace, name = _KINDS[kind], self._settings.namespace, wanted["metadata"]["name"]
        try:
            await self._there.create(known, wanted, namespace)
            return
        except AlreadyExists:
            there = await self._there.get(known, name, namespace)
        meta = there["metadata"]
        if objects.is_owned_by(there, copy):
            if objects.differs(kind, there, wanted):
                wanted["metadata"]["resourceVersion"] = meta["resourceVersion"]
                await self._there.update(known, wanted)
            return
        if (meta.get("labels") or {}).get(OWNER_LABEL) != self._settings.owner:
            raise Forbidden(
                f'{kind} "{name}" of namespace "{namespace}" is not of this agent; delete it, or rename the pod'
            )
        # Of an earlier pod with this name, which the garbage collector has not reached yet.
        await self._there.delete(known, name, namespace, uid=meta["uid"])
        await self._there.create(known, wanted, namespace)

    async def _bring_up_to_date(self, uid: str, pod: Object, copy: Object) -> None:
        namespace = pod["metadata"]["namespace"]
        await self._objects.ready(uid, namespace, self._references(pod))
        if uid in self._stale:
            self._stale.discard(uid)
            try:
                await self._copy_objects(pod, copy)
            except (*_FINAL, Forbidden) as problem:
                message = f"A changed ConfigMap or Secret is refused by the backing cluster: {problem}"
                self._record(pod, "Warning", "FailedCopy", message)
        try:
            network = pod_network(self._plugins, pod)
        except PluginProblem as problem:
            self._fail(pod, "NotAdmitted", str(problem))
            return
        patch = _changes(pod, copy, network, self._settings, self._agent.node_name)
        if patch:
            patch.setdefault("metadata", {})["uid"] = copy["metadata"]["uid"]
            await self._patch_copy(uid, copy, patch, "strategic")

    async def _announce(self, uid: str, pod: Object, copy: Object) -> None:
        """Whoever must know the pod by its address knows it, as soon as it has one."""
        address = str(pod_model.status_in(copy).get("podIP") or "")
        if not address or self._announced.get(uid) == address:
            return
        if uid in self._announced:
            self._gone(uid)
        lookup = self._objects.lookup(pod["metadata"]["namespace"])
        try:
            for plugin in self._plugins:
                await plugin.network_ready(pod, address, lookup)
        except PluginProblem as problem:
            self._fail(pod, "NotAdmitted", str(problem))
            return
        except TimeoutError:
            log.warning("Not everybody knows a pod by its address yet", pod=pod["metadata"]["name"], address=address)
        self._announced[uid] = address

    def _keep_logs(self, uid: str, pod: Object, copy: Object) -> None:
        if not self._settings.keep_logs:
            return
        key = pod_model.key_of(pod)
        home = self._agent.paths.pod_stdout(key.namespace, key.name, uid)
        if self._settings.log_directory is not None:
            home = self._settings.log_directory / home.name
        for entry in _container_statuses(copy):
            state, restarts = entry.get("state") or {}, int(entry.get("restartCount") or 0)
            if "running" not in state and "terminated" not in state:
                continue
            name = entry["name"]
            path = home / name / f"{restarts}.log"
            self._logs.follow((uid, name, restarts), key.name, path, partial(self._runs, uid, name, restarts))

    def _runs(self, uid: str, container: str, run: int) -> bool:
        return any(
            entry["name"] == container
            and "running" in (entry.get("state") or {})
            and int(entry.get("restartCount") or 0) == run
            for entry in _container_statuses(self._backing.get(uid) or {})
        )

    # How it went.

    def _wait(self, uid: str, pod: Object, reason: str, message: str) -> None:
        if self._gave_up(uid, pod):
            self._fail(pod, reason, message, refused=True)
            return
        self._tell(pod, reason, message)
        self._put(pod, mirrored_status.waiting_status(pod, reason, message, self._agent.address))
        self._queue.add_after(uid, _RETRY_SECONDS)

    def _gave_up(self, uid: str, pod: Object) -> bool:
        """Whether a pod that is never restarted could not be started for too long."""
        limit = self._settings.start_failure_seconds
        since = self._failing.setdefault(uid, self._clock.monotonic())
        if not limit or pod_model.restart_policy(pod) != "Never":
            return False
        left = since + limit - self._clock.monotonic()
        if left > 0:
            self._queue.add_after(uid, left)
        return left <= 0

    def _fail(self, pod: Object, reason: str, message: str, *, refused: bool = False) -> None:
        self._tell(pod, reason, message)
        self._given_up.add(pod_model.uid_of(pod))
        self._queue.add(pod_model.uid_of(pod))
        address = self._agent.address
        self._put(pod, mirrored_status.failed_status(pod, reason, message, address, self._now(), refused=refused))

    def _tell(self, pod: Object, reason: str, message: str) -> None:
        """An event, once."""
        uid = pod_model.uid_of(pod)
        if self._reported.get(uid) != (reason, message):
            self._reported[uid] = (reason, message)
            self._record(pod, "Warning", reason, message)

    def _put(self, pod: Object, status: Object) -> None:
        if not mirrored_status.same_status(pod_model.status_in(pod), status):
            self._writer.put(pod, status, lambda _: None)  # the watch tells when it is there

    def _record(self, pod: Object, kind: EventType, reason: str, message: str) -> None:
        self._events.record(reference_to(pod, api_version="v1", kind="Pod"), kind, reason, message)

    def _forget(self, uid: str) -> None:
        self._gone(uid)
        self._objects.release(uid)
        self._logs.forget(uid)
        self._writer.forget(uid)
        self._failing.pop(uid, None)
        self._reported.pop(uid, None)
        self._stale.discard(uid)
        self._given_up.discard(uid)

    def _gone(self, uid: str) -> None:
        if self._announced.pop(uid, None) is not None:
            for plugin in self._plugins:
                plugin.network_gone(uid)

    # What it is made from.

    def _references(self, pod: Object) -> set[tuple[str, str]]:
        return references(pod) | {each for plugin in self._plugins for each in plugin.pod_references(pod)}

    def _facts(self) -> DownwardNodeInfo:
        return DownwardNodeInfo(self._agent.address, "", self._allocatable())

    def _now(self) -> str:
        return rfc3339(self._clock.now())


def _container_statuses(pod: Object) -> list[Object]:
    status = pod_model.status_in(pod)
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _changes(
    pod: Object, copy: Object, network: PodNetworkClass, settings: RunkSettings, node_name: str
) -> dict[str, Any]:
    """The fields of a pod that may change while it runs, where the copy has others."""
    meta = copy["metadata"]
    patch: dict[str, Any] = {}
    wanted = {
        "labels": backing_pod.copied_labels(pod, network, settings, node_name),
        "annotations": backing_pod.copied_annotations(pod, settings),
    }
    for key, values in wanted.items():
        there = meta.get(key) or {}
        if changed := {name: value for name, value in values.items() if there.get(name) != value}:
            patch.setdefault("metadata", {})[key] = changed
    images = dict(backing_pod.images(copy))
    for group in ("initContainers", "containers"):
        if moved := [
            {"name": each["name"], "image": each["image"]}
            for each in pod_model.spec_of(pod).get(group) or ()
            if each.get("image") and images.get(each["name"], each["image"]) != each["image"]
        ]:
            patch.setdefault("spec", {})[group] = moved
    return patch
