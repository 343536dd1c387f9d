"""Which pods are gateways: they get the token of links, and with it every call that clients send.

Everybody who may create pods can give one the label of gateways, or name an owner. A gateway is a pod that runs what the ReplicaSet says that it names
as its controller, and that ReplicaSet is of the Deployment `serverless-gateway`. Others are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions.pod_seal import running_content
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import REPLICA_SETS
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Reader
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.functions.types import GATEWAY_NAME

log = logger("functions.gateways")

_AGAIN_SECONDS = 1.0


def controller_of(body: Object, kind: str) -> Mapping[str, Any]:
    """The reference to its controller of this kind; empty: it has none."""
    owners: Sequence[Mapping[str, Any]] = body["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller") and each.get("kind") == kind), {})


def is_gateway(pod: Object, replica_set: Object) -> bool:
    """`replica_set`: the one that the pod names."""
    owner, template = controller_of(pod, "ReplicaSet"), (replica_set.get("spec") or {}).get("template") or {}
    return (
        owner.get("uid") == replica_set["metadata"]["uid"]
        and controller_of(replica_set, "Deployment").get("name") == GATEWAY_NAME
        and running_content(pod.get("spec") or {}) == running_content(template.get("spec") or {})
    )


class GatewayPods:
    """A Runnable. `changed()` is called when `pods` may have others."""

    name = "gateway-pods"

    def __init__(
        self, client: Reader, pods: Informer[Pod], clock: Clock, namespace: str, changed: Callable[[], None]
    ) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._pods = pods
        self._clock = clock
        self._namespace = namespace
        self._changed = changed
        self._known: dict[str, bool] = {}
        """By uid, whether it is a gateway."""
        self._owner: TaskOwner | None = None

    def pods(self) -> list[Pod]:
        return [each for each in self._pods.cache.list() if self._known.get(each.metadata.uid)]

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            self._owner = owner
            await self._pods.ready.wait()
            remove = self._pods.add_handler(self._pod_changed)
            try:
                self.ready.set()
                owner.start("forever", asyncio.Event().wait(), endless=True)
                await owner.wait()
            finally:
                remove()

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        meta = change.object.metadata
        if change.type == "deleted":
            self._known.pop(meta.uid, None)
            self._changed()
        elif meta.uid not in self._known:
            self._known[meta.uid] = False
            assert self._owner is not None
            self._owner.start(f"check {meta.name}", self._check(meta.name, meta.uid), vital=False)
        elif self._known[meta.uid]:
            self._changed()

    async def _check(self, name: str, uid: str) -> None:
        while True:
            try:
                found = await self._is_gateway(name, uid)
                break
            except (ApiError, TransportError) as problem:
                log.warning("It is not known whether a pod is a gateway", pod=name, error=problem)
                await self._clock.sleep(_AGAIN_SECONDS)
        if uid not in self._known:
            return
        self._known[uid] = found
        if found:
            self._changed()
        else:
            log.warning("A pod has the label of gateways and is none", pod=name)

    async def _is_gateway(self, name: str, uid: str) -> bool:
        try:
            pod = await self._client.get(PODS.as_dynamic, name, self._namespace)
            owner = str(controller_of(pod, "ReplicaSet").get("name") or "")
            if pod["metadata"]["uid"] != uid or not owner:
                return False
            return is_gateway(pod, await self._client.get(REPLICA_SETS.as_dynamic, owner, self._namespace))
        except NotFound:
            return False
