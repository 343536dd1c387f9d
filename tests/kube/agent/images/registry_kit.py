"""A registry in this process that can be made to misbehave, and a client that pushes to a real one."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from image_kit import ARCHITECTURE, config, sha

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class Content:
    """What a registry holds: blobs and manifests by digest, and tags."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    referrers: dict[str, bytes] = field(default_factory=dict)
    """Digest -> index; without any the registry is one from before OCI 1.1."""

    def add(self, layers: list[bytes], *tags: str, sizes: dict[int, int] | None = None, **settings: Any) -> str:
        """An image of these unpacked layers; `sizes` are lies about them. The manifest's digest."""
        about = config(layers, **settings)
        packed = [gzip.compress(layer, 1, mtime=0) for layer in layers]
        for blob in (about, *packed):
            self.blobs[sha(blob)] = blob
        parts = [
            {"digest": sha(blob), "size": (sizes or {}).get(index, len(blob))} for index, blob in enumerate(packed)
        ]
        body = {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": sha(about), "size": len(about)}}
        return self.manifest({**body, "layers": parts}, *tags)

    def manifest(self, body: dict[str, Any], *tags: str) -> str:
        raw = json.dumps(body).encode()
        for name in (sha(raw), *tags):
            self.manifests[name] = raw
        return sha(raw)

    def index(self, digest: str, *tags: str) -> str:
        """An index that names the image for this machine after one for another."""
        other = {"digest": "sha256:" + "0" * 64, "size": 2, "platform": {"os": "linux", "architecture": "s390x"}}
        own = {"digest": digest, "size": 2, "platform": {"os": "linux", "architecture": ARCHITECTURE}}
        return self.manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, own]}, *tags)


class Registry:
    """`misbehave(request)` may answer itself and return True."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.token = ""
        self.credentials = ""
        self.misbehave: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                registry.headers.append(dict(self.headers.items()))
                if not registry.misbehave(self):
                    registry.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Registry]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        given = request.headers.get("Authorization", "")
        if request.path.startswith("/token"):
            right = not self.credentials or given == self.credentials
            send(request, 200 if right else 401, json.dumps({"token": self.token}).encode())
        elif self.token and given != f"Bearer {self.token}":
            realm = f'Bearer realm="http://{self.host}/token",service="here",scope="repository:team/app:pull"'
            send(request, 401, b"{}", {"WWW-Authenticate": realm})
        elif found := re.fullmatch(r"/v2/(?:mirror/)?team/app/(manifests|blobs|referrers)/(.+)", request.path):
            kind, name = found.groups()
            held: dict[str, bytes] = getattr(self.content, kind)
            data = held.get(name)
            if data is None:
                send(request, 404, b'{"errors": [{"code": "UNKNOWN", "message": "not known here"}]}')
            elif begins := re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", "")):
                send(request, 206, data[int(begins[1]) :])
            else:
                send(request, 200, data)
        else:
            send(request, 404, b"")


def send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    request.send_response(status)
    for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        request.send_header(key, value)
    request.end_headers()
    request.wfile.write(body)


def push(host: str, repository: str, tag: str, content: Content) -> None:
    """To a real registry, as its protocol has it."""
    connection = http.client.HTTPConnection(host, timeout=20)

    def call(method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 300, (method, path, answer.status)
        return answer

    for digest, blob in content.blobs.items():
        place = call("POST", f"/v2/{repository}/blobs/uploads/").headers["Location"]
        path = place.removeprefix(f"http://{host}")
        call("PUT", f"{path}{'&' if '?' in path else '?'}digest={digest}", blob, **{"Content-Type": "application/octet-stream"})  # fmt: skip
    raw = content.manifests[tag]
    call("PUT", f"/v2/{repository}/manifests/{tag}", raw, **{"Content-Type": json.loads(raw)["mediaType"]})
    connection.close()
