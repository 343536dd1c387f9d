"""An API server without sockets, and short words for talking to it."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest
from store_servers_kit import fresh_address, lasting_server, shared_store

from coterie.base.clock import VirtualClock
from coterie.http.messages import Peer, Request, Response, Stream, UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.store.memory import MemoryStore

Object = dict[str, Any]

ADMIN = UserInfo("admin", ("system:masters", "system:authenticated"))
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
CMS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Answer:
    """A finished response."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.content_type
        self.body = response.body

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["message"])

    @property
    def reason(self) -> str:
        return str(self.json["reason"])

    @property
    def causes(self) -> list[Object]:
        found: list[Object] = self.json.get("details", {}).get("causes", [])
        return found

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.json["items"]]

    def warnings(self) -> list[str]:
        return [value for name, value in self.headers if name == "Warning"]

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:600]!r}>"


class Watch:
    """The client's end of a watch: what was written so far, and how it ended."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._taken = 0
        self.chunks: list[bytes] = []
        self.pending = 0
        self.ended = ""
        stream.opened(self)

    def write(self, chunk: bytes) -> None:
        assert not self.ended, "written after the end"
        self.chunks.append(chunk)

    async def drain(self) -> None: ...

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def leave(self) -> None:
        """The client goes away."""
        self._end("left")

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            self._stream.closed()

    @property
    def all(self) -> list[Object]:
        return [orjson.loads(line) for line in b"".join(self.chunks).splitlines()]

    def take(self) -> list[Object]:
        """Events that were not taken before."""
        events = self.all
        fresh, self._taken = events[self._taken :], len(events)
        return fresh

    def told(self) -> list[tuple[str, str]]:
        """(type, name) of what was not taken before."""
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in self.take()]


class Api:
    def __init__(self, server: ApiServer, store: MemoryStore, clock: VirtualClock) -> None:
        self.server = server
        self.store = store
        self.clock = clock

    async def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: str | dict[str, Any] = "",
        headers: dict[str, str] | None = None,
        user: UserInfo | None = ADMIN,
        peer: Peer | None = None,
    ) -> Response:
        """`user` None: `peer` is authenticated."""
        path, _, inline = path.partition("?")
        text = query if isinstance(query, str) else urlencode(query, doseq=True)
        data = body if isinstance(body, bytes) else orjson.dumps(body) if body is not None else b""
        request = Request(method, path, text or inline, dict(headers or {}), data, peer, user)
        answer = self.server.handle(request)
        return await answer if inspect.isawaitable(answer) else answer

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return Answer(await self.raw(method, path, body, **more))

    async def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = await self.call(method, path, body, **more)
        assert answer.status < 300, answer
        return answer.json

    async def get(self, path: str, **more: Any) -> Any:
        return await self.ok("GET", path, **more)

    async def post(self, path: str, body: Any, **more: Any) -> Any:
        return await self.ok("POST", path, body, **more)

    async def put(self, path: str, body: Any, **more: Any) -> Any:
        return await self.ok("PUT", path, body, **more)

    async def patch(self, path: str, body: Any, kind: str = MERGE, **more: Any) -> Any:
        return await self.ok("PATCH", path, body, headers={"content-type": kind}, **more)

    async def refused(self, code: int, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        answer = await self.call(method, path, body, **more)
        assert answer.status == code, answer
        assert answer.json["kind"] == "Status" and answer.json["code"] == code, answer
        return answer

    async def apply(self, path: str, body: Any, manager: str = "me", force: bool = False, **more: Any) -> Answer:
        query = {"fieldManager": manager, **({"force": "true"} if force else {})}
        return await self.call("PATCH", path, body, query=query, headers={"content-type": APPLY}, **more)

    async def watch(self, path: str, **more: Any) -> Watch:
        path, _, inline = path.partition("?")
        response = await self.raw("GET", path, query=f"watch=true&{inline}" if inline else "watch=true", **more)
        assert response.stream is not None, Answer(response)
        return Watch(response.stream)

    async def config_map(self, name: str, namespace: str = "default", **more: Any) -> Any:
        return await self.post(f"/api/v1/namespaces/{namespace}/configmaps", config_map(name, **more))

    async def namespace(self, name: str) -> Any:
        return await self.post("/api/v1/namespaces", {"metadata": {"name": name}})

    @property
    def revision(self) -> int:
        return self.server.state.revision


IN_PROCESS = pytest.mark.skipif(
    bool(os.environ.get("COTERIE_API_STORE")), reason="counts on a store that decides in the same turn of the loop"
)


def _store(clock: VirtualClock) -> Any:
    """`COTERIE_API_STORE=postgresql` (or etcd, mysql): on a real one (`make stores`)."""
    kind = os.environ.get("COTERIE_API_STORE", "")
    return shared_store(fresh_address(kind, lasting_server(kind))) if kind else MemoryStore(clock=clock)


@asynccontextmanager
async def serving(
    settings: Settings | None = None, *, store: MemoryStore | None = None, clock: VirtualClock | None = None
) -> AsyncIterator[Api]:
    clock = clock or VirtualClock()
    given = store
    store = store or _store(clock)
    if given is None:
        await store.open()
    server = ApiServer(store, settings or Settings(), clock)
    await server.start()
    try:
        yield Api(server, store, clock)
    finally:
        await server.stop()
        if given is None:
            await store.close()


def config_map(name: str, labels: Object | None = None, **data: str) -> Object:
    metadata: Object = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str, *, labels: Object | None = None, resources: Object | None = None, **spec: Any) -> Object:
    container: Object = {"name": "main", "image": "busybox"}
    if resources:
        container["resources"] = resources
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "spec": {"containers": [container], **spec},
    }


def crd(
    plural: str = "widgets",
    kind: str = "Widget",
    *,
    group: str = "example.com",
    scope: str = "Namespaced",
    names: Object | None = None,
    versions: list[Object] | None = None,
) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "kind": kind, **(names or {})},
            "versions": versions or [version()],
        },
    }


def version(name: str = "v1", *, storage: bool = True, served: bool = True, schema: Object | None = None, **more: Any) -> Object:  # fmt: skip
    fallback = {"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}  # fmt: skip
    return {"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": schema or fallback}, **more}  # fmt: skip


def widget(name: str, api_version: str = "example.com/v1", kind: str = "Widget", **more: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}


WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
