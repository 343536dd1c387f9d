"""What must not be in a support bundle: the secrets of a domain by value, and the places where secrets stand. Pure but for reading
the domain's own files.

Three nets, one behind the other. Files of keys are never read into the bundle. Of structured documents (configuration, Envoy's
dump) values are left out by their place. Every text then passes the `Redactor`, which knows the domain's secrets by value and
others by their looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml

from coterie.base.paths import DomainPaths
from coterie.base.redaction import Redactor
from coterie.kuscia.gateway.names import (
    AUTH_FILTER,
    DOWNSTREAM_PROTOCOL,
    ERROR,
    HOST,
    ORIGIN,
    PEER_FINGERPRINT,
    PEER_KEY,
    PROTOCOL,
    SOURCE,
)
from coterie.kuscia.gateway.paths import GatewayPaths

LEFT_OUT = "[left out]"
_SECRET_NAME = re.compile(
    r"(?i)pass|pwd|secret|token|credential|cookie|authorization|private|(?<!public)key|signature|sas"
)
_FILE_NAME = re.compile(r"(?i)(file|path|dir|directory)$")
_HARMLESS_HEADERS = frozenset(
    (
        DOWNSTREAM_PROTOCOL,
        ERROR,
        HOST,
        ORIGIN,
        PEER_FINGERPRINT,
        PEER_KEY,
        PROTOCOL,
        SOURCE,
        "x-accel-buffering",
        "server",
    )
)
_LARGEST = 4 << 20
_SPLIT = re.compile(r"[\s,;|]+")


def known_secrets(home: DomainPaths, documents: Iterable[Any] = ()) -> list[str]:
    """Every value that is a secret of this domain, as far as its files tell."""
    found: dict[str, None] = {}
    for path in sorted(home.certs.rglob("*")) if home.certs.is_dir() else ():
        if path.suffix == ".key" or path.name == "token":
            found |= dict.fromkeys(_content(path))
    try:
        documents = [*documents, yaml.safe_load(home.kubeconfig.read_bytes())]
    except (OSError, yaml.YAMLError):
        documents = list(documents)
    for document in documents:
        found |= dict.fromkeys(_secret_leaves(document))
    for path in sorted(GatewayPaths.of(home).directory.glob("*.json")):
        try:
            found |= dict.fromkeys(_envoy_secrets(orjson.loads(path.read_bytes()[:_LARGEST])))
        except (OSError, orjson.JSONDecodeError):
            continue
    return [value for value in found if value]


def _content(path: Path) -> Iterator[str]:
    try:
        if path.is_file() and path.stat().st_size < 64 << 10:
            yield path.read_text("utf-8", "replace").strip()
    except OSError:
        return


def _secret_leaves(node: Any, secret: bool = False) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _secret_leaves(value, secret or is_secret_name(str(name)))
    elif isinstance(node, list):
        for value in node:
            yield from _secret_leaves(value, secret)
    elif secret and isinstance(node, str):
        yield node.strip()


def _envoy_secrets(node: Any) -> Iterator[str]:
    """Tokens in headers that the gateway adds, and in the keys by which it knows its callers."""
    if isinstance(node, dict):
        header = node.get("header")
        if isinstance(header, dict) and str(header.get("key", "")).lower() not in _HARMLESS_HEADERS:
            yield str(header.get("value", ""))
        if node.get("name") == AUTH_FILTER and "typed_config" in node:
            for key in _map_keys(node["typed_config"]):
                yield from (part for part in _SPLIT.split(key) if len(part) > 12)
        for value in node.values():
            yield from _envoy_secrets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _envoy_secrets(value)


def _map_keys(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "map" and isinstance(value, dict):
                yield from (str(key) for key in value)
            yield from _map_keys(value)
    elif isinstance(node, list):
        for value in node:
            yield from _map_keys(value)


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _FILE_NAME.search(name) is None


def clean_document(node: Any, redactor: Redactor) -> Any:
    """A configuration or an object: values under names of secrets are left out, the rest is redacted."""
    if isinstance(node, dict):
        return {
            str(name): LEFT_OUT
            if is_secret_name(str(name)) and value not in (None, "")
            else clean_document(value, redactor)
            for name, value in node.items()
        }
    if isinstance(node, list):
        return [clean_document(value, redactor) for value in node]
    return _leaf(node, redactor)


def clean_envoy(node: Any, redactor: Redactor) -> Any:
    """Envoy's configuration dump. It leaves out private keys itself, and knows nothing of our tokens."""
    if isinstance(node, dict):
        if node.get("name") == AUTH_FILTER and "typed_config" in node:
            return {"name": AUTH_FILTER, "typed_config": LEFT_OUT}
        header = node.get("header")
        if isinstance(header, dict) and "key" in header and str(header["key"]).lower() not in _HARMLESS_HEADERS:
            return {**node, "header": {"key": header["key"], "value": LEFT_OUT}}
        return {
            redactor.text(str(name)): LEFT_OUT
            if name in ("inline_bytes", "private_key", "session_ticket_keys")
            else clean_envoy(value, redactor)
            for name, value in node.items()
        }
    if isinstance(node, list):
        return [clean_envoy(value, redactor) for value in node]
    return _leaf(node, redactor)


def _leaf(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.text(value)
    return value if value is None or isinstance(value, (bool, int, float)) else redactor.text(str(value))
