"""The node's configuration: YAML in, frozen settings out.

A key that is not known is refused with its path, so that a typing error never becomes a silent default. Secrets are
`Secret` values: printing the settings shows stars.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from coterie.base.paths import DomainPaths, default_root

MODES = ("master", "lite", "autonomy")
LOG_LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
RESERVED_DOMAINS = frozenset(("master", "default", "kube-system", "kube-public", "kube-node-lease", "cross-domain"))
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
    known = {"mode", "domainID", "logLevel", "logFormat", "root", "apiServer"}
    _only(document, known, "")
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
    return NodeSettings(
        mode=mode,
        domain=domain,
        paths=DomainPaths.of(base.absolute(), domain),
        log_level=level,
        log_json=form == "json",
        api=_api(document.get("apiServer", {})),
    )


def _api(block: Any) -> ApiSettings:
    if not isinstance(block, Mapping):
        raise ConfigError("apiServer: must be a mapping")
    _only(block, {"host", "port", "names", "eventTTLSeconds", "auditLog"}, "apiServer.")
    default = ApiSettings()
    host = _text(block, "host", default.host, "apiServer.")
    try:
        ipaddress.ip_address(host)
    except ValueError as problem:
        raise ConfigError(f'apiServer.host: "{host}" is not an IP address to listen on') from problem
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
