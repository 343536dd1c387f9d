"""Discovery and OpenAPI as real kubectl binaries read them: `explain`, `api-resources`, client-side validation."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import orjson
import pytest

from coterie.http.messages import Request, Response
from coterie.kube.api.errors import ApiError
from coterie.kube.api.resources import BUILTIN, SCALE, STATUS, Resource
from coterie.kube.apiserver.discovery import Discovery, version_document
from coterie.kube.apiserver.openapi import OpenApi

pytestmark = pytest.mark.conformance

CRD = {
    "metadata": {"name": "widgets.lab.io", "uid": "u", "generation": 1},
    "spec": {
        "group": "lab.io",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "schema": {
                    "openAPIV3Schema": {
                        "description": "A widget of the laboratory.",
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 0, "description": "How large it is."},
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "loose": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "maybe": {"type": "string", "nullable": True, "default": "x"},
                                    "parts": {
                                        "type": "array",
                                        "items": {"type": "object", "properties": {"n": {"type": "string"}}},
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
WIDGET = Resource(
    "lab.io", "v1", "widgets", "Widget", True, "widget", ("wd",), subresources=(SCALE, STATUS), custom=True
)  # fmt: skip


def _binaries() -> dict[str, str]:
    """kubectl by version; the dispatcher of the cloud tools keeps several beside itself."""
    found = shutil.which("kubectl")
    if not found:
        return {}
    folder = Path(os.path.realpath(found)).parent
    several = {path.name.removeprefix("kubectl."): str(path) for path in sorted(folder.glob("kubectl.1.*"))}
    if not several:
        return {"default": found}
    return {version: several[version] for version in {min(several), "1.32", max(several)} & several.keys()}


KUBECTL = _binaries()
needs_kubectl = pytest.mark.skipif(not KUBECTL, reason="kubectl is not installed")


class Server:
    """Just enough HTTP to let kubectl talk to the two responders."""

    def __init__(self) -> None:
        resources = (*BUILTIN, WIDGET)
        self.discovery = Discovery(lambda: resources)
        self.openapi = OpenApi(lambda: resources, lambda: [CRD])
        self.asked: list[str] = []

    async def answer(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.path}?{request.query}")
        try:
            if request.path == "/version":
                return Response(200, orjson.dumps(version_document()))
            if request.path.startswith("/openapi"):
                answer = self.openapi.respond(request)
                return answer if isinstance(answer, Response) else await answer
            return self.discovery.respond(request)
        except ApiError as error:
            return Response(error.code, orjson.dumps(error.status()))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:]) if k}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path, _, query = target.partition("?")
                answer = await self.answer(Request(method, path, query, headers, body))
                lines = [f"HTTP/1.1 {answer.status} X", f"Content-Type: {answer.content_type}"]
                lines += [
                    f"Date: {formatdate(usegmt=True)}",
                    f"Content-Length: {len(answer.body)}",
                    *(f"{k}: {v}" for k, v in answer.headers),
                ]
                writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + answer.body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    served, loop, ready = Server(), asyncio.new_event_loop(), threading.Event()
    address: list[str] = []
    stop = asyncio.Event()

    async def run() -> None:
        async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as listening:
            host, port = listening.sockets[0].getsockname()[:2]
            address.append(f"http://{host}:{port}")
            ready.set()
            await stop.wait()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def work() -> None:
        loop.run_until_complete(run())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    yield served, address[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def kubectl(
    binary: str, server: tuple[Server, str], home: Path, *arguments: str, given: str = ""
) -> tuple[int, str]:
    folder = home / Path(binary).name
    folder.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        binary, "--server", server[1], *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(given.encode()), 40)
    return process.returncode or 0, out.decode()


GOOD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\n"
ROWS = {
    "api-resources": (["api-resources"], "", 0, ["widgets", "lab.io/v1", "deploy", "apps/v1", "true", "Widget"]),
    "api-resources of one group": (["api-resources", "--api-group=lab.io", "-o", "name"], "", 0, ["widgets.lab.io"]),
    "api-versions": (["api-versions"], "", 0, ["autoscaling/v2", "lab.io/v1", "v1\n"]),
    "explain a kind": (["explain", "pod"], "", 0, ["KIND:       Pod", "VERSION:    v1", "spec\t<PodSpec>"]),
    "explain a field": (
        ["explain", "pod.spec.containers.resources"], "", 0, ["ResourceRequirements", "limits", "map[string]Quantity"],
    ),
    "explain recursively": (["explain", "deploy", "--recursive"], "", 0, ["maxSurge", "<IntOrString>", "-required-"]),
    "explain another group": (
        ["explain", "--api-version=autoscaling/v1", "hpa.spec"], "", 0, ["targetCPUUtilizationPercentage"],
    ),
    "explain a custom kind": (
        ["explain", "widget.spec"], "", 0, ["GROUP:      lab.io", "size\t<integer> -required-", "How large"],
    ),
    "explain by v2": (
        ["explain", "pod.spec.containers", "--output=plaintext-openapiv2"], "", 0, ["KIND:     Pod", "imagePullPolicy"],
    ),
    "explain a custom kind by v2": (
        ["explain", "wd.spec", "--output=plaintext-openapiv2"], "", 0, ["RESOURCE: spec <Object>", "size", "-required-"],
    ),
    "explain what is not there": (["explain", "pod.spec.nothing"], "", 1, ["does not exist"]),
    "client-side check": (
        ["create", "-f", "-", "--dry-run=client", "--validate=strict", "-o", "name"], GOOD, 0, ["configmap/a"],
    ),
}  # fmt: skip


@needs_kubectl
@pytest.mark.parametrize("version", sorted(KUBECTL))
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
async def test_kubectl_understands(
    row: tuple[list[str], str, int, list[str]], version: str, server: tuple[Server, str], home: Path
) -> None:
    arguments, given, code, words = row
    status, out = await kubectl(KUBECTL[version], server, home, *arguments, given=given)
    assert status == code, out
    for word in words:
        assert word in out


@needs_kubectl
@pytest.mark.parametrize("version", sorted(KUBECTL))
async def test_documents_are_fetched_once(version: str, server: tuple[Server, str], home: Path) -> None:
    """With the hash in the address kubectl keeps the document on disk for good."""
    await kubectl(KUBECTL[version], server, home, "explain", "roles.rbac.authorization.k8s.io")
    server[0].asked.clear()
    status, _ = await kubectl(KUBECTL[version], server, home, "explain", "roles.rbac.authorization.k8s.io")
    assert status == 0
    assert not any(asked.startswith("GET /openapi/v3/apis/rbac") for asked in server[0].asked)


@needs_kubectl
@pytest.mark.parametrize("version", sorted(KUBECTL))
@pytest.mark.parametrize(
    ("given", "path"),
    [
        (GOOD, "/api/v1/namespaces/default/configmaps"),
        ("apiVersion: lab.io/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 1}\n",
         "/apis/lab.io/v1/namespaces/default/widgets"),
    ],
    ids=["built-in", "custom"],
)  # fmt: skip
async def test_kubectl_leaves_checking_to_the_server(
    given: str, path: str, version: str, server: tuple[Server, str], home: Path
) -> None:
    """It does so only if it finds `fieldValidation` and `dryRun` among the parameters of the kind's PATCH."""
    server[0].asked.clear()
    arguments = ["create", "-f", "-", "--validate=strict", "--dry-run=server"]
    _, out = await kubectl(KUBECTL[version], server, home, *arguments, given=given)
    posts = [asked for asked in server[0].asked if asked.startswith("POST")]
    assert posts, out
    (post,) = posts
    assert post.startswith(f"POST {path}?")
    assert "dryRun=All" in post and "fieldValidation=Strict" in post
