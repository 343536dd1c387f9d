"""A small Kubernetes API in memory, as a handler: enough semantics to test clients and controllers against.

It keeps a log of events with revisions, so watches resume, expire (410) and stream initial events; deletes honour
finalizers, propagation and preconditions; writes honour resourceVersion. No validation, no admission, no defaults.
"""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import parse_qsl

import orjson

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.http.messages import Request, Response, Sink, UserInfo
from coterie.kube.api import errors
from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.selectors import parse_label_selector
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport

ADMIN = UserInfo("admin", ("system:masters",))


class FakeApi:
    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, watch_list: bool = True, aggregated: bool = True) -> None:
        self.clock = clock
        self.watch_list = watch_list
        self.aggregated = aggregated
        self.resources: list[Resource] = [r for r in BUILTIN if not r.virtual]
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.log: list[tuple[int, str, str, dict[str, Any], dict[str, Any] | None]] = []
        self.revision = 100
        self.compacted = 0
        self.watches: list[_Watch] = []
        self.requests: list[str] = []
        self.fail: dict[str, errors.ApiError] = {}
        self.uids = 0

    def client(self, **options: Any) -> Client:
        return Client(InProcessTransport(self.handle, ADMIN), clock=self.clock, **options)

    # Convenience for tests.

    def find(self, plural: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        return self.objects.get((plural, namespace, name))

    def names(self, plural: str, namespace: str = "") -> list[str]:
        return sorted(n for p, ns, n in self.objects if p == plural and ns == namespace)

    def seed(self, plural: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
        resource = next(r for r in self.resources if r.plural == plural)
        meta = {"name": name, **fields.pop("metadata", {})}
        if resource.namespaced:
            meta["namespace"] = namespace
        return self._create(
            resource, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **fields}
        )

    def cut_watches(self) -> None:
        for watch in list(self.watches):
            watch.sink.abort()

    def compact(self) -> None:
        self.compacted = self.revision
        self.log.clear()

    # The handler.

    def handle(self, request: Request) -> Response:
        line = f"{request.method} {request.path}"
        self.requests.append(line)
        try:
            if line in self.fail:
                raise self.fail[line]
            return self._route(request)
        except errors.ApiError as error:
            headers = [("Retry-After", str(error.retry_after))] if error.retry_after else []
            return Response(error.code, orjson.dumps(error.status()), headers=headers)

    def _route(self, request: Request) -> Response:
        parts = [p for p in request.path.split("/") if p]
        if parts[0] not in ("api", "apis"):
            raise errors.NotFound("the server could not find the requested resource")
        if len(parts) == 1:
            return self._discovery(parts[0], request)
        core = parts[0] == "api"
        group, version, rest = ("", parts[1], parts[2:]) if core else (parts[1], parts[2], parts[3:])
        if not rest:
            return self._group_version(group, version)
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        for resource in self.resources:
            if (resource.group, resource.version, resource.plural) == (group, version, rest[0]):
                name = rest[1] if len(rest) > 1 else ""
                return self._verb(request, resource, namespace, name, rest[2] if len(rest) > 2 else "")
        raise errors.NotFound("the server could not find the requested resource")

    def _verb(self, request: Request, resource: Resource, namespace: str, name: str, sub: str) -> Response:
        key = (resource.plural, namespace, name)
        method = request.method
        if method == "GET" and not name:
            return (
                self._watch(request, resource, namespace)
                if request.param("watch") == "true"
                else self._list(request, resource, namespace)
            )
        if method == "POST":
            body = orjson.loads(request.body)
            if namespace:
                body["metadata"]["namespace"] = namespace
            if request.param("dryRun"):
                return _json(body, 201)
            return _json(self._create(resource, body), 201)
        if method == "DELETE" and not name:
            self._delete_collection(request, resource, namespace)
            return _json({"kind": "Status", "status": "Success"})
        found = self.objects.get(key)
        if method == "PATCH" and found is None and "apply-patch" in request.headers.get("content-type", ""):
            return _json(self._create(resource, orjson.loads(request.body)), 201)
        if found is None:
            raise errors.NotFound(f'{resource.group_resource} "{name}" not found', name=name, kind=resource.plural)
        if method == "GET":
            return _json(_view(request, found))
        if method == "DELETE":
            options = orjson.loads(request.body or b"{}")
            return _json(self._delete(resource, key, options))
        body = orjson.loads(request.body)
        if method == "PATCH" and isinstance(body, dict):
            version = (body.get("metadata") or {}).get("resourceVersion")
            self._check_version(resource, found, version)
            uid = (body.get("metadata") or {}).get("uid")
            if uid and uid != found["metadata"]["uid"]:
                raise errors.Conflict("uid mismatch")
            body = merge(copy.deepcopy(found), body)
        elif method == "PATCH":
            raise errors.UnsupportedMediaType("json patch is not part of this fake")
        else:
            self._check_version(resource, found, body["metadata"].get("resourceVersion"))
        return _json(_view(request, self._update(resource, key, found, body, sub)))

    def _check_version(self, resource: Resource, found: dict[str, Any], version: str | None) -> None:
        if version and version != found["metadata"]["resourceVersion"]:
            raise errors.Conflict(
                f"Operation cannot be fulfilled on {resource.group_resource}: the object has been modified"
            )

    def _create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        meta = body.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{self.revision}"
        key = (resource.plural, meta.get("namespace", ""), meta["name"])
        if key in self.objects:
            raise errors.AlreadyExists(f'{resource.plural} "{meta["name"]}" already exists', name=meta["name"])
        self.uids += 1
        meta.setdefault("uid", f"uid-{self.uids}")
        meta["creationTimestamp"] = rfc3339(self.clock.now())
        if resource.plural == "namespaces":
            body.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            body.setdefault("status", {}).setdefault("phase", "Active")
        return self._record("ADDED", resource, key, body)

    def _update(
        self, resource: Resource, key: tuple[str, str, str], found: dict[str, Any], body: dict[str, Any], sub: str
    ) -> dict[str, Any]:
        if sub == "status":
            body = {**found, "status": body.get("status", {})}
        elif sub == "finalize":
            body = {**found, "spec": body.get("spec", {})}
        elif resource.subresource("status"):
            body = {**body, **({"status": found["status"]} if "status" in found else {})}
        body["metadata"] = {**body["metadata"], "uid": found["metadata"]["uid"]}
        if "deletionTimestamp" in found["metadata"]:
            body["metadata"]["deletionTimestamp"] = found["metadata"]["deletionTimestamp"]
        if orjson.dumps(body, option=orjson.OPT_SORT_KEYS) == orjson.dumps(found, option=orjson.OPT_SORT_KEYS):
            return found
        if self._removable(resource, body):
            return self._record("DELETED", resource, key, body)
        return self._record("MODIFIED", resource, key, body)

    def _removable(self, resource: Resource, obj: dict[str, Any]) -> bool:
        if "deletionTimestamp" not in obj["metadata"] or obj["metadata"].get("finalizers"):
            return False
        return not (resource.plural == "namespaces" and obj.get("spec", {}).get("finalizers"))

    def _delete(self, resource: Resource, key: tuple[str, str, str], options: dict[str, Any]) -> dict[str, Any]:
        found = self.objects[key]
        wanted = options.get("preconditions") or {}
        if wanted.get("uid") not in (None, found["metadata"]["uid"]):
            raise errors.Conflict("Precondition failed: UID")
        self._check_version(resource, found, wanted.get("resourceVersion"))
        body = copy.deepcopy(found)
        meta = body["metadata"]
        finalizers = [f for f in meta.get("finalizers") or [] if f not in ("orphan", "foregroundDeletion")]
        policy = options.get("propagationPolicy")
        if policy is None:  # the object's own finalizers decide
            finalizers = list(meta.get("finalizers") or [])
        elif policy == "Orphan":
            finalizers.append("orphan")
        elif policy == "Foreground":
            finalizers.append("foregroundDeletion")
        if finalizers != (meta.get("finalizers") or []):
            meta["finalizers"] = finalizers
        already = "deletionTimestamp" in meta
        meta.setdefault("deletionTimestamp", rfc3339(self.clock.now()))
        if resource.plural == "namespaces":
            body["status"] = {**body.get("status", {}), "phase": "Terminating"}
        if self._removable(resource, body):
            return self._record("DELETED", resource, key, body)
        return body if already and body == found else self._record("MODIFIED", resource, key, body)

    def _delete_collection(self, request: Request, resource: Resource, namespace: str) -> None:
        options = orjson.loads(request.body or b"{}")
        for key in [k for k in self.objects if k[0] == resource.plural and k[1] == namespace]:
            self._delete(resource, key, options)

    def _record(
        self, type_: str, resource: Resource, key: tuple[str, str, str], body: dict[str, Any]
    ) -> dict[str, Any]:
        self.revision += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.revision)
        previous = self.objects.get(key)
        if type_ == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = body
        self.log.append((self.revision, type_, resource.plural, body, previous))
        for watch in list(self.watches):
            watch.offer(type_, resource.plural, body, previous)
        return body

    def _selected(self, request: Request, resource: Resource, namespace: str) -> Any:
        labels = parse_label_selector(request.param("labelSelector"))
        wanted = dict(part.split("=", 1) for part in request.param("fieldSelector").split(",") if part)

        def matches(obj: dict[str, Any]) -> bool:
            meta = obj["metadata"]
            if namespace and meta.get("namespace") != namespace:
                return False
            if "metadata.name" in wanted and wanted["metadata.name"] != meta["name"]:
                return False
            return labels.matches(meta.get("labels"))

        return matches

    def _list(self, request: Request, resource: Resource, namespace: str) -> Response:
        matches = self._selected(request, resource, namespace)
        items = [o for (p, _, _), o in sorted(self.objects.items()) if p == resource.plural and matches(o)]
        start = int(request.param("continue") or 0)
        limit = int(request.param("limit") or 0)
        chosen = items[start : start + limit] if limit else items
        meta: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if limit and start + limit < len(items):
            meta |= {"continue": str(start + limit), "remainingItemCount": len(items) - start - limit}
        return _json(
            {
                "kind": resource.list_kind,
                "apiVersion": resource.api_version,
                "metadata": meta,
                "items": [_view(request, o) for o in chosen],
            }
        )

    def _watch(self, request: Request, resource: Resource, namespace: str) -> Response:
        initial = request.param("sendInitialEvents") == "true"
        if initial and not self.watch_list:
            raise errors.Invalid(
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            )
        after = int(request.param("resourceVersion") or 0)
        if after and after < self.compacted:
            raise errors.Expired(f"too old resource version: {after} ({self.compacted})")
        watch = _Watch(self, request, resource, self._selected(request, resource, namespace))
        if initial or not after:
            existing = [o for (p, _, _), o in sorted(self.objects.items()) if p == resource.plural and watch.matches(o)]
            watch.backlog = [_event("ADDED", _view(request, o)) for o in existing]
            if initial:
                mark = {
                    "kind": resource.kind,
                    "metadata": {
                        "resourceVersion": str(self.revision),
                        "annotations": {"k8s.io/initial-events-end": "true"},
                    },
                }
                watch.backlog.append(_event("BOOKMARK", mark))
        else:
            for revision, type_, plural, obj, previous in self.log:
                if revision > after:
                    watch.offer(type_, plural, obj, previous)
        return Response(stream=watch)

    # Discovery.

    def _discovery(self, root: str, request: Request) -> Response:
        mine = [r for r in self.resources if bool(r.group) == (root == "apis")]
        groups: dict[str, dict[str, list[Resource]]] = {}
        for r in mine:
            groups.setdefault(r.group, {}).setdefault(r.version, []).append(r)
        if self.aggregated and "APIGroupDiscoveryList" in request.headers.get("accept", ""):
            items = [
                {
                    "metadata": {"name": g},
                    "versions": [
                        {"version": v, "freshness": "Current", "resources": [_aggregated(r) for r in rs]}
                        for v, rs in vs.items()
                    ],
                }
                for g, vs in groups.items()
            ]
            return _json({"kind": "APIGroupDiscoveryList", "items": items})
        if root == "api":
            return _json({"kind": "APIVersions", "versions": ["v1"]})
        listed = [
            {"name": g, "versions": [{"version": v} for v in vs], "preferredVersion": {"version": next(reversed(vs))}}
            for g, vs in groups.items()
        ]
        return _json({"kind": "APIGroupList", "groups": listed})

    def _group_version(self, group: str, version: str) -> Response:
        out: list[dict[str, Any]] = []
        for r in self.resources:
            if (r.group, r.version) == (group, version):
                out.append(
                    {
                        "name": r.plural,
                        "singularName": r.singular,
                        "namespaced": r.namespaced,
                        "kind": r.kind,
                        "verbs": list(r.verbs),
                        "shortNames": list(r.short_names),
                        "categories": list(r.categories),
                    }
                )
                out += [
                    {
                        "name": f"{r.plural}/{s.name}",
                        "kind": s.kind or r.kind,
                        "namespaced": r.namespaced,
                        "verbs": list(s.verbs),
                    }
                    for s in r.subresources
                ]
        return _json({"kind": "APIResourceList", "resources": out})


class _Watch:
    def __init__(self, api: FakeApi, request: Request, resource: Resource, matches: Any) -> None:
        self.api, self.request, self.resource, self.matches = api, request, resource, matches
        self.backlog: list[bytes] = []
        self.sink: Sink = None  # type: ignore[assignment]

    def offer(self, type_: str, plural: str, obj: dict[str, Any], previous: dict[str, Any] | None) -> None:
        if plural != self.resource.plural:
            return
        now, before = self.matches(obj), previous is not None and self.matches(previous)
        if type_ == "MODIFIED" and now != before:
            type_ = "ADDED" if now else "DELETED"
        elif not now:
            return
        line = _event(type_, _view(self.request, obj))
        if self.sink is None:
            self.backlog.append(line)
        else:
            self.sink.write(line)

    def opened(self, sink: Sink) -> None:
        self.sink = sink
        self.api.watches.append(self)
        if self.backlog:
            sink.write(b"".join(self.backlog))

    def closed(self) -> None:
        if self in self.api.watches:
            self.api.watches.remove(self)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def _view(request: Request, obj: dict[str, Any]) -> dict[str, Any]:
    if "PartialObjectMetadata" in request.headers.get("accept", ""):
        return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return obj


def _aggregated(r: Resource) -> dict[str, Any]:
    return {
        "resource": r.plural,
        "responseKind": {"group": r.group, "version": r.version, "kind": r.kind},
        "scope": "Namespaced" if r.namespaced else "Cluster",
        "singularResource": r.singular,
        "verbs": list(r.verbs),
        "shortNames": list(r.short_names),
        "categories": list(r.categories),
        "subresources": [
            {"subresource": s.name, "verbs": list(s.verbs), "responseKind": {"kind": s.kind or r.kind}}
            for s in r.subresources
        ],
    }


def _event(type_: str, obj: dict[str, Any]) -> bytes:
    return orjson.dumps({"type": type_, "object": obj}) + b"\n"


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, orjson.dumps(value))


def query_of(text: str) -> dict[str, str]:
    return dict(parse_qsl(text))
