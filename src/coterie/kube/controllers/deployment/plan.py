"""One step of a deployment: which replica set is made, which grow and shrink, which are forgotten. Pure.

    being deleted, selects everything   only the status
    paused, or scaled                   sizes follow the new scale, each set in its proportion; no new set
    RollingUpdate                       make or grow the newest set; else shrink old ones; else forget the oldest
    Recreate                            shrink old sets to nothing; wait for their pods; then make or grow the newest

Each step looks at what is there and moves as far as is safe. The next one begins when the replica sets report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from coterie.kube.api.labels import DEPLOYMENT_REVISION, DESIRED_REPLICAS
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import Deployment, DeploymentStatus, ReplicaSet
from coterie.kube.controllers.deployment import status as says
from coterie.kube.controllers.deployment.drafts import Draft
from coterie.kube.controllers.deployment.numbers import most, new_size, share, shrink_old
from coterie.kube.controllers.deployment.revisions import annotate, body_of_new, newest_of, next_revision, oldest_first


@dataclass(slots=True)
class Plan:
    status: DeploymentStatus
    create: Object | None = None
    resize: list[Draft] = field(default_factory=list)
    forget: list[ReplicaSet] = field(default_factory=list)
    revision: str | None = None
    """The deployment's own revision annotation, when it has to be another one."""
    note: str = ""
    """What to tell about the new set."""
    after: float | None = None


def plan(deployment: Deployment, sets: Sequence[ReplicaSet], old_pods_left: bool, now: datetime) -> Plan:
    """`old_pods_left`: pods of other sets than the newest still run (only Recreate asks)."""
    return _DeploymentPlanner(deployment, sets, old_pods_left, now).take()


class _DeploymentPlanner:
    def __init__(self, deployment: Deployment, sets: Sequence[ReplicaSet], old_pods_left: bool, now: datetime) -> None:
        self.deployment = deployment
        self.sets = sets
        self.old_pods_left = old_pods_left
        self.now = now
        newest = newest_of(deployment, sets)
        self.old = [Draft.of(found) for found in oldest_first(sets) if found is not newest]
        self.newest = Draft.of(newest) if newest is not None else None
        self.conditions = tuple(deployment.status.conditions or ())
        self.plan = Plan(deployment.status)

    def take(self) -> Plan:
        deployment = self.deployment
        if deployment.metadata.deleting:
            self.plan.status = self._counts()
            return self.plan
        self.conditions = says.paused_or_resumed(deployment, self.conditions, self.now)
        self._number_newest()
        if deployment.spec.paused or self._is_scaled():
            self._rescale()
            if deployment.spec.paused:
                self._forget_history()
            self.plan.status = self._counts()
        else:
            self._roll()
        self._collect()
        return self.plan

    # The newest set.

    def _number_newest(self) -> None:
        newest = self.newest
        if newest is None:
            return
        annotate(self.deployment, newest, next_revision(self.old))
        newest.min_ready = self.deployment.spec.min_ready_seconds
        revision = newest.annotations.get(DEPLOYMENT_REVISION, "")
        if (self.deployment.metadata.annotations or {}).get(DEPLOYMENT_REVISION) != revision:
            self.plan.revision = revision
        if says.has_deadline(self.deployment) and says.find(self.conditions, says.PROGRESSING) is None:
            message = f'Found new replica set "{newest.name}"'
            self.conditions = says.put(self.conditions, says.PROGRESSING, "True", says.FOUND, message, self.now)

    def _make_newest(self) -> None:
        deployment = self.deployment
        revision = next_revision(self.old)
        size = new_size(deployment, sum(draft.replicas for draft in self.old), 0)
        body = body_of_new(deployment, revision, size, most(deployment))
        self.plan.create = body
        self.plan.revision = str(revision)
        name = body["metadata"]["name"]
        if size:
            self.plan.note = f"Scaled up replica set {name} from 0 to {size}"
        if says.has_deadline(deployment):
            message = f'Created new replica set "{name}"'
            self.conditions = says.put(self.conditions, says.PROGRESSING, "True", says.CREATED, message, self.now)

    # Scale.

    def _is_scaled(self) -> bool:
        wanted = str(self.deployment.replicas)
        return any(
            draft.annotations.get(DESIRED_REPLICAS, wanted) != wanted for draft in self._all() if draft.replicas > 0
        )

    def _rescale(self) -> None:
        """Bring the sets to the present scale without taking the rollout any further."""
        active = [draft for draft in self._all() if draft.replicas > 0]
        if len(active) <= 1:
            latest = self.old[-1] if self.old else None
            only = active[0] if active else self.newest or latest
            if only is not None:
                self._resize(only, self.deployment.replicas)
        elif self.newest is not None and self._is_saturated(self.newest):
            for draft in self.old:
                self._resize(draft, 0)
        elif self.deployment.spec.strategy.type == "RollingUpdate":
            self._resize_all(share(self.deployment, active))

    def _is_saturated(self, newest: Draft) -> bool:
        wanted = self.deployment.replicas
        return (
            newest.replicas == wanted
            and newest.annotations.get(DESIRED_REPLICAS) == str(wanted)
            and newest.before.status.available_replicas == wanted
        )

    # Rollout.

    def _roll(self) -> None:
        recreate = self.deployment.spec.strategy.type == "Recreate"
        moved = self._roll_recreate() if recreate else self._roll_gradually()
        status = says.progress(self.deployment, self._counts(), self._newest_set(), self.now)
        if not moved and says.is_complete(self.deployment, status):
            self._forget_history()
        status = says.failures(status, self.sets, self._newest_set(), self.now)
        self.plan.status = status
        self.plan.after = says.until_deadline(self.deployment, status, self.now)

    def _roll_gradually(self) -> bool:
        if self.newest is None:
            self._make_newest()
            return True
        wanted = self.deployment.replicas
        size = wanted
        if self.newest.replicas < wanted:
            size = new_size(self.deployment, sum(draft.replicas for draft in self._all()), self.newest.replicas)
        if self._resize(self.newest, size):
            return True
        return self._resize_all(shrink_old(self.deployment, self.newest, self.old))

    def _roll_recreate(self) -> bool:
        active = [draft for draft in self.old if draft.replicas > 0]
        if active:
            return self._resize_all({draft.name: 0 for draft in active})
        if self.old_pods_left:
            return True
        if self.newest is None:
            self._make_newest()
            return True
        return self._resize(self.newest, self.deployment.replicas)

    # History.

    def _forget_history(self) -> None:
        limit = self.deployment.spec.revision_history_limit
        if limit is None:
            return
        kept = [draft for draft in self.old if not draft.before.metadata.deleting]
        surplus = len(kept) - limit
        for draft in sorted(kept, key=lambda draft: (draft.revision, draft.created))[: max(0, surplus)]:
            found = draft.before
            used = found.status.replicas or found.replicas or draft.replicas
            if not used and found.status.observed_generation >= found.metadata.generation:
                self.plan.forget.append(found)

    # Small things.

    def _all(self) -> list[Draft]:
        return [*self.old, self.newest] if self.newest is not None else self.old

    def _newest_set(self) -> ReplicaSet | None:
        return self.newest.before if self.newest is not None else None

    def _counts(self) -> DeploymentStatus:
        return says.counts(self.deployment, self.sets, self._newest_set(), self.conditions, self.now)

    def _resize_all(self, sizes: Mapping[str, int]) -> bool:
        # Each one is resized, whatever the others say.
        return any([self._resize(draft, sizes[draft.name]) for draft in self._all() if draft.name in sizes])

    def _resize(self, draft: Draft, size: int) -> bool:
        before = draft.replicas
        if not draft.resize(size, self.deployment.replicas, most(self.deployment)):
            return False
        way = "up" if size > before else "down"
        draft.note = f"Scaled {way} replica set {draft.name} from {before} to {size}"
        return True

    def _collect(self) -> None:
        forgotten = {found.metadata.uid for found in self.plan.forget}
        self.plan.resize = [
            draft for draft in self._all() if draft.before.metadata.uid not in forgotten and draft.patch() is not None
        ]


def observed(deployment: Deployment) -> DeploymentStatus:
    """Seen, and nothing done about it."""
    return msgspec.structs.replace(deployment.status, observed_generation=deployment.metadata.generation)


def refused(deployment: Deployment, message: str, now: datetime) -> DeploymentStatus:
    """The status when the server did not take the new replica set."""
    conditions = tuple(deployment.status.conditions or ())
    if says.has_deadline(deployment):
        conditions = says.put(conditions, says.PROGRESSING, "False", says.CREATE_ERROR, message, now)
    return msgspec.structs.replace(
        deployment.status, observed_generation=deployment.metadata.generation, conditions=conditions or None
    )


def collided(deployment: Deployment) -> DeploymentStatus:
    """The name of the new set is taken by another template: count, so that the next hash is another one."""
    return msgspec.structs.replace(deployment.status, collision_count=(deployment.status.collision_count or 0) + 1)
