"""kopf: an operator as people write them, run by `kopf run`.

For each Widget it makes a ConfigMap that the Widget owns, keeps the Widget's status, and takes its finalizer off when
it has cleaned up outside. `Ledger` is that outside: a ConfigMap that no owner reference ends.
"""

from __future__ import annotations

from typing import Any

import kopf
import kr8s
from kr8s.objects import ConfigMap

GROUP = "kopf.example"
LEDGER = "ledger"


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.posting.enabled = True
    settings.watching.server_timeout = 60
    kr8s.api()


@kopf.on.create(GROUP, "v1", "widgets")
def created(body: kopf.Body, spec: kopf.Spec, name: str, namespace: str, **_: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-map"}}
    made["data"] = {"size": str(spec["size"])}
    kopf.adopt(made, owner=body)
    ConfigMap(made).create()
    ConfigMap.get(LEDGER, namespace=namespace).patch({"data": {name: "made"}})
    kopf.info(body, reason="Made", message=f"{name}-map was made")
    return {"map": f"{name}-map"}


@kopf.on.update(GROUP, "v1", "widgets", field="spec.size")
def resized(old: int, new: int, name: str, namespace: str, patch: kopf.Patch, **_: Any) -> None:
    ConfigMap.get(f"{name}-map", namespace=namespace).patch({"data": {"size": str(new)}})
    patch.status["resized"] = f"{old} to {new}"


@kopf.on.create(GROUP, "v1", "widgets", id="second", backoff=0.2)
def tried_twice(retry: int, **_: Any) -> str:
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=0.2)
    return "after one more try"


@kopf.on.resume(GROUP, "v1", "widgets")
def resumed(patch: kopf.Patch, **_: Any) -> None:
    patch.status["resumed"] = True


@kopf.timer(GROUP, "v1", "widgets", interval=0.5)
def ticked(patch: kopf.Patch, status: kopf.Status, **_: Any) -> None:
    if status.get("ticks", 0) < 2:
        patch.status["ticks"] = status.get("ticks", 0) + 1


@kopf.on.event("", "v1", "configmaps", labels={"made-by": "test"})
def noticed(event: kopf.RawEvent, name: str, namespace: str, **_: Any) -> None:
    ConfigMap.get(LEDGER, namespace=namespace).patch({"data": {name: str(event["type"] or "LISTED")}})


@kopf.on.delete(GROUP, "v1", "widgets")
def deleted(name: str, namespace: str, **_: Any) -> None:
    ConfigMap.get(LEDGER, namespace=namespace).patch({"data": {name: "cleaned"}})
