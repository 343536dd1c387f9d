"""What a server that is not trusted may send: sizes, counts, depth and pace. Pure.

A client of its own control plane needs none of this. A client of another organisation's does: whatever the server sends,
memory stays bounded, an object that breaks a rule is left out by name, and the others are followed.

    transport   bytes of an answer, bytes and seconds of a line         ResponseLimits.body, .line, .line_seconds
    watch, list each object: size, nesting, identity                    object_fault
    reflector   objects and bytes that are kept, changes per second     KeptObjects, ResponseLimits.changes
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from coterie.base.rate_limited_log import RateLimit
from coterie.kube.api.meta import ObjectKey

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_LIST_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)
_COMMA = ord(",")
_ITEMS_DEPTH = 2
"""Items of a list stand in a list in an object."""
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.:]{0,251}[a-z0-9])?")
_VERSION = re.compile(r"[\x21-\x7e]{0,64}")
_UID = re.compile(r"[\x21-\x7e]{0,128}")
_CHANGES = RateLimit(burst=2000, per_second=200)
_SHOWN = 120
"""Characters of an unusable name that are repeated in a message."""
_HEAD_NAME = re.compile(rb'"name"\s*:\s*"([^"\\]{1,253})"')
_HEAD_NAMESPACE = re.compile(rb'"namespace"\s*:\s*"([^"\\]{1,63})"')


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    body: int = 8 << 20
    """Bytes of a whole answer: an object, a page of a list, an error."""
    object_bytes: int = 2 << 20
    """Bytes of one object. Kubernetes keeps none above 1.5 MiB."""
    objects: int = 10_000
    """Objects of one kind in one namespace."""
    kept_bytes: int = 128 << 20
    """Memory of all objects that are followed at one server, as `memory_of` estimates it."""
    depth: int = 64
    """Objects and lists inside each other."""
    pages: int = 200
    """Pages of one list."""
    line_seconds: float = 60.0
    """Seconds between the first and the last byte of a line."""
    changes: RateLimit = _CHANGES
    """Changes that are taken; a faster server is read more slowly."""
    wait: float = 60.0
    """Longest pause in seconds that the server may ask for (Retry-After)."""

    @property
    def line(self) -> int:
        return self.object_bytes + 4096

    @property
    def initial_events(self) -> int:
        """Events before the server says that all objects have come: each object, and some changes meanwhile."""
        return 2 * self.objects + 1000


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    """All values that are used as keys, versions or maps before anybody looks at the kind of the object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: dict[str, msgspec.Raw] | None = None
    status: dict[str, msgspec.Raw] | None = None


_named = msgspec.json.Decoder(_Named)


def depth_of(data: bytes, limit: int) -> int:
    """How deep the JSON text nests; counting stops above `limit`. Also for text that is not JSON."""
    if data.count(b"{") + data.count(b"[") <= limit:
        return 0  # it cannot be deeper than that
    depth = deepest = 0
    for token in _TOKENS.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > limit:
                break
        elif first in b"]}":
            depth -= 1
    return deepest


def memory_of(data: bytes) -> int:
    """About what a JSON text costs once it is decoded: small values cost many times their text."""
    return len(data) + 64 * (data.count(b"{") + data.count(b"[")) + 56 * data.count(b",")


def many_items(body: bytes, limit: int) -> bool:
    """Whether a list may have more than `limit` items. Decides before they are decoded, each of which costs memory."""
    if body.count(b",") <= limit:
        return False
    depth = commas = 0
    for token in _LIST_TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        elif first == _COMMA and depth <= _ITEMS_DEPTH:
            commas += 1
            if commas > limit:
                return True
    return False


def object_fault(data: bytes, namespace: str, limits: ResponseLimits) -> str:
    """Why this object of a list or watch of `namespace` is left out; empty: it is not."""
    if len(data) > limits.object_bytes:
        return f"it has more than {limits.object_bytes} bytes"
    if depth_of(data, limits.depth) > limits.depth:
        return f"it nests deeper than {limits.depth} levels"
    try:
        meta = _named.decode(data).metadata
    except (ValueError, RecursionError) as error:
        return f"it is not an object: {error}"
    if not _NAME.fullmatch(meta.name):
        return f"not a name: {printable(meta.name)!r}"
    if namespace and meta.namespace != namespace:
        return f"it is in namespace {printable(meta.namespace)!r}"
    if not _VERSION.fullmatch(meta.resource_version) or not _UID.fullmatch(meta.uid):
        return "its resourceVersion or uid is not valid"
    return ""


def usable_version(version: str) -> bool:
    """Whether a version may be sent back to the server in a query."""
    return _VERSION.fullmatch(version) is not None


def key_in_head(head: bytes) -> ObjectKey:
    """A name for an object of which only the first bytes were kept; empty where none stands there."""
    name, namespace = _HEAD_NAME.search(head), _HEAD_NAMESPACE.search(head)
    return ObjectKey(
        namespace[1].decode("utf-8", "replace") if namespace else "", name[1].decode("utf-8", "replace") if name else ""
    )


def printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN])


class ChangePace:
    """How fast changes are taken: `pause` says how long to wait before the next are read."""

    def __init__(self, rate: RateLimit, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at = now

    def pause(self, changes: int, now: float) -> float:
        self._left = min(self._rate.burst, self._left + (now - self._at) * self._rate.per_second) - changes
        self._at = now
        return max(0.0, -self._left / self._rate.per_second)


class KeptObjects:
    """The memory of the objects that are followed at one server. Shared by the informers of all kinds."""

    def __init__(self, limits: ResponseLimits) -> None:
        self.limits = limits
        self.bytes = 0

    def change(self, before: int, after: int) -> bool:
        """Whether an object of `after` bytes may take the place of one of `before` (0: none); counted if so."""
        total = self.bytes - before + after
        if after > before and total > self.limits.kept_bytes:
            return False
        self.bytes = total
        return True
