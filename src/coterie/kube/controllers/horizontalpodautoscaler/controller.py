"""Sizes the targets of HorizontalPodAutoscalers: every 15 s, and soon after one was created or changed.

A round reads the metrics of all pods once, however many autoscalers there are; scales are read and written through the
scale subresource of whatever kind the target is. Without autoscalers nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.resources import Resource
from coterie.kube.api.selectors import LabelSelector, parse_label_selector
from coterie.kube.api.types.autoscaling import (
    HORIZONTAL_POD_AUTOSCALERS,
    POD_METRICS,
    HorizontalPodAutoscaler,
    PodMetrics,
    ScaleTargetReference,
)
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, discover
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.scale_hooks import ScaleHook, ScaleRequest
from coterie.kube.controllers.horizontalpodautoscaler.behavior import History
from coterie.kube.controllers.horizontalpodautoscaler.custom_metrics import (
    CUSTOM,
    EXTERNAL,
    read_external_metric,
    read_object_metric,
    read_pods_metric,
    served_version,
)
from coterie.kube.controllers.horizontalpodautoscaler.plan import (
    AutoscalerView,
    MetricsSnapshot,
    ObjectMetric,
    PodsMetric,
    ScalePlan,
    TargetScale,
    external_metrics,
    finish,
    limit,
    needs_resource_metrics,
    object_metrics,
    plan,
    pods_metrics,
    status_patch,
)
from coterie.kube.controllers.horizontalpodautoscaler.replicas import Samples

_AT_ONCE = 8
"""Scales that are read or written at the same time."""
_DEBOUNCE = 0.5
"""Seconds between a change of an autoscaler and its round: those of one `apply` are handled together."""
_NO_SELECTOR = "the HPA target's scale is missing a selector"


@dataclass(slots=True)
class _Target:
    """An autoscaler with what was read for it in this round."""

    autoscaler: HorizontalPodAutoscaler
    resource: Resource | None = None
    scale: TargetScale | None = None
    scale_problem: str = ""
    selector_problem: str = ""
    pods: Sequence[Pod] = ()
    same_pods: tuple[str, ...] = ()


class AutoscalerLoop:
    """A Runnable."""

    name = "horizontalpodautoscaler"

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder | None,
        clock: Clock,
        period: float,
        hook: ScaleHook | None,
    ) -> None:
        self.ready = asyncio.Event()
        self.rounds = 0
        self.autoscalers = informers.get(HORIZONTAL_POD_AUTOSCALERS)
        self.pods = informers.get(PODS)
        self._client = client
        self._events = events
        self._clock = clock
        self._period = period
        self._hook = hook
        self._catalogue = RestMapper(())
        self._histories: dict[str, History] = {}
        self._changed: set[ObjectKey] = set()
        self._awake = asyncio.Event()
        self._stopping = False
        self._log = logger("controllers.horizontalpodautoscaler")

    def stop(self) -> None:
        self._stopping = True
        self._awake.set()

    async def run(self) -> None:
        remove = self.autoscalers.add_handler(self._on_change)
        try:
            for informer in (self.autoscalers, self.pods):
                await informer.ready.wait()
            self.ready.set()
            due = self._clock.monotonic()
            while not self._stopping:
                now = self._clock.monotonic()
                everything = now >= due
                if everything:
                    due = now + self._period
                keys = None if everything else frozenset(self._changed)
                self._changed.clear()
                await self.sync(keys)
                await self._wait(due)
        finally:
            remove()

    def _on_change(self, change: ObjectChange[HorizontalPodAutoscaler]) -> None:
        uid = change.object.metadata.uid
        if change.type == "deleted":
            self._histories.pop(uid, None)
            return
        if change.old is None or change.old.spec != change.object.spec:
            self._changed.add(change.object.key)
            self._awake.set()

    async def _wait(self, due: float) -> None:
        """Until the next round is due, or an autoscaler changed; for ever while there is none."""
        self._awake.clear()
        if self._stopping:
            return
        async with TaskOwner("autoscaler-wait") as owner:
            waits = [owner.start("changed", self._awake.wait())]
            if len(self.autoscalers.cache):
                waits.append(owner.start("due", self._clock.sleep(max(0.0, due - self._clock.monotonic()))))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._changed and not self._stopping:
            await self._clock.sleep(_DEBOUNCE)

    # One round.

    async def sync(self, keys: frozenset[ObjectKey] | None = None) -> None:
        """Of these autoscalers, or of all."""
        self.rounds += 1
        everyone = [each for each in self.autoscalers.cache.list() if not each.metadata.deleting]
        chosen = [each for each in everyone if keys is None or each.key in keys]
        if not chosen:
            return
        try:
            metrics = await self._metrics(chosen)
            # Those of the same namespace are read too: two must not scale the same pods.
            concerned = {each.metadata.namespace for each in chosen}
            targets = [_Target(each) for each in everyone if each.metadata.namespace in concerned]
            await self._each(targets, self._read)
            self._find_pods(targets)
            names = {each.key for each in chosen}
            mine = [target for target in targets if target.autoscaler.key in names]
            await self._each(mine, lambda target: self._apply(target, metrics))
        except TransportError as problem:
            self._log.warning("The API could not be reached; trying again in the next round", error=problem)

    async def _each(self, targets: Sequence[_Target], work: Callable[[_Target], Awaitable[None]]) -> None:
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(target: _Target) -> None:
            async with places:
                try:
                    await work(target)
                except TransportError:
                    raise
                except Exception as error:  # noqa: BLE001 - one odd object must not stop the others
                    self._log.error("An autoscaler failed", error=error, trace=True, key=str(target.autoscaler.key))

        await asyncio.gather(*map(one, targets))

    async def _metrics(self, autoscalers: Sequence[HorizontalPodAutoscaler]) -> MetricsSnapshot:
        found: dict[ObjectKey, PodMetrics] = {}
        problem = ""
        of_resources = {each.metadata.namespace for each in autoscalers if needs_resource_metrics(each)}
        if of_resources:
            # One list: of the one namespace, or of all.
            namespace = next(iter(of_resources)) if len(of_resources) == 1 else ""
            try:
                page = await self._client.list(POD_METRICS, namespace)
            except ApiError as error:
                problem = error.message
            else:
                found = {each.key: each for each in page.items}
        of_pods = list(dict.fromkeys(each for autoscaler in autoscalers for each in pods_metrics(autoscaler)))
        of_objects = list(dict.fromkeys(each for autoscaler in autoscalers for each in object_metrics(autoscaler)))
        external = list(dict.fromkeys(each for autoscaler in autoscalers for each in external_metrics(autoscaler)))
        custom_version = await served_version(self._client, CUSTOM) if of_pods or of_objects else ""
        external_version = await served_version(self._client, EXTERNAL) if external else ""
        places = asyncio.Semaphore(_AT_ONCE)

        async def pods_value(metric: PodsMetric) -> Samples | str:
            async with places:
                return await read_pods_metric(self._client, custom_version, metric)

        async def object_value(metric: ObjectMetric) -> int | str:
            async with places:
                reference = ScaleTargetReference(api_version=metric.api_version, kind=metric.kind, name=metric.name)
                try:
                    resource = await self._resource(reference)
                except ApiError as error:
                    return error.message
                return await read_object_metric(self._client, custom_version, metric, resource)

        async def external_value(metric: PodsMetric) -> int | str:
            async with places:
                return await read_external_metric(self._client, external_version, metric)

        return MetricsSnapshot(
            found,
            problem,
            dict(zip(of_pods, await asyncio.gather(*map(pods_value, of_pods)), strict=True)),
            dict(zip(of_objects, await asyncio.gather(*map(object_value, of_objects)), strict=True)),
            dict(zip(external, await asyncio.gather(*map(external_value, external)), strict=True)),
        )

    async def _read(self, target: _Target) -> None:
        """The scale of the target."""
        autoscaler = target.autoscaler
        reference, namespace = autoscaler.spec.scale_target_ref, autoscaler.metadata.namespace
        try:
            target.resource = await self._resource(reference)
            if target.resource is None:
                group = reference.api_version.rpartition("/")[0]
                target.scale_problem = f'no matches for kind "{reference.kind}" in group "{group}"'
                return
            scale = await self._client.get(
                Kind.dynamic(target.resource), reference.name, namespace, subresource="scale"
            )
        except NotFound as problem:
            target.scale_problem = problem.message
            if target.resource is not None and target.resource.subresource("scale") is None:
                target.scale_problem = f"{target.resource.group_resource} does not implement the scale subresource"
            return
        except ApiError as problem:
            target.scale_problem = problem.message
            return
        target.scale = _scale(scale)

    async def _resource(self, reference: ScaleTargetReference) -> Resource | None:
        """In the version that the reference names, else in the preferred one."""
        found = _find(self._catalogue, reference)
        if found is None:
            self._catalogue = await discover(self._client)
            found = _find(self._catalogue, reference)
        return found

    def _find_pods(self, targets: Iterable[_Target]) -> None:
        by_namespace: dict[str, list[_Target]] = {}
        for target in targets:
            if target.scale is not None:
                by_namespace.setdefault(target.autoscaler.metadata.namespace, []).append(target)
        for namespace, group in by_namespace.items():
            index = _LabelledPods(self.pods.cache.list(namespace))
            users: dict[str, list[str]] = {}
            for target in group:
                assert target.scale is not None
                if not target.scale.selector:
                    target.selector_problem = _NO_SELECTOR
                    continue
                try:
                    selector = parse_label_selector(target.scale.selector)
                except ApiError as problem:
                    words = "couldn't convert selector into a corresponding internal selector object"
                    target.selector_problem = f"{words}: {problem.message}"
                    continue
                target.pods = index.matching(selector)
                for pod in target.pods:
                    users.setdefault(pod.metadata.uid, []).append(target.autoscaler.metadata.name)
            for target in group:
                names = {name for pod in target.pods for name in users[pod.metadata.uid]}
                if len(names) > 1:
                    target.same_pods = tuple(f"{namespace}/{name}" for name in sorted(names))

    async def _apply(self, target: _Target, metrics: MetricsSnapshot) -> None:
        autoscaler = target.autoscaler
        uid = autoscaler.metadata.uid
        view = AutoscalerView(
            autoscaler,
            target.scale,
            target.scale_problem,
            target.selector_problem,
            target.pods,
            target.same_pods,
            metrics,
            self._histories.get(uid, History()),
            self._clock.now(),
            self._clock.monotonic(),
        )
        planned = self._limited(view, target, plan(view))
        if planned.replicas is not None:
            planned = finish(view, planned, await self._rescale(target, planned))
        self._histories[uid] = planned.history
        for note in planned.events:
            self._record(autoscaler, note.type, note.reason, note.message)
        await self._write(autoscaler, planned)

    def _limited(self, view: AutoscalerView, target: _Target, planned: ScalePlan) -> ScalePlan:
        wanted, scale = planned.replicas, target.scale
        if self._hook is None or wanted is None or scale is None or wanted <= scale.replicas:
            return planned
        assert target.resource is not None
        reference, namespace = target.autoscaler.spec.scale_target_ref, target.autoscaler.metadata.namespace
        request = ScaleRequest(
            target.resource.group, target.resource.kind, namespace, reference.name, scale.replicas, wanted
        )
        allowance = self._hook.allow(request)
        return planned if allowance is None else limit(view, planned, allowance.replicas, allowance.why)

    async def _rescale(self, target: _Target, planned: ScalePlan) -> str:
        """Why it failed; empty: it did not."""
        assert target.resource is not None and planned.replicas is not None
        reference, meta = target.autoscaler.spec.scale_target_ref, target.autoscaler.metadata
        try:
            await self._client.scale(Kind.dynamic(target.resource), reference.name, meta.namespace, planned.replicas)
        except ApiError as problem:
            return problem.message
        self._log.info(
            "Scaled", autoscaler=str(target.autoscaler.key), replicas=planned.replicas, reason=planned.reason
        )
        return ""

    async def _write(self, autoscaler: HorizontalPodAutoscaler, planned: ScalePlan) -> None:
        patch = status_patch(autoscaler.status, planned.status)
        if patch is None:
            return
        meta = autoscaler.metadata
        body: Object = {"metadata": {"uid": meta.uid}, "status": patch}
        try:
            await self._client.patch_status(HORIZONTAL_POD_AUTOSCALERS, meta.name, meta.namespace, body)
        except NotFound:
            return
        except ApiError as problem:
            self._log.warning("The status of an autoscaler was not written", error=problem, key=str(autoscaler.key))

    def _record(
        self, autoscaler: HorizontalPodAutoscaler, type_: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        if self._events is not None:
            about = reference_to(autoscaler, api_version="autoscaling/v2", kind="HorizontalPodAutoscaler")
            self._events.record(about, type_, reason, message)


class _LabelledPods:
    """The pods of a namespace, found by a label instead of one by one: many autoscalers look at the same namespace."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._all = pods
        self._by_label: dict[tuple[str, str], list[Pod]] = {}
        for pod in pods:
            for label in (pod.metadata.labels or {}).items():
                self._by_label.setdefault(label, []).append(pod)

    def matching(self, selector: LabelSelector) -> list[Pod]:
        candidates: Sequence[Pod] = self._all
        for requirement in selector.requirements:
            value = selector.exact(requirement.key)
            if value is not None:
                found = self._by_label.get((requirement.key, value), [])
                candidates = min(candidates, found, key=len)
        return [pod for pod in candidates if selector.matches(pod.metadata.labels)]


def _find(catalogue: RestMapper, reference: ScaleTargetReference) -> Resource | None:
    group, _, version = reference.api_version.rpartition("/")
    for resource in catalogue.resources:
        if (resource.group, resource.version, resource.kind) == (group, version, reference.kind):
            return resource
    return catalogue.of_group_kind(group, reference.kind)


def _scale(body: Mapping[str, Any]) -> TargetScale:
    status = body.get("status") or {}
    return TargetScale(
        int((body.get("spec") or {}).get("replicas") or 0),
        int(status.get("replicas") or 0),
        str(status.get("selector") or ""),
    )


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    period: float = 15.0,
    scale_hook: ScaleHook | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AutoscalerLoop:
    """`events` is a recorder of the component `horizontal-pod-autoscaler`; the caller runs it."""
    return AutoscalerLoop(client, informers, events, clock, period, scale_hook)
