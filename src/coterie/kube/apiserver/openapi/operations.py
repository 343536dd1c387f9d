"""What can be done with a resource over HTTP, as plain data that both OpenAPI versions are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie.kube.api.resources import Resource, Subresource
from coterie.kube.api.schema.builtin import definition_name
from coterie.kube.apiserver.openapi.definitions import META

PARAMETERS: dict[str, tuple[str, str]] = {
    "allowWatchBookmarks": (
        "boolean",
        "Send BOOKMARK events from time to time while watching: they hold only a resourceVersion, from which the watch can be resumed. "
        "Clients may not rely on an interval. Ignored when it is no watch.",
    ),
    "command": ("string", "The command to run and its arguments, one parameter for each; it is not run in a shell."),
    "container": ("string", "The container to use; by default the only one, or the one that the pod marks as default."),
    "continue": (
        "string",
        "The token from `metadata.continue` of the previous page of a list, with the same other parameters. A token that is too old is "
        "answered with 410 and, if possible, a token to go on with objects that may have changed since.",
    ),
    "dryRun": (
        "string",
        "With `All`, the request is checked in full and answered as usual, but nothing is stored. No other value is valid.",
    ),
    "fieldManager": (
        "string",
        "Name of the program or person that makes the change, up to 128 printable characters. Needed for apply patches; otherwise taken "
        "from the User-Agent.",
    ),
    "fieldSelector": (
        "string",
        "Take only objects whose fields match, as `metadata.name=x,spec.nodeName!=y`; each kind has its own fields.",
    ),
    "fieldValidation": (
        "string",
        "What to do about unknown or repeated fields: `Ignore` drops them, `Warn` (the default) drops them and sends a warning header for "
        "each, `Strict` refuses the request and names all of them.",
    ),
    "follow": ("boolean", "Keep sending the log as it grows, until the container ends."),
    "force": (
        "boolean",
        "Take over fields that other managers own instead of answering with a conflict. Only for apply patches.",
    ),
    "gracePeriodSeconds": (
        "integer",
        "Seconds until the object is deleted, not negative; 0 means at once. By default what the object or its kind says.",
    ),
    "ignoreStoreReadErrorWithClusterBreakingPotential": (
        "boolean",
        "Delete the object even if it can no longer be read from the store; its finalizers and dependents are not honoured then.",
    ),
    "insecureSkipTLSVerifyBackend": (
        "boolean",
        "Do not verify the certificate of the node that has the log; the log may then be forged.",
    ),
    "labelSelector": ("string", "Take only objects whose labels match, as `a=b,c!=d,e in (f,g),h,!i`. By default all."),
    "limit": (
        "integer",
        "Largest number of objects in one answer. If there are more, `metadata.continue` of the list has the token for the next page; all pages "
        "show the state at the time of the first. Not for watches.",
    ),
    "limitBytes": ("integer", "Largest number of bytes of log to send; the last line may be cut."),
    "name": ("string", "Name of the object."),
    "namespace": ("string", "Name of the namespace of the objects."),
    "orphanDependents": (
        "boolean",
        "Outdated form of propagationPolicy, which may not be given at the same time: whether dependents stay.",
    ),
    "path": ("string", "The path of the request to the other server."),
    "ports": ("string", "Numbers of the ports to forward; needed with WebSocket connections."),
    "pretty": (
        "string",
        "If `true`, the answer is indented. It is also for curl, Wget and browsers, unless this is `false`.",
    ),
    "previous": ("boolean", "Send the log of the container's previous run, which has ended."),
    "propagationPolicy": (
        "string",
        "What happens to dependents: `Orphan` leaves them, `Background` deletes them later, `Foreground` deletes them before the object. By "
        "default what the object's finalizers or its kind say.",
    ),
    "resourceVersion": (
        "string",
        "The state to read, or from which to watch. Not given: the newest state. `0`: any state. Otherwise see resourceVersionMatch.",
    ),
    "resourceVersionMatch": (
        "string",
        "How resourceVersion of a list is meant: `Exact` or `NotOlderThan`. Needed with sendInitialEvents, where it is `NotOlderThan`.",
    ),
    "sendInitialEvents": (
        "boolean",
        "Begin a watch with an ADDED event for each object that exists and then a BOOKMARK event with the annotation "
        "`k8s.io/initial-events-end`. Needs watch, allowWatchBookmarks and resourceVersionMatch.",
    ),
    "sinceSeconds": ("integer", "Send only what was logged in the last seconds. Not together with sinceTime."),
    "sinceTime": ("string", "Send only what was logged since that time (RFC 3339). Not together with sinceSeconds."),
    "stderr": ("boolean", "Attach the standard error stream."),
    "stdin": ("boolean", "Attach the standard input stream."),
    "stdout": ("boolean", "Attach the standard output stream."),
    "stream": ("string", "Which stream of the container to send: `All` (the default), `Stdout` or `Stderr`."),
    "tailLines": ("integer", "Send only so many lines from the end of the log, all by default."),
    "timeoutSeconds": ("integer", "End a list or watch after so many seconds, whether it is complete or not."),
    "timestamps": ("boolean", "Begin each line with its time (RFC 3339)."),
    "tty": ("boolean", "Give the command a terminal; its output and errors are then one stream."),
    "watch": ("boolean", "Send changes as they happen, as added, modified and deleted events, instead of a list."),
}
BODY = "The object, or what the request needs besides its parameters."

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
    "stream", "tailLines", "timestamps",
)  # fmt: skip

_PROXY_METHODS = ("delete", "get", "head", "options", "patch", "post", "put")

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
        if sub.name == "proxy":
            yield from (describe.proxy(sub, method, whole) for whole in (True, False) for method in _PROXY_METHODS)
            continue
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

    def proxy(self, sub: Subresource, method: str, whole: bool) -> OpenApiOperation:
        """`whole`: the path is a parameter of the query, otherwise it follows."""
        suffix = "Proxy" if whole else "ProxyWithPath"
        return OpenApiOperation(
            f"{self.one}/proxy" if whole else f"{self.one}/proxy/{{path}}", method,
            self._id("connect", f"{method.capitalize()}{self.scope}{suffix}"), self.tag, "connect",
            (sub.group, sub.version, sub.kind), f"pass {method.upper()} requests on to the {self.resource.kind} of that name",
            query=("path",), in_path=self.one_in if whole else (*self.one_in, "path"), consumes=("*/*",), produces=("*/*",),
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
