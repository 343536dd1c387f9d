"""Objects and tables from the server: one by name or a whole list, page by page, and the changes after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from coterie.kube.api.errors import Gone, from_status
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.tables.ages import age
from coterie.kube.client.client import PAGE_SIZE, Client
from coterie.kube.client.requests import path, query
from coterie.kube.client.transport import Disconnected, TransportRequest

JSON = "application/json"
_PAUSE = 0.2
TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What is asked for; an empty `name` asks for all that the selectors let through."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    labels: str = ""
    fields: str = ""
    whole_rows: bool = False
    """Rows of a table bring the whole object with them instead of its metadata only."""

    @property
    def _include(self) -> str:
        return "Object" if self.whole_rows else ""

    def call(self, accept: str, continue_: str = "") -> TransportRequest:
        if self.name:
            where = path(self.resource, self.namespace, self.name)
            return TransportRequest("GET", where, query(includeObject=self._include), {"Accept": accept})
        asked = query(
            **{"continue": continue_},
            limit=PAGE_SIZE,
            labelSelector=self.labels,
            fieldSelector=self.fields,
            includeObject=self._include,
        )
        return TransportRequest("GET", path(self.resource, self.namespace), asked, {"Accept": accept})

    def watch_call(self, accept: str, version: str) -> TransportRequest:
        named = f"metadata.name={self.name}" if self.name else ""
        asked = query(
            watch=True,
            resourceVersion=version,
            allowWatchBookmarks=True,
            labelSelector=self.labels,
            fieldSelector=",".join(filter(None, (named, self.fields))),
            includeObject=self._include,
        )
        return TransportRequest("GET", path(self.resource, self.namespace), asked, {"Accept": accept}, stream=True)


async def fetch(client: Client, question: ListQuery, accept: str) -> Object:
    """A Table, a List or an object. Pages are put together; when the snapshot is gone between two, we start over."""
    key = "rows" if accept == TABLE else "items"
    while True:
        whole: Object = orjson.loads(await client.send(question.call(accept)))
        _complete(whole, question.resource)
        try:
            following = (whole.get("metadata") or {}).get("continue")
            while following:
                page = orjson.loads(await client.send(question.call(accept, following)))
                _complete(page, question.resource)
                whole.setdefault(key, []).extend(page.get(key) or ())
                following = (page.get("metadata") or {}).get("continue")
        except Gone:
            continue
        return whole


def _complete(answer: Object, resource: Resource) -> None:
    """Items of a list say neither kind nor apiVersion; whoever prints one alone needs them."""
    if answer.get("kind") == "Table" or not isinstance(answer.get("items"), list):
        return
    for item in answer["items"]:
        item.setdefault("apiVersion", resource.api_version)
        item.setdefault("kind", resource.kind)


def as_table(answer: Object, now: float) -> Object:
    """What the server sent as a table. A server that knows no tables sends objects; they get a name and an age."""
    if answer.get("kind") == "Table":
        return answer
    objects = answer.get("items", [answer])
    columns = [{"name": "Name", "type": "string", "format": "name"}, {"name": "Age", "type": "string"}]
    rows = [
        {"cells": [o["metadata"].get("name"), age(o["metadata"].get("creationTimestamp"), now)], "object": o}
        for o in objects
    ]
    return {"kind": "Table", "metadata": answer.get("metadata") or {}, "columnDefinitions": columns, "rows": rows}


async def changes(client: Client, question: ListQuery, accept: str, version: str) -> AsyncIterator[tuple[str, Any]]:
    """(type, object or Table) of each change after `version`, without end; raises Gone when that is too long ago.

    A server ends watches from time to time; we then go on from the last version seen.
    """
    while True:
        stream = await client.stream(question.watch_call(accept, version))
        silent = True
        try:
            while lines := await stream.read():
                silent = False
                for line in lines:
                    kind, obj = _event(line)
                    version = _version(obj) or version
                    if kind != "BOOKMARK":
                        yield kind, obj
        except Disconnected:
            pass
        finally:
            await stream.close()
        if silent:
            # A server that ends every watch at once must not be asked without pause.
            await client.clock.sleep(_PAUSE)


def _event(line: bytes) -> tuple[str, Any]:
    event = orjson.loads(line)
    if event["type"] == "ERROR":
        raise from_status(event["object"])
    return event["type"], event["object"]


def _version(obj: Object) -> str:
    """A table's rows carry the version of their object; a bookmark's table has it in its own metadata."""
    rows = obj.get("rows") if obj.get("kind") == "Table" else None
    source = (rows[-1].get("object") or {}) if rows else obj
    return str((source.get("metadata") or {}).get("resourceVersion") or "")
