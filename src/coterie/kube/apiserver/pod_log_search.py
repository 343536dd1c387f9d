"""The logs of all pods of a namespace, also of those that are gone: `GET /api/v1/namespaces/NAMESPACE/pods/*/log?...`

Who may read the log of every pod of the namespace (`get pods/log` without a name) may ask. The agents of the namespace's nodes
search their files, and this control plane its own; what a query may say is the product's. A node that does not answer becomes a note in
the answer. An agent is believed only about the namespace that it was asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
import orjson

from coterie.base.log_pages import LogSearch, RawLogPage, merged
from coterie.http.messages import Response
from coterie.kube.api import errors
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.proxy import NodeProxy
from coterie.kube.apiserver.state.collection import Collection

MAX_NODES: Final = 256
_AT_ONCE: Final = 16
_SECONDS: Final = 15.0
_LONGEST_VALUE: Final = 16 << 10
_DEFAULT_LINES: Final = 1000


class AgentLogLine(msgspec.Struct, frozen=True):
    at: str
    text: str
    source: str
    task: str = ""
    pod: str = ""
    job: str = ""
    container: str = ""
    level: str = ""


class AgentLogPage(msgspec.Struct, frozen=True):
    lines: tuple[AgentLogLine, ...]
    frontier: str = ""
    notes: tuple[str, ...] = ()


class PodLogSearch:
    def __init__(
        self, nodes: Collection, proxy: NodeProxy, owner_label: str = "", local: LogSearch | None = None
    ) -> None:
        """`owner_label`: of a Node, which names the namespace that it belongs to. `local`: the control plane's own logs."""
        self._nodes = nodes
        self._proxy = proxy
        self._owner_label = owner_label
        self._local = local

    async def respond(self, call: ResourceRequest) -> Response:
        namespace = call.namespace
        params = {name: values[0] for name, values in call.request.params.items() if values}
        if any(len(value) > _LONGEST_VALUE for value in params.values()):
            raise errors.BadRequest("a parameter of the query is too long")
        limit = params.get("limit", "")
        lines = int(limit) if limit.isdecimal() and len(limit) < 9 else _DEFAULT_LINES
        skipped = set(params.pop("skipNodes", "").split(","))
        nodes = [each.load() for each in self._nodes if self._owner(each.labels) in ("", namespace)]
        nodes = [each for each in nodes if each["metadata"]["name"] not in skipped]
        places = asyncio.Semaphore(_AT_ONCE)

        async def ask(node: dict[str, Any]) -> RawLogPage:
            async with places:
                return await self._page_of(node, namespace, params)

        local = [self._local_page(namespace, params)] if self._local is not None else []
        pages = await asyncio.gather(*local, *(ask(node) for node in nodes[:MAX_NODES]))
        if len(nodes) > MAX_NODES:
            pages.append(RawLogPage(notes=(f"only {MAX_NODES} of {len(nodes)} nodes were asked",)))
        page = merged(pages, lines or _DEFAULT_LINES)
        return Response(200, orjson.dumps({"lines": page.lines, "cursor": page.frontier, "notes": page.notes}))

    def _owner(self, labels: dict[str, str] | None) -> str:
        return (labels or {}).get(self._owner_label, "") if self._owner_label else ""

    async def _local_page(self, namespace: str, params: dict[str, str]) -> RawLogPage:
        assert self._local is not None
        found = orjson.loads(await self._local.search(namespace, params))
        return RawLogPage(found["lines"], found["frontier"], found["notes"])

    async def _page_of(self, node: dict[str, Any], namespace: str, params: dict[str, str]) -> RawLogPage:
        name = node["metadata"]["name"]
        path = f"/podLogs/{quote(namespace)}?{urlencode(params)}"
        try:
            async with asyncio.timeout(_SECONDS):
                answer = await self._proxy.get_json(node, path, owner=namespace)
            page = msgspec.convert(answer, AgentLogPage)
        except errors.BadRequest:
            raise
        except (errors.ApiError, TimeoutError) as problem:
            return RawLogPage(notes=(f"node {name} was not searched: {problem or 'no answer in time'}",))
        except msgspec.ValidationError as problem:
            return RawLogPage(notes=(f"node {name} was not searched: its answer is not understood ({problem})",))
        lines = [{**msgspec.structs.asdict(line), "party": namespace, "node": name} for line in page.lines]
        return RawLogPage(lines, page.frontier, page.notes)
