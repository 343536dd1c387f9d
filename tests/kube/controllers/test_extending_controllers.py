"""C-76: a new kind with its controller is one definition and one registration; no other module is edited.

The toy kind `Pair` makes a ReplicaSet of twice its size. This file is the controller's module: the registry loads it by name.
"""

from __future__ import annotations

from typing import Any

from workload_world import RS, World, template, world

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists
from coterie.kube.api.meta import ApiObject, Model, Object, ObjectKey
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.apps import REPLICA_SETS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control import registry
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key, owner_key
from coterie.kube.control.registry import ControllerSpec
from coterie.kube.controllers.registry import CONTROLLERS

CRD = Kind.dynamic(builtin("customresourcedefinitions", "apiextensions.k8s.io"))


class PairSpec(Model, frozen=True, kw_only=True):
    pairs: int = 0


class Pair(ApiObject, frozen=True, kw_only=True):
    spec: PairSpec = PairSpec()


PAIRS = Kind(Resource("toys.example", "v1", "pairs", "Pair", namespaced=True, custom=True), Pair)
SHARED: list[Informers] = []


class PairReconciler:
    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self.pairs = informers.get(PAIRS)
        self.sets = informers.get(REPLICA_SETS)

    async def reconcile(self, key: ObjectKey) -> Result:
        pair = self.pairs.cache.by_key(key)
        if pair is None or pair.metadata.deleting:
            return DONE
        found = self.sets.cache.get(key.name, key.namespace)
        if found is None:
            try:
                await self._client.create(REPLICA_SETS.as_dynamic, self._body(pair))
            except AlreadyExists:
                return Result(after=1.0)
        elif found.replicas != 2 * pair.spec.pairs:
            await self._client.scale(REPLICA_SETS, key.name, key.namespace, 2 * pair.spec.pairs)
        return DONE

    @staticmethod
    def _body(pair: Pair) -> Object:
        labels = {"pair": pair.metadata.name}
        owner = {"apiVersion": "toys.example/v1", "kind": "Pair", "name": pair.metadata.name, "uid": pair.metadata.uid, "controller": True}  # fmt: skip
        return {
            "metadata": {"name": pair.metadata.name, "namespace": pair.metadata.namespace, "ownerReferences": [owner]},
            "spec": {
                "replicas": 2 * pair.spec.pairs,
                "selector": {"matchLabels": labels},
                "template": template(labels),
            },
        }


def make(client: Client, informers: Informers, *, clock: Clock = SYSTEM_CLOCK) -> Controller[ObjectKey]:
    SHARED.append(informers)
    reconciler = PairReconciler(client, informers)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.pairs, own_key),
        Watches(reconciler.sets, owner_key("toys.example/v1", "Pair")),
    ]
    return Controller("pairs", reconciler.reconcile, watches, clock=clock)


def _plane(client: Client, informers: Informers, clock: Clock) -> list[Any]:
    """The platform's own controllers that the toy stands on, and the toy."""
    own = [spec for spec in CONTROLLERS if spec.name in ("replicaset", "gc")]
    specs = [*own, ControllerSpec("pairs", __name__, wakes_for=(PAIRS,))]
    return registry.build(specs, client, informers, {"pod_hook": lambda: None}, clock)


def _definition() -> Object:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    names = {"plural": "pairs", "singular": "pair", "kind": "Pair"}
    return {
        "metadata": {"name": "pairs.toys.example"},
        "spec": {"group": "toys.example", "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def _pods(w: World, wanted: int) -> bool:
    return len(await w.pods(alive=True)) == wanted


async def test_c76_a_toy_kind_needs_one_definition_and_one_controller() -> None:
    SHARED.clear()
    async with world() as w:
        await w.client.create(CRD, _definition())
        await w.stop()
        w._makes = (_plane,)
        await w.start()
        await w.settle(2.0)
        assert SHARED == [], "it sleeps until the first object of its kind"
        pairs = PAIRS.as_dynamic
        await w.client.create(pairs, {"metadata": {"name": "shoes", "namespace": "default"}, "spec": {"pairs": 2}})
        await w.until(lambda: _pods(w, 4))
        assert SHARED[0].get(PODS) is SHARED[0].get(PODS), "caches are shared, not copied"

        # C-75: what is made of it is kept at its definition.
        await w.client.delete(RS, "shoes", "default", propagation="Background")
        await w.until(lambda: _is_new(w), 45)
        await w.client.patch(pairs, "shoes", "default", {"spec": {"pairs": 1}})
        await w.until(lambda: _pods(w, 2))
        await w.client.delete(pairs, "shoes", "default", propagation="Background")
        await w.until(lambda: _pods(w, 0))


async def _is_new(w: World) -> bool:
    sets = await w.list(RS)
    return len(sets) == 1 and not sets[0]["metadata"].get("deletionTimestamp") and await _pods(w, 4)
