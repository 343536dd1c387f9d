"""Ingresses, their classes, and Dns objects (`coterie.io`): one host name with several paths."""

from __future__ import annotations

import msgspec

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind, builtin


class ServiceBackendPort(Model, frozen=True, kw_only=True):
    name: str = ""
    number: int = 0


class IngressServiceBackend(Model, frozen=True, kw_only=True):
    name: str = ""
    port: ServiceBackendPort = ServiceBackendPort()


class IngressBackend(Model, frozen=True, kw_only=True):
    service: IngressServiceBackend | None = None
    resource: dict[str, str] | None = None


class HttpIngressPath(Model, frozen=True, kw_only=True):
    path: str = ""
    path_type: str = ""
    backend: IngressBackend = IngressBackend()


class HttpIngressRules(Model, frozen=True, kw_only=True):
    paths: tuple[HttpIngressPath, ...] | None = None


class IngressRule(Model, frozen=True, kw_only=True):
    host: str = ""
    http: HttpIngressRules | None = None


class IngressTls(Model, frozen=True, kw_only=True):
    hosts: tuple[str, ...] | None = None
    secret_name: str = ""


class IngressSpec(Model, frozen=True, kw_only=True):
    ingress_class_name: str | None = None
    default_backend: IngressBackend | None = None
    tls: tuple[IngressTls, ...] | None = None
    rules: tuple[IngressRule, ...] | None = None


class LoadBalancerPort(Model, frozen=True, kw_only=True):
    port: int = 0
    protocol: str = "TCP"


class LoadBalancerPoint(Model, frozen=True, kw_only=True):
    ip: str = ""
    hostname: str = ""
    ports: tuple[LoadBalancerPort, ...] | None = None


class LoadBalancer(Model, frozen=True, kw_only=True):
    ingress: tuple[LoadBalancerPoint, ...] | None = None


class IngressStatus(Model, frozen=True, kw_only=True):
    load_balancer: LoadBalancer = LoadBalancer()


class Ingress(ApiObject, frozen=True, kw_only=True):
    spec: IngressSpec = IngressSpec()
    status: IngressStatus = IngressStatus()


class IngressClassSpec(Model, frozen=True, kw_only=True):
    controller: str = ""


class IngressClass(ApiObject, frozen=True, kw_only=True):
    spec: IngressClassSpec = IngressClassSpec()


class DnsPath(Model, frozen=True, kw_only=True):
    service_name: str = ""
    service_uid: str = msgspec.field(name="serviceUID", default="")
    service_port: int | str = 0


class DnsSpec(Model, frozen=True, kw_only=True):
    host: str = ""
    paths: dict[str, DnsPath] | None = None


class Dns(ApiObject, frozen=True, kw_only=True):
    spec: DnsSpec = DnsSpec()

    @property
    def host(self) -> str:
        """As it is served: in lower case, without slashes around it."""
        return self.spec.host.strip("/").lower()


INGRESSES = Kind(builtin("ingresses", "networking.k8s.io"), Ingress)
INGRESS_CLASSES = Kind(builtin("ingressclasses", "networking.k8s.io"), IngressClass)
DNSES = Kind(Resource("coterie.io", "v1alpha1", "dnses", "Dns", True, singular="dns", custom=True), Dns)
