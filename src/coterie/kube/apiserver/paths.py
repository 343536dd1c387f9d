"""From a URL path and method to what is asked: verb, group, version, namespace, resource, name, sub-resource."""

from __future__ import annotations

from typing import NamedTuple

_VERB_OF_METHOD = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class RequestInfo(NamedTuple):
    """What a request is about. `resource` is empty for paths that are no API objects."""

    verb: str
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""
    """What follows the sub-resource `proxy`, with its slash; empty when nothing does."""


def parse(method: str, path: str) -> RequestInfo | None:
    """The target of a path below /api/v1 or /apis/<group>/<version>; None for every other path.

    The verb of a GET without a name is `list`; whether it is a `watch` only the query tells.
    """
    parts, beyond = path.split("/"), ""
    if "/proxy" in path and (found := _proxied(parts)) is not None:
        parts, beyond = found
    if len(parts) < 4 or parts[0] or not parts[-1]:
        return None
    if parts[1] == "api":
        group, version, rest = "", parts[2], parts[3:]
    elif parts[1] == "apis" and len(parts) >= 5:
        group, version, rest = parts[2], parts[3], parts[4:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and (len(rest) > 3 or rest[2] not in _NAMESPACE_SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
        if not namespace:
            return None
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if not resource or (len(rest) > 1 and not name) or len(rest) > 3:
        return None
    verb = _VERB_OF_METHOD.get(method)
    if verb is None:
        if method not in ("GET", "HEAD"):
            verb = method.lower()
        else:
            verb = "get" if name else "list"
    elif verb == "delete" and not name:
        verb = "deletecollection"
    return RequestInfo(verb, group, version, namespace, resource, name, subresource, beyond)


def parse_elsewhere(method: str, path: str) -> RequestInfo | None:
    """The target of a path of another server below /apis/<group>/<version>, which may be longer than any of ours: what follows
    a sub-resource belongs to it. None for the version itself. Raises ValueError for paths that servers read differently."""
    parts = path.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError("a path may have no empty parts, and none that is . or ..")
    length = 9 if len(parts) > 6 and parts[4] == "namespaces" else 7
    return parse(method, "/".join(parts[:length])) if len(parts) > 4 else None


def _proxied(parts: list[str]) -> tuple[list[str], str] | None:
    """The path up to `/api/v1/nodes/NAME/proxy` or `/api/v1/namespaces/NAMESPACE/(pods|services)/NAME/proxy`, and the rest."""
    if parts[:3] != ["", "api", "v1"]:
        return None
    length = 6 if parts[3] == "nodes" else 8
    if len(parts) <= length or parts[length - 1] != "proxy":
        return None
    if length == 8 and (parts[3] != "namespaces" or parts[5] not in ("pods", "services")):
        return None
    return parts[:length], "/" + "/".join(parts[length:])


_NAMESPACE_SUBRESOURCES = frozenset(("status", "finalize"))
