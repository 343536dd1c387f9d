"""What can be done with a resource over HTTP, as plain data that both OpenAPI versions are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie.kube.api.resources import Resource, Subresource
from coterie.kube.api.schema.builtin import definition_name
from coterie.kube.apiserver.openapi.definitions import META

PARAMETERS: dict[str, tuple[str, str]] = {
    "allowWatchBookmarks": ("boolean", "Send BOOKMARK events from time to time while watching."),
    "command": ("string", "The command to run and its arguments; it is not run in a shell."),
    "container": ("string", "The container to use; by default the only one or the one the pod marks as default."),
    "continue": ("string", "The token of the previous page of the list."),
    "dryRun": ("string", "With `All`, check the request in full but store nothing."),
    "fieldManager": ("string", "Name of the program or person that makes the change; mandatory for apply."),
    "fieldSelector": ("string", "Take only objects whose fields match."),
    "fieldValidation": ("string", "What to do about unknown or repeated fields: Ignore, Warn or Strict."),
    "follow": ("boolean", "Keep sending the log as it grows."),
    "force": ("boolean", "Take over fields that other managers own. Only for apply."),
    "gracePeriodSeconds": ("integer", "Seconds until the object is deleted; 0 means at once."),
    "ignoreStoreReadErrorWithClusterBreakingPotential": ("boolean", "Delete even what can no longer be read."),
    "insecureSkipTLSVerifyBackend": ("boolean", "Do not verify the certificate of the node that has the log."),
    "labelSelector": ("string", "Take only objects whose labels match."),
    "limit": ("integer", "Largest number of objects in one answer; ask on with `continue`."),
    "limitBytes": ("integer", "Largest number of bytes of log to send."),
    "name": ("string", "Name of the object."),
    "namespace": ("string", "Name of the namespace."),
    "orphanDependents": ("boolean", "Outdated form of propagationPolicy."),
    "ports": ("string", "Ports to forward."),
    "pretty": ("string", "If `true`, the answer is indented."),
    "previous": ("boolean", "Send the log of the container's previous run."),
    "propagationPolicy": ("string", "What happens to dependents: Orphan, Background or Foreground."),
    "resourceVersion": ("string", "The state to read or to watch from."),
    "resourceVersionMatch": ("string", "How resourceVersion is meant: Exact or NotOlderThan."),
    "sendInitialEvents": ("boolean", "Begin a watch with the objects that exist."),
    "sinceSeconds": ("integer", "Send only what was logged in the last seconds."),
    "sinceTime": ("string", "Send only what was logged since that time."),
    "stderr": ("boolean", "Attach the standard error stream."),
    "stdin": ("boolean", "Attach the standard input stream."),
    "stdout": ("boolean", "Attach the standard output stream."),
    "tailLines": ("integer", "Send only so many lines from the end."),
    "timeoutSeconds": ("integer", "End the request after so many seconds."),
    "timestamps": ("boolean", "Begin each line with its time."),
    "tty": ("boolean", "Give the command a terminal."),
    "watch": ("boolean", "Send changes as they happen instead of a list."),
}

_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_LIST = (
    "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
    "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
)  # fmt: skip
_DELETE = (
    "dryRun", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "orphanDependents",
    "propagationPolicy",
)  # fmt: skip
_DELETE_COLLECTION = tuple(sorted({*_DELETE, *_LIST} - {"allowWatchBookmarks", "watch"}))
_STREAMS = {
    "attach": ("container", "stderr", "stdin", "stdout", "tty"),
    "exec": ("command", "container", "stderr", "stdin", "stdout", "tty"),
    "portforward": ("ports",),
}
_LOG = (
    "container", "follow", "insecureSkipTLSVerifyBackend", "limitBytes", "previous", "sinceSeconds", "sinceTime",
    "tailLines", "timestamps",
)  # fmt: skip

PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"
TEXT = "text/plain"
WATCH = "application/json;stream=watch"

_GET, _LISTED, _POST, _PUT, _PATCH, _DEL = "get", "list", "create", "update", "patch", "delete"
_METHODS = {_GET: "get", _LISTED: "get", _POST: "post", _PUT: "put", _PATCH: "patch", _DEL: "delete"}
_VERB_NAMES = {_GET: "read", _LISTED: "list", _POST: "create", _PUT: "replace", _PATCH: "patch", _DEL: "delete"}
_ACTIONS = {_GET: "get", _LISTED: "list", _POST: "post", _PUT: "put", _PATCH: "patch", _DEL: "delete"}


@dataclass(frozen=True, slots=True)
class OpenApiOperation:
    path: str
    method: str
    id: str
    tag: str
    action: str
    kind: tuple[str, str, str]
    """Group, version and kind that the operation is about."""
    description: str
    query: tuple[str, ...] = ()
    in_path: tuple[str, ...] = ()
    body: str = ""
    """Name of the definition of the request body."""
    consumes: tuple[str, ...] = ()
    answer: str = ""
    """Name of the definition of the answer; nothing for plain text."""
    produces: tuple[str, ...] = (JSON,)
    codes: tuple[int, ...] = (200,)


def schema_name(resource: Resource, kind: str = "") -> str:
    """Name of the definition of a resource's kind (or its list): Go's name, or the group turned round."""
    kind = kind or resource.kind
    if not resource.custom:
        return definition_name(resource.group, resource.version, kind)
    return ".".join([*reversed(resource.group.split(".")), resource.version, kind])


def operations(resource: Resource) -> Iterator[OpenApiOperation]:
    """All operations on one resource and its sub-resources."""
    describe = _Describe(resource)
    for verb in (_LISTED, _POST):
        if verb in resource.verbs:
            yield describe.collection(verb)
    if "deletecollection" in resource.verbs:
        yield describe.delete_collection()
    for verb in (_GET, _PUT, _PATCH, _DEL):
        if verb in resource.verbs:
            yield describe.item(verb)
    for sub in resource.subresources:
        for verb in sub.verbs:
            yield describe.stream(sub, verb) if sub.name in _STREAMS else describe.subresource(sub, verb)
    if resource.namespaced and _LISTED in resource.verbs:
        yield describe.everywhere()


class _Describe:
    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        root = f"/apis/{resource.group}" if resource.group else "/api"
        self.all = f"{root}/{resource.version}/{resource.plural}"
        scope = "namespaces/{namespace}/" if resource.namespaced else ""
        self.many = f"{root}/{resource.version}/{scope}{resource.plural}"
        self.one = self.many + "/{name}"
        self.group = _camel(resource.group.removesuffix(".k8s.io") or "core") + _camel(resource.version)
        self.tag = f"{_tag(resource.group)}_{resource.version}"
        self.scope = ("Namespaced" if resource.namespaced else "") + resource.kind
        self.many_in = ("namespace",) if resource.namespaced else ()
        self.one_in = ("name", *self.many_in)
        self.kind = (resource.group, resource.version, resource.kind)
        self.object = schema_name(resource)
        self.list = schema_name(resource, resource.list_kind)

    def _id(self, word: str, rest: str) -> str:
        return f"{word}{self.group}{rest}"

    def _patch_types(self) -> tuple[str, ...]:
        return PATCH_TYPES if self.resource.custom else (*PATCH_TYPES, STRATEGIC)

    def collection(self, verb: str) -> OpenApiOperation:
        listing = verb == _LISTED
        return OpenApiOperation(
            self.many, _METHODS[verb], self._id(_VERB_NAMES[verb], self.scope), self.tag, _ACTIONS[verb], self.kind,
            f"list or watch objects of kind {self.resource.kind}" if listing else f"create a {self.resource.kind}",
            query=_LIST if listing else _WRITE,
            in_path=self.many_in,
            body="" if listing else self.object,
            consumes=() if listing else ("*/*",),
            answer=self.list if listing else self.object,
            produces=(JSON, WATCH) if listing else (JSON,),
            codes=(200,) if listing else (200, 201, 202),
        )  # fmt: skip

    def everywhere(self) -> OpenApiOperation:
        return OpenApiOperation(
            self.all, "get", self._id("list", f"{self.resource.kind}ForAllNamespaces"), self.tag, "list", self.kind,
            f"list or watch objects of kind {self.resource.kind} in all namespaces",
            query=_LIST, answer=self.list, produces=(JSON, WATCH),
        )  # fmt: skip

    def delete_collection(self) -> OpenApiOperation:
        return OpenApiOperation(
            self.many, "delete", self._id("delete", f"Collection{self.scope}"), self.tag, "deletecollection",
            self.kind, f"delete a collection of {self.resource.kind}",
            query=_DELETE_COLLECTION, in_path=self.many_in, body=META + "DeleteOptions", consumes=("*/*",),
            answer=META + "Status",
        )  # fmt: skip

    def item(self, verb: str, path: str = "", suffix: str = "", what: str = "", about: str = "") -> OpenApiOperation:
        """One of get, update, patch, delete on the object or, with the other arguments, on a part of it."""
        kind = what or self.object
        body = {_PUT: kind, _PATCH: META + "Patch", _DEL: META + "DeleteOptions"}.get(verb, "")
        deleted = self.object if self.resource.returns_deleted else META + "Status"
        return OpenApiOperation(
            path or self.one, _METHODS[verb], self._id(_VERB_NAMES[verb], self.scope + suffix), self.tag, _ACTIONS[verb],
            self.kind, f"{_VERB_NAMES[verb]} {about}the {self.resource.kind} of that name",
            query={_PUT: _WRITE, _PATCH: (*_WRITE, "force"), _DEL: _DELETE}.get(verb, ()),
            in_path=self.one_in,
            body=body,
            consumes=self._patch_types() if verb == _PATCH else ("*/*",) if body else (),
            answer=deleted if verb == _DEL else kind,
            codes={_PUT: (200, 201), _PATCH: (200, 201), _DEL: (200, 202)}.get(verb, (200,)),
        )  # fmt: skip

    def subresource(self, sub: Subresource, verb: str) -> OpenApiOperation:
        path, suffix = f"{self.one}/{sub.name}", _camel(sub.name)
        gvk = (sub.group, sub.version, sub.kind) if sub.kind else self.kind
        what = definition_name(*gvk) if sub.kind else self.object
        if sub.name == "log":
            return OpenApiOperation(
                path, "get", self._id("read", self.scope + suffix), self.tag, "get", gvk,
                f"read the log of the {self.resource.kind} of that name",
                query=_LOG, in_path=self.one_in, produces=(TEXT, JSON),
            )  # fmt: skip
        if verb == _POST:
            return OpenApiOperation(
                path, "post", self._id("create", self.scope + suffix), self.tag, "post", gvk,
                f"create {sub.name} of a {self.resource.kind}",
                query=_WRITE, in_path=self.one_in, body=what, consumes=("*/*",), answer=what, codes=(200, 201, 202),
            )  # fmt: skip
        made = self.item(verb, path, suffix, what, f"{sub.name} of ")
        return replace(made, kind=gvk)

    def stream(self, sub: Subresource, verb: str) -> OpenApiOperation:
        method = _METHODS[verb]
        return OpenApiOperation(
            f"{self.one}/{sub.name}", method,
            self._id("connect", f"{method.capitalize()}{self.scope}{_camel(sub.name)}"), self.tag, "connect",
            (sub.group, sub.version, sub.kind), f"open {sub.name} of the {self.resource.kind} of that name",
            query=_STREAMS[sub.name], in_path=self.one_in, consumes=("*/*",), produces=("*/*",),
        )  # fmt: skip


def _camel(text: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in text.replace("-", ".").replace("_", ".").split("."))


def _tag(group: str) -> str:
    short = group.removesuffix(".k8s.io") or "core"
    first, *rest = short.replace("-", ".").split(".")
    return first + "".join(part.capitalize() for part in rest)


def paths_of(
    doings: Iterable[OpenApiOperation],
    shown: Callable[[OpenApiOperation], dict[str, Any]],
    in_path: Mapping[str, dict[str, Any]],
    pretty: dict[str, Any],
) -> dict[str, Any]:
    """The `paths` of a document: each operation as the document's version shows it, under its path and method."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in doings:
        item = paths.setdefault(operation.path, {})
        item[operation.method] = shown(operation)
        item["parameters"] = [in_path[name] for name in operation.in_path] + [pretty]
    return dict(sorted(paths.items()))
