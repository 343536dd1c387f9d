"""The node's configuration: YAML in, frozen settings out.

A key that is not known is refused with its path, so that a typing error never becomes a silent default. Secrets are
`Secret` values: printing the settings shows stars.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from coterie.agent.settings import CapacitySettings
from coterie.api.names import dns_subdomain_faults
from coterie.api.quantity import QuantityError, canonical
from coterie.api.types.kuscia_domain import RESERVED_DOMAINS
from coterie.base.paths import DomainPaths, default_root

MODES = ("master", "lite", "autonomy")
LOG_LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
_KNOWN = {
    "mode", "domainID", "logLevel", "logFormat", "root", "apiServer", "controllers", "join", "runtime", "agent",
    "capacity", "reservedResources",
}  # fmt: skip
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and what to write instead."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`apiServer`: the Kubernetes API of this node."""

    host: str = "127.0.0.1"
    """Address to listen on. The API authenticates every caller, but operators should still not be the whole world."""
    port: int = 6443
    """Port to listen on; 0 picks a free one, which the kubeconfig then names."""
    names: tuple[str, ...] = ()
    """More DNS names and addresses under which clients reach the API; they go into its certificate."""
    event_ttl_seconds: int = 3600
    """How long Event objects are kept."""
    audit_log: str = ""
    """File for one JSON line for each changing request; empty: none. A relative path lies below var/logs."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`controllers`: how patient a control plane is with nodes (modes master and autonomy)."""

    node_grace_seconds: int = 40
    """A node that gave no sign of life for this long is not ready. At least `agent.leaseSeconds` of each of its nodes."""
    pod_eviction_seconds: int = 300
    """Pods without a toleration of their own leave a node that is not ready after this long."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """`agent`, `capacity`, `reservedResources`: the node agent (modes lite and autonomy)."""

    node_name: str
    """Name of the Node object; the machine's host name unless given. Empty: as the file says with which it joins."""
    address: str = "127.0.0.1"
    """The node's address: where its endpoint listens and its pods are reached."""
    port: int = 10250
    """Port of the agent's endpoint (logs, exec, ...); 0 picks a free one."""
    taint: bool = True
    """Whether the Node gets Kuscia's taint, which only pods of tasks tolerate."""
    host_paths: tuple[str, ...] = ()
    """Directories below which hostPath volumes may lie; none unless given."""
    allow_privileged: bool = False
    lease_seconds: int = 40
    """How long a sign of life is good for; a new one is given four times in this time."""
    capacity: CapacitySettings = field(default_factory=CapacitySettings)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    mode: str
    """master, lite or autonomy."""
    domain: str
    """The domain's id: an RFC 1123 label."""
    paths: DomainPaths
    log_level: str = "INFO"
    log_json: bool = False
    """Log lines as JSON objects instead of text."""
    api: ApiSettings = field(default_factory=ApiSettings)
    controllers: ControllerSettings = field(default_factory=ControllerSettings)
    agent: AgentConfig | None = None
    """Of nodes that run pods: lite and autonomy."""
    join: Path | None = None
    """lite: the file that `coterie node add` made at the master."""


def load(path: Path, root: Path | None = None) -> NodeSettings:
    """Read a configuration file. `root` wins over the file's own `root`."""
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror}); name an existing file with -c") from problem
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ConfigError(f"{path}: is not YAML: {str(problem).splitlines()[0]}") from problem
    try:
        return parse(document, root)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from problem


def parse(document: Any, root: Path | None = None) -> NodeSettings:
    if not isinstance(document, Mapping):
        raise ConfigError("the configuration must be a mapping with at least mode and domainID")
    _only(document, _KNOWN, "")
    mode = _text(document, "mode").lower()
    if mode not in MODES:
        raise ConfigError(f'mode: must be one of master, lite, autonomy, not "{mode}"')
    domain = _text(document, "domainID")
    if not _DOMAIN.fullmatch(domain) or domain in RESERVED_DOMAINS:
        raise ConfigError(
            f'domainID: "{domain}" cannot be used; take lower-case letters, digits and "-", not a reserved name'
        )
    level = _text(document, "logLevel", "INFO").upper()
    if level not in LOG_LEVELS:
        raise ConfigError(f'logLevel: must be one of {", ".join(LOG_LEVELS)}, not "{level}"')
    form = _text(document, "logFormat", "text").lower()
    if form not in ("text", "json"):
        raise ConfigError(f'logFormat: must be text or json, not "{form}"')
    given_root = _text(document, "root", "")
    base = root or (Path(given_root).expanduser() if given_root else default_root())
    join = _text(document, "join", "")
    if (mode == "lite") != bool(join):
        raise ConfigError(
            "join: must name the file that `coterie node add` made at the master"
            if mode == "lite"
            else f"join: is only for mode lite, not for {mode}"
        )
    runtime = _text(document, "runtime", "runp")
    if runtime != "runp":
        raise ConfigError(f'runtime: this version has runp, not "{runtime}"')
    return NodeSettings(
        mode=mode,
        domain=domain,
        paths=DomainPaths.of(base.absolute(), domain),
        log_level=level,
        log_json=form == "json",
        api=_api(_block(document, "apiServer")),
        controllers=_controllers(_block(document, "controllers")),
        agent=_agent(document, joins=bool(join)) if mode != "master" else None,
        join=Path(join).expanduser().absolute() if join else None,
    )


def _agent(document: Mapping[Any, Any], *, joins: bool) -> AgentConfig:
    block, given, kept = (_block(document, name) for name in ("agent", "capacity", "reservedResources"))
    _only(block, {"nodeName", "address", "port", "taint", "hostPaths", "allowPrivileged", "leaseSeconds"}, "agent.")
    _only(given, {"cpu", "memory", "bandwidth", "pods", "storage", "ephemeralStorage"}, "capacity.")
    _only(kept, {"cpu", "memory", "bandwidth"}, "reservedResources.")
    name = _text(block, "nodeName", "" if joins else socket.gethostname().lower(), "agent.")
    if dns_subdomain_faults(name) and not (joins and not name):
        raise ConfigError(f'agent.nodeName: "{name}" is no valid name; take lower-case letters, digits, "-" and "."')
    default = AgentConfig(name)
    paths = block.get("hostPaths", ())
    if not isinstance(paths, (list, tuple)) or not all(
        isinstance(path, str) and path.startswith("/") for path in paths
    ):
        raise ConfigError("agent.hostPaths: must be a list of absolute paths")
    unlimited = CapacitySettings()
    return AgentConfig(
        node_name=name,
        address=_address(block, "address", default.address, "agent."),
        port=_number(block, "port", default.port, lambda n: 0 <= n < 65536, "agent."),
        taint=_flag(block, "taint", default.taint, "agent."),
        host_paths=tuple(paths),
        allow_privileged=_flag(block, "allowPrivileged", default.allow_privileged, "agent."),
        lease_seconds=_number(block, "leaseSeconds", default.lease_seconds, lambda n: n >= 3, "agent."),
        capacity=CapacitySettings(
            cpu=_quantity(given, "cpu", "", "capacity."),
            memory=_quantity(given, "memory", "", "capacity."),
            storage=_quantity(given, "storage", "", "capacity."),
            ephemeral_storage=_quantity(given, "ephemeralStorage", "", "capacity."),
            bandwidth_mbit=_number(given, "bandwidth", 0, lambda n: n >= 0, "capacity."),
            pods=_number(given, "pods", unlimited.pods, lambda n: n > 0, "capacity."),
            reserved_cpu=_quantity(kept, "cpu", unlimited.reserved_cpu, "reservedResources."),
            reserved_memory=_quantity(kept, "memory", unlimited.reserved_memory, "reservedResources."),
            reserved_bandwidth_mbit=_number(
                kept, "bandwidth", unlimited.reserved_bandwidth_mbit, lambda n: n >= 0, "reservedResources."
            ),
        ),
    )


def _controllers(block: Mapping[Any, Any]) -> ControllerSettings:
    _only(block, {"nodeGraceSeconds", "podEvictionSeconds"}, "controllers.")
    default = ControllerSettings()
    return ControllerSettings(
        node_grace_seconds=_number(
            block, "nodeGraceSeconds", default.node_grace_seconds, lambda n: n >= 3, "controllers."
        ),
        pod_eviction_seconds=_number(
            block, "podEvictionSeconds", default.pod_eviction_seconds, lambda n: n >= 0, "controllers."
        ),
    )


def _api(block: Mapping[Any, Any]) -> ApiSettings:
    _only(block, {"host", "port", "names", "eventTTLSeconds", "auditLog"}, "apiServer.")
    default = ApiSettings()
    host = _address(block, "host", default.host, "apiServer.")
    names = block.get("names", ())
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError("apiServer.names: must be a list of host names and addresses")
    return ApiSettings(
        host=host,
        port=_number(block, "port", default.port, lambda n: 0 <= n < 65536, "apiServer."),
        names=tuple(names),
        event_ttl_seconds=_number(block, "eventTTLSeconds", default.event_ttl_seconds, lambda n: n >= 60, "apiServer."),
        audit_log=_text(block, "auditLog", default.audit_log, "apiServer."),
    )


def _only(block: Mapping[Any, Any], known: set[str], prefix: str) -> None:
    for key in block:
        if key not in known:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"{prefix}{key}: is not a known key; known here are {listed}")


def _text(block: Mapping[Any, Any], key: str, default: str | None = None, prefix: str = "") -> str:
    value = block.get(key, default)
    if value is None:
        raise ConfigError(f"{prefix}{key}: is missing")
    if not isinstance(value, str):
        raise ConfigError(f"{prefix}{key}: must be a text; put it in quotes if it looks like something else")
    return value


def _number(block: Mapping[Any, Any], key: str, default: int, fits: Callable[[int], bool], prefix: str = "") -> int:
    value = block.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not fits(value):
        raise ConfigError(f"{prefix}{key}: {value!r} is not a number that can be used here")
    return value


def _block(document: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    block = document.get(key, {})
    if not isinstance(block, Mapping):
        raise ConfigError(f"{key}: must be a mapping")
    return block


def _address(block: Mapping[Any, Any], key: str, default: str, prefix: str) -> str:
    text = _text(block, key, default, prefix)
    try:
        ipaddress.ip_address(text)
    except ValueError as problem:
        raise ConfigError(f'{prefix}{key}: "{text}" is not an IP address to listen on') from problem
    return text


def _flag(block: Mapping[Any, Any], key: str, default: bool, prefix: str) -> bool:
    value = block.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{prefix}{key}: must be true or false")
    return value


def _quantity(block: Mapping[Any, Any], key: str, default: str, prefix: str) -> str:
    value = block.get(key, default)
    if value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{prefix}{key}: must be a quantity such as 500m or 4Gi")
    try:
        return canonical(value)
    except QuantityError as problem:
        raise ConfigError(f'{prefix}{key}: "{value}" is not a quantity such as 500m or 4Gi') from problem
