"""Services, endpoints and endpoint slices as their controllers read them.

The two kinds of endpoints name every field Kubernetes has for them except the hints, so they can be compared whole.
"""

from __future__ import annotations

import msgspec

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.kind import Kind, builtin


class ServicePort(Model, frozen=True, kw_only=True):
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    port: int = 0
    target_port: int | str | None = None
    node_port: int = 0


class ClientIPConfig(Model, frozen=True, kw_only=True):
    timeout_seconds: int | None = None


class SessionAffinityConfig(Model, frozen=True, kw_only=True):
    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(Model, frozen=True, kw_only=True):
    type: str = ""
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    ip_families: tuple[str, ...] | None = None
    publish_not_ready_addresses: bool = False
    external_name: str = ""
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    external_ips: tuple[str, ...] | None = msgspec.field(name="externalIPs", default=None)
    internal_traffic_policy: str = ""
    external_traffic_policy: str = ""


class LoadBalancerIngress(Model, frozen=True, kw_only=True):
    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(Model, frozen=True, kw_only=True):
    ingress: tuple[LoadBalancerIngress, ...] | None = None


class ServiceStatus(Model, frozen=True, kw_only=True):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(ApiObject, frozen=True, kw_only=True):
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class EndpointPort(Model, frozen=True, kw_only=True):
    name: str = ""
    port: int | None = None
    protocol: str = "TCP"
    app_protocol: str | None = None


class EndpointAddress(Model, frozen=True, kw_only=True):
    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointSubset(Model, frozen=True, kw_only=True):
    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class Endpoints(ApiObject, frozen=True, kw_only=True):
    subsets: tuple[EndpointSubset, ...] | None = None


class EndpointConditions(Model, frozen=True, kw_only=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(Model, frozen=True, kw_only=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None


class EndpointSlice(ApiObject, frozen=True, kw_only=True):
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


SERVICES = Kind(builtin("services"), Service)
ENDPOINTS = Kind(builtin("endpoints"), Endpoints)
ENDPOINT_SLICES = Kind(builtin("endpointslices", "discovery.k8s.io"), EndpointSlice)
