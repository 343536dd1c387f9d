"""A replica set while a deployment thinks about it: what it is, what it should be, and the patch between the two."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.kube.api.labels import DEPLOYMENT_REVISION, DESIRED_REPLICAS, MAX_REPLICAS
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import ReplicaSet


@dataclass(slots=True)
class Draft:
    before: ReplicaSet
    replicas: int
    annotations: dict[str, str]
    min_ready: int
    note: str = ""
    """What to tell about the change of size."""

    @staticmethod
    def of(replica_set: ReplicaSet) -> Draft:
        annotations = dict(replica_set.metadata.annotations or {})
        return Draft(replica_set, replica_set.replicas, annotations, replica_set.spec.min_ready_seconds)

    @property
    def name(self) -> str:
        return self.before.metadata.name

    @property
    def created(self) -> tuple[str, str]:
        """For sorting by age; sets made in the same second are told apart by name."""
        return self.before.metadata.creation_timestamp or "", self.name

    @property
    def revision(self) -> int:
        text = self.annotations.get(DEPLOYMENT_REVISION, "")
        return int(text) if text.isascii() and text.isdecimal() else 0

    def resize(self, replicas: int, wanted: int, most: int) -> bool:
        """Set the size, and note the scale it was set for; says whether the size is another one."""
        changed = replicas != self.replicas
        self.replicas = replicas
        self.annotations[DESIRED_REPLICAS] = str(wanted)
        self.annotations[MAX_REPLICAS] = str(most)
        return changed

    def patch(self) -> Object | None:
        meta = self.before.metadata
        known = meta.annotations or {}
        annotations = {key: value for key, value in self.annotations.items() if known.get(key) != value}
        spec: Object = {}
        if self.replicas != self.before.replicas:
            spec["replicas"] = self.replicas
        if self.min_ready != self.before.spec.min_ready_seconds:
            spec["minReadySeconds"] = self.min_ready
        if not annotations and not spec:
            return None
        out: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        if annotations:
            out["metadata"]["annotations"] = annotations
        if spec:
            out["spec"] = spec
        return out
