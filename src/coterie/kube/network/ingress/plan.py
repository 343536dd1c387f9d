"""Ingresses and Dns objects of one namespace become one table of virtual hosts. Pure.

Matching is Kubernetes': an exact host before a wildcard; in a host the longest path wins, an exact path before a prefix; prefixes
are compared element by element, so `/foo` and `/foo/` match `/foo`, `/foo/` and `/foo/bar`, never `/foobar`.
`ImplementationSpecific` is read as `Prefix`. A path without a rule goes to the default backend of an Ingress that has rules for
this host, then to the first default backend of all; else it is 404.

Several objects may have rules for one host. Where two have the same path, the older object wins (by creation time, then by kind and
name); the younger one gets a problem. The same holds for the certificate of a host, and for default backends.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kube.api.labels import DEFAULT_INGRESS_CLASS, INGRESS_CLASS
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.core import Secret
from coterie.kube.api.types.ingress import Dns, Ingress, IngressBackend, IngressClass
from coterie.kube.api.types.network import Endpoints, Service, ServicePort
from coterie.kube.network.ingress.model import (
    CLASS,
    CONTROLLER,
    IngressCertificate,
    IngressProblem,
    IngressTable,
    PathRule,
    Upstream,
    UpstreamProtocol,
    VirtualHost,
)

TLS_SECRET = "kubernetes.io/tls"
_HTTP2 = ("kubernetes.io/h2c", "h2c", "http2", "grpc")
_HTTPS = ("https", "kubernetes.io/wss", "wss")
_RESERVED_ENDS = ("svc", "localhost")


@dataclass(frozen=True, slots=True)
class IngressObjects:
    """All of one namespace, except the classes."""

    ingresses: Sequence[Ingress] = ()
    dnses: Sequence[Dns] = ()
    services: Mapping[str, Service] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoints] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    classes: Sequence[IngressClass] | None = None
    """None: they cannot be read, and only the class `coterie` counts."""
    cluster_domain: str = "cluster.local"


NO_OBJECTS = IngressObjects()
IsBackend = Callable[[str], bool]
"""Whether an address may be called by whoever reaches the proxy."""


def ingress_table(objects: IngressObjects, is_backend: IsBackend) -> tuple[IngressTable, list[IngressProblem]]:
    builder = _Builder(objects, is_backend)
    owners: list[Ingress | Dns] = [*_ours(objects), *objects.dnses]
    for each in sorted(owners, key=_age):
        if each.metadata.deleting:
            continue
        if isinstance(each, Ingress):
            builder.add_ingress(each)
        else:
            builder.add_dns(each)
    return builder.table(), sorted(set(builder.problems))


def _ours(objects: IngressObjects) -> Iterator[Ingress]:
    classes = {CLASS}
    by_default = False
    if objects.classes is not None:
        ours = [each for each in objects.classes if each.spec.controller == CONTROLLER]
        classes = {each.metadata.name for each in ours}
        by_default = any((each.metadata.annotations or {}).get(DEFAULT_INGRESS_CLASS) == "true" for each in ours)
    for each in objects.ingresses:
        named = each.spec.ingress_class_name or (each.metadata.annotations or {}).get(INGRESS_CLASS, "")
        if named in classes if named else by_default:
            yield each


def _age(each: Ingress | Dns) -> tuple[str, str, str]:
    return each.metadata.creation_timestamp or "", _kind(each), each.metadata.name


def _kind(each: Ingress | Dns) -> str:
    return "ingress" if isinstance(each, Ingress) else "dns"


class _Builder:
    def __init__(self, objects: IngressObjects, is_backend: IsBackend) -> None:
        self._objects = objects
        self._is_backend = is_backend
        self._by_uid = {each.metadata.uid: name for name, each in objects.services.items()}
        self._rules: dict[str, dict[tuple[str, bool], tuple[PathRule, str]]] = {}
        """By host, by (path, exact): the rule, and whose it is."""
        self._defaults: dict[str, Upstream] = {}
        self._default: Upstream | None = None
        self._names: set[str] = set()
        self._secret_of: dict[str, str] = {}
        """By server name."""
        self._certificates: dict[str, tuple[str, SecretValue] | None] = {}
        self._served: set[str] = set()
        self.problems: list[IngressProblem] = []

    def table(self) -> IngressTable:
        hosts = [
            VirtualHost(
                host,
                tuple(sorted((rule for rule, _ in rules.values()), key=_precedence)),
                self._defaults.get(host, self._default),
                for_pods=host in self._names,
            )
            for host, rules in sorted(self._rules.items())
        ]
        by_secret: dict[str, list[str]] = {}
        for host, secret in sorted(self._secret_of.items()):
            by_secret.setdefault(secret, []).append(host)
        certificates: list[IngressCertificate] = []
        for secret, names in sorted(by_secret.items()):
            if (pair := self._certificates[secret]) is None:
                continue
            named = tuple(name for name in names if name)
            certificates += [IngressCertificate(secret, named, *pair)] if named else []
            certificates += [IngressCertificate(secret, (), *pair)] if "" in names else []
        return IngressTable(tuple(hosts), self._default, tuple(certificates), frozenset(self._served))

    # ---- ingresses ----

    def add_ingress(self, ingress: Ingress) -> None:
        spec = ingress.spec
        self._served.add(ingress.metadata.name)
        default = self._backend(ingress, spec.default_backend) if spec.default_backend is not None else None
        if default is not None and self._default is None:
            self._default = default
        elif default is not None and not spec.rules:
            self._report(ingress, "there is an older default backend for all hosts; this one is not used")
        for rule in spec.rules or ():
            host = rule.host.lower()
            self._rules.setdefault(host, {})
            if default is not None:
                self._defaults.setdefault(host, default)
            for each in (rule.http.paths if rule.http is not None else None) or ():
                upstream = self._backend(ingress, each.backend)
                if upstream is None:
                    continue
                exact = each.path_type == "Exact"
                path = (each.path or "/") if exact else (each.path or "/").rstrip("/")
                self._add(ingress, host, PathRule(path, exact, upstream))
        for entry in spec.tls or ():
            for host in entry.hosts or ("",):
                self._add_certificate(ingress, host.lower(), entry.secret_name)

    def _add(self, owner: Ingress | Dns, host: str, rule: PathRule) -> None:
        rules = self._rules.setdefault(host, {})
        key = rule.path, rule.exact
        if key in rules:
            if rules[key][0] != rule:
                where = f"{host or 'every host'}{rule.path or '/'}"
                self._report(owner, f"{where} is served by the older {rules[key][1]}")
            return
        rules[key] = rule, f"{_kind(owner)} {owner.metadata.name}"

    def _add_certificate(self, ingress: Ingress, host: str, secret: str) -> None:
        if not secret:
            return  # as Kubernetes says: TLS for this host without a certificate of its own
        if (taken := self._secret_of.get(host)) is not None:
            if taken != secret:
                name = host or "every other host"
                self._report(ingress, f"{name} has the certificate of Secret {taken} by an older Ingress")
            return
        if secret not in self._certificates:
            self._certificates[secret] = self._read(secret)
        found = self._certificates[secret]
        if found is None:
            why = "does not exist" if secret not in self._objects.secrets else "holds no certificate with its key"
            self._report(ingress, f"Secret {secret} {why}; {host or 'every other host'} is not served with TLS")
            return
        self._secret_of[host] = secret

    def _read(self, name: str) -> tuple[str, SecretValue] | None:
        secret = self._objects.secrets.get(name)
        data = (secret.data if secret is not None else None) or {}
        return _key_pair(data.get("tls.crt", ""), SecretValue(data.get("tls.key", "")))

    # ---- Dns objects ----

    def add_dns(self, dns: Dns) -> None:
        host = dns.host
        if (why := dns_host_fault(host, self._objects.cluster_domain)) is not None:
            self._report(dns, why)
            return
        self._names.add(host)
        self._rules.setdefault(host, {})
        for path, target in sorted((dns.spec.paths or {}).items()):
            if not path.startswith("/"):
                self._report(dns, f'path "{path}" does not begin with a slash')
                continue
            name = target.service_name or self._by_uid.get(target.service_uid, "")
            if not name:
                self._report(dns, f"path {path}: no Service has the uid {target.service_uid or '(none)'}")
                continue
            upstream = self._upstream(dns, name, str(target.service_port))
            self._add(dns, host, PathRule(path, True, upstream, to_root=True))

    # ---- backends ----

    def _backend(self, ingress: Ingress, backend: IngressBackend) -> Upstream | None:
        if backend.service is None:
            self._report(ingress, "a backend is no Service; other backends are not supported")
            return None
        port = backend.service.port
        return self._upstream(ingress, backend.service.name, port.name or str(port.number))

    def _upstream(self, owner: Ingress | Dns, name: str, port: str) -> Upstream:
        service = self._objects.services.get(name)
        if service is None:
            self._report(owner, f"Service {name} does not exist")
            return Upstream(name, port)
        if service.spec.type == "ExternalName":
            self._report(owner, f"Service {name} is an ExternalName; only pods can be backends")
            return Upstream(name, port)
        found = next((each for each in service.spec.ports or () if port in (each.name, str(each.port))), None)
        if found is None:
            self._report(owner, f"Service {name} has no port {port}")
            return Upstream(name, port)
        ready = set(_ready(found, self._objects.endpoints.get(name)))
        usable = {each for each in ready if self._is_backend(each[0])}
        if ready - usable:
            listed = ", ".join(f"{host}:{number}" for host, number in sorted(ready - usable))
            self._report(owner, f"Service {name} has endpoints that are not ordinary pods of this domain: {listed}")
        protocol = (found.app_protocol or "").lower()
        return Upstream(
            name,
            port,
            tuple(sorted(usable)),
            UpstreamProtocol.HTTP2
            if protocol in _HTTP2
            else UpstreamProtocol.HTTPS
            if protocol in _HTTPS
            else UpstreamProtocol.HTTP,
            sticky=service.spec.session_affinity == "ClientIP",
        )

    def _report(self, owner: Ingress | Dns, message: str) -> None:
        self.problems.append(IngressProblem(_kind(owner), owner.metadata.name, message))


@lru_cache(maxsize=256)
def _key_pair(chain: str, key: SecretValue) -> tuple[str, SecretValue] | None:
    """In clear, of two values of a Secret; None: they are no pair. Remembered: checking a key takes milliseconds."""
    try:
        certificate = base64.b64decode(chain, validate=True)
        secret = base64.b64decode(key.reveal(), validate=True)
        if pki.public_key_of(pki.load_certificate(certificate)) != pki.load_key(secret).public_key():
            return None
        return certificate.decode("ascii"), SecretValue(secret.decode("ascii"))
    except (binascii.Error, UnicodeDecodeError, pki.PkiError):
        return None


def _precedence(rule: PathRule) -> tuple[bool, int, str]:
    """What matches exactly is never shorter than a prefix that matches too."""
    return not rule.exact, -len(rule.path), rule.path


def _ready(port: ServicePort, endpoints: Endpoints | None) -> Iterator[tuple[str, int]]:
    for subset in (endpoints.subsets if endpoints is not None else None) or ():
        for target in subset.ports or ():
            if target.port and target.name == port.name:
                yield from ((address.ip, target.port) for address in subset.addresses or ())


def dns_host_fault(host: str, cluster_domain: str = "cluster.local") -> str | None:
    """Why a Dns object cannot have this host; None: it can."""
    if dns_subdomain_faults(host) or "." not in host:
        return f'host "{host}" is no name with a dot in it, such as tea.example'
    ends = (*_RESERVED_ENDS, cluster_domain)
    if any(host == end or host.endswith(f".{end}") for end in ends):
        return f'host "{host}" lies in names of Services; take another one'
    return None


def dns_hosts(dnses: Iterable[Dns], cluster_domain: str = "cluster.local") -> frozenset[str]:
    """The host names that pods can resolve."""
    return frozenset(
        each.host for each in dnses if not each.metadata.deleting and dns_host_fault(each.host, cluster_domain) is None
    )
