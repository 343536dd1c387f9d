"""Values of objects that nobody outside may see, and objects without them. Pure.

secret_values    what `base/redaction.py` looks for in logs and texts, however it is encoded there
without_secrets  an object for somebody else's eyes: of a Secret and a ConfigMap only the names of the keys, of variables and
                 headers only the names, of everything else the text after redaction
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from coterie.base.redaction import SHORTEST_KNOWN_VALUE, Redactor
from coterie.kube.api.meta import Object

REMOVED: Final = "[removed]"
_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase)|pwd|secret(?!flow)|token|credential|key|cookie|authorization|dsn|connection", re.IGNORECASE
)
_SECRET_FIELDS: Final = frozenset(
    (
        "token",
        "tokens",
        "deployTokenStatuses",
        "sourceClientPrivateKey",
        "sourceClientCert",
        "requestHeadersToAdd",
        "caBundle",
        "encryptedInfo",
        "password",
        "accessKeySecret",
        "accessKeyID",
        "secretKey",
        "bearerToken",
    )
)
"""Fields of our kinds that hold a credential, wherever they stand."""
_PUBLIC_KEYS: Final = ("namespace", "ca.crt", "tls.crt")
"""Of Secrets: their values are in many places, and no secrets."""
_DROPPED_ANNOTATIONS: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
_DEEPEST: Final = 64
_MOST_LINES: Final = 100
_SHORTEST_PART: Final = 8
_LARGEST_TEXT: Final = 1 << 20


def is_secret_name(name: str) -> bool:
    """`key` alone names a label or a taint."""
    return name != "key" and _SECRET_NAME.search(name) is not None


def secret_values(objects: Iterable[Object]) -> tuple[str, ...]:
    """Everything in them that is a credential, by where it stands; each once."""
    found = dict.fromkeys(value for obj in objects for value in _values(obj))
    return tuple(each for each in found if len(each) >= SHORTEST_KNOWN_VALUE)


def _values(obj: Object) -> Iterator[str]:
    kind = obj.get("kind")
    if kind == "Secret":
        for name, text in _map(obj.get("data")).items():
            if name not in _PUBLIC_KEYS:
                yield from _decoded(text)
        for name, text in _map(obj.get("stringData")).items():
            if name not in _PUBLIC_KEYS and isinstance(text, str):
                yield text
                yield from _parts(text)
        return
    if kind == "ConfigMap":
        for name, text in _map(obj.get("data")).items():
            if is_secret_name(name) and isinstance(text, str):
                yield text
    yield from _credentials(obj, 0)


def _decoded(text: Any) -> Iterator[str]:
    if not isinstance(text, str):
        return
    try:
        value = base64.b64decode(text).decode()
        yield value
        yield from _parts(value)
    except (binascii.Error, UnicodeDecodeError, ValueError):
        yield text


def _parts(text: str) -> Iterator[str]:
    """Of a Secret that is a document, such as a registry's credentials or a file of variables: the values in it."""
    if text.lstrip()[:1] in ("{", "["):
        yield from _texts(_json(text), 0)
    elif "\n" in text.strip() or "=" in text or ": " in text:
        for line in text.splitlines()[:_MOST_LINES]:
            _, sign, value = line.partition("=" if "=" in line and ": " not in line else ": ")
            if sign and len(value := value.strip().strip("\"'")) >= _SHORTEST_PART:
                yield value


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _credentials(node: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    if isinstance(node, Mapping):
        name = node.get("name")
        if isinstance(name, str) and isinstance(node.get("value"), str) and is_secret_name(name):
            yield node["value"]
        for key, child in node.items():
            if key in _SECRET_FIELDS:
                yield from _texts(child, depth)
            elif key == "annotations":
                yield from _named(child, depth)
            elif isinstance(child, str) and child.lstrip()[:1] in ("{", "["):
                yield from _named(_json(child), depth)
            else:
                yield from _credentials(child, depth + 1)
    elif isinstance(node, (list, tuple)):
        for before, child in zip((None, *node), node, strict=False):
            if _is_secret_option(before) and isinstance(child, str):
                yield child
            yield from _credentials(child, depth + 1)


def _is_secret_option(word: Any) -> bool:
    """Of a command line: `--token`, whose value is the next word."""
    return isinstance(word, str) and word.startswith("-") and "=" not in word and is_secret_name(word)


def _json(text: str) -> Any:
    """Inputs of tasks are JSON in a text."""
    try:
        return orjson.loads(text) if len(text) <= _LARGEST_TEXT else None
    except orjson.JSONDecodeError:
        return None


def _named(node: Any, depth: int) -> Iterator[str]:
    """Of what has no schema of ours: texts whose key names a credential."""
    if depth > _DEEPEST:
        return
    if isinstance(node, Mapping):
        for key, child in node.items():
            if isinstance(child, str):
                if is_secret_name(key):
                    yield child
                elif child.lstrip()[:1] in ("{", "["):
                    yield from _named(_json(child), depth + 1)
            else:
                yield from _named(child, depth + 1)
    elif isinstance(node, (list, tuple)):
        for child in node:
            yield from _named(child, depth + 1)


def _texts(node: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for key, child in node.items():
            if key not in ("state", "lastTransitionTime", "name", "revision"):
                yield from _texts(child, depth + 1)
    elif isinstance(node, (list, tuple)):
        for child in node:
            yield from _texts(child, depth + 1)


def without_secrets(obj: Object, redactor: Redactor) -> Object:
    """A copy of an object that may leave the domain."""
    kind = obj.get("kind")
    if kind in ("Secret", "ConfigMap"):
        out: Object = {key: obj[key] for key in ("apiVersion", "kind", "type") if key in obj}
        out["metadata"] = _cleaned(obj.get("metadata") or {}, redactor, 0)
        for field in ("data", "binaryData", "stringData"):
            if obj.get(field):
                out[field] = dict.fromkeys(_map(obj[field]), REMOVED)
        return out
    cleaned: Object = _cleaned(obj, redactor, 0)
    return cleaned


def _cleaned(node: Any, redactor: Redactor, depth: int) -> Any:
    if depth > _DEEPEST:
        return REMOVED
    if isinstance(node, str):
        return redactor.text(node)
    if isinstance(node, Mapping):
        kept: Object = {}
        variable = isinstance(node.get("name"), str) and isinstance(node.get("value"), str)
        for key, child in node.items():
            if key == "managedFields" or key in _DROPPED_ANNOTATIONS:
                continue
            if key in _SECRET_FIELDS or (variable and key == "value"):
                kept[key] = REMOVED
            elif isinstance(child, str) and is_secret_name(key) and not key.endswith(("Name", "Ref", "/name")):
                kept[redactor.text(key)] = REMOVED
            else:
                kept[redactor.text(key)] = _cleaned(child, redactor, depth + 1)
        return kept
    if isinstance(node, (list, tuple)):
        return [
            REMOVED if _is_secret_option(before) else _cleaned(child, redactor, depth + 1)
            for before, child in zip((None, *node), node, strict=False)
        ]
    return node
