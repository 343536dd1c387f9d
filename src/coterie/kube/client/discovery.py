"""What a server offers: discovery answers become `Resource` values, and names people type become resources.

The aggregated form (two requests) is asked for first; a server that does not know it answers the plain group list, and
then each group version is asked by itself. A group whose answer fails (an aggregated API that is down) is left out and
named in `RestMapper.failed`: who deletes or counts "everything" must know that it did not see everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import Any

import orjson

from coterie.kube.api.errors import ApiError
from coterie.kube.api.resources import Resource, Subresource
from coterie.kube.client.client import Client

_AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)


class UnknownResource(LookupError):
    """The server has no such resource."""


@dataclass(frozen=True)
class RestMapper:
    """All resources of a server. Groups and versions stand in the server's order of preference."""

    resources: tuple[Resource, ...]
    failed: tuple[str, ...] = ()
    """Group versions that could not be read."""
    _by_name: Mapping[str, list[Resource]] = field(init=False, repr=False, compare=False)
    _by_kind: Mapping[tuple[str, str], list[Resource]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, list[Resource]] = {}
        by_kind: dict[tuple[str, str], list[Resource]] = {}
        for resource in self.resources:
            for name in dict.fromkeys((resource.plural, resource.singular, *resource.short_names)):
                by_name.setdefault(name.lower(), []).append(resource)
            by_kind.setdefault((resource.group, resource.kind), []).append(resource)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_by_kind", by_kind)

    def find(self, name: str) -> Resource:
        """`deploy`, `deployments.apps`, `deployments.v1.apps`, `Deployment`: as kubectl reads it."""
        head, _, rest = name.lower().partition(".")
        candidates = self._by_name.get(head, [])
        if rest:
            version, _, group = rest.partition(".")
            # `deployments.v1.apps` names a version, `deployments.apps` does not; core objects are `pods.v1.`.
            exact = [r for r in candidates if r.version == version and r.group == group]
            candidates = exact or [r for r in candidates if r.group == rest]
        if not candidates:
            raise UnknownResource(f'the server doesn\'t have a resource type "{name}"')
        # A full name beats somebody else's short name; then the server's order decides.
        return next((r for r in candidates if head in (r.plural, r.singular)), candidates[0])

    def of_kind(self, api_version: str, kind: str) -> Resource:
        """The resource of an object's apiVersion and kind."""
        group, _, version = api_version.rpartition("/")
        for resource in self._by_kind.get((group, kind), ()):
            if resource.version == version:
                return resource
        raise UnknownResource(f'no matches for kind "{kind}" in version "{api_version}"')

    def of_group_kind(self, group: str, kind: str) -> Resource | None:
        """The resource in the server's preferred version."""
        found = self._by_kind.get((group, kind))
        return found[0] if found else None

    def in_category(self, category: str) -> list[Resource]:
        """`all` and the like: one version of each resource."""
        return [r for r in self.preferred() if category in r.categories]

    def preferred(self, *verbs: str) -> list[Resource]:
        """Each resource once, in the most preferred version that offers all the verbs."""
        chosen: dict[tuple[str, str], Resource] = {}
        for resource in self.resources:
            if all(verb in resource.verbs for verb in verbs):
                chosen.setdefault((resource.group, resource.plural), resource)
        return list(chosen.values())


async def discover(client: Client) -> RestMapper:
    core = await _get(client, "/api")
    groups = await _get(client, "/apis")
    if core.get("kind") == "APIGroupDiscoveryList" and groups.get("kind") == "APIGroupDiscoveryList":
        return _from_aggregated([*core.get("items", []), *groups.get("items", [])])
    versions = [("", version) for version in core.get("versions", [])]
    for group in groups.get("groups", []):
        preferred = group.get("preferredVersion", {}).get("version", "")
        listed = [entry["version"] for entry in group.get("versions", [])]
        versions += [(group["name"], v) for v in sorted(listed, key=lambda v: v != preferred)]
    resources: list[Resource] = []
    failed: list[str] = []
    for group, version in versions:
        try:
            document = await _get(client, f"/apis/{group}/{version}" if group else f"/api/{version}")
        except ApiError:
            failed.append(f"{group}/{version}" if group else version)
            continue
        resources += _from_plain(group, version, document.get("resources") or ())
    return RestMapper(tuple(resources), tuple(failed))


async def _get(client: Client, path: str) -> dict[str, Any]:
    reply = await client.raw("GET", path, headers={"Accept": _AGGREGATED})
    value = orjson.loads(reply.body)
    return value if isinstance(value, dict) else {}


def _from_aggregated(items: Iterable[Mapping[str, Any]]) -> RestMapper:
    resources: list[Resource] = []
    failed: list[str] = []
    for item in items:
        group = (item.get("metadata") or {}).get("name") or ""
        for entry in item.get("versions") or ():
            version = entry["version"]
            if entry.get("freshness") == "Stale":
                failed.append(f"{group}/{version}" if group else version)
            resources += [_aggregated_resource(group, version, r) for r in entry.get("resources") or ()]
    return RestMapper(tuple(resources), tuple(failed))


def _aggregated_resource(group: str, version: str, entry: Mapping[str, Any]) -> Resource:
    """Texts and verbs are shared between resources, and with the built-in ones: a collector keeps all of this."""
    group, version = intern(group), intern(version)
    kind = intern((entry.get("responseKind") or {}).get("kind") or "")
    return Resource(
        group=group,
        version=version,
        plural=intern(entry["resource"]),
        kind=kind,
        namespaced=entry.get("scope") == "Namespaced",
        singular=intern(entry.get("singularResource") or kind.lower()),
        short_names=_shared(entry.get("shortNames")),
        categories=_shared(entry.get("categories")),
        verbs=_shared(entry.get("verbs")),
        subresources=tuple(_aggregated_sub(sub) for sub in entry.get("subresources") or ()),
        storage=(group, version),
    )


def _shared(texts: Iterable[str] | None) -> tuple[str, ...]:
    return _one_tuple(tuple(map(intern, texts))) if texts else ()


@lru_cache(maxsize=256)
def _one_tuple(texts: tuple[str, ...]) -> tuple[str, ...]:
    return texts


def _aggregated_sub(entry: Mapping[str, Any]) -> Subresource:
    kind = entry.get("responseKind") or {}
    return _one_subresource(
        entry["subresource"],
        tuple(entry.get("verbs") or ()),
        kind.get("kind") or "",
        kind.get("group") or "",
        kind.get("version") or "",
    )


@lru_cache(maxsize=256)
def _one_subresource(name: str, verbs: tuple[str, ...], kind: str, group: str, version: str) -> Subresource:
    return Subresource(name, verbs, kind, group, version)


def _from_plain(group: str, version: str, entries: Iterable[Mapping[str, Any]]) -> list[Resource]:
    entries = list(entries)
    subs: dict[str, list[Subresource]] = {}
    for entry in entries:
        parent, slash, name = entry["name"].partition("/")
        if slash:
            sub = Subresource(
                name,
                tuple(entry.get("verbs") or ()),
                entry.get("kind") or "",
                entry.get("group") or "",
                entry.get("version") or "",
            )
            subs.setdefault(parent, []).append(sub)
    return [
        Resource(
            group=group,
            version=version,
            plural=entry["name"],
            kind=entry["kind"],
            namespaced=bool(entry.get("namespaced")),
            singular=entry.get("singularName") or entry["kind"].lower(),
            short_names=tuple(entry.get("shortNames") or ()),
            categories=tuple(entry.get("categories") or ()),
            verbs=tuple(entry.get("verbs") or ()),
            subresources=tuple(subs.get(entry["name"], ())),
            storage=(group, version),
        )
        for entry in entries
        if "/" not in entry["name"]
    ]
