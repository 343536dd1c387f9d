"""The certificates engines show, and who an engine is by its certificate.

    authority of the domain's engines ──issue──> server pair: what other engines see
                                                 client pair: what data mesh and ConfManager see
    certificate ──engine_of──> which pod, of which task and job

    authority of the domain's engines ──issue_node_authority──> authority of one node's engines

The authority (`var/certs/engine-ca.*`) has a key of its own. Data mesh and ConfManager accept nothing else from clients, and
no other server of the node accepts anything of it. Engines themselves trust it and the domain's authority, which signs
what data mesh and ConfManager show.

A node that joined the domain has an authority of its own from its join file. Its subject names the node, and so does the issuer
of all that it signs; TLS accepts no other issuer name from it. So data mesh and ConfManager can tell that a pod of the certificate
is on the node that vouches for it.

Kuscia's engines expect the common names (the pod's address; the pod's name) and `external` as unit. Common names end at 64
letters and say nothing of tasks, so the whole truth stands in the alternative names, as URIs:

    coterie://<domain>/pod/<name>/<uid>     coterie://<domain>/task/<task>     coterie://<domain>/job/<job>

Who believes such a certificate must still ask whether the pod runs: an engine reads its certificate once, at its start, so it
is good for the longest time that a pod may reasonably run.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.base import pki, pki_files
from coterie.base.paths import DomainPaths
from coterie.base.pki import Authority

TASK_LIFE = timedelta(days=30)
SERVICE_LIFE = timedelta(days=366)
"""Of engines that serve: they run until somebody stops them."""
_AUTHORITY_LIFE = timedelta(days=50 * 365)
_AUTHORITY_NAME = "engine-ca"
NODE_AUTHORITIES = "engines of a node"
"""The organisation in the subjects of nodes' authorities, and in no other authority's."""
SCHEME = "coterie"
_LONGEST_NAME = 64
_UNIT = "external"


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """A pod of a domain, and what it works on."""

    domain: str
    pod: str
    uid: str
    task: str = ""
    job: str = ""
    node: str = ""
    """Whose authority signed the certificate, as `node_mark` says it; empty: the domain's own."""

    def issued_for(self, node: str) -> bool:
        """Whether the signer may speak for pods on this node."""
        return self.node in ("", node_mark(node))


@dataclass(frozen=True, slots=True)
class EnginePair:
    certificate: bytes
    """PEM; of a node's authority, followed by that authority's certificate."""
    key: bytes
    """PEM, PKCS#8."""

    def __repr__(self) -> str:
        return "EnginePair(******)"


def ensure_authority(paths: DomainPaths, domain: str, now: datetime) -> Authority:
    """PkiError when it is there and cannot be used."""
    return pki_files.ensure_authority(
        paths.certs, f"{domain}-engines"[:_LONGEST_NAME], now=now, name=_AUTHORITY_NAME, life=_AUTHORITY_LIFE
    )


def issue_node_authority(authority: Authority, node: str, now: datetime) -> Authority:
    """For the engines of a node that joins the domain. Its life is that of the node's other certificates."""
    key = pki.new_key("ec")
    return pki.issue_authority(authority, node_mark(node), key, organisations=(NODE_AUTHORITIES,), now=now)


def node_mark(node: str) -> str:
    """The common name of a node's authority: the node's name, or its digest where that is too long."""
    return node if len(node) <= _LONGEST_NAME else hashlib.sha256(node.encode()).hexdigest()


def signer_node(common_name: str, organisations: Iterable[str]) -> str:
    """Of an issuer's name: the mark of the node whose authority it is; empty: the domain's own."""
    return common_name if NODE_AUTHORITIES in organisations else ""


def issue_server_pair(
    authority: Authority, engine: EngineIdentity, addresses: Sequence[str], now: datetime
) -> EnginePair:
    """For the pod's own ports. `addresses`: those that nobody but the pod has; a pod on the node's network has none."""
    names: list[x509.GeneralName] = [x509.DNSName("*.svc")]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in dict.fromkeys(addresses)]
    common_name = addresses[0] if addresses else engine.pod
    return _pair(authority, common_name, engine, names, ExtendedKeyUsageOID.SERVER_AUTH, now)


def issue_client_pair(authority: Authority, engine: EngineIdentity, now: datetime) -> EnginePair:
    """For calls to the domain's own services."""
    return _pair(authority, engine.pod, engine, [], ExtendedKeyUsageOID.CLIENT_AUTH, now)


def engine_of(certificate: x509.Certificate) -> EngineIdentity | None:
    """Whose certificate it is; None: not an engine's. The caller has checked who signed it."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    node = signer_node(*pki.issuer_of(certificate))
    return engine_named(names.get_values_for_type(x509.UniformResourceIdentifier), node)


def engine_named(uris: Iterable[str], node: str) -> EngineIdentity | None:
    """As `engine_of`, from the alternative names and the signer's node."""
    domain, known = "", {}
    for uri in uris:
        parts = urlsplit(uri)
        kind, _, value = parts.path.removeprefix("/").partition("/")
        if parts.scheme == SCHEME and kind not in known:
            domain = domain or parts.netloc
            known[kind] = value
    pod, slash, uid = known.get("pod", "").partition("/")
    if not domain or not slash:
        return None
    task, job = unquote(known.get("task", "")), unquote(known.get("job", ""))
    return EngineIdentity(domain, unquote(pod), unquote(uid), task, job, node)


def _pair(
    authority: Authority,
    common_name: str,
    engine: EngineIdentity,
    names: list[x509.GeneralName],
    use: x509.ObjectIdentifier,
    now: datetime,
) -> EnginePair:
    key = pki.new_key("ec")
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, _UNIT),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_LONGEST_NAME]),
        ]
    )
    life = TASK_LIFE if engine.task else SERVICE_LIFE
    builder = pki.leaf(authority, subject, key.public_key(), now, life)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([*names, *_uris(engine)]), critical=False)
    # Whoever checks it knows the domain's authority only, and needs those in between.
    between = () if pki.self_signed(authority.certificate) else (authority.certificate,)
    chain = (builder.sign(authority.key, hashes.SHA256()), *between)
    return EnginePair(pki.certificate_pem(*chain), pki.key_pem(key))


def _uris(engine: EngineIdentity) -> list[x509.GeneralName]:
    parts = {"pod": f"{quote(engine.pod, safe='')}/{quote(engine.uid, safe='')}"}
    parts |= {"task": quote(engine.task, safe="")} if engine.task else {}
    parts |= {"job": quote(engine.job, safe="")} if engine.job else {}
    return [x509.UniformResourceIdentifier(f"{SCHEME}://{engine.domain}/{kind}/{rest}") for kind, rest in parts.items()]
