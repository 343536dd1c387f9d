"""How a node comes to a control plane of another machine: one file, made at the master, carried to the node.

    coterie node add NAME --address IP -o FILE      at the control plane: issues certificates of the API's authority;
                                                    at a lite that registered, of an authority for the nodes of its domain
    coterie node join FILE                          at the node: mode lite with `join: FILE`

The file holds the node's identity (client certificate `system:node:NAME`, group `system:nodes`), the certificate under
which its agent's endpoint is reached, the authority to believe, its place in the pod network, and the authority with which it signs
certificates of its engines. It is a secret: mode 0600, never printed.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from coterie.base import files, pki, pki_files
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.kube.client import kubeconfig
from coterie.kuscia.engine.certificates import DomainAuthority, NodeAuthority
from coterie.kuscia.identity import engine_certificates
from coterie.node.api_identity import AUTHORITY
from coterie.node.cluster_network import NO_NETWORK, NO_SERVICES, ClusterNetwork, DomainServices
from coterie.node.config import ConfigError

NODES_GROUP = "system:nodes"
_NODES_AUTHORITY = "coterie-nodes"


@dataclass(frozen=True, slots=True)
class Bundle:
    server: str
    node: str
    ca: bytes
    certificate: bytes
    key: bytes
    serving_certificate: bytes
    serving_key: bytes
    agent_ca: bytes = b""
    """Signs the certificate with which the control plane calls the agent; empty: `ca` does. Other than `ca` under a lite."""
    namespace: str = ""
    """The only namespace that this node may read: that of a lite's domain; empty: all."""
    addresses: tuple[str, ...] = ()
    """Of the machine, those of `coterie node add`; empty in files of an earlier version."""
    domain: str = ""
    """The domain of the control plane."""
    pod_cidr: str = ""
    """The range of this node's pods; empty in files of before nodes had one: the node's own configuration counts."""
    cluster_cidr: str = ""
    """The range of all pods of the domain."""
    node_mask_size: int = 0
    """The prefix length of every node's range."""
    service_cidr: str = ""
    vni: int = 0
    """Of the domain's VXLAN; 0: there is no network between its nodes."""
    gateway: str = ""
    """The address of the control plane's node in the pod network."""
    services: DomainServices = NO_SERVICES
    """What pods find at that address."""
    engines: NodeAuthority = field(default_factory=NodeAuthority)
    """Signs the certificates of this node's engines."""

    def __repr__(self) -> str:
        return f"Bundle(server={self.server!r}, node={self.node!r}, ...)"

    def write(self, path: Path) -> None:
        files.write_atomic(path, self.text())

    def text(self) -> str:
        """The content of the file."""
        document: dict[str, Any] = {
            "server": self.server,
            "node": self.node,
            "domain": self.domain,
            "addresses": list(self.addresses),
            "ca": _encoded(self.ca),
            "certificate": _encoded(self.certificate),
            "key": _encoded(self.key),
            "servingCertificate": _encoded(self.serving_certificate),
            "servingKey": _encoded(self.serving_key),
        }
        if self.namespace:
            document["namespace"] = self.namespace
        if self.agent_ca:
            document["agentCA"] = _encoded(self.agent_ca)
        if self.pod_cidr:
            document["network"] = {
                "podCIDR": self.pod_cidr,
                "clusterCIDR": self.cluster_cidr,
                "nodeMaskSize": self.node_mask_size,
                "serviceCIDR": self.service_cidr,
                "vni": self.vni,
                "gateway": self.gateway,
                "services": self.services.document(),
            }
        if self.engines.able:
            document["engines"] = {
                "certificate": _encoded(self.engines.certificate),
                "key": _encoded(self.engines.key),
                "authorities": _encoded(self.engines.authorities),
            }
        return yaml.safe_dump(document, sort_keys=False)

    def first_expiry(self, now: datetime) -> datetime | None:
        """When the first certificate ends that should be replaced by now; None: none. PkiError."""
        texts = (
            self.certificate,
            self.serving_certificate,
            *((self.engines.certificate,) if self.engines.able else ()),
        )
        due = [each for each in map(pki.load_certificate, texts) if pki.renewal_due(each, now)]
        return min((each.not_valid_after_utc for each in due), default=None)

    def connection(self) -> kubeconfig.ClusterConnection:
        made = kubeconfig.make(self.node, self.server, ca=self.ca, certificate=self.certificate, key=self.key)
        return made.resolve()


def make_bundle(
    paths: DomainPaths,
    node: str,
    addresses: tuple[str, ...],
    server: str,
    clock: Clock,
    *,
    pod_cidr: str = "",
    network: ClusterNetwork = NO_NETWORK,
) -> Bundle:
    """Issue what a node needs. `server` is how the node reaches the API, `pod_cidr` the range that its Node has."""
    now = clock.now()
    issuers = _issuers(paths, now)
    client_key, serving_key = pki.new_key("ec"), pki.new_key("ec")
    client = pki.issue_client(
        issuers.nodes, f"system:node:{node}", client_key.public_key(), groups=(NODES_GROUP,), now=now
    )
    names = tuple(dict.fromkeys((node, *addresses)))
    serving = pki.issue_server(issuers.agents, f"system:node:{node}", serving_key.public_key(), names=names, now=now)
    return Bundle(
        server=server,
        node=node,
        ca=pki.certificate_pem(issuers.nodes.certificate),
        certificate=pki.certificate_pem(client),
        key=pki.key_pem(client_key),
        serving_certificate=pki.certificate_pem(serving),
        serving_key=pki.key_pem(serving_key),
        agent_ca=issuers.agent_ca,
        namespace=issuers.namespace,
        engines=_engine_authority(paths, node, now),
        addresses=addresses,
        domain=paths.home.name,
        pod_cidr=pod_cidr,
        cluster_cidr=network.pod_cidr,
        node_mask_size=network.node_mask_size,
        service_cidr=network.service_cidr,
        vni=network.vni,
        gateway=network.gateway,
        services=network.services,
    )


def nodes_directory(paths: DomainPaths) -> Path:
    """At a lite: the authority of the other machines of its domain, and what they need to know."""
    return files.private_directory(files.private_directory(paths.pki) / "nodes")


def nodes_authority(paths: DomainPaths, now: datetime) -> pki.Authority:
    """Signs the certificates of nodes, and that of the API for them, at a lite; nobody else trusts it."""
    return pki_files.ensure_authority(nodes_directory(paths), _NODES_AUTHORITY, now=now)


@dataclass(frozen=True, slots=True)
class _Issuers:
    nodes: pki.Authority
    """Of the API that nodes call, and of their client certificates."""
    agents: pki.Authority
    """Of the certificates that the control plane trusts when it calls agents."""
    agent_ca: bytes = b""
    namespace: str = ""


def _issuers(paths: DomainPaths, now: datetime) -> _Issuers:
    if (paths.pki / "ca.key").exists():
        authority = pki_files.ensure_authority(paths.pki, AUTHORITY, now=now)
        return _Issuers(authority, authority)
    control_plane = files.read_bytes_or_none(paths.pki / "ca.crt")
    if not (paths.pki / "nodes" / "ca.key").exists() or control_plane is None:
        raise ConfigError(f"{paths.home}: no control plane was started here yet; run `coterie start` once")
    # By its key the control plane knows the domain; see `kuscia/extensions/agent_trust.py`.
    domain = pki.Authority(
        pki.load_certificate(paths.ca_certificate.read_bytes()), pki.load_key(paths.ca_key.read_bytes())
    )
    return _Issuers(nodes_authority(paths, now), domain, control_plane, paths.home.name)


def _engine_authority(paths: DomainPaths, node: str, now: datetime) -> NodeAuthority:
    """Of the domain whose control plane this is; none where it has no engines (a gateway that is switched off)."""
    domain = DomainAuthority(paths)
    if not domain.able:
        return NodeAuthority()
    made = engine_certificates.issue_node_authority(domain.load(), node, now)
    return NodeAuthority(pki.certificate_pem(made.certificate), pki.key_pem(made.key), domain.trusted())


def read_bundle(path: Path) -> Bundle:
    try:
        content = path.read_bytes()
        if not files.is_private(path):
            raise ConfigError(f"{path}: others can read this file, which holds a key; run chmod 600 on it")
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror}); make it with `coterie node add`") from problem
    return parse_bundle(content, str(path))


def parse_bundle(content: bytes, name: str) -> Bundle:
    """`name`: what the content is called in errors."""
    try:
        document = yaml.safe_load(content)
        network = document.get("network") or {}
        return Bundle(
            server=str(document["server"]),
            node=str(document["node"]),
            ca=_decoded(document["ca"]),
            certificate=_decoded(document["certificate"]),
            key=_decoded(document["key"]),
            serving_certificate=_decoded(document["servingCertificate"]),
            serving_key=_decoded(document["servingKey"]),
            agent_ca=_decoded(document.get("agentCA") or ""),
            namespace=str(document.get("namespace") or ""),
            addresses=tuple(str(each) for each in document.get("addresses") or ()),
            domain=str(document.get("domain") or ""),
            pod_cidr=str(network.get("podCIDR") or ""),
            cluster_cidr=str(network.get("clusterCIDR") or ""),
            node_mask_size=int(network.get("nodeMaskSize") or 0),
            service_cidr=str(network.get("serviceCIDR") or ""),
            vni=int(network.get("vni") or 0),
            gateway=str(network.get("gateway") or ""),
            services=DomainServices.of_document(network.get("services") or {}),
            engines=_read_engines(document.get("engines")),
        )
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        # Without the cause: it may quote the key.
        raise ConfigError(f"{name}: is not a file that `coterie node add` made") from None


def _read_engines(document: Any) -> NodeAuthority:
    if not document:
        return NodeAuthority()
    return NodeAuthority(*(_decoded(document[key]) for key in ("certificate", "key", "authorities")))


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)
