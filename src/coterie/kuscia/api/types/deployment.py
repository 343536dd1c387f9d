"""Services that several domains run together and keep running, and the summaries in which two control planes tell each other
how they are. `kuscia.secretflow/v1alpha1`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.apps import DeploymentCondition
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.job_statements import OfferedEngine
from coterie.kuscia.api.types.domain import kuscia_resource

FAILURE = "ReplicaFailure"
"""Condition of a party that cannot be carried out, as Deployments have it."""


class ServingPhase(StrEnum):
    PROGRESSING = "Progressing"
    PARTIAL = "PartialAvailable"
    AVAILABLE = "Available"
    FAILED = "Failed"


class PartyDeploymentTemplate(Model, frozen=True, kw_only=True):
    """`strategy` and `spec` stay plain data: the one goes into a Deployment as it is, the other over the AppImage's."""

    replicas: int | None = None
    strategy: dict[str, Any] | None = None
    spec: dict[str, Any] | None = None


class DeploymentParty(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")
    app_image_ref: str
    role: str = ""
    service_name_prefix: str = ""
    template: PartyDeploymentTemplate | None = None


class KusciaDeploymentSpec(Model, frozen=True, kw_only=True):
    initiator: str
    input_config: str
    parties: tuple[DeploymentParty, ...]


class PartyDeploymentStatus(Model, frozen=True, kw_only=True):
    replicas: int
    updated_replicas: int
    available_replicas: int
    unavailable_replicas: int
    phase: str = ""
    role: str = ""
    conditions: tuple[DeploymentCondition, ...] | None = None
    creation_timestamp: str | None = None
    engine_ref: str = ""
    """The `appImageRef` for which `engines` holds, where it names an engine of several versions."""
    engines: tuple[OfferedEngine, ...] | None = None
    """Versions that the party offers, the newest first; the one that it is pinned to, from then on."""


PartyStatuses = dict[str, dict[str, PartyDeploymentStatus]]
"""By domain and by the name of the Deployment there."""


class KusciaDeploymentStatus(Model, frozen=True, kw_only=True):
    total_parties: int
    available_parties: int
    phase: str = ""
    reason: str = ""
    message: str = ""
    last_reconcile_time: str | None = None
    party_deployment_statuses: PartyStatuses | None = None


class KusciaDeployment(ApiObject, frozen=True, kw_only=True):
    spec: KusciaDeploymentSpec
    status: KusciaDeploymentStatus | None = None

    @property
    def party_statuses(self) -> PartyStatuses:
        return (self.status.party_deployment_statuses if self.status is not None else None) or {}


class KusciaDeploymentSummary(ApiObject, frozen=True, kw_only=True):
    status: KusciaDeploymentStatus | None = None

    @property
    def party_statuses(self) -> PartyStatuses:
        return (self.status.party_deployment_statuses if self.status is not None else None) or {}


def party_deployment(name: str, role: str) -> str:
    """How a party's Deployment is called, in its domain's namespace."""
    return f"{name}-{role}" if role else name


KUSCIA_DEPLOYMENTS = Kind(kuscia_resource("kusciadeployments", "KusciaDeployment", namespaced=True), KusciaDeployment)
KUSCIA_DEPLOYMENT_SUMMARIES = Kind(
    kuscia_resource("kusciadeploymentsummaries", "KusciaDeploymentSummary", namespaced=True), KusciaDeploymentSummary
)
