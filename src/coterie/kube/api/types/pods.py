"""Pods as schedulers, controllers and agents read them.

Names what decides where a pod runs and how far it is. Whoever starts containers needs every field of a container and
reads pods as plain dicts (`PODS.as_dynamic`). Affinities stay plain data: they are turned into matchers once, by the
scheduler, and nobody else looks inside.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.kind import Kind, builtin

QuantityText = str | int | float
"""A quantity as JSON spells it; `coterie.kube.api.quantity` reads it."""


class ResourceRequirements(Model, frozen=True, kw_only=True):
    requests: dict[str, QuantityText] | None = None
    limits: dict[str, QuantityText] | None = None


class ContainerPort(Model, frozen=True, kw_only=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    name: str = ""
    protocol: str = "TCP"


class Container(Model, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    restart_policy: str = ""
    """`Always` makes an init container a sidecar."""
    ports: tuple[ContainerPort, ...] | None = None
    resources: ResourceRequirements | None = None


class Toleration(Model, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Model, frozen=True, kw_only=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: dict[str, Any] | None = None
    match_label_keys: tuple[str, ...] | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class ClaimVolumeSource(Model, frozen=True, kw_only=True):
    claim_name: str = ""
    read_only: bool = False


class EphemeralVolumeSource(Model, frozen=True, kw_only=True):
    volume_claim_template: dict[str, Any] | None = None


class PodVolume(Model, frozen=True, kw_only=True):
    """Only what ties a pod to other objects than its own."""

    name: str = ""
    ephemeral: EphemeralVolumeSource | None = None
    persistent_volume_claim: ClaimVolumeSource | None = None


class PodSpec(Model, frozen=True, kw_only=True):
    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    scheduling_gates: tuple[dict[str, str], ...] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""
    restart_policy: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    overhead: dict[str, QuantityText] | None = None
    resources: ResourceRequirements | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    volumes: tuple[PodVolume, ...] | None = None


class ContainerStatus(Model, frozen=True, kw_only=True):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(name="imageID", default="")
    container_id: str = msgspec.field(name="containerID", default="")
    state: dict[str, Any] | None = None
    last_state: dict[str, Any] | None = None
    allocated_resources: dict[str, QuantityText] | None = None
    resources: ResourceRequirements | None = None


class PodIP(Model, frozen=True, kw_only=True):
    ip: str = ""


class PodStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    nominated_node_name: str = ""
    start_time: str | None = None
    pod_ip: str = msgspec.field(name="podIP", default="")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(name="podIPs", default=None)
    host_ip: str = msgspec.field(name="hostIP", default="")
    qos_class: str = ""


class Pod(ApiObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Its containers will never run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def claim_names(self) -> tuple[str, ...]:
        """The PersistentVolumeClaims that the pod mounts, those of its ephemeral volumes included."""
        if not self.spec.volumes:
            return ()
        named = [v.persistent_volume_claim.claim_name for v in self.spec.volumes if v.persistent_volume_claim]
        made = [self.ephemeral_claim_name(v.name) for v in self.spec.volumes if v.ephemeral]
        return (*named, *made)

    def ephemeral_claim_name(self, volume: str) -> str:
        """The claim that is made for an ephemeral volume of the pod."""
        return f"{self.metadata.name}-{volume}"


PODS = Kind(builtin("pods"), Pod)
