"""Which resources the server has, told as Kubernetes tells it: in pieces for old clients, in one list for new ones.

The documents are pure functions of the catalogue. `Discovery` keeps each one from its first request until the
catalogue changes (`invalidate`, when a custom resource definition comes or goes).

    /api  /api/v1  /apis  /apis/<group>  /apis/<group>/<version>       plain
    /api  /apis    with Accept: ...;as=APIGroupDiscoveryList           aggregated
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from coterie import __version__
from coterie.http.messages import Request, Response
from coterie.kube.api.errors import NotFound
from coterie.kube.api.resources import Resource, Subresource
from coterie.kube.apiserver import documents
from coterie.kube.apiserver.documents import Document

if TYPE_CHECKING:
    from coterie.kube.apiserver.aggregator import AggregatedVersion

Json = dict[str, Any]

KUBERNETES_MINOR = 36
_AGGREGATED = "APIGroupDiscoveryList"
_AGGREGATED_VERSIONS = ("v2", "v2beta1")

_GROUP_PRIORITY = {
    "apiregistration.k8s.io": 20000, "": 18000, "apps": 17800, "events.k8s.io": 17750,
    "authentication.k8s.io": 17700, "authorization.k8s.io": 17600, "autoscaling": 17500, "batch": 17400,
    "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100, "rbac.authorization.k8s.io": 17000,
    "storage.k8s.io": 16800, "apiextensions.k8s.io": 16700, "admissionregistration.k8s.io": 16700,
    "scheduling.k8s.io": 16600, "coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200,
    "flowcontrol.apiserver.k8s.io": 16100, "resource.k8s.io": 15900,
}  # fmt: skip
"""Clients look for an unqualified name (`deployments`) in this order of groups."""
_CUSTOM_PRIORITY = 1000
AUTOMANAGED = "kube-aggregator.kubernetes.io/automanaged"
"""The label of APIServices that the server itself makes."""


# ---- order ---------------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
_STAGES = {None: 0, "beta": 1, "alpha": 2}


def version_order(version: str) -> tuple[int, int, int, int, str]:
    """Sort key: v2, v1, v2beta1, v1beta2, v1beta1, v1alpha1, and then names that are no versions, by alphabet."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return 1, 0, 0, 0, version
    major, stage, minor = match.groups()
    return 0, _STAGES[stage], -int(major), -int(minor or 0), version


def group_order(group: str) -> tuple[int, str]:
    return -_GROUP_PRIORITY.get(group, _CUSTOM_PRIORITY), group


def group_versions(resources: Iterable[Resource], elsewhere: Sequence[AggregatedVersion] = ()) -> dict[str, list[str]]:
    """Versions by group, both in the order of preference; `elsewhere`: those of other servers."""
    found: dict[str, set[str]] = {}
    for resource in resources:
        found.setdefault(resource.group, set()).add(resource.version)
    if not elsewhere:
        return {group: sorted(found[group], key=version_order) for group in sorted(found, key=group_order)}
    priorities = {
        group: {version: place for place, version in enumerate(sorted(versions, key=version_order, reverse=True), 1)}
        for group, versions in found.items()
    }
    orders = {group: group_order(group)[0] for group in found}
    for each in elsewhere:
        priorities.setdefault(each.group, {})[each.version] = each.version_priority
        orders[each.group] = min(orders.get(each.group, 0), -each.group_priority)
    return {
        group: sorted(priorities[group], key=lambda version: (-priorities[group][version], version_order(version)))
        for group in sorted(priorities, key=lambda group: (orders[group], group))
    }


# ---- plain documents -----------------------------------------------------------------------------------------------


def api_versions(resources: Sequence[Resource]) -> Json:
    """`/api`."""
    versions = group_versions(resources).get("", [])
    return {"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": []}


def api_group_list(resources: Sequence[Resource], elsewhere: Sequence[AggregatedVersion] = ()) -> Json:
    """`/apis`."""
    groups = [_group(group, versions) for group, versions in group_versions(resources, elsewhere).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(resources: Sequence[Resource], group: str, elsewhere: Sequence[AggregatedVersion] = ()) -> Json | None:
    """`/apis/<group>`."""
    versions = group_versions(resources, elsewhere).get(group)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)} if group and versions else None


def _group(group: str, versions: Sequence[str]) -> Json:
    version_entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": version_entries, "preferredVersion": version_entries[0]}


def api_resource_list(resources: Sequence[Resource], group: str, version: str) -> Json | None:
    """`/api/v1` and `/apis/<group>/<version>`."""
    entries: list[Json] = []
    for resource in _of(resources, group, version):
        entry: Json = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs,
        }
        if resource.short_names:
            entry["shortNames"] = resource.short_names
        if resource.categories:
            entry["categories"] = resource.categories
        if not resource.virtual:
            entry["storageVersionHash"] = storage_version_hash(resource)
        entries.append(entry)
        entries.extend(_plain_subresource(resource, sub) for sub in sorted(resource.subresources, key=lambda s: s.name))
    if not entries:
        return None
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def storage_version_hash(resource: Resource) -> str:
    """By which clients see that the version in which objects are stored has changed; the same as Kubernetes computes."""
    group, version = resource.storage
    digest = hashlib.sha256(f"{group}/{version}/{resource.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _plain_subresource(resource: Resource, sub: Subresource) -> Json:
    entry: Json = {"name": f"{resource.plural}/{sub.name}", "singularName": "", "namespaced": resource.namespaced}
    if sub.kind and (sub.group, sub.version) != (resource.group, resource.version):
        entry |= {"group": sub.group, "version": sub.version}
    return entry | {"kind": sub.kind or resource.kind, "verbs": sub.verbs}


def _of(resources: Iterable[Resource], group: str, version: str) -> list[Resource]:
    wanted = (resource for resource in resources if resource.group == group and resource.version == version)
    return sorted(wanted, key=lambda resource: resource.plural)


# ---- aggregated documents ------------------------------------------------------------------------------------------


def aggregated(
    resources: Sequence[Resource], version: str, *, core: bool, elsewhere: Sequence[AggregatedVersion] = ()
) -> Json:
    """All resources of `/api` (core) or `/apis` in one list of `apidiscovery.k8s.io/<version>`."""
    known = group_versions(resources, elsewhere)
    groups = {group: versions for group, versions in known.items() if (group == "") is core}
    others = {(each.group, each.version): each for each in elsewhere}
    return {
        "kind": _AGGREGATED,
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
                "versions": [
                    _aggregated_version(resources, others.get((group, served)), group, served) for served in versions
                ],
            }
            for group, versions in groups.items()
        ],
    }


def _aggregated_version(
    resources: Sequence[Resource], other: AggregatedVersion | None, group: str, version: str
) -> Json:
    if other is None:
        found, fresh = [_aggregated_resource(resource) for resource in _of(resources, group, version)], True
    else:
        found, fresh = _resources_elsewhere(other), other.fresh
    return {"version": version, "resources": found, "freshness": "Current" if fresh else "Stale"}


def _resources_elsewhere(other: AggregatedVersion) -> list[Json]:
    """From the plain list of another server."""
    made: dict[str, Json] = {}
    for each in sorted(other.resources, key=lambda each: "/" in each.name):
        name, slash, sub = each.name.partition("/")
        kind = {"group": each.group or other.group, "version": each.version or other.version, "kind": each.kind}
        scope = "Namespaced" if each.namespaced else "Cluster"
        if slash:
            parent = made.setdefault(
                name,
                {"resource": name, "responseKind": None, "scope": scope, "singularResource": "", "verbs": None},
            )
            entry: Json = {"subresource": sub, "responseKind": kind, "verbs": each.verbs}
            parent.setdefault("subresources", []).append(entry)
            continue
        made[name] = {
            "resource": name, "responseKind": kind, "scope": scope, "singularResource": each.singular_name,
            "verbs": each.verbs,
        }  # fmt: skip
        if each.short_names:
            made[name]["shortNames"] = each.short_names
        if each.categories:
            made[name]["categories"] = each.categories
    return list(made.values())


def _aggregated_resource(resource: Resource) -> Json:
    entry: Json = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    }
    if resource.short_names:
        entry["shortNames"] = resource.short_names
    if resource.categories:
        entry["categories"] = resource.categories
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {
                    "group": sub.group if sub.kind else resource.group,
                    "version": sub.version if sub.kind else resource.version,
                    "kind": sub.kind or resource.kind,
                },
                "verbs": sub.verbs,
            }
            for sub in sorted(resource.subresources, key=lambda sub: sub.name)
        ]
    return entry


# ---- other ways in which the server describes itself ----------------------------------------------------------------


@lru_cache(maxsize=1)
def version_document() -> Json:
    """`/version`. Clients compare major and minor with their own; the build part names us."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": "1",
        "minor": str(KUBERNETES_MINOR),
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+coterie-{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{machine}",
    }


def apiservices(resources: Sequence[Resource], created: str = "") -> list[Json]:
    """One local `APIService` for each group-version; `created` is shown as their age."""
    custom = {(resource.group, resource.version) for resource in resources if resource.custom}
    made: list[Json] = []
    for group, versions in group_versions(resources).items():
        for place, version in enumerate(reversed(versions), start=1):
            name = f"{version}.{group}"
            own = (group, version) in custom
            metadata = {
                "name": name,
                "uid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"apiservices/{name}")),
                "labels": {AUTOMANAGED: "true" if own else "onstart"},
            }
            if created:
                metadata["creationTimestamp"] = created
            available = {
                "type": "Available",
                "status": "True",
                "reason": "Local",
                "message": "Local APIServices are always available",
            }
            if created:
                available["lastTransitionTime"] = created
            made.append(
                {
                    "apiVersion": "apiregistration.k8s.io/v1",
                    "kind": "APIService",
                    "metadata": metadata,
                    "spec": ({"group": group} if group else {})
                    | {
                        "version": version,
                        "groupPriorityMinimum": _GROUP_PRIORITY.get(group, _CUSTOM_PRIORITY),
                        "versionPriority": place,
                    },
                    "status": {"conditions": [available]},
                }
            )
    return sorted(made, key=lambda service: str(service["metadata"]["name"]))


# ---- serving -------------------------------------------------------------------------------------------------------


class Discovery:
    """Answers requests for the discovery paths; raises `ApiError` for what is not there."""

    def __init__(
        self,
        resources: Callable[[], Sequence[Resource]],
        elsewhere: Callable[[], Sequence[AggregatedVersion]] = tuple,
    ) -> None:
        self._resources = resources
        self._elsewhere = elsewhere
        self._kept: dict[tuple[str, str], Document] = {}

    def invalidate(self) -> None:
        """The catalogue changed."""
        self._kept.clear()

    def respond(self, request: Request) -> Response:
        documents.only_reads(request)
        path = request.path.rstrip("/")
        form = _wanted_form(request, path)
        found = self._kept.get((path, form))
        if found is None:
            content = self._build(path, form)
            if content is None:
                raise NotFound("the server could not find the requested resource")
            media = f"application/json;g=apidiscovery.k8s.io;v={form};as={_AGGREGATED}" if form else "application/json"
            found = self._kept[(path, form)] = documents.document(media, orjson.dumps(content) + b"\n")
        return documents.send(request, found, [("Cache-Control", "public")] if form else ())

    def _build(self, path: str, form: str) -> Json | None:
        resources, elsewhere = self._resources(), self._elsewhere()
        if elsewhere:
            taken = {(each.group, each.version) for each in elsewhere}
            resources = [each for each in resources if (each.group, each.version) not in taken]
        match path.split("/")[1:]:
            case ["api" | "apis" as root] if form:
                return aggregated(resources, form, core=root == "api", elsewhere=elsewhere)
            case ["api"]:
                return api_versions(resources)
            case ["api", version]:
                return api_resource_list(resources, "", version)
            case ["apis"]:
                return api_group_list(resources, elsewhere)
            case ["apis", group]:
                return api_group(resources, group, elsewhere)
            case ["apis", group, version] if group:
                return api_resource_list(resources, group, version)
        return None


def _wanted_form(request: Request, path: str) -> str:
    """The version of aggregated discovery that the client prefers, or nothing for the plain form."""
    accept = request.headers.get("accept", "")
    if path in ("/api", "/apis"):
        for wanted in documents.media_ranges(accept):
            named = (wanted.params.get("as"), wanted.params.get("g"))
            if named == (_AGGREGATED, "apidiscovery.k8s.io") and wanted.params.get("v") in _AGGREGATED_VERSIONS:
                return wanted.params["v"]
            if wanted.media_type in ("application/json", "*/*", "application/*") and "as" not in wanted.params:
                break
    documents.best_of(accept, ("application/json",))
    return ""
