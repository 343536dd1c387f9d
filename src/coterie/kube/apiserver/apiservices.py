"""APIService objects: one for each group and version that this server serves, kept in step with what is served.

Those that users make lead to other servers (`aggregator.py`) and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.base.clock import Clock, rfc3339
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver import discovery
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, encode
from coterie.kube.apiserver.state.state import ObjectWrite, ResourceStorage

KEY = "/registry/apiregistration.k8s.io/apiservices"


async def reconcile(state: ResourceStorage, resources: Callable[[], Sequence[Resource]], clock: Clock) -> None:
    """Create what is missing and delete what is not served any more."""
    collection = state.collection(KEY)
    services = discovery.apiservices(resources(), rfc3339(clock.now()))
    wanted = {service["metadata"]["name"]: service for service in services}
    for name, service in wanted.items():
        if collection.get("", name) is None:
            await state.modify(collection, "", name, _create(service, collection))
    for entry in collection.entries():
        if (
            entry.name not in wanted
            and discovery.AUTOMANAGED in (entry.labels or {})
            and b'"service":' not in entry.raw
        ):
            await state.modify(collection, "", entry.name, _delete)


def _create(service: dict[str, Any], collection: Collection) -> Callable[[ObjectEntry | None], ObjectWrite | None]:
    def decide(entry: ObjectEntry | None) -> ObjectWrite | None:
        return ObjectWrite(encode(service, collection.api_version, collection.kind)) if entry is None else None

    return decide


def _delete(entry: ObjectEntry | None) -> ObjectWrite | None:
    return ObjectWrite(None) if entry is not None else None
